"""The blocking client behind the async client's calls, so that one contract suite runs against both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, TypeVar

from kvstore.client import Blocks, FillItem, Match, NamespaceInfo, PinOptions, Status, SyncFill, SyncStoreClient
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.wire import kvstore_pb2 as pb

Answer = TypeVar("Answer")


class ThreadedFill:
    """A `SyncFill`, committed in a thread."""

    def __init__(self, fill: SyncFill) -> None:
        self.fill = fill
        self.views = fill.views

    async def commit(self, indices: Sequence[int] | None = None) -> list[Status]:
        return await asyncio.to_thread(self.fill.commit, indices)


class ThreadedClient:
    """Each call in a thread of its own: the loop runs the node meanwhile."""

    def __init__(self, client: SyncStoreClient) -> None:
        self.sync = client

    @classmethod
    async def connect(cls, address: str, **options: bool | float) -> "ThreadedClient":
        return cls(await asyncio.to_thread(SyncStoreClient.connect, address, **options))

    async def __aenter__(self) -> "ThreadedClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.sync.close)

    @property
    def path(self) -> str:
        return self.sync.path

    async def open_namespace(self, fingerprint: Fingerprint) -> NamespaceInfo:
        return await asyncio.to_thread(self.sync.open_namespace, fingerprint)

    async def match(self, namespace: NamespaceId, keys: Sequence[BlockKey], *, promote: bool = False) -> Match:
        return await asyncio.to_thread(self.sync.match, namespace, keys, promote=promote)

    @asynccontextmanager
    async def lease(self, namespace: NamespaceId, keys: Sequence[BlockKey]) -> AsyncIterator[Match]:
        async with entered(lambda: self.sync.lease(namespace, keys)) as matched:
            yield matched

    @asynccontextmanager
    async def read(
        self, namespace: NamespaceId, keys: Sequence[BlockKey], shard: int = 0, prefix_only: bool = True
    ) -> AsyncIterator[Blocks]:
        async with entered(lambda: self.sync.read(namespace, keys, shard, prefix_only)) as blocks:
            yield blocks

    @asynccontextmanager
    async def fill(
        self, namespace: NamespaceId, items: Sequence[FillItem], shard: int = 0
    ) -> AsyncIterator[ThreadedFill]:
        async with entered(lambda: self.sync.fill(namespace, items, shard)) as fill:
            yield ThreadedFill(fill)

    async def touch(self, namespace: NamespaceId, keys: Sequence[BlockKey], shard: int = 0) -> int:
        return await asyncio.to_thread(self.sync.touch, namespace, keys, shard)

    async def pin(
        self, namespace: NamespaceId, keys: Sequence[BlockKey], pin: PinOptions | None = None
    ) -> list[Status]:
        return await asyncio.to_thread(self.sync.pin, namespace, keys, pin)

    async def unpin(self, namespace: NamespaceId, keys: Sequence[BlockKey], shard: int = 0) -> int:
        return await asyncio.to_thread(self.sync.unpin, namespace, keys, shard)

    async def remove(self, namespace: NamespaceId, keys: Sequence[BlockKey]) -> int:
        return await asyncio.to_thread(self.sync.remove, namespace, keys)

    async def remove_prefix(self, namespace: NamespaceId, key: BlockKey) -> int:
        return await asyncio.to_thread(self.sync.remove_prefix, namespace, key)

    async def remove_all(self, namespace: NamespaceId) -> int:
        return await asyncio.to_thread(self.sync.remove_all, namespace)

    async def bump_epoch(self, namespace: NamespaceId) -> int:
        return await asyncio.to_thread(self.sync.bump_epoch, namespace)

    async def list_keys(self, namespace: NamespaceId, page_keys: int = 0) -> AsyncIterator[pb.ListedKey]:
        for listed in await asyncio.to_thread(lambda: list(self.sync.list_keys(namespace, page_keys))):
            yield listed

    async def watch(self, namespace: NamespaceId | None = None) -> AsyncIterator[pb.WatchResponse]:
        responses: Iterator[pb.WatchResponse] = self.sync.watch(namespace)
        while True:
            yield await asyncio.to_thread(next, responses)

    async def stats(self, *, with_namespaces: bool = False) -> pb.StatsResponse:
        return await asyncio.to_thread(self.sync.stats, with_namespaces=with_namespaces)


@asynccontextmanager
async def entered(opening: Callable[[], AbstractContextManager[Any]]) -> AsyncIterator[Any]:
    """Enter and leave a blocking context in threads."""
    manager = await asyncio.to_thread(opening)
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    except BaseException as error:
        await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(manager.__exit__, None, None, None)
