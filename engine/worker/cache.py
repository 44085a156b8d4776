"""The hot tier in action: llama.cpp's KV cache and the table that mirrors it, always changed together.

The table decides which slot a turn gets and which idle ones go; each method here carries that out on
llama.cpp's cache in the same order, so that the mirror of its cells stays true. Model thread only.
"""

from collections.abc import Sequence

from engine.llama.context import LlamaContext
from engine.worker.blocks import BlockMover
from engine.worker.slots import Claim, SlotState, SlotTable
from kvstore.core.block import BlockHeader
from kvstore.core.keys import BlockKey, NamespaceId, Tokens

# Blocks kept free beyond a turn's own tokens when it is admitted, so that its answer does not preempt at once.
_ADMISSION_MARGIN_BLOCKS = 2


class KvCache:
    """Slots with what they hold; `table` may be read by anyone on the model thread."""

    def __init__(self, context: LlamaContext, table: SlotTable, mover: BlockMover, idle_cells_max: int) -> None:
        self.table = table
        self.reseats = 0
        """Slots written anew to keep their cells in order, since start."""
        self._context = context
        self._mover = mover
        self._idle_cells_max = idle_cells_max

    def has_cells_for(self, namespace: NamespaceId, tokens: Tokens, promised: int) -> bool:
        """Whether a new turn fits beside what running ones hold and the `promised` cells they have yet to take."""
        shared = self.table.match_busy(namespace, tokens)
        margin = _ADMISSION_MARGIN_BLOCKS * self.table.block_tokens
        return self.table.cells_available() - promised >= len(tokens) - shared + margin

    def claim(self, namespace: NamespaceId, tokens: Tokens) -> Claim | None:
        """Lend a slot for a turn with these `tokens`, with the longest hot prefix in it; None when all are busy."""
        if (claim := self.table.claim(namespace, tokens)) is None:
            return None
        if claim.source == claim.slot:
            self._context.remove(claim.slot, claim.hot_tokens)
        else:
            self._context.remove(claim.slot)
            self._context.copy(claim.source, claim.slot, 0, claim.hot_tokens)
        return claim

    def release(self, slot: int) -> None:
        """The turn is done: its tokens stay hot, and the coldest idle slots go beyond what may stay."""
        self.table.release(slot)
        while self.table.idle_cells() > self._idle_cells_max:
            coldest = self.table.coldest_idle()
            if coldest == self.table.newest_idle():
                return
            self.empty(coldest)

    def empty(self, slot: int) -> None:
        """Forget an idle slot."""
        self.table.empty(slot)
        self._context.remove(slot)

    def discard(self, slot: int) -> None:
        """The turn failed: forget what its slot holds."""
        self.table.release(slot)
        if self.table.slot(slot).state is SlotState.IDLE:
            self.empty(slot)

    def cut(self, slot: int, length: int) -> None:
        """Keep only the first `length` tokens of the slot."""
        self.table.truncate(slot, length)
        self._context.remove(slot, length)

    def prepare(self, parts: Sequence[tuple[int, int]]) -> bool:
        """Make room for the next tokens to enter the cache, and keep slots in order; False when there is no room.

        `parts` are those tokens, in order: (slot, count). Idle slots are emptied, coldest first."""
        total = sum(count for _, count in parts)
        while self.table.cells.free < total:
            if not self._empty_coldest():
                return False
        return self._keep_order(parts, total)

    def append(self, slot: int, tokens: Tokens, keys: Sequence[BlockKey]) -> None:
        """llama.cpp has computed `tokens` in the slot; `keys` are all its full blocks'."""
        self.table.append(slot, tokens, keys)

    def restore(self, slot: int, index: int, header: BlockHeader, value: memoryview) -> bool:
        """Put block `index`, in `value`, into the slot; False when there is no room for it.

        What the slot holds from there on is cut (a hot tail shorter than a block, say: the block covers it).
        Raises: BlockCorruptError when the block is not what `header` says; no KV of it is kept."""
        payload = self._mover.prove(header, value)
        size = len(header.tokens)
        assert index * size <= self.table.slot(slot).length, "blocks are restored in order"
        self.cut(slot, index * size)
        if not self.prepare([(slot, size)]):
            return False
        self._mover.restore(slot, header, payload)
        return True

    def export(self, slot: int, index: int, header: BlockHeader, out: memoryview) -> bool:
        """Write block `index` of the slot into `out`; False when its KV is gone."""
        return self._mover.export(slot, index, header, out)

    def _keep_order(self, parts: Sequence[tuple[int, int]], total: int) -> bool:
        """Reseat the slots whose cells would no longer ascend: their answers stay exact to the last bit.

        Reseating one slot moves the place where the next tokens go, hence one look more than there are slots.
        A slot that shares a prefix needs cells of its own for it then; False when there are none to be had."""
        if not self.table.is_divisible:
            return True  # the mirror does not know a sliding window's cells, and nothing is promised to the last bit
        for _ in range(len(parts) + 1):
            offset, is_ordered = 0, True
            for slot, count in parts:
                if not self.table.stays_ordered(slot, offset, count, total):
                    while not self.table.can_reseat(slot, total):
                        if not self._empty_coldest():
                            return False
                    self._mover.reseat(slot)
                    self.reseats += 1
                    is_ordered = False
                offset += count
            if is_ordered:
                return True
        return False

    def _empty_coldest(self) -> bool:
        """Give up one idle slot; False when there is none."""
        if not (idle := self.table.coldest_idle()):
            return False
        self.empty(idle)
        return True
