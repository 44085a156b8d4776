"""What systemd is told, with a socket of our own in its place."""

import asyncio
import socket
from pathlib import Path

from kvstore.core.systemd import ServiceManager


def listening(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(address)
    manager.settimeout(5)
    return manager


def test_states_are_one_datagram(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as manager:
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}).tell(READY=1, STATUS="serving on [::]:7")
        assert manager.recv(1000) == b"READY=1\nSTATUS=serving on [::]:7"


def test_an_abstract_socket(tmp_path: Path) -> None:
    with listening(f"\0{tmp_path}") as manager:
        ServiceManager({"NOTIFY_SOCKET": f"@{tmp_path}"}).tell(STOPPING=1)
        assert manager.recv(1000) == b"STOPPING=1"


def test_without_systemd_or_after_its_end_nothing_happens(tmp_path: Path) -> None:
    ServiceManager({}).tell(READY=1)
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell(READY=1)


async def test_the_watchdog_is_kept_while_the_loop_turns(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as manager:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000"}
        keeping = asyncio.ensure_future(ServiceManager(environ).keep_watchdog())
        told = await asyncio.to_thread(lambda: [manager.recv(1000) for _ in range(3)])
        keeping.cancel()
    assert told == [b"WATCHDOG=1"] * 3


async def test_the_watchdog_of_another_process_is_left_alone(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}
    async with asyncio.timeout(5):
        await ServiceManager(environ).keep_watchdog()
