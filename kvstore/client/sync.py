"""The store's client for code without an event loop: the calls of `StoreClient`, blocking.

One daemon thread runs one private loop with a `StoreClient` in it; each call is handed over and waited
for. Deadlines are those of `StoreClient`, so no call waits longer than there, but `watch`. Any number
of threads may call side by side.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import NamedTuple, TypeVar

from kvstore.client.client import StoreClient
from kvstore.client.filling import Fill
from kvstore.client.reading import Blocks
from kvstore.client.types import ClientCounts, FillItem, Match, NamespaceInfo, Path
from kvstore.core.errors import CallerError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.wire import kvstore_pb2 as pb

_JOIN_DEADLINE_S = 10.0

Answer = TypeVar("Answer")


class _Running(NamedTuple):
    """What the thread made, and what ends it."""

    loop: asyncio.AbstractEventLoop
    client: StoreClient
    stop: asyncio.Event


class SyncStoreClient:
    """One storage node, for threads. Made by `connect`, closed by `close` or by leaving `with`.

    Belongs to the process that made it: a forked child makes its own. Raises: CallerError from each call
    after `close` or in a forked child; else what the same call of `StoreClient` raises."""

    def __init__(self, thread: threading.Thread, running: _Running) -> None:
        self._thread = thread
        self._running = running
        self._process_id = os.getpid()
        self._submitting = threading.Lock()
        self._is_closed = False

    @classmethod
    def connect(cls, address: str, *, prefer_local: bool = True, call_deadline_s: float = 1.0) -> "SyncStoreClient":
        """A client of the node at `address` (HOST:PORT). Raises: UnavailableError when none answers in time."""

        def connecting() -> Awaitable[StoreClient]:
            return StoreClient.connect(address, prefer_local=prefer_local, call_deadline_s=call_deadline_s)

        started: Future[_Running] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(_serve(connecting, started)), name=f"kvstore-client {address}", daemon=True
        )
        thread.start()
        return cls(thread, started.result())

    def __enter__(self) -> "SyncStoreClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """How bytes move now; see `StoreClient.path`."""
        return self._running.client.path

    @property
    def counts(self) -> ClientCounts:
        """What went otherwise than hoped so far."""
        return self._running.client.counts

    def open_namespace(self, fingerprint: Fingerprint) -> NamespaceInfo:
        """See `StoreClient.open_namespace`."""
        return self.run(lambda client: client.open_namespace(fingerprint))

    def match(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> Match:
        """See `StoreClient.match`."""
        return self.run(lambda client: client.match(namespace_id, keys))

    @contextmanager
    def read(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], shard: int = 0, prefix_only: bool = True
    ) -> Iterator[Blocks]:
        """See `StoreClient.read`; `is_valid` may be asked from any thread."""
        with self._entered(lambda client: client.read(namespace_id, keys, shard, prefix_only)) as blocks:
            yield blocks

    @contextmanager
    def fill(self, namespace_id: NamespaceId, items: Sequence[FillItem], shard: int = 0) -> Iterator["SyncFill"]:
        """See `StoreClient.fill`."""
        with self._entered(lambda client: client.fill(namespace_id, items, shard)) as fill:
            yield SyncFill(self, fill)

    def watch(self, namespace_id: NamespaceId | None = None) -> Iterator[pb.WatchResponse]:
        """See `StoreClient.watch`. Waits for the next event without a deadline: `close`, from another
        thread, ends it with a CallerError."""
        stream = self._running.client.watch(namespace_id)
        while True:
            yield self.run(lambda _: anext(stream))

    def stats(self) -> pb.StatsResponse:
        """See `StoreClient.stats`."""
        return self.run(lambda client: client.stats())

    def run(self, call: Callable[[StoreClient], Awaitable[Answer]]) -> Answer:
        """What `call` answers, run on the private loop: several awaits for the price of one hand-over.

        `call` must bring its own deadline, and must not block."""

        async def attempt() -> Answer:
            return await call(self._running.client)

        self._check_process()
        with self._submitting:  # nothing is handed over after `close` has told the loop to end
            if self._is_closed:
                raise CallerError("the store client is closed: connect a new one")
            answer = asyncio.run_coroutine_threadsafe(attempt(), self._running.loop)
        try:
            return answer.result()
        except CancelledError:
            raise CallerError("the store client was closed during the call") from None
        except BaseException:  # such as KeyboardInterrupt
            answer.cancel()
            raise

    def close(self) -> None:
        """Close all connections and end the thread; again, or in a forked child, it does nothing.

        Calls of other threads that still run end with a CallerError, and the views of open reads and
        fills end. Raises: TimeoutError when the thread has not ended within 10 s."""
        if os.getpid() != self._process_id:
            return
        with self._submitting:
            if not self._is_closed:
                self._is_closed = True
                self._running.loop.call_soon_threadsafe(self._running.stop.set)
        self._thread.join(_JOIN_DEADLINE_S)
        if self._thread.is_alive():
            raise TimeoutError(f"the store client's thread did not end within {_JOIN_DEADLINE_S:g} s")

    @contextmanager
    def _entered(self, opening: Callable[[StoreClient], AbstractAsyncContextManager[Answer]]) -> Iterator[Answer]:
        self._check_process()
        manager = opening(self._running.client)
        value = self.run(lambda _: manager.__aenter__())
        try:
            yield value
        except BaseException as error:
            raised = error  # `error` itself is unset when this clause ends
            self.run(lambda _: manager.__aexit__(type(raised), raised, raised.__traceback__))
            raise
        self.run(lambda _: manager.__aexit__(None, None, None))

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise CallerError(
                f"the store client belongs to process {self._process_id}, this is its fork {os.getpid()}: "
                "connect after the fork"
            )


class SyncFill:
    """Values to be written; made by `SyncStoreClient.fill`. See `Fill` for each."""

    def __init__(self, client: SyncStoreClient, fill: Fill) -> None:
        self._client = client
        self._fill = fill
        self.path = fill.path
        self.views = fill.views

    @property
    def statuses(self) -> list[pb.Status]:
        """One for each item."""
        return self._fill.statuses

    @property
    def is_committed(self) -> bool:
        """Whether `commit` was called."""
        return self._fill.is_committed

    def commit(self, indices: Sequence[int] | None = None) -> list[pb.Status]:
        """Publish the items at `indices` (all, if None); once."""
        return self._client.run(lambda _: self._fill.commit(indices))


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
