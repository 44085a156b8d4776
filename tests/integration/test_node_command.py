"""`stockpot node` as an operator types it: help, --check and mistakes."""

import fcntl
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.store_node import MIB, NodeProcesses


def node(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stockpot", "node", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ}, timeout=60)


SMALL = ("--arena-bytes=4MiB", "--value-bytes-max=1MiB", "--segment-bytes=1MiB", "--disk-bytes-max=4MiB")


def test_help_says_where_settings_come_from_and_what_exit_codes_mean() -> None:
    run = node("--help")
    assert run.returncode == 0
    for words in ("settings, later wins", "STOCKPOT_NODE_ARENA_BYTES", "SIGTERM", "exit codes:", "--check"):
        assert words in run.stdout


def test_check_prints_a_config_file_with_where_each_value_is_from(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text('disk_bytes_max = "8MiB"\nnode_id = "shelf-3"\n')
    run = node(
        "--check",
        f"--config={tmp_path / 'node.toml'}",
        *SMALL[:3],
        f"--data-dir={tmp_path / 'data'}",
        STOCKPOT_NODE_METRICS_PORT="0",
        STOCKPOT_NODE_PORT="tcp://10.0.0.1:7000",
    )
    assert run.returncode == 0, run.stdout + run.stderr
    *settings, _ = run.stdout.split("warning:")[0].splitlines(keepends=True)
    assert f"disk_bytes_max = 8388608  # 8 MiB, file {tmp_path / 'node.toml'}\n" in settings
    assert "arena_bytes = 4194304  # 4 MiB, flag --arena-bytes\n" in settings
    assert "metrics_port = 0  # environment STOCKPOT_NODE_METRICS_PORT\n" in settings
    assert "STOCKPOT_NODE_PORT is set in the environment, but no setting has that name" in run.stdout
    assert run.stdout.endswith("0 problems\n")
    assert not (tmp_path / "data").exists()
    again = tomllib.loads("".join(settings))
    assert (again["arena_bytes"], again["node_id"]) == (4 * MIB, "shelf-3")


def test_check_finds_all_that_this_machine_lacks(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "file").touch()
    lock = os.open(tmp_path / "data" / "LOCK", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = node(
            "--check",
            f"--listen=127.0.0.1:{port}",
            f"--metrics-port={port}",
            f"--local-socket={tmp_path / 'file'}",
            f"--ready-file={tmp_path / 'nowhere' / 'ready'}",
            f"--data-dir={tmp_path / 'data'}",
            "--arena-bytes=1024TiB",
            "--require-hugepages",
            "--disk-bytes-max=1024TiB",
        )
    os.close(lock)
    assert run.returncode == 1
    problems = [line for line in run.stdout.splitlines() if line.startswith("problem: ")]
    for words in (
        "listen: cannot listen on 127.0.0.1",
        "metrics_port: cannot listen on",
        "the port of listen too",
        "exists and is no socket",
        "there is no folder",
        "nr_hugepages",
        "is in use by another node",
        "lower it, or make room",
        "open files",
    ):
        assert any(words in problem for problem in problems), words
    assert run.stdout.endswith(f"{len(problems)} problems\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen=nowhere",), "listen is 'nowhere', expected HOST:PORT"),
        (("--lease-ttl-ms=70000",), "above lease_ttl_ms_max"),
        (("--node-id=a b",), "node_id is 'a b'"),
        (("--arena-bytes=1GB",), "expected bytes as in 1073741824 or 1GiB"),
        (("--log-format=xml",), "log_format"),
        (("--config=/nowhere.toml",), "cannot read the config file /nowhere.toml"),
        (("--data-dir=/tmp", "--segment-bytes=5000"), "expected a multiple of 4096"),
    ],
)
@pytest.mark.parametrize("check", [(), ("--check",)])
def test_settings_that_cannot_work_are_one_line_and_exit_code_2(
    arguments: tuple[str, ...], words: str, check: tuple[str, ...]
) -> None:
    run = node(*check, *arguments)
    assert run.returncode == 2
    assert words in run.stderr
    assert run.stderr.splitlines()[-1].startswith("stockpot node: ")
    assert "Traceback" not in run.stderr


def test_unknown_flags_are_refused() -> None:
    run = node("--arena-byte=1")
    assert run.returncode == 2
    assert "unrecognized arguments: --arena-byte=1" in run.stderr


def test_a_ready_file_that_cannot_be_written_ends_the_node_in_words(nodes: NodeProcesses, tmp_path: Path) -> None:
    run = node(*SMALL, f"--ready-file={tmp_path / 'nowhere' / 'ready'}")
    assert run.returncode == 2
    assert f"cannot write the ready file {tmp_path}" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr
