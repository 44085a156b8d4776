"""Blocks in and out of the KV cache: one memcpy each way, through the scratch slot. Model thread only.

    export:  tag the block's cells for the scratch slot, read its state into the buffer
    restore: write the state into the scratch slot, tag its cells for the turn's slot

Setting a sequence's state wipes that sequence, hence the scratch slot. The buffer may be the store's own
shared memory. Restored blocks follow one another in order, so that cells ascend with positions.
"""

import numpy as np
import numpy.typing as npt

from engine.llama.context import SCRATCH_SLOT, LlamaContext
from engine.worker.slots import SlotTable
from kvstore.core.block import BlockHeader, encode_header, header_bytes, open_block
from kvstore.core.errors import BlockCorruptError


class BlockMover:
    """Writes to `context` and `table` together: the two never differ after a call."""

    def __init__(self, context: LlamaContext, table: SlotTable, block_tokens: int) -> None:
        self._context = context
        self._table = table
        self._block_tokens = block_tokens
        self._header_bytes = header_bytes(block_tokens)
        self._reseat_buffer = np.empty(0, np.uint8)

    def measure(self, slot: int) -> int:
        """Bytes of one stored block, header included, by the first block of `slot` (which must be there)."""
        self._tag(slot, 0)
        payload_bytes = self._context.state_bytes(SCRATCH_SLOT)
        self._context.remove(SCRATCH_SLOT)
        return self._header_bytes + payload_bytes

    def export(self, slot: int, index: int, header: BlockHeader, out: memoryview) -> bool:
        """Write block `index` of `slot` into `out`, the size `measure` gave; False when its KV is gone."""
        keys = self._table.slot(slot).keys
        if index >= len(keys) or keys[index] != header.key:
            return False
        value = np.frombuffer(out, np.uint8)
        payload = value[self._header_bytes :]
        self._tag(slot, index)
        self._context.read_state(SCRATCH_SLOT, payload)
        self._context.remove(SCRATCH_SLOT)
        value[: self._header_bytes] = np.frombuffer(encode_header(header, payload), np.uint8)
        return True

    def prove(self, header: BlockHeader, value: memoryview) -> npt.NDArray[np.uint8]:
        """The payload in `value`, a view, proven to be the block that `header` describes.

        Raises: BlockCorruptError."""
        return np.frombuffer(open_block(value, header), np.uint8)

    def restore(self, slot: int, header: BlockHeader, payload: npt.NDArray[np.uint8]) -> None:
        """Append a proven block to `slot`, which must end where the block begins; the cells must be there.

        Raises: BlockCorruptError when llama.cpp takes it otherwise than `header` says; the slot is then unchanged."""
        start = self._table.slot(slot).length
        end = start + self._block_tokens
        assert start % self._block_tokens == 0
        is_written = self._context.write_state(SCRATCH_SLOT, payload)
        low, high = self._context.positions(SCRATCH_SLOT)
        if not is_written or (low, high) != (start, end - 1):
            self._context.remove(SCRATCH_SLOT)
            if high >= 0:
                self._table.cells.pass_through(high - low + 1)
            raise BlockCorruptError(f"llama.cpp does not take the block's state for positions [{start}, {end})")
        self._context.copy(SCRATCH_SLOT, slot, start, end)
        self._context.remove(SCRATCH_SLOT)
        self._table.append(slot, header.tokens, [*self._table.slot(slot).keys, header.key])

    def reseat(self, slot: int) -> None:
        """Write the slot's KV into new cells that ascend with its positions."""
        size = self._context.state_bytes(slot)
        if len(self._reseat_buffer) < size:
            self._reseat_buffer = np.empty(size, np.uint8)  # kept: fresh memory costs page faults
        state: npt.NDArray[np.uint8] = self._reseat_buffer[:size]
        self._context.read_state(slot, state)
        if not self._context.write_state(slot, state):
            raise RuntimeError("llama.cpp refused a sequence's own state")
        self._table.reseat(slot)

    def _tag(self, slot: int, index: int) -> None:
        self._context.remove(SCRATCH_SLOT)
        self._context.copy(slot, SCRATCH_SLOT, index * self._block_tokens, (index + 1) * self._block_tokens)
