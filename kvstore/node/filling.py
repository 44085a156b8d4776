"""Filling reserved blocks with bytes that come over the network, and proving them."""

import xxhash

from kvstore.core.errors import CallerError, LeaseExpiredError
from kvstore.node.arena import Arena
from kvstore.node.blocks import Block
from kvstore.node.leases import Lease, LeaseKind
from kvstore.node.store import BlockStore
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import PutChunk


class NetworkFill:
    """The values of one `Put` stream as they arrive; sums are computed on the way, while hot in cache."""

    def __init__(self, store: BlockStore, arena: Arena, lease: Lease) -> None:
        self._store = store
        self._arena = arena
        self.lease = lease
        self._received = [0] * len(lease.items)
        self._sums = [xxhash.xxh3_128() for _ in lease.items]

    def write(self, chunk: PutChunk) -> None:
        """Copy `chunk` to its place.

        Raises: CallerError when it is not the next piece of a wanted item; LeaseExpiredError."""
        if not self.is_running():
            raise LeaseExpiredError("the reservation ran out before the values were complete: begin again")
        block = self.lease.items[chunk.item] if chunk.item < len(self.lease.items) else None
        if block is None:
            raise CallerError(f"chunk is for item {chunk.item}, which is not wanted")
        if chunk.offset != self._received[chunk.item]:
            raise CallerError(f"chunk begins at {chunk.offset}, expected {self._received[chunk.item]}: send in order")
        end = chunk.offset + len(chunk.data)
        if end > block.size:
            raise CallerError(f"chunk ends at {end}, beyond the value's {block.size} bytes")
        self._arena.view(block.offset, block.size)[chunk.offset : end] = chunk.data
        self._sums[chunk.item].update(chunk.data)
        self._received[chunk.item] = end

    def is_running(self) -> bool:
        """Whether the reserved memory is still this stream's."""
        return self._store.leases.find(self.lease.id, LeaseKind.FILL) is self.lease

    def proven(self, item: pb.PutCommitItem) -> Block | None:
        """The block of `item` when all its bytes arrived and have its checksum, else None."""
        block = self.lease.items[item.index]
        if block is None or self._received[item.index] != block.size:
            return None
        return block if self._sums[item.index].digest() == item.checksum else None

    def give_up(self) -> None:
        """Give back what is not committed."""
        self._store.give_up(self.lease)
