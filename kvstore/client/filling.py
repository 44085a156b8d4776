"""Filling blocks: written straight into the node's arena, or into buffers that are then streamed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from kvstore.client.buffers import BufferPool
from kvstore.client.bulk import BulkConnection
from kvstore.client.link import NodeLink
from kvstore.client.local import LocalConnection
from kvstore.client.receiving import released
from kvstore.client.remote import grpc_errors, within
from kvstore.client.types import FillItem, Path
from kvstore.core.block import value_checksum
from kvstore.core.errors import UnavailableError
from kvstore.core.keys import NamespaceId
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import FRAME_BYTES, encode_put_chunk

_SUM_ON_LOOP_BYTES_MAX = 8 << 20  # half a millisecond; more goes to a thread


class FillPath(Protocol):
    """How a fill's bytes reach the node."""

    path: Path
    begun: pb.PutBegun
    views: list[memoryview | None]

    async def commit(self, commit: pb.PutCommit) -> Sequence[pb.Status]:
        """Send what is not there yet, and publish."""


class Fill:
    """Values to be written; made by `StoreClient.fill`."""

    def __init__(self, way: FillPath) -> None:
        self._way = way
        self.path = way.path
        self.views: Sequence[memoryview | None] = way.views
        """Writable, at multiples of 64 bytes; None: not wanted (stored already, or no room)."""
        self.statuses: list[pb.Status] = [item.status for item in way.begun.items]
        """One for each item: WANTED, EXISTS, BUSY or OVER_QUOTA; after the commit what became of it."""
        self.is_committed = False

    async def commit(self, indices: Sequence[int] | None = None) -> list[pb.Status]:
        """Publish the items at `indices` (all, if None), whose views are fully written; once.

        Returns a status for each: STORED, EXISTS, REJECTED, or why it was not wanted. Views end here.
        Raises: UnavailableError, LeaseExpiredError; then nothing is stored."""
        assert not self.is_committed, "a fill is committed once"
        self.is_committed = True
        chosen = range(len(self.views)) if indices is None else indices
        wanted = {index: view for index in chosen if (view := self.views[index]) is not None}
        if wanted:
            sums = await _checksums(list(wanted.values()))
            items = [pb.PutCommitItem(index=index, checksum=each) for index, each in zip(wanted, sums, strict=True)]
            commit = pb.PutCommit(items=items, lease_id=self._way.begun.lease_id)
            for index, status in zip(wanted, await self._way.commit(commit), strict=True):
                self.statuses[index] = status
        for view in self.views:
            released(view)
        return [self.statuses[index] for index in chosen]


@dataclass(frozen=True, slots=True)
class FillPlan:
    """What is to be stored."""

    namespace_id: NamespaceId
    items: Sequence[FillItem]
    shard: int

    def begin(self) -> pb.PutBegin:
        """The plan on the wire."""
        items = [
            pb.PutItem(
                block=pb.BlockId(key=item.key, shard=self.shard),
                size=item.size,
                parent_key=item.parent or b"",
                token_ids=item.token_ids,
            )
            for item in self.items
        ]
        return pb.PutBegin(namespace_id=self.namespace_id, items=items)


@asynccontextmanager
async def fill_blocks(link: NodeLink, plan: FillPlan) -> AsyncIterator[Fill]:
    """See `StoreClient.fill`."""
    begin = plan.begin()
    request = pb.LocalRequest(put_begin=begin)
    if (answer := await link.reopening(plan.namespace_id, lambda: link.call_local(request))) is not None:
        connection, response = answer
        local = _LocalFill(link, connection, response.put_begun)
        fill = Fill(local)
        try:
            yield fill
        finally:
            local.end(fill.is_committed)
        return
    remote = await link.reopening(plan.namespace_id, lambda: link.guarded(lambda: _begin_remote(link, begin)))
    fill = Fill(remote)
    try:
        yield fill
    finally:
        remote.end(fill.is_committed)


async def _begin_remote(link: NodeLink, begin: pb.PutBegin) -> "_BulkFill | _RemoteFill":
    connection = await link.take_bulk()
    if connection is not None and (fill := await _BulkFill.begin(link, connection, begin)) is not None:
        return fill
    return await _RemoteFill.begin(link, begin)


class _LocalFill:
    """Views of the arena itself."""

    path: Path = "shm"

    def __init__(self, link: NodeLink, connection: LocalConnection, begun: pb.PutBegun) -> None:
        self._link = link
        self._connection = connection
        self.begun = begun
        self.views = [connection.view(item.place) if item.status == pb.STATUS_WANTED else None for item in begun.items]

    async def commit(self, commit: pb.PutCommit) -> Sequence[pb.Status]:
        request = pb.LocalRequest(put_commit=commit)
        response = await self._link.guarded(
            lambda: within(self._link.deadline_s, self._connection.call(request)), is_begun=True
        )
        return response.put_committed.statuses

    def end(self, is_committed: bool) -> None:
        """End the views; without a commit, give everything back."""
        for view in self.views:
            released(view)
        if not is_committed and self.begun.lease_id:
            nothing = pb.PutCommit(lease_id=self.begun.lease_id)
            self._connection.tell(pb.LocalRequest(put_commit=nothing))


class _Buffers:
    """Memory of our own for what is wanted."""

    def __init__(self, pool: BufferPool, begin: pb.PutBegin, begun: pb.PutBegun) -> None:
        self._pool = pool
        self._buffers = [
            pool.take(item.size) if answer.status == pb.STATUS_WANTED else None
            for item, answer in zip(begin.items, begun.items, strict=True)
        ]
        self.views = [
            buffer[: item.size] if buffer is not None else None
            for item, buffer in zip(begin.items, self._buffers, strict=True)
        ]

    def of(self, commit: pb.PutCommit) -> list[memoryview]:
        """The views of the items of `commit`, in its order."""
        views = [self.views[item.index] for item in commit.items]
        return [view for view in views if view is not None]

    def give_back(self) -> None:
        """End the views. A buffer that something of the caller's still uses is left to it."""
        for view, buffer in zip(self.views, self._buffers, strict=True):
            if buffer is not None and released(view):
                self._pool.give_back(buffer)


class _BulkFill:
    """Buffers of our own, sent at the commit by the bulk connection that reserved."""

    path: Path = "bulk"

    def __init__(self, link: NodeLink, connection: BulkConnection, begin: pb.PutBegin, begun: pb.PutBegun) -> None:
        self._link = link
        self._connection = connection
        self.begun = begun
        self._buffers = _Buffers(link.buffers, begin, begun)
        self.views = self._buffers.views
        self._is_open = begun.lease_id != 0

    @staticmethod
    async def begin(link: NodeLink, connection: BulkConnection, begin: pb.PutBegin) -> "_BulkFill | None":
        """Reserve; None: the connection broke, use gRPC."""
        try:
            request = pb.BulkRequest(put_begin=begin)
            answer = await link.by_bulk(connection, lambda: connection.ask(request))
        except BaseException:
            link.bulk.end(connection)
            raise
        if answer is None:
            link.bulk.end(connection)
            return None
        return _BulkFill(link, connection, begin, answer.begun)

    async def commit(self, commit: pb.PutCommit) -> Sequence[pb.Status]:
        request, values = pb.BulkRequest(put_commit=commit), self._buffers.of(commit)
        answer = await self._link.guarded(
            lambda: self._link.by_bulk(self._connection, lambda: self._connection.ask(request, values)), is_begun=True
        )
        if answer is None:
            raise UnavailableError("the bulk connection broke before the node said that the values are stored")
        self._is_open = False
        return answer.committed.statuses

    def end(self, is_committed: bool) -> None:
        """Keep the connection for others; without a commit it is closed, which gives the reservation back."""
        if self._is_open:
            self._connection.abort()
        self._link.bulk.end(self._connection)
        self._buffers.give_back()


class _RemoteFill:
    """Buffers of our own, sent by one `Put` stream at the commit."""

    path: Path = "grpc"

    def __init__(self, link: NodeLink, stream: Any, begin: pb.PutBegin, begun: pb.PutBegun) -> None:
        self._link = link
        self._stream = stream
        self.begun = begun
        self._buffers = _Buffers(link.buffers, begin, begun)
        self.views = self._buffers.views

    @staticmethod
    async def begin(link: NodeLink, begin: pb.PutBegin) -> "_RemoteFill":
        """Open a stream and reserve."""
        stream = link.remote.put()
        try:
            with grpc_errors():
                await within(link.deadline_s, stream.write(pb.PutRequest(begin=begin).SerializeToString()))
                answer = await _next_answer(link, stream)
        except BaseException:
            stream.cancel()
            raise
        return _RemoteFill(link, stream, begin, answer.begun)

    async def commit(self, commit: pb.PutCommit) -> Sequence[pb.Status]:
        return await self._link.guarded(lambda: self._send(commit), is_begun=True)

    def end(self, is_committed: bool) -> None:
        """End the stream: what it did not commit is given back."""
        self._stream.cancel()
        self._buffers.give_back()

    async def _send(self, commit: pb.PutCommit) -> Sequence[pb.Status]:
        link, stream = self._link, self._stream
        with grpc_errors():
            for item, view in zip(commit.items, self._buffers.of(commit), strict=True):
                for offset in range(0, len(view), FRAME_BYTES):
                    chunk = encode_put_chunk(item.index, offset, view[offset : offset + FRAME_BYTES])
                    await within(link.deadline_s, stream.write(chunk))
            await within(link.deadline_s, stream.write(pb.PutRequest(commit=commit).SerializeToString()))
            answer = await _next_answer(link, stream)
        return answer.committed.statuses


async def _next_answer(link: NodeLink, stream: Any) -> pb.PutResponse:
    raw = await within(link.deadline_s, stream.read())
    if raw is grpc.aio.EOF:
        raise UnavailableError("the node ended the Put stream without an answer")
    return pb.PutResponse.FromString(raw)


async def _checksums(views: Sequence[memoryview]) -> list[bytes]:
    if sum(map(len, views)) <= _SUM_ON_LOOP_BYTES_MAX:
        return list(map(value_checksum, views))
    return await asyncio.to_thread(lambda: list(map(value_checksum, views)))
