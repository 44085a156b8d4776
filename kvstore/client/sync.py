"""The store's client for code without an event loop: the calls of `StoreClient`, blocking.

One daemon thread runs one private loop with a `StoreClient` in it (loop_thread); each call is handed
over and waited for. Deadlines are those of `StoreClient`, so no call waits longer than there, but
`watch`. Any number of threads may call side by side.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TypeVar, cast

from kvstore.client.client import StoreClient
from kvstore.client.filling import Fill
from kvstore.client.loop_thread import LoopThread
from kvstore.client.reading import Blocks
from kvstore.client.types import ClientCounts, FillItem, Match, NamespaceInfo, Path, PinOptions
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.wire import kvstore_pb2 as pb

Answer = TypeVar("Answer")


class SyncStoreClient:
    """One storage node, for threads. Made by `connect`, closed by `close` or by leaving `with`.

    Belongs to the process that made it: a forked child makes its own. Raises: CallerError from each call
    after `close` or in a forked child; else what the same call of `StoreClient` raises."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread

    @classmethod
    def connect(
        cls, address: str, *, prefer_local: bool = True, prefer_bulk: bool = True, call_deadline_s: float = 1.0
    ) -> "SyncStoreClient":
        """See `StoreClient.connect`."""

        def connecting() -> Awaitable[StoreClient]:
            return StoreClient.connect(
                address, prefer_local=prefer_local, prefer_bulk=prefer_bulk, call_deadline_s=call_deadline_s
            )

        return cls(LoopThread(connecting, f"kvstore-client {address}"))

    def __enter__(self) -> "SyncStoreClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """How bytes move now; see `StoreClient.path`."""
        return self._thread.client.path

    @property
    def counts(self) -> ClientCounts:
        """What went otherwise than hoped so far."""
        return self._thread.client.counts

    def open_namespace(self, fingerprint: Fingerprint) -> NamespaceInfo:
        """See `StoreClient.open_namespace`."""
        return self.run(lambda client: client.open_namespace(fingerprint))

    def match(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, promote: bool = False) -> Match:
        """See `StoreClient.match`."""
        return self.run(lambda client: client.match(namespace_id, keys, promote=promote))

    @contextmanager
    def lease(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> Iterator[Match]:
        """See `StoreClient.lease`."""
        with self._entered(lambda client: client.lease(namespace_id, keys)) as matched:
            yield matched

    @contextmanager
    def read(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], shard: int = 0, prefix_only: bool = True
    ) -> Iterator[Blocks]:
        """See `StoreClient.read`; `is_valid` may be asked from any thread."""
        with self._entered(lambda client: client.read(namespace_id, keys, shard, prefix_only)) as blocks:
            yield blocks

    def read_into(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        into: Sequence[memoryview],
        shard: int = 0,
        prefix_only: bool = True,
    ) -> list[int | None]:
        """See `StoreClient.read_into`."""
        return self.run(lambda client: client.read_into(namespace_id, keys, into, shard, prefix_only))

    @contextmanager
    def fill(self, namespace_id: NamespaceId, items: Sequence[FillItem], shard: int = 0) -> Iterator["SyncFill"]:
        """See `StoreClient.fill`."""
        with self._entered(lambda client: client.fill(namespace_id, items, shard)) as fill:
            yield SyncFill(self, fill)

    def touch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], shard: int = 0) -> int:
        """See `StoreClient.touch`."""
        return self.run(lambda client: client.touch(namespace_id, keys, shard))

    def pin(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], pin: PinOptions | None = None
    ) -> list[pb.Status]:
        """See `StoreClient.pin`."""
        return self.run(lambda client: client.pin(namespace_id, keys, pin))

    def unpin(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], shard: int = 0) -> int:
        """See `StoreClient.unpin`."""
        return self.run(lambda client: client.unpin(namespace_id, keys, shard))

    def remove(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> int:
        """See `StoreClient.remove`."""
        return self.run(lambda client: client.remove(namespace_id, keys))

    def remove_prefix(self, namespace_id: NamespaceId, key: BlockKey) -> int:
        """See `StoreClient.remove_prefix`."""
        return self.run(lambda client: client.remove_prefix(namespace_id, key))

    def remove_all(self, namespace_id: NamespaceId) -> int:
        """See `StoreClient.remove_all`."""
        return self.run(lambda client: client.remove_all(namespace_id))

    def bump_epoch(self, namespace_id: NamespaceId) -> int:
        """See `StoreClient.bump_epoch`."""
        return self.run(lambda client: client.bump_epoch(namespace_id))

    def list_keys(self, namespace_id: NamespaceId, page_keys: int = 0) -> Iterator[pb.ListedKey]:
        """See `StoreClient.list_keys`; a page is one hand-over."""
        page = pb.ListKeysResponse(has_more=True)
        while page.has_more:
            after_key = BlockKey(page.keys[-1].key) if page.keys else None
            ask = partial(StoreClient.list_page, namespace_id=namespace_id, after_key=after_key, page_keys=page_keys)
            page = self.run(ask)
            yield from page.keys

    def watch(self, namespace_id: NamespaceId | None = None) -> Iterator[pb.WatchResponse]:
        """See `StoreClient.watch`. Waits for the next event without a deadline: `close`, from another
        thread, ends it with a CallerError. The stream ends with the iterator."""
        stream = cast(AsyncGenerator[pb.WatchResponse], self._thread.client.watch(namespace_id))
        try:
            while True:
                yield self.run(lambda _: anext(stream))
        finally:
            self._thread.start(lambda _: stream.aclose())

    def stats(self, *, with_namespaces: bool = False) -> pb.StatsResponse:
        """See `StoreClient.stats`."""
        return self.run(lambda client: client.stats(with_namespaces=with_namespaces))

    def run(self, call: Callable[[StoreClient], Awaitable[Answer]]) -> Answer:
        """What `call` answers, run on the private loop: several awaits for the price of one hand-over.

        `call` must bring its own deadline, and must not block."""
        return self._thread.run(call)

    def close(self) -> None:
        """Close all connections and end the thread; again, or in a forked child, it does nothing.

        Calls of other threads that still run end with a CallerError, and the views of open reads and
        fills end. Raises: TimeoutError when the thread has not ended within 10 s."""
        self._thread.close()

    @contextmanager
    def _entered(self, opening: Callable[[StoreClient], AbstractAsyncContextManager[Answer]]) -> Iterator[Answer]:
        self._thread.check_process()
        manager = opening(self._thread.client)
        value = self.run(lambda _: manager.__aenter__())
        try:
            yield value
        except BaseException as error:
            raised = error  # `error` itself is unset when this clause ends
            self.run(lambda _: manager.__aexit__(type(raised), raised, raised.__traceback__))
            raise
        self.run(lambda _: manager.__aexit__(None, None, None))


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
