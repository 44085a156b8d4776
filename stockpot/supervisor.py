"""Processes that live and end together.

    async with supervised(folder, report) as supervisor:
        await supervisor.start([Command(...), ...])
        ...                        # a process that dies meanwhile ends this block by ProcessDiedError
                                   # here all are ended: last started first

Invariant: when the block is left, in whatever way, none of the processes runs; a supervisor that is
killed takes them along (see tether.py).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stockpot.process import Command, Process, ProcessDiedError

Report = Callable[[str], None]
"""Called with one line for a person about what is being done."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the supervisor waits, in seconds."""

    ready_s: float = 120.0
    """Loading a large model from a cold disk takes a minute; a small one is ready in a second."""
    end_s: float = 10.0
    """From SIGTERM to SIGKILL, for each process."""


@asynccontextmanager
async def supervised(folder: Path, report: Report, patience: Patience = Patience()) -> AsyncIterator["Supervisor"]:
    """A supervisor that keeps logs and ready files in `folder`.

    Raises: ProcessDiedError when a process ends by itself; else what the block raises."""
    try:
        async with asyncio.TaskGroup() as watchers:
            supervisor = Supervisor(folder, report, patience, watchers)
            try:
                yield supervisor
            finally:
                await supervisor.end_all()
    except BaseExceptionGroup as group:
        # A death usually makes the block fail as well (a cut connection): the death is the cause.
        died = group.subgroup(ProcessDiedError)
        raise (died or group).exceptions[0] from None


class Supervisor:
    """Starts, watches, restarts and ends processes. Made by `supervised` only."""

    def __init__(self, folder: Path, report: Report, patience: Patience, watchers: asyncio.TaskGroup) -> None:
        self._folder = folder
        self._report = report
        self._patience = patience
        self._watchers = watchers
        self._processes: dict[str, Process] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    async def start(self, commands: Sequence[Command]) -> list[dict[str, Any]]:
        """Start all `commands` at once; what each wrote when it was ready, in the same order.

        Raises: UnavailableError when one is not ready in time."""
        started: list[Process] = []
        for command in commands:
            assert command.name not in self._processes, f"{command.name} runs already"
            process = Process(command, self._folder)
            self._processes[command.name] = process
            self._report(f"starting {command.name}")
            await self._spawn(process)
            started.append(process)
        return [await process.wait_ready(self._patience.ready_s) for process in started]

    async def kill_and_restart(self, name: str) -> dict[str, Any]:
        """End one process by SIGKILL, as a crash would, and start it again with the same arguments.

        Returns what it wrote when it was ready again. Raises: as `start`."""
        process = self._processes[name]
        self._watches.pop(name).cancel()
        self._report(f"killing {name} (SIGKILL, process {process.pid})")
        await process.kill()
        self._report(f"starting {name} again")
        await self._spawn(process)
        return await process.wait_ready(self._patience.ready_s)

    async def end_all(self) -> None:
        """End what runs, last started first, so that nobody loses what it depends on."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
        self._report("ending all")
        for process in reversed(self._processes.values()):
            await process.end(self._patience.end_s)

    def peak_rss_bytes(self) -> dict[str, int]:
        """Largest resident memory of each process until now, over restarts, without hugetlb pages."""
        for name in self._watches:
            self._processes[name].sample_memory()
        return {name: process.peak_rss_bytes for name, process in self._processes.items()}

    async def _spawn(self, process: Process) -> None:
        await process.spawn()
        name = process.command.name
        self._watches[name] = self._watchers.create_task(self._watch(process), name=f"watch {name}")

    async def _watch(self, process: Process) -> None:
        code = await process.wait_exit()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise ProcessDiedError(
            f"{process.command.name} {how}; its log ({process.log_path}) ends:\n{process.log_tail()}"
        )
