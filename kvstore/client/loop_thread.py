"""One daemon thread with one private event loop and a `StoreClient` in it; calls are handed over and waited for.

Belongs to the process that made it: a forked child has neither the thread nor the loop.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from kvstore.client.client import StoreClient
from kvstore.core.errors import CallerError

_JOIN_DEADLINE_S = 10.0

Answer = TypeVar("Answer")


class _Running(NamedTuple):
    """What the thread made, and what ends it."""

    loop: asyncio.AbstractEventLoop
    client: StoreClient
    stop: asyncio.Event


class LoopThread:
    """Runs calls of one `StoreClient` for any number of threads. Raises (on creation): what `connecting` raises."""

    def __init__(self, connecting: Callable[[], Awaitable[StoreClient]], name: str) -> None:
        started: Future[_Running] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(_serve(connecting, started)), name=name, daemon=True)
        self._thread.start()
        self._running = started.result()
        self._process_id = os.getpid()
        self._submitting = threading.RLock()  # a finaliser may come in the middle of a hand-over
        self._is_closed = False

    @property
    def client(self) -> StoreClient:
        """The client on the loop; its methods are called by `run` only."""
        return self._running.client

    def run(self, call: Callable[[StoreClient], Awaitable[Answer]]) -> Answer:
        """What `call` answers on the loop; it must bring its own deadline. Raises: CallerError when closed."""
        answer = self._submit(call)
        try:
            return answer.result()
        except CancelledError:
            raise CallerError("the store client was closed during the call") from None
        except BaseException:  # such as KeyboardInterrupt
            answer.cancel()
            raise

    def start(self, call: Callable[[StoreClient], Awaitable[Any]]) -> None:
        """Begin `call` and wait for nothing: for finalisers, which may run on any thread, the loop's own included."""
        with suppress(CallerError):  # closed: then there is nothing left to end
            self._submit(call)

    def close(self) -> None:
        """End the client and the thread; again, or in a forked child, it does nothing.

        Raises: TimeoutError when the thread has not ended within 10 s."""
        if os.getpid() != self._process_id:
            return
        with self._submitting:
            if not self._is_closed:
                self._is_closed = True
                self._running.loop.call_soon_threadsafe(self._running.stop.set)
        self._thread.join(_JOIN_DEADLINE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the store client's thread did not end within {_JOIN_DEADLINE_S:g} s")

    def check_process(self) -> None:
        """Raises: CallerError in a forked child."""
        if os.getpid() != self._process_id:
            raise CallerError(
                f"the store client belongs to process {self._process_id}, this is its fork {os.getpid()}: "
                "connect after the fork"
            )

    def _submit(self, call: Callable[[StoreClient], Awaitable[Answer]]) -> "Future[Answer]":
        self.check_process()
        attempt = _attempt(call, self._running.client)
        with self._submitting:  # nothing is handed over after `close` has told the loop to end
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(attempt, self._running.loop)
        attempt.close()
        raise CallerError("the store client is closed: connect a new one")


async def _attempt(call: Callable[[StoreClient], Awaitable[Answer]], client: StoreClient) -> Answer:
    return await call(client)


async def _serve(connecting: Callable[[], Awaitable[StoreClient]], started: "Future[_Running]") -> None:
    """Connect, say so, and live until told to stop. Calls still running are then cancelled by `asyncio.run`."""
    try:
        client = await connecting()
    except BaseException as error:
        started.set_exception(error)
        if isinstance(error, Exception):
            return
        raise
    stop = asyncio.Event()
    started.set_result(_Running(asyncio.get_running_loop(), client, stop))
    await stop.wait()
    await client.close()
