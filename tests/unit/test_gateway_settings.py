"""Where a setting comes from, and which ones are refused."""

from pathlib import Path

import pytest

from gateway.settings import read_settings
from kvstore.core.errors import ConfigError


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('workers = ["a:1"]\nnodes = ["n:1"]\nport = 1\nturn_retries = 7\nshared_prefix = true\n')
    environ = {
        "STOCKPOT_GATEWAY_WORKERS": "b:1, c:2,",
        "STOCKPOT_GATEWAY_PORT": "2",
        "STOCKPOT_GATEWAY_API_KEYS": "k1,k2",
        "OTHER": "x",
    }
    settings = read_settings(["--config", str(file), "--port", "3", "--api-keys", "k3"], environ)
    assert settings.workers == ["b:1", "c:2"]
    assert settings.nodes == ["n:1"]
    assert (settings.port, settings.turn_retries, settings.shared_prefix) == (3, 7, True)
    assert settings.api_keys == ["k3"]
    assert "k3" not in repr(settings.for_log())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--workers", ""], "no workers"),
        ([], "workers"),
        (["--workers", "host"], "bad address"),
        (["--workers", "host:0"], "bad address"),
        (["--workers", "a:1,a:1"], "twice"),
        (["--workers", "a:1", "--nodes", ":5"], "bad address"),
        (["--workers", "a:1", "--port", "70000"], "port"),
        (["--workers", "a:1", "--body-bytes-max", "0"], "body_bytes_max"),
        (["--workers", "a:1", "--turn-retries", "-1"], "turn_retries"),
        (["--workers", "a:1", "--turn-deadline-s", "x"], "turn_deadline_s"),
        (["--workers", "a:1", "--host", "::"], "api_keys"),
        (["--workers", "a:1", "--host", "example.org"], "api_keys"),
    ],
)
def test_what_cannot_be_is_refused_in_words(flags: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_settings(flags, {})


def test_without_keys_only_loopback_is_served() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert read_settings(["--workers", "a:1", "--host", host], {}).host == host
    assert read_settings(["--workers", "a:1", "--host", "::", "--api-keys", "k"], {}).host == "::"
