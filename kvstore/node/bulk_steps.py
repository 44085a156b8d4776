"""The steps of calls on the bulk port that touch the node's state, each on the node's one task.

Bytes move between steps, in a connection's thread; what they are read from or written to is held meanwhile.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from kvstore.core.errors import CallerError
from kvstore.core.keys import NamespaceId
from kvstore.node import checking
from kvstore.node.blocks import Block, BlockId
from kvstore.node.leases import Lease, LeaseKind, Owner
from kvstore.node.lifecycle import Lifecycle
from kvstore.node.reading import HeldBlock, hold_blocks, let_go
from kvstore.node.service import Service, range_of
from kvstore.node.settings import Limits
from kvstore.node.store import BlockStore
from kvstore.node.tiering import DiskParts
from kvstore.wire import kvstore_pb2 as pb

_WINDOW_BLOCKS = 16  # as for a Get by gRPC

Extent = tuple[int, int]
"""Offset in the arena and bytes."""


class Window(NamedTuple):
    """Some blocks of a Get, pinned until `let_go_window`."""

    items: Sequence[pb.BulkItem]
    extents: Sequence[Extent]
    """Those bytes of the items that are OK which were asked for, in order."""
    held: Sequence[HeldBlock]
    is_last: bool


class BulkSteps:
    """Reads in windows, fills in three steps. Errors as of `Service`."""

    def __init__(
        self, service: Service, store: BlockStore, limits: Limits, disk: DiskParts | None, lifecycle: Lifecycle
    ) -> None:
        self._service = service
        self._store = store
        self._limits = limits
        self._promoter = disk.promoter if disk else None
        self._lifecycle = lifecycle

    def check_takes_calls(self) -> None:
        """Raises: UnavailableError while the node drains."""
        self._lifecycle.check_takes_calls()

    def hold_window(self, request: pb.GetRequest, at: int) -> Window | Coroutine[Any, Any, Window]:
        """The blocks of `request` from item `at` on, as many as one window has."""
        namespace = NamespaceId(request.namespace_id)
        shard_count = self._store.shard_count(namespace)
        wanted = checking.block_ids(namespace, request.blocks[at : at + _WINDOW_BLOCKS], shard_count, self._limits)
        if request.lease_id:
            return self._hold_leased(request, self._service.running_lease(namespace, request.lease_id), wanted, at)
        if at == 0:
            self.check_takes_calls()
            checking.check_count(len(request.blocks), self._limits)
        held = hold_blocks(self._store, self._promoter, wanted, request.prefix_only)
        n_left = len(request.blocks) - at - len(wanted)
        return self._window(request, held, n_left) if isinstance(held, list) else self._later(request, held, n_left)

    def let_go_window(self, window: Window) -> None:
        """Unpin what `window` holds."""
        let_go(self._store, window.held)

    def put_begin(self, request: pb.PutBegin, owner: Owner) -> tuple[pb.PutBegun, Lease | None]:
        """Reserve for `owner`; the lease is None when nothing is wanted."""
        begun = self._service.put_begin(request, owner)
        return begun, self._store.leases.find(begun.lease_id, LeaseKind.FILL)

    def blocks_of_commit(self, fill: Lease, commit: pb.PutCommit) -> list[Block]:
        """Where the values that follow `commit` belong, in order."""
        checking.check_commit(commit.items, len(fill.items))
        blocks = [block for item in commit.items if (block := fill.items[item.index]) is not None]
        if len(blocks) != len(commit.items):
            raise CallerError("commit has an item that is not wanted: send only those that are")
        return blocks

    def commit_received(self, fill: Lease, commit: pb.PutCommit, digests: Sequence[bytes]) -> pb.PutCommitted:
        """Publish the values that arrived as they were sent; `digests` are of what lies in their extents."""
        self._store.end_expired()
        if self._store.leases.find(fill.id, LeaseKind.FILL) is not fill:
            if fill.owner is not None:
                self._service.disconnected(fill.owner)  # its extents waited for the bytes to end
            return pb.PutCommitted(statuses=[pb.STATUS_REJECTED] * len(commit.items))
        blocks = [fill.items[item.index] for item in commit.items]
        sent = zip(blocks, commit.items, digests, strict=True)
        return self._service.commit_proven(
            fill, commit, [block if digest == item.checksum else None for block, item, digest in sent]
        )

    def disconnected(self, owner: Owner) -> None:
        """Give back everything that `owner` reserved."""
        self._service.disconnected(owner)

    def _hold_leased(self, request: pb.GetRequest, lease: Lease, wanted: Sequence[BlockId], at: int) -> Window:
        """Pinned once more: the lease may end while the bytes are sent."""
        if request.blocks:
            leased = {block.id: block for block in lease.blocks}
            blocks = [leased.get(block_id) for block_id in wanted]
            n_left = len(request.blocks) - at - len(blocks)
        else:
            blocks = list(lease.blocks[at : at + _WINDOW_BLOCKS])
            n_left = len(lease.blocks) - at - len(blocks)
        for block in blocks:
            if block is not None:
                self._store.index.pin(block)
        missing = HeldBlock(pb.STATUS_MISS)
        held = [HeldBlock(pb.STATUS_OK, block, pb.TIER_MEMORY) if block else missing for block in blocks]
        return self._window(request, held, n_left)

    async def _later(self, request: pb.GetRequest, held: Coroutine[Any, Any, list[HeldBlock]], n_left: int) -> Window:
        return self._window(request, await held, n_left)

    def _window(self, request: pb.GetRequest, held: Sequence[HeldBlock], n_left: int) -> Window:
        """`held` as what is sent. Lets go of it when it raises."""
        try:
            extents = [_extent(item.block, request) for item in held if item.block is not None]
        except CallerError:
            let_go(self._store, held)
            raise
        lengths = iter(extents)
        items = [
            pb.BulkItem(status=each.status)
            if (block := each.block) is None
            else pb.BulkItem(status=pb.STATUS_OK, size=block.size, checksum=block.checksum, length=next(lengths)[1])
            for each in held
        ]
        self._store.index.touch([item.block for item in held if item.block is not None])
        self._store.traffic.bytes_read += sum(length for _, length in extents)
        has_gap = request.prefix_only and any(item.block is None for item in held)
        return Window(items, extents, held, has_gap or n_left == 0)


def _extent(block: Block, request: pb.GetRequest) -> Extent:
    start, end = range_of(block, request)
    return block.offset + start, end - start
