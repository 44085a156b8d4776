"""Which block leaves the arena next: the least recently used of those that may go.

A block may go when nothing leases it and no resident block names it as its parent, so a parent
outlives its children. Blocks that are on disk too go first, as they cost a read and not a recompute.
Heaps with lazy deletion: a block is offered again whenever it becomes evictable or is used, and an
old offer is recognised by its tick. Both operations are O(log n).
"""

import heapq
from itertools import count

from kvstore.node.blocks import IN_MEMORY, Block, State

_STALE_OFFERS_MIN = 1024


def may_go(block: Block) -> bool:
    """Whether evicting `block` breaks neither a lease nor a chain."""
    return block.state in IN_MEMORY and block.leases == 0 and block.children == 0


class LeastRecentlyUsed:
    """Evictable blocks in the order of their last use, those with a copy on disk first."""

    def __init__(self) -> None:
        self._offers: dict[State, list[tuple[int, int, Block]]] = {State.BOTH: [], State.MEMORY: []}
        self._live: dict[State, int] = {State.BOTH: 0, State.MEMORY: 0}
        self._order = count()

    def offer(self, block: Block) -> None:
        """Say that `block` may go, as of its `last_use`."""
        assert may_go(block)
        heap = self._offers[block.state]
        heapq.heappush(heap, (block.last_use, next(self._order), block))
        if len(heap) >= 2 * self._live[block.state] + _STALE_OFFERS_MIN:
            self._drop_stale(block.state)

    def next_victim(self) -> Block | None:
        """The block to evict now; None when every block is leased or has resident children."""
        for state in (State.BOTH, State.MEMORY):
            heap = self._offers[state]
            while heap:
                tick, _, block = heapq.heappop(heap)
                if block.state is state and block.last_use == tick and may_go(block):
                    return block
        return None

    def _drop_stale(self, state: State) -> None:
        seen: dict[Block, tuple[int, int, Block]] = {}
        for offer in self._offers[state]:
            tick, _, block = offer
            if block.state is state and block.last_use == tick and may_go(block):
                seen[block] = offer
        self._offers[state] = list(seen.values())
        heapq.heapify(self._offers[state])
        self._live[state] = len(seen)
