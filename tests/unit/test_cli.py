"""The command line: each mistake is one line on stderr and exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.core.errors import ConfigError
from stockpot.model import bundled_model, resolve_model


def stockpot(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stockpot", *arguments], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "No such command 'nope'"),
        (("demo", "--quick", "--full"), "--quick and --full exclude each other"),
        (("demo", "--model", "/does/not/exist.gguf"), "cannot read the model /does/not/exist.gguf"),
        (("demo", "--model", __file__), "is no GGUF file"),
        (("demo", "--report", "/does/not/exist/report.html"), "there is no folder /does/not/exist"),
        (("up", "--workers", "0"), "--workers"),
        (("up", "--port", "http"), "--port"),
        (("bench", "store", "--nope"), "--nope"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    run = stockpot(*arguments)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith("stockpot: ")
    assert message in run.stderr
    assert len(run.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [(), ("bench",)])
def test_without_a_command_the_help_is_shown(arguments: tuple[str, ...]) -> None:
    run = stockpot(*arguments)
    assert run.returncode == 2
    assert "Usage: stockpot" in run.stdout + run.stderr


@pytest.mark.parametrize("command", ["demo", "up", "version"])
def test_each_command_has_help(command: str) -> None:
    run = stockpot(command, "--help")
    assert run.returncode == 0
    assert f"Usage: stockpot {command}" in run.stdout


def test_version() -> None:
    run = stockpot("version")
    assert run.returncode == 0
    assert run.stdout.strip() == "0.1.0"


def test_the_bundled_model_is_taken_when_none_is_named() -> None:
    assert resolve_model(None) == bundled_model().resolve()


def test_an_empty_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ConfigError, match="is no GGUF file"):
        resolve_model(tmp_path / "empty.gguf")
