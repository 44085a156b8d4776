"""Run one coroutine as a command: to its end, or until a signal asks it to end."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_until_signalled(job: Coroutine[Any, Any, Result]) -> Result:
    """The result of `job`. Ctrl-C and SIGTERM cancel it, and it may clean up.

    Raises: SystemExit with 128 + the signal's number when it was ended so; else what `job` raises."""
    received: list[signal.Signals] = []

    async def main() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(by: signal.Signals) -> None:
            received.append(by)
            task.cancel()

        for by in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(by, end, by)
        return await job

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise SystemExit(128 + received[0]) from None
