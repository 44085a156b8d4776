"""Pins: blocks that eviction leaves alone for a while, on request.

A pin is a lease without an owner, at most one for a block. Hard pins have a bound, so that there is always
room to write; soft ones give way, oldest first, when nothing else can be evicted.
"""

from kvstore.core.keys import NamespaceId
from kvstore.node.blocks import Block
from kvstore.node.index import BlockIndex
from kvstore.node.leases import Lease, LeaseKind, LeaseTable


class PinTable:
    """All pins. Called by the store and the calls that manage blocks, on the node's one task."""

    def __init__(self, index: BlockIndex, leases: LeaseTable, hard_bytes_max: int) -> None:
        self._index = index
        self._leases = leases
        self._hard: dict[Block, Lease] = {}
        self._soft: dict[Block, Lease] = {}
        self._hard_bytes = 0
        self.hard_bytes_max = hard_bytes_max

    def __len__(self) -> int:
        return len(self._hard) + len(self._soft)

    def __contains__(self, block: Block) -> bool:
        return block in self._hard or block in self._soft

    def count(self, namespace: NamespaceId) -> int:
        """How many blocks of `namespace` are pinned."""
        return sum(block.id.namespace == namespace for pins in (self._hard, self._soft) for block in pins)

    def pin(self, block: Block, ttl_s: float, *, is_soft: bool) -> bool:
        """Pin `block`, which is in memory, for `ttl_s` seconds from now; False when hard pins are at their bound."""
        hard_bytes = self._hard_bytes - (block.size if block in self._hard else 0)
        if not is_soft and hard_bytes + block.size > self.hard_bytes_max:
            return False
        self._index.pin(block)  # before the old pin ends, so that it is never without one
        self.end(block)
        lease = self._leases.grant(LeaseKind.PIN, [block], ttl_s, None)
        (self._soft if is_soft else self._hard)[block] = lease
        self._hard_bytes += 0 if is_soft else block.size
        return True

    def end(self, block: Block) -> bool:
        """End the pin of `block`; False when it has none."""
        lease = self._hard.get(block) or self._soft.get(block)
        if lease is None:
            return False
        ended = self._leases.end(lease.id, LeaseKind.PIN)
        assert ended is lease
        self.expired(block)
        return True

    def expired(self, block: Block) -> None:
        """The pin's lease is out of the table: forget the pin."""
        if self._hard.pop(block, None) is not None:
            self._hard_bytes -= block.size
        else:
            del self._soft[block]
        self._index.unpin(block)

    def end_oldest_soft(self) -> bool:
        """Give up the soft pin that was made first; False when there is none."""
        return bool(self._soft) and self.end(next(iter(self._soft)))
