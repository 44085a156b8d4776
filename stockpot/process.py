"""One child process of the supervisor: started, known to be ready, ended, and asked how it is.

A process says that it is ready by writing a JSON object to the file named by its `--ready-file` flag
(atomically, by rename). Its output goes to `<name>.log` in the run folder, over restarts too.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kvstore.core.errors import StockpotError, UnavailableError

_TETHER = Path(__file__).with_name("tether.py")
_READY_POLL_S = 0.05


class ProcessDiedError(StockpotError):
    """A process ended that nobody asked to end; the message has its last log lines."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `arguments` go to this Python; `--ready-file PATH` is added to them."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set on top of the supervisor's own environment."""


class Process:
    """A command that runs, ran, or will run in `folder`. Owned by one event loop."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command = command
        self.log_path = folder / f"{command.name}.log"
        self._ready_path = folder / f"{command.name}.ready.json"
        self._child: asyncio.subprocess.Process | None = None
        self._peak_rss_bytes = 0

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.pid

    async def spawn(self) -> None:
        """Start the command in a session of its own, so that a terminal's Ctrl-C reaches only the supervisor."""
        assert self._child is None or self._child.returncode is not None, "still running"
        self._ready_path.unlink(missing_ok=True)
        arguments = [*self.command.arguments, "--ready-file", str(self._ready_path)]
        with self.log_path.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-IS", str(_TETHER), str(os.getpid()), sys.executable, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.command.environment},
            )

    async def wait_ready(self, deadline_s: float) -> dict[str, Any]:
        """What the process wrote to its ready file. Does not look whether it still lives: `wait_exit` does.

        Raises: UnavailableError after `deadline_s` seconds."""
        try:
            async with asyncio.timeout(deadline_s):
                while not self._ready_path.exists():  # noqa: ASYNC110  # another process makes the file
                    await asyncio.sleep(_READY_POLL_S)
        except TimeoutError:
            raise UnavailableError(
                f"{self.command.name} was not ready after {deadline_s:.0f} s; its log ends:\n{self.log_tail()}"
            ) from None
        return msgspec.json.decode(self._ready_path.read_bytes(), type=dict[str, Any])

    async def wait_exit(self) -> int:
        """The exit code, once it has ended; negative for a signal."""
        assert self._child is not None, "not started"
        return await self._child.wait()

    async def end(self, grace_s: float) -> None:
        """Ask it to end (SIGTERM) and wait; after `grace_s` seconds kill it. No-op when it does not run."""
        if self._child is None or self._child.returncode is not None:
            return
        self.sample_memory()
        try:
            self._child.terminate()
            await asyncio.wait_for(self._child.wait(), grace_s)
        except ProcessLookupError:
            await self._child.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it by SIGKILL, as a crash would, and wait until it is gone."""
        assert self._child is not None, "not started"
        self.sample_memory()
        if self._child.returncode is None:
            self._child.send_signal(signal.SIGKILL)
        await self._child.wait()

    def sample_memory(self) -> None:
        """Note the peak so far: the kernel forgets it when the process ends."""
        assert self._child is not None, "not started"
        self._peak_rss_bytes = max(self._peak_rss_bytes, peak_rss_bytes(self._child.pid))

    @property
    def peak_rss_bytes(self) -> int:
        """Largest resident memory at the last `sample_memory`, over restarts too; 0 before the first."""
        return self._peak_rss_bytes

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its output, indented; words when there are none."""
        try:
            text = self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            text = ""
        return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (nothing was logged)"


def peak_rss_bytes(pid: int) -> int:
    """VmHWM of a process, which leaves out hugetlb pages (a node's arena); 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a zombie has no memory lines
