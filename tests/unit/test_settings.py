"""Where settings come from, for every process alike."""

from pathlib import Path

import msgspec
import pytest

from engine.worker.settings import WorkerSettings
from gateway.settings import GatewaySettings
from kvstore.core.config import read_settings
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
