"""Reading blocks: leased in the node's arena, or received into buffers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from kvstore.client.link import NodeLink
from kvstore.client.local import LocalConnection
from kvstore.client.receiving import GivenPlaces, Places, PooledPlaces, receive, released
from kvstore.client.types import Path, block_ids
from kvstore.core.errors import LeaseExpiredError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.wire import kvstore_pb2 as pb

_COPY_ON_LOOP_BYTES_MAX = 8 << 20  # a millisecond; more goes to a thread


@dataclass(frozen=True, slots=True)
class Blocks:
    """Values as they were asked for, in order."""

    values: Sequence[memoryview | None]
    """Read-only; None is a miss (or a value that came damaged, which is counted)."""
    path: Path
    is_valid: Callable[[], bool]
    """Whether the values can be trusted still: the lease runs. Ask after having used them."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What is to be read."""

    namespace_id: NamespaceId
    keys: Sequence[BlockKey]
    shard: int
    prefix_only: bool

    def block_ids(self) -> list[pb.BlockId]:
        """The blocks' names on the wire."""
        return block_ids(self.keys, self.shard)


@asynccontextmanager
async def read_blocks(link: NodeLink, plan: ReadPlan) -> AsyncIterator[Blocks]:
    """See `StoreClient.read`."""
    async with _leased_if_local(link, plan) as leased:
        if leased is not None:
            yield leased
            return
    places = PooledPlaces(link.buffers, len(plan.keys))
    try:
        sizes, path = await _receive(link, plan, places)
        places.keep(sizes)
        yield Blocks(places.values, path, lambda: True)
    finally:
        places.give_back()


async def read_into(link: NodeLink, plan: ReadPlan, into: Sequence[memoryview]) -> list[int | None]:
    """See `StoreClient.read_into`."""
    places = GivenPlaces(into)
    async with _leased_if_local(link, plan) as leased:
        if leased is not None:
            sizes = [None if value is None else len(value) for value in leased.values]
            if sum(size or 0 for size in sizes) <= _COPY_ON_LOOP_BYTES_MAX:
                _copy(leased.values, places)
            else:
                await asyncio.to_thread(_copy, leased.values, places)
            return sizes
    return (await _receive(link, plan, places))[0]


async def _receive(link: NodeLink, plan: ReadPlan, places: Places) -> tuple[list[int | None], Path]:
    request = pb.GetRequest(namespace_id=plan.namespace_id, blocks=plan.block_ids(), prefix_only=plan.prefix_only)
    return await link.reopening(plan.namespace_id, lambda: link.guarded(lambda: receive(link, request, places)))


@asynccontextmanager
async def _leased_if_local(link: NodeLink, plan: ReadPlan) -> AsyncIterator[Blocks | None]:
    """The values where they lie in the node's arena; None when it is not mapped here."""
    asked_at_s = time.monotonic()
    acquire = pb.AcquireRequest(namespace_id=plan.namespace_id, blocks=plan.block_ids(), prefix_only=plan.prefix_only)
    request = pb.LocalRequest(acquire=acquire)
    answer = await link.reopening(plan.namespace_id, lambda: link.call_local(request))
    if answer is None:
        yield None
        return
    connection, response = answer
    with _leased(connection, response.acquire, asked_at_s) as blocks:
        yield blocks


@contextmanager
def _leased(connection: LocalConnection, response: pb.AcquireResponse, asked_at_s: float) -> Iterator[Blocks]:
    # Counted from before the question, so it ends here before it ends there.
    expires_at_s = asked_at_s + response.ttl_ms / 1000
    values = [
        connection.view(item.place).toreadonly() if item.status == pb.STATUS_OK else None for item in response.items
    ]

    def is_valid() -> bool:
        return not response.lease_id or (connection.is_open and time.monotonic() < expires_at_s)

    try:
        yield Blocks(values, "shm", is_valid)
        if not is_valid():
            raise LeaseExpiredError(
                f"the lease of {response.ttl_ms} ms ended, or its node did, while blocks were read: recompute"
            )
    finally:
        for view in values:
            released(view)
        if response.lease_id:
            connection.release(response.lease_id)


def _copy(values: Sequence[memoryview | None], places: Places) -> None:
    for item, value in enumerate(values):
        if value is not None:
            places.take(item, len(value))[:] = value
