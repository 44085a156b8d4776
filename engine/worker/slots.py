"""The hot tier: which sequences the worker's KV cache holds, and how many cells they use. Pure.

A slot is FREE, BUSY (lent to a turn) or IDLE (finished, kept for the turns that may extend it). Cells are
counted by reference: a prefix that several slots share is held once.

    slot 1 BUSY  system prompt | agent A ...........
    slot 2 IDLE  (shared cells)| agent B .......
    slot 3 FREE

The model loop carries out on llama.cpp's cache what this table decides; the two must never differ.
"""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.worker.cells import CellMirror, is_ascending
from kvstore.core.keys import BlockKey, NamespaceId, Tokens


class SlotState(enum.Enum):
    FREE = "free"
    BUSY = "busy"
    IDLE = "idle"


@dataclass(slots=True)
class Slot:
    number: int
    state: SlotState
    namespace: NamespaceId
    tokens: npt.NDArray[np.uint32]
    """Room for a whole context; the first `length` are in the cache."""
    cells: npt.NDArray[np.int32]
    """llama.cpp's cell of each token, as mirrored; as `tokens`."""
    length: int
    keys: list[BlockKey]
    """Keys of its full blocks, at most `length // block_tokens`."""
    last_use: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What to do on the cache for a slot that was just lent: empty it, copy the prefix, or cut it."""

    slot: int
    hot_tokens: int
    source: int
    """Slot to copy `[0, hot_tokens)` from; `slot` itself when it is reused in place."""


class SlotTable:
    """Owns the slots' bookkeeping. Numbers are 1 to `slots`; 0 is llama.cpp's scratch slot."""

    def __init__(
        self, *, slots: int, cells: int, context_tokens: int, block_tokens: int, is_divisible: bool = True
    ) -> None:
        """`is_divisible`: KV of a sequence can be cut, and shared, at any token. Not so with sliding windows, whose
        older rows are dropped, and recurrent states: there a slot is reused only as a whole."""
        self.is_divisible = is_divisible
        self.block_tokens = block_tokens
        self._slots = [
            Slot(
                number,
                SlotState.FREE,
                NamespaceId(b""),
                np.empty(context_tokens, np.uint32),
                np.empty(context_tokens, np.int32),
                0,
                [],
                0,
            )
            for number in range(1, slots + 1)
        ]
        self.cells = CellMirror(cells)
        self._clock = 0
        self._hot: Counter[BlockKey] = Counter()
        self._hot_added: set[BlockKey] = set()
        self._hot_removed: set[BlockKey] = set()

    def slot(self, number: int) -> Slot:
        return self._slots[number - 1]

    def cells_available(self) -> int:
        """Cells that are free or would be once every idle slot is emptied."""
        busy = [s.cells[: s.length] for s in self._slots if s.state is SlotState.BUSY and s.length]
        return len(self.cells.references) - (len(np.unique(np.concatenate(busy))) if busy else 0)

    def match(self, namespace: NamespaceId, tokens: Tokens) -> tuple[int, int]:
        """The slot that shares the longest prefix with `tokens`, and its length; (0, 0) when none does.

        Among equals an idle slot comes first, then the one used last."""
        best = (0, False, 0, 0)
        for slot in self._slots:
            if slot.length and slot.namespace == namespace:
                shared = shared_prefix(slot.tokens[: slot.length], tokens)
                if not self.is_divisible and (shared < slot.length or slot.state is SlotState.BUSY):
                    continue
                best = max(best, (shared, slot.state is SlotState.IDLE, slot.last_use, slot.number))
        return (best[3], best[0]) if best[0] else (0, 0)

    def match_busy(self, namespace: NamespaceId, tokens: Tokens) -> int:
        """The longest prefix of `tokens` that a busy slot holds: a new turn shares those cells."""
        if not self.is_divisible:
            return 0
        busy = [s for s in self._slots if s.state is SlotState.BUSY and s.namespace == namespace]
        return max((shared_prefix(s.tokens[: s.length], tokens) for s in busy), default=0)

    def claim(self, namespace: NamespaceId, tokens: Tokens) -> Claim | None:
        """Lend a slot for a turn with these `tokens`; None when every slot is busy.

        At least the last token is left to compute, for its logits. The slot that holds the prefix is
        reused in place when the turn extends it (to within a block, since an answer's end may have been
        tokenised otherwise), and copied from otherwise: a sibling that shares only the system prompt must
        not cost the session that is kept there."""
        source, hot = self.match(namespace, tokens[:-1])
        is_extended = source and self.slot(source).length - hot <= self.block_tokens
        if is_extended and self.slot(source).state is SlotState.IDLE:
            target = self.slot(source)
            self.truncate(source, hot)
        else:
            free = [s for s in self._slots if s.state is SlotState.FREE]
            idle = [s for s in self._slots if s.state is SlotState.IDLE and s.number != source]
            idle = idle or [s for s in self._slots if s.state is SlotState.IDLE]
            if not free and not idle:
                return None
            target = free[0] if free else min(idle, key=lambda s: s.last_use)
            if target.number == source:
                self.truncate(source, hot)
            else:
                self.empty(target.number)
                self._share(source, target, hot)
        target.state = SlotState.BUSY
        target.namespace = namespace
        return Claim(slot=target.number, hot_tokens=hot, source=source or target.number)

    def append(self, number: int, tokens: Tokens, keys: Sequence[BlockKey]) -> None:
        """`tokens` now follow in the slot's cache, each in a cell of its own; `keys` are all its full blocks'."""
        slot = self.slot(number)
        count = len(tokens)
        slot.tokens[slot.length : slot.length + count] = tokens
        slot.cells[slot.length : slot.length + count] = self.cells.take(count)
        slot.length += count
        new = list(keys[len(slot.keys) : slot.length // self.block_tokens])
        slot.keys.extend(new)
        self._heat(new)

    def stays_ordered(self, number: int, offset: int, count: int, batch_tokens: int) -> bool:
        """Whether the slot's cells would ascend after a batch of `batch_tokens` whose tokens `[offset,
        offset + count)` are the slot's next ones; if not, `reseat` it first."""
        slot = self.slot(number)
        added = self.cells.next_cells(batch_tokens)[offset : offset + count]
        return is_ascending(np.concatenate([slot.cells[max(0, slot.length - 1) : slot.length], added]))

    def can_reseat(self, number: int, reserve: int) -> bool:
        """Whether the slot can be written anew, once it has left the cells it has alone, with `reserve` cells over.

        What it shares with other slots it then holds for itself."""
        slot = self.slot(number)
        alone = self._cells_alone(slot)
        return slot.length > 0 and self.cells.free + alone - slot.length >= reserve

    def reseat(self, number: int) -> None:
        """The slot's state was read and written again: llama.cpp gave it new cells."""
        slot = self.slot(number)
        self.cells.drop(slot.cells[: slot.length])
        slot.cells[: slot.length] = self.cells.take(slot.length)

    def truncate(self, number: int, length: int) -> None:
        """Keep only the first `length` tokens of the slot."""
        slot = self.slot(number)
        assert 0 <= length <= slot.length
        self.cells.drop(slot.cells[length : slot.length])
        slot.length = length
        self._cool(slot.keys[length // self.block_tokens :])
        del slot.keys[length // self.block_tokens :]

    def empty(self, number: int) -> None:
        self.truncate(number, 0)
        self.slot(number).state = SlotState.FREE

    def release(self, number: int) -> None:
        """The turn is done: keep its tokens hot."""
        slot = self.slot(number)
        assert slot.state is SlotState.BUSY
        self._clock += 1
        slot.last_use = self._clock
        slot.state = SlotState.IDLE if slot.length else SlotState.FREE

    def coldest_idle(self) -> int:
        """The idle slot to give up next: used longest ago, of those that have cells of their own; 0 for none."""
        idle = [s for s in self._slots if s.state is SlotState.IDLE]
        freeing = [s for s in idle if self._cells_alone(s)]
        return min(freeing or idle, key=lambda s: s.last_use).number if idle else 0

    def newest_idle(self) -> int:
        """The idle slot used last; 0 when none is idle."""
        idle = [s for s in self._slots if s.state is SlotState.IDLE]
        return max(idle, key=lambda s: s.last_use).number if idle else 0

    def idle_cells(self) -> int:
        """Cells that would be free if every idle slot were emptied."""
        return self.cells_available() - self.cells.free

    def take_hot_changes(self) -> tuple[list[BlockKey], list[BlockKey]]:
        """Block keys that became hot, and that went, since the last call."""
        added, removed = sorted(self._hot_added), sorted(self._hot_removed)
        self._hot_added.clear()
        self._hot_removed.clear()
        return added, removed

    def check_invariants(self) -> None:
        references = np.zeros_like(self.cells.references)
        hot: Counter[BlockKey] = Counter()
        for slot in self._slots:
            assert (slot.state is not SlotState.FREE) or slot.length == 0
            assert len(slot.keys) <= slot.length // self.block_tokens
            np.add.at(references, slot.cells[: slot.length], 1)
            assert len(np.unique(slot.cells[: slot.length])) == slot.length
            hot.update(slot.keys)
        assert (references == self.cells.references).all()
        assert hot == self._hot

    def _cells_alone(self, slot: Slot) -> int:
        """Cells that no other slot uses."""
        return int(np.count_nonzero(self.cells.references[slot.cells[: slot.length]] == 1))

    def _share(self, source: int, target: Slot, length: int) -> None:
        if not length:
            return
        donor = self.slot(source)
        target.tokens[:length] = donor.tokens[:length]
        target.cells[:length] = donor.cells[:length]
        self.cells.share(donor.cells[:length])
        target.length = length
        target.keys = donor.keys[: length // self.block_tokens]
        self._heat(target.keys)

    def _heat(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self._hot[key] += 1
            if self._hot[key] == 1 and key not in self._hot_removed:
                self._hot_added.add(key)
            self._hot_removed.discard(key)

    def _cool(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self._hot[key] -= 1
            assert self._hot[key] >= 0
            if self._hot[key] == 0:
                del self._hot[key]
                if key not in self._hot_added:
                    self._hot_removed.add(key)
                self._hot_added.discard(key)


def shared_prefix(left: Tokens, right: Tokens) -> int:
    """Number of tokens that both begin with."""
    count = min(len(left), len(right))
    different = np.flatnonzero(left[:count] != right[:count])
    return int(different[0]) if len(different) else count
