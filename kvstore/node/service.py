"""The calls of `kvstore.v1`, each once, for whatever transport: messages in, messages out.

Runs on the node's one task, so between two awaits the state is its own. Errors are those of
`kvstore.core.errors`; the transports map them to codes (rpc_codes).
"""

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any

from kvstore.core.errors import CallerError, LeaseExpiredError, LimitError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node import checking
from kvstore.node.arena import Arena
from kvstore.node.blocks import Block, BlockId
from kvstore.node.filling import NetworkFill
from kvstore.node.leases import Lease, LeaseKind, Owner
from kvstore.node.lifecycle import Lifecycle
from kvstore.node.reading import HeldBlock, hold_blocks, let_go
from kvstore.node.settings import Limits
from kvstore.node.store import BlockStore
from kvstore.node.tiering import DiskParts
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import FRAME_BYTES, PutChunk, decode_put_request, encode_get_frame

_NAMESPACES_MAX = 65_536
_GET_WINDOW_BLOCKS = 16  # held at once by one Get: enough for parallel disk reads, few enough to share the arena


class Service:
    """The calls that find, read and write blocks; see managing and observing for the others.

    Each that would begin something raises UnavailableError while the node drains; those that end it go on."""

    def __init__(
        self,
        store: BlockStore,
        arena: Arena,
        limits: Limits,
        local_socket: str,
        disk: DiskParts | None,
        lifecycle: Lifecycle,
    ) -> None:
        self._store = store
        self._arena = arena
        self._limits = limits
        self._local_socket = local_socket
        self._disk = disk
        self._promoter = disk.promoter if disk else None
        self._lifecycle = lifecycle

    async def open_namespace(self, request: pb.OpenNamespaceRequest) -> pb.OpenNamespaceResponse:
        """See the proto."""
        self._lifecycle.check_takes_calls()
        fingerprint = checking.fingerprint_of(request.fingerprint)
        namespace = fingerprint.namespace_id()
        known = self._store.namespaces
        if namespace not in known:
            if len(known) >= _NAMESPACES_MAX:
                raise LimitError(f"node has {_NAMESPACES_MAX} namespaces, its limit", retry_after_s=60)
            self._store.open_namespace(namespace, fingerprint)
            if self._disk is not None:
                await self._disk.tier.save_namespace(namespace, request.fingerprint.SerializeToString())
        return pb.OpenNamespaceResponse(
            namespace_id=namespace,
            epoch=self._store.namespace(namespace).epoch,
            value_bytes_max=self._limits.value_bytes_max,
            items_max=self._limits.items_max,
            lease_ttl_ms=self._limits.lease_ttl_ms,
            lease_ttl_ms_max=self._limits.lease_ttl_ms_max,
            local_socket=self._local_socket,
        )

    def match(
        self, request: pb.MatchRequest, owner: Owner | None
    ) -> pb.MatchResponse | Coroutine[Any, Any, pb.MatchResponse]:
        """See the proto. A lease ends with `owner`, if any. Later only when blocks to lease come from disk."""
        self._lifecycle.check_takes_calls()
        namespace = NamespaceId(request.namespace_id)
        shard_count = self._store.shard_count(namespace)
        checking.check_keys(request.keys, self._limits)
        index = self._store.index
        matched = index.match(namespace, request.keys, shard_count)
        response = pb.MatchResponse(
            blocks=matched.blocks, blocks_in_memory=matched.blocks_in_memory, bytes=matched.bytes
        )
        if request.with_present:
            response.present = index.present(namespace, request.keys, shard_count)
        block_ids = [
            BlockId(namespace, BlockKey(key), shard)
            for key in (request.keys[: matched.blocks] if request.lease or request.promote else ())
            for shard in range(shard_count)
        ]
        if request.lease and block_ids:
            ttl_s = checking.ttl_s(request.ttl_ms, self._limits)
            held = hold_blocks(self._store, self._promoter, block_ids, prefix_only=True)
            if isinstance(held, list):
                return self._lease_match(response, held, ttl_s, owner)
            return self._lease_match_later(response, held, ttl_s, owner)
        if request.promote and self._promoter is not None:
            self._promoter.begin_all(block_ids)
        return response

    async def _lease_match_later(
        self, response: pb.MatchResponse, held: Coroutine[Any, Any, list[HeldBlock]], ttl_s: float, owner: Owner | None
    ) -> pb.MatchResponse:
        return self._lease_match(response, await held, ttl_s, owner)

    def _lease_match(
        self, response: pb.MatchResponse, held: list[HeldBlock], ttl_s: float, owner: Owner | None
    ) -> pb.MatchResponse:
        """`response`, cut to the keys all of whose shards are held, with a lease on exactly those."""
        shard_count = len(held) // response.blocks
        blocks = [item.block for item in held[: _n_held(held) // shard_count * shard_count] if item.block is not None]
        let_go(self._store, held[len(blocks) :])
        was_in_memory = [item.tier == pb.TIER_MEMORY for item in held[: len(blocks)]]
        response.blocks = len(blocks) // shard_count
        response.blocks_in_memory = sum(
            all(was_in_memory[place : place + shard_count]) for place in range(0, len(blocks), shard_count)
        )
        response.bytes = sum(block.size for block in blocks)
        if blocks:
            response.lease_id = self._store.grant_read(blocks, ttl_s, owner).id
            response.ttl_ms = round(ttl_s * 1000)
        return response

    def acquire(
        self, request: pb.AcquireRequest, owner: Owner | None
    ) -> pb.AcquireResponse | Coroutine[Any, Any, pb.AcquireResponse]:
        """See the proto. The lease ends with `owner`, if any. Later only when blocks come from disk."""
        namespace = NamespaceId(request.namespace_id)
        shard_count = self._store.shard_count(namespace)
        if request.lease_id:
            lease = self.running_lease(namespace, request.lease_id)
            places = [_acquire_item(HeldBlock(pb.STATUS_OK, block, pb.TIER_MEMORY)) for block in lease.blocks]
            return pb.AcquireResponse(lease_id=lease.id, items=places, ttl_ms=self._store.leases.ttl_ms(lease))
        self._lifecycle.check_takes_calls()
        block_ids = checking.block_ids(namespace, request.blocks, shard_count, self._limits)
        ttl_s = checking.ttl_s(request.ttl_ms, self._limits)
        held = hold_blocks(self._store, self._promoter, block_ids, request.prefix_only)
        if isinstance(held, list):
            return self._lease(held, ttl_s, owner)
        return self._lease_later(held, ttl_s, owner)

    async def _lease_later(
        self, held: Coroutine[Any, Any, list[HeldBlock]], ttl_s: float, owner: Owner | None
    ) -> pb.AcquireResponse:
        return self._lease(await held, ttl_s, owner)

    def _lease(self, held: list[HeldBlock], ttl_s: float, owner: Owner | None) -> pb.AcquireResponse:
        response = pb.AcquireResponse(items=map(_acquire_item, held), ttl_ms=round(ttl_s * 1000))
        if blocks := [item.block for item in held if item.block is not None]:
            response.lease_id = self._store.grant_read(blocks, ttl_s, owner).id
        return response

    def release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        """See the proto."""
        checking.check_count(len(request.lease_ids), self._limits)
        return pb.ReleaseResponse(released=self._store.release(request.lease_ids))

    async def get(self, request: pb.GetRequest) -> AsyncIterator[bytes]:
        """Frames of `GetResponse`, serialised. Blocks are held a few at a time."""
        namespace = NamespaceId(request.namespace_id)
        shard_count = self._store.shard_count(namespace)
        block_ids = checking.block_ids(namespace, request.blocks, shard_count, self._limits)
        if request.lease_id:
            for frame in self._leased_frames(namespace, block_ids, request):
                yield frame
            return
        self._lifecycle.check_takes_calls()
        index = 0
        for start in range(0, len(block_ids), _GET_WINDOW_BLOCKS):
            window = block_ids[start : start + _GET_WINDOW_BLOCKS]
            holding = hold_blocks(self._store, self._promoter, window, request.prefix_only)
            held = holding if isinstance(holding, list) else await holding
            try:
                self._store.index.touch([item.block for item in held if item.block is not None])
                for item in held:
                    if item.block is None:
                        yield encode_get_frame(index, item.status)
                    else:
                        for frame in self._frames(index, item.block, request):
                            yield frame
                    index += 1
            finally:
                let_go(self._store, held)
            if request.prefix_only and any(item.block is None for item in held):
                break
        for missing in range(index, len(block_ids)):
            yield encode_get_frame(missing, pb.STATUS_MISS)

    async def put(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Serialised `PutResponse`s to the serialised steps of one stream."""
        fill: NetworkFill | None = None
        begun: pb.PutBegin | None = None
        try:
            async for raw in requests:
                step = decode_put_request(raw)
                if isinstance(step, PutChunk):
                    if fill is None:
                        raise CallerError("chunk without a begin that wanted it")
                    fill.write(step)
                elif step.WhichOneof("step") == "begin" and begun is None:
                    begun = step.begin
                    answer, fill = self._begin_network_fill(begun)
                    yield pb.PutResponse(begun=answer).SerializeToString()
                elif step.WhichOneof("step") == "commit" and begun is not None:
                    yield pb.PutResponse(
                        committed=self._commit_network_fill(fill, step.commit, len(begun.items))
                    ).SerializeToString()
                    return
                else:
                    raise CallerError("a Put stream is one begin, chunks, and one commit")
        finally:
            if fill is not None:
                fill.give_up()

    def put_begin(self, request: pb.PutBegin, owner: Owner | None) -> pb.PutBegun:
        """See the proto. The reservation ends with `owner`, if any."""
        self._lifecycle.check_takes_calls()
        namespace = NamespaceId(request.namespace_id)
        fingerprint = self._store.namespace(namespace).fingerprint
        plans = checking.put_plans(namespace, request.items, fingerprint, self._limits)
        self._store.end_expired()
        reservation = self._store.reserve(plans, checking.ttl_s(request.ttl_ms, self._limits), owner)
        begun = pb.PutBegun(lease_id=reservation.lease.id if reservation.lease else 0)
        blocks = reservation.lease.items if reservation.lease else [None] * len(plans)
        for status, block in zip(reservation.statuses, blocks, strict=True):
            place = pb.Place(offset=block.offset, size=block.size) if block is not None else None
            begun.items.append(pb.PutBegunItem(status=status, place=place))
        return begun

    def put_commit(self, request: pb.PutCommit, owner: Owner) -> pb.PutCommitted:
        """Commit of a local writer, who filled the arena itself and vouches for the checksums."""
        self._store.end_expired()
        lease = self._store.leases.find(request.lease_id, LeaseKind.FILL)
        if lease is None or lease.owner is not owner:
            raise LeaseExpiredError("the reservation is unknown or ran out: begin again")
        checking.check_commit(request.items, len(lease.items))
        checksums = {block: item.checksum for item in request.items if (block := lease.items[item.index])}
        stored = self._store.commit(lease, checksums)
        self._enqueue(stored)
        answers = [lease.items[item.index] for item in request.items]
        return pb.PutCommitted(statuses=[stored[block] if block else pb.STATUS_REJECTED for block in answers])

    def running_lease(self, namespace: NamespaceId, lease_id: int) -> Lease:
        """The read lease `lease_id` on blocks of `namespace`. Raises: LeaseExpiredError."""
        lease = self._store.leases.find(lease_id, LeaseKind.READ)
        if lease is None or any(block.id.namespace != namespace for block in lease.blocks):
            raise LeaseExpiredError("the lease is unknown or ran out: match again")
        return lease

    def commit_proven(self, fill: Lease, commit: pb.PutCommit, proven: Sequence[Block | None]) -> pb.PutCommitted:
        """Publish the blocks of `fill` that are proven; `proven` has one, or None, for each item of `commit`."""
        checksums = {block: item.checksum for block, item in zip(proven, commit.items, strict=True) if block}
        stored = self._store.commit(fill, checksums)
        self._enqueue(stored)
        return pb.PutCommitted(statuses=[stored[block] if block else pb.STATUS_REJECTED for block in proven])

    @property
    def has_owned_leases(self) -> bool:
        """Whether a connection holds a lease."""
        return self._store.leases.has_owned

    def disconnected(self, owner: Owner) -> None:
        """Give back everything that `owner` leased."""
        self._store.end_owned(owner)

    def _leased_frames(
        self, namespace: NamespaceId, block_ids: Sequence[BlockId], request: pb.GetRequest
    ) -> Iterator[bytes]:
        """Frames of what the lease holds; the lease is looked at again before each value."""
        leased = {block.id: block for block in self.running_lease(namespace, request.lease_id).blocks}
        for index, block_id in enumerate(block_ids or list(leased)):
            self.running_lease(namespace, request.lease_id)
            block = leased.get(block_id)
            yield from (
                [encode_get_frame(index, pb.STATUS_MISS)] if block is None else self._frames(index, block, request)
            )

    def _begin_network_fill(self, request: pb.PutBegin) -> tuple[pb.PutBegun, NetworkFill | None]:
        begun = self.put_begin(request, None)
        lease = self._store.leases.find(begun.lease_id, LeaseKind.FILL)
        return begun, NetworkFill(self._store, self._arena, lease) if lease else None

    def _commit_network_fill(self, fill: NetworkFill | None, commit: pb.PutCommit, n_begun: int) -> pb.PutCommitted:
        checking.check_commit(commit.items, n_begun)
        if fill is None or not fill.is_running():
            return pb.PutCommitted(statuses=[pb.STATUS_REJECTED] * len(commit.items))
        return self.commit_proven(fill.lease, commit, [fill.proven(item) for item in commit.items])

    def _enqueue(self, stored: dict[Block, pb.Status]) -> None:
        if self._disk is not None:
            self._disk.demoter.enqueue([block for block, status in stored.items() if status == pb.STATUS_STORED])

    def _frames(self, index: int, block: Block, request: pb.GetRequest) -> Iterator[bytes]:
        start, end = range_of(block, request)
        value = self._arena.view(block.offset, block.size)
        checksum = block.checksum
        while True:
            data = value[start : min(start + FRAME_BYTES, end)]
            yield encode_get_frame(index, pb.STATUS_OK, block.size, start, checksum, data)
            self._store.traffic.bytes_read += len(data)
            start += len(data)
            checksum = b""
            if start == end:
                return


def range_of(block: Block, request: pb.GetRequest) -> tuple[int, int]:
    """First byte and the one after the last that `request` wants of the value. Raises: CallerError."""
    start = request.range_offset
    end = start + request.range_length if request.range_length else block.size
    if not start <= end <= block.size:
        raise CallerError(f"range {start} to {end} is beyond the value's {block.size} bytes")
    return start, end


def _n_held(held: Sequence[HeldBlock]) -> int:
    """How many from the start are there."""
    return next((place for place, item in enumerate(held) if item.block is None), len(held))


def _acquire_item(held: HeldBlock) -> pb.AcquireItem:
    block = held.block
    if block is None:
        return pb.AcquireItem(status=held.status)
    place = pb.Place(offset=block.offset, size=block.size)
    return pb.AcquireItem(status=held.status, place=place, tier=held.tier, checksum=block.checksum)
