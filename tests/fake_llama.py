"""A stand-in for LlamaContext that follows llama.cpp's rule for cells and shows every mistake in its answers.

Its next token is a checksum over the tokens of the sequence *in cell order*: a lost, foreign or duplicated
token changes it, and so does an order of cells that does not ascend with positions.
"""

import zlib

import numpy as np

from engine.llama.context import SCRATCH_SLOT, Batch, ContextSettings, DecodeResult

VOCAB = 251


def next_token(tokens: list[int]) -> int:
    """What the model answers to `tokens` when nothing went wrong."""
    return zlib.crc32(np.array(tokens, np.int32).tobytes()) % VOCAB


def greedy_answer(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class FakeContext:
    """Cells are (position, token, slots that use it); an empty one has no slots."""

    def __init__(self, cells: int, slots: int, batch_tokens: int) -> None:
        self.settings = ContextSettings(cells, slots, batch_tokens, threads=1)
        self.cells, self.batch_tokens, self.vocab_size = cells, batch_tokens, VOCAB
        self._position = np.full(cells, -1)
        self._token = np.zeros(cells, np.int32)
        self._slots: list[set[int]] = [set() for _ in range(cells)]
        self._head = 0
        self._logits: dict[int, int] = {}

    def decode(self, batch: Batch) -> DecodeResult:
        count = len(batch.tokens)
        assert 0 < count <= self.batch_tokens
        if (cells := self._find(count)) is None:
            return DecodeResult.NO_CELLS
        rows = zip(cells, batch.slots.tolist(), batch.positions.tolist(), batch.tokens.tolist(), strict=True)
        for cell, slot, position, token in rows:
            assert slot != SCRATCH_SLOT
            assert position == self.positions(slot)[1] + 1, "positions of a sequence follow one another"
            self._put(cell, slot, position, token)
        self._head = cells[-1] + 1
        self._logits = {
            row: next_token(self._tokens_by_cell(int(batch.slots[row]), int(batch.positions[row])))
            for row in np.flatnonzero(batch.logits).tolist()
        }
        return DecodeResult.OK

    def logits(self, index: int) -> np.ndarray:
        scores = np.zeros(VOCAB, np.float32)
        scores[self._logits[index]] = 1.0
        return scores

    def remove(self, slot: int, start: int = 0, end: int = -1) -> None:
        freed = []
        for cell in self.cells_of(slot):
            if start <= self._position[cell] and (end < 0 or self._position[cell] < end):
                self._slots[cell].discard(slot)
                if not self._slots[cell]:
                    freed.append(cell)
        if freed:
            self._head = min(self._head, *freed)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        for cell in self.cells_of(source):
            if start <= self._position[cell] < end:
                self._slots[cell].add(target)

    def positions(self, slot: int) -> tuple[int, int]:
        held = self._position[self.cells_of(slot)]
        return (int(held.min()), int(held.max())) if len(held) else (-1, -1)

    def state_bytes(self, slot: int) -> int:
        return 8 * len(self.cells_of(slot))

    def read_state(self, slot: int, out: np.ndarray) -> None:
        cells = self.cells_of(slot)
        state = np.stack([self._position[cells], self._token[cells]], axis=1).astype(np.int32)
        out[:] = state.reshape(-1).view(np.uint8)

    def write_state(self, slot: int, state: np.ndarray) -> bool:
        self.remove(slot)
        words = np.frombuffer(state.tobytes(), np.int32).reshape(-1, 2)
        if (cells := self._find(len(words))) is None:
            return False
        for cell, (position, token) in zip(cells, words.tolist(), strict=True):
            self._put(cell, slot, position, token)
        self._head = cells[-1] + 1
        return True

    def cells_of(self, slot: int) -> list[int]:
        """Cells of the slot, ascending."""
        return [cell for cell in range(self.cells) if slot in self._slots[cell]]

    def cells_by_position(self, slot: int) -> list[int]:
        return sorted(self.cells_of(slot), key=lambda cell: int(self._position[cell]))

    def _find(self, count: int) -> list[int] | None:
        used = sum(map(bool, self._slots))
        head = 0 if self._head > used + 2 * count else self._head
        order = [*range(head, self.cells), *range(head)]
        free = [cell for cell in order if not self._slots[cell]]
        return free[:count] if len(free) >= count else None

    def _put(self, cell: int, slot: int, position: int, token: int) -> None:
        assert not self._slots[cell]
        self._slots[cell] = {slot}
        self._position[cell], self._token[cell] = position, token

    def _tokens_by_cell(self, slot: int, last_position: int) -> list[int]:
        return [int(self._token[cell]) for cell in self.cells_of(slot) if self._position[cell] <= last_position]
