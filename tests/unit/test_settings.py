"""Where settings come from, for every process alike."""

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from engine.worker.settings import WorkerSettings
from gateway.settings import GatewaySettings
from kvstore.core.config import SECRET, Program, read_command_line, read_settings, readable_size
from kvstore.core.errors import ConfigError
from kvstore.node.settings import NodeSettings


def read(kind: type[msgspec.Struct], arguments: list[str], environ: dict[str, str] | None = None) -> msgspec.Struct:
    return read_settings(
        kind, program="p", description="d", env_prefix="X_", arguments=arguments, environ=environ or {}
    )


@pytest.mark.parametrize("kind", [NodeSettings, WorkerSettings, GatewaySettings])
def test_every_setting_is_described(kind: type[msgspec.Struct], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(kind, ["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for field in msgspec.structs.fields(kind):
        assert f"--{field.name.replace('_', '-')}" in printed


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('model = "a.gguf"\nslots = 3\nthreads = 1\nkv_type = "f16"\n')
    environ = {"X_SLOTS": "5", "X_THREADS": "2"}
    settings = read(WorkerSettings, ["--config", str(file), "--threads", "4"], environ)
    assert settings == WorkerSettings(model="a.gguf", slots=5, threads=4, kv_type="f16")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("modle = 'x'", "unknown setting modle; known are .*model"),
        ("model = 'x'\nslots = 'many'", "bad setting: .*slots"),
        ("slots = 3", "bad setting: .*model"),
        ("slots =", "cannot read the config file"),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_words(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read(WorkerSettings, ["--config", str(file)])


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/worker\.toml"):
        read(WorkerSettings, ["--config", "/nowhere/worker.toml"])


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('arena_bytes = "2GiB"\n')
    assert read(NodeSettings, [], {"X_CONFIG": str(file)}) == NodeSettings(arena_bytes=2 << 30)


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("8192", 8192), ("64KiB", 65536), ("3 MiB", 3 << 20), ("1GiB", 1 << 30), ("2TiB", 2 << 40)]
)
def test_sizes_may_have_a_unit(text: str, n_bytes: int) -> None:
    assert read(NodeSettings, ["--disk-bytes-max", text]) == NodeSettings(disk_bytes_max=n_bytes)


@pytest.mark.parametrize("text", ["1GB", "1.5GiB", "GiB", "", "-1MiB"])
def test_other_units_are_refused_with_where_they_are_from(text: str) -> None:
    with pytest.raises(ConfigError, match=r"arena_bytes is .* \(environment X_ARENA_BYTES\), expected bytes as in"):
        read(NodeSettings, [], {"X_ARENA_BYTES": text})


def test_a_value_out_of_range_says_where_it_is_from() -> None:
    with pytest.raises(ConfigError, match=r"metrics_port.* \(flag --metrics-port\)"):
        read(NodeSettings, ["--metrics-port", "99999"])


def test_each_value_says_where_it_is_from_and_foreign_variables_are_named(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("items_max = 8\n")
    environ = {"X_LEASE_TTL_MS": "7", "X_SERVICE_HOST": "10.0.0.1", "HOME": "/"}
    reading = read_command_line(
        NodeSettings, Program("p", "d", "X_"), ["--config", str(file), "--arena-bytes", "1MiB"], environ
    )
    assert reading.origins["arena_bytes"] == "flag --arena-bytes"
    assert reading.origins["lease_ttl_ms"] == "environment X_LEASE_TTL_MS"
    assert reading.origins["items_max"] == f"file {file}"
    assert reading.origins["listen"] == "default"
    assert reading.variables_unknown == ["X_SERVICE_HOST"]


class WithSecret(msgspec.Struct, frozen=True):
    """A process that has one."""

    token: Annotated[str, msgspec.Meta(description="shared", extra_json_schema=SECRET)] = ""


def test_secrets_are_not_shown() -> None:
    reading = read_command_line(WithSecret, Program("p", "d", "X_"), ["--token", "hunter2"], {})
    assert reading.settings.token == "hunter2"
    assert reading.shown() == {"token": "(hidden)"}


@pytest.mark.parametrize(("n_bytes", "text"), [(0, "0"), (1023, "1023"), (1024, "1 KiB"), (3 << 29, "1.5 GiB")])
def test_sizes_are_shown_with_their_unit(n_bytes: int, text: str) -> None:
    assert readable_size(n_bytes) == text
