"""Receiving values over the network, by the bulk port or by gRPC, into memory of our own, and proving them."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import grpc

from kvstore.client.buffers import BufferPool
from kvstore.client.bulk import BulkConnection
from kvstore.client.link import NodeLink
from kvstore.client.remote import grpc_errors, within
from kvstore.client.types import Path
from kvstore.core.block import value_checksum
from kvstore.core.errors import CallerError
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import GetFrame, decode_get_frame


class Places(Protocol):
    """Where values go. `take` is called once for each item that comes, from any thread."""

    def take(self, item: int, size: int) -> memoryview:
        """`size` bytes for the value of `item`. Raises: CallerError when there is no room."""


class PooledPlaces:
    """Buffers of the link's pool; `values` are what has been proven."""

    def __init__(self, pool: BufferPool, n_items: int) -> None:
        self._pool = pool
        self._buffers: dict[int, memoryview] = {}
        self.values: list[memoryview | None] = [None] * n_items

    def take(self, item: int, size: int) -> memoryview:
        """See `Places`."""
        if item not in self._buffers:
            self._buffers[item] = self._pool.take(size)
        return self._buffers[item][:size]

    def keep(self, sizes: Sequence[int | None]) -> None:
        """Set `values`: what was received, None for a miss."""
        for item, size in enumerate(sizes):
            if size is not None:
                self.values[item] = self._buffers[item][:size].toreadonly()

    def give_back(self) -> None:
        """End the values. A buffer that something of the caller's still uses is left to it."""
        for item, buffer in self._buffers.items():
            if released(self.values[item]):
                self._pool.give_back(buffer)


class GivenPlaces:
    """The caller's own buffers, one for each item."""

    def __init__(self, into: Sequence[memoryview]) -> None:
        self._into = into

    def take(self, item: int, size: int) -> memoryview:
        """See `Places`."""
        if size > len(self._into[item]):
            raise CallerError(f"value has {size} bytes, its buffer only {len(self._into[item])}: give it more room")
        return self._into[item][:size]


async def receive(link: NodeLink, request: pb.GetRequest, places: Places) -> tuple[list[int | None], Path]:
    """Bytes of each value asked for, now at `places`, None for a miss; and how they came.

    A damaged value is a miss, and counted. Raises: StockpotError."""
    connection = await link.take_bulk()
    if connection is not None:
        try:
            sizes = await _receive_by_bulk(link, connection, request, places)
        finally:
            link.bulk.end(connection)
        if sizes is not None:
            return sizes, "bulk"
    return await _receive_by_grpc(link, request, places), "grpc"


def released(view: memoryview | None) -> bool:
    """End a view, so that later use raises; False when something of the caller's still uses it."""
    with suppress(BufferError):
        if view is not None:
            view.release()
        return True
    return False


async def _receive_by_bulk(
    link: NodeLink, connection: BulkConnection, request: pb.GetRequest, places: Places
) -> list[int | None] | None:
    received = await link.by_bulk(connection, lambda: connection.get(request, places.take))
    if received is None:
        return None
    sizes: list[int | None] = [None] * len(request.blocks)
    for item, value in enumerate(received[: len(sizes)]):
        if value.is_sound:
            sizes[item] = value.size
        elif value.status == pb.STATUS_OK:
            link.counts.values_corrupt += 1
    return sizes


async def _receive_by_grpc(link: NodeLink, request: pb.GetRequest, places: Places) -> list[int | None]:
    heads: dict[int, GetFrame] = {}
    received: dict[int, int] = {}
    stream = link.remote.get(request)
    try:
        with grpc_errors():
            while (raw := await within(link.deadline_s, stream.read())) is not grpc.aio.EOF:
                frame = decode_get_frame(raw)
                if frame.status == pb.STATUS_OK and frame.item < len(request.blocks):
                    _store_frame(frame, heads, received, places)
    finally:
        stream.cancel()
    sizes: list[int | None] = [None] * len(request.blocks)
    for item, head in heads.items():
        is_whole = received[item] == head.size
        if is_whole and value_checksum(places.take(item, head.size)) == head.checksum:
            sizes[item] = head.size
        else:
            link.counts.values_corrupt += 1
    return sizes


def _store_frame(frame: GetFrame, heads: dict[int, GetFrame], received: dict[int, int], places: Places) -> None:
    if frame.item not in heads:
        heads[frame.item] = frame._replace(data=memoryview(b""))
        received[frame.item] = 0
    size, end = heads[frame.item].size, frame.offset + len(frame.data)
    if frame.offset == received[frame.item] and end <= size:
        places.take(frame.item, size)[frame.offset : end] = frame.data
        received[frame.item] = end
