"""Processes that live and end together, with small stand-ins for the real ones."""

import asyncio
import os
import signal
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kvstore.core.errors import UnavailableError
from stockpot.ports import LOOPBACK, free_ports
from stockpot.process import Command, ProcessDiedError
from stockpot.supervisor import Patience, supervised

STAND_IN = Path(__file__).with_name("stand_in.py")
GONE_DEADLINE_S = 20.0


def stand_in(name: str, *flags: str) -> Command:
    return Command(name, (str(STAND_IN), *flags))


def is_running(pid: int) -> bool:
    """Whether the process does anything: a zombie that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_DEADLINE_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.02)


async def test_all_end_with_the_block(tmp_path: Path) -> None:
    lines: list[str] = []
    async with supervised(tmp_path, lines.append) as supervisor:
        ready = await supervisor.start([stand_in("a"), stand_in("b")])
        pids = [one["pid"] for one in ready]
        assert all(is_running(pid) for pid in pids)
    assert not any(is_running(pid) for pid in pids)
    assert lines == ["starting a", "starting b", "ending all"]


async def test_when_one_dies_all_end_and_its_last_lines_are_told(tmp_path: Path) -> None:
    pids: list[int] = []
    with pytest.raises(ProcessDiedError) as died:
        async with supervised(tmp_path, lambda _: None) as supervisor:
            pids += [one["pid"] for one in await supervisor.start([stand_in("a"), stand_in("b")])]
            os.kill(pids[0], signal.SIGKILL)
            await asyncio.Event().wait()
    assert "a was ended by signal 9" in str(died.value)
    assert "stand-in says hello" in str(died.value)
    assert not any(is_running(pid) for pid in pids)


async def test_one_that_dies_before_it_is_ready_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ProcessDiedError, match=r"b ended with exit code 1[\s\S]*stand-in cannot go on"):
        async with supervised(tmp_path, lambda _: None) as supervisor:
            await supervisor.start([stand_in("a"), stand_in("b", "--die")])


async def test_a_failure_of_the_block_passes_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with supervised(tmp_path, lambda _: None) as supervisor:
            [ready] = await supervisor.start([stand_in("a")])
            raise ZeroDivisionError
    assert not is_running(ready["pid"])


async def test_never_ready_is_an_error_with_the_log(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="a was not ready"):
        async with supervised(tmp_path, lambda _: None, Patience(ready_s=0.5)) as supervisor:
            await supervisor.start([stand_in("a", "--never-ready")])


async def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async with supervised(tmp_path, lambda _: None, Patience(end_s=0.2)) as supervisor:
        [ready] = await supervisor.start([stand_in("a", "--stubborn")])
    assert not is_running(ready["pid"])


async def test_kill_and_restart_on_the_same_port(tmp_path: Path) -> None:
    [port] = free_ports(1)
    async with supervised(tmp_path, lambda _: None) as supervisor:
        [first, other] = await supervisor.start([stand_in("a", "--listen", str(port)), stand_in("b")])
        second = await supervisor.kill_and_restart("a")
        assert second["pid"] != first["pid"]
        assert not is_running(first["pid"])
        assert is_running(other["pid"])
        socket.create_connection((LOOPBACK, port)).close()
        assert supervisor.peak_rss_bytes().keys() == {"a", "b"}
        assert min(supervisor.peak_rss_bytes().values()) > 1_000_000


SUPERVISING_PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from stockpot.process import Command
    from stockpot.run_async import run_until_signalled
    from stockpot.supervisor import supervised

    async def main():
        async with supervised(Path(sys.argv[1]), print) as supervisor:
            ready = await supervisor.start([Command(name, (sys.argv[2],)) for name in ("a", "b")])
            print("pids", *[one["pid"] for one in ready], flush=True)
            await asyncio.Event().wait()

    run_until_signalled(main())
    """
)


@pytest.mark.parametrize(
    ("by", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
async def test_however_the_supervisor_ends_nothing_stays(by: signal.Signals, exit_code: int, tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SUPERVISING_PROGRAM, str(tmp_path), str(STAND_IN)), stdout=asyncio.subprocess.PIPE
    )
    assert program.stdout is not None
    line = b""
    while not line.startswith(b"pids"):
        line = await program.stdout.readline()
        assert line, "the supervisor ended too soon"
    program.send_signal(by)
    assert await program.wait() == exit_code
    wait_until_gone([int(pid) for pid in line.split()[1:]])
