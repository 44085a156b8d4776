"""Reading blocks: leased in the node's arena, or streamed into buffers of our own."""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import grpc

from kvstore.client.link import NodeLink
from kvstore.client.local import LocalConnection
from kvstore.client.remote import grpc_errors, within
from kvstore.client.types import Path, block_ids
from kvstore.core.block import value_checksum
from kvstore.core.errors import LeaseExpiredError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import GetFrame, decode_get_frame


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
    asked_at_s = time.monotonic()
    acquire = pb.AcquireRequest(namespace_id=plan.namespace_id, blocks=plan.block_ids(), prefix_only=plan.prefix_only)
    request = pb.LocalRequest(acquire=acquire)
    if (answer := await link.reopening(plan.namespace_id, lambda: link.call_local(request))) is not None:
        connection, response = answer
        with _leased(connection, response.acquire, asked_at_s) as blocks:
            yield blocks
        return
    buffers: dict[int, memoryview] = {}
    values: list[memoryview | None] = [None] * len(plan.keys)
    try:
        await link.reopening(plan.namespace_id, lambda: link.guarded(lambda: _receive(link, plan, buffers, values)))
        yield Blocks(values, "grpc", lambda: True)
    finally:
        for item, buffer in buffers.items():
            if _released(values[item]):
                link.buffers.give_back(buffer)


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
            _released(view)
        if response.lease_id:
            connection.release(response.lease_id)


def _released(view: memoryview | None) -> bool:
    """End a view, so that later use raises; False when something of the caller's still uses it."""
    with suppress(BufferError):
        if view is not None:
            view.release()
        return True
    return False


async def _receive(
    link: NodeLink, plan: ReadPlan, buffers: dict[int, memoryview], values: list[memoryview | None]
) -> None:
    """Stream the values of `plan` into `buffers`, by item, and set those in `values` that are proven."""
    request = pb.GetRequest(namespace_id=plan.namespace_id, blocks=plan.block_ids(), prefix_only=plan.prefix_only)
    received: dict[int, int] = {}
    first: dict[int, GetFrame] = {}
    stream = link.remote.get(request)
    try:
        with grpc_errors():
            while (raw := await within(link.deadline_s, stream.read())) is not grpc.aio.EOF:
                frame = decode_get_frame(raw)
                if frame.status == pb.STATUS_OK:
                    _store_frame(link, frame, first, received, buffers)
    finally:
        stream.cancel()
    for item, head in first.items():
        value = buffers[item][: head.size]
        if received[item] == head.size and value_checksum(value) == head.checksum:
            values[item] = value.toreadonly()
        else:
            link.counts.values_corrupt += 1


def _store_frame(
    link: NodeLink,
    frame: GetFrame,
    first: dict[int, GetFrame],
    received: dict[int, int],
    buffers: dict[int, memoryview],
) -> None:
    if frame.item not in first:
        first[frame.item] = frame._replace(data=memoryview(b""))
        received[frame.item] = 0
        buffers[frame.item] = link.buffers.take(frame.size)
    end = frame.offset + len(frame.data)
    if frame.offset == received[frame.item] and end <= first[frame.item].size:
        buffers[frame.item][frame.offset : end] = frame.data
        received[frame.item] = end
