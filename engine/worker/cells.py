"""A mirror of llama.cpp's KV cells: which are used, how often, and which come next. Pure.

Why mirror them: attention sums over cells in cell order, so a sequence's answer is the same to the last
bit only while its cells ascend with its positions (found by trying: q8_0 logits are equal for any batch,
thread count and gaps, and differ once the order does). llama.cpp does not tell where it puts a token,
but its rule is simple (`llama_kv_cache::find_slot`, not continuous): from the head on, each free cell
once, around the end; the head starts at 0 again when more than the used cells and twice the batch
lie before it. Freeing a cell below the head moves the head down to it (`seq_rm`).
"""

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.int32]


class CellMirror:
    """`cells` counters of how many slots use each cell, and llama.cpp's head."""

    def __init__(self, cells: int) -> None:
        self.references = np.zeros(cells, np.int32)
        self._head = 0

    @property
    def used(self) -> int:
        return int(np.count_nonzero(self.references))

    @property
    def free(self) -> int:
        return len(self.references) - self.used

    def next_cells(self, count: int) -> Cells:
        """Where llama.cpp will put the next `count` tokens, `(count,)`, in batch order; changes nothing."""
        assert count <= self.free, "more tokens than free cells"
        head = 0 if self._head > self.used + 2 * count else self._head
        free = np.flatnonzero(self.references == 0)
        at = int(np.searchsorted(free, head))
        return np.concatenate([free[at:], free[:at]])[:count].astype(np.int32)

    def take(self, count: int) -> Cells:
        """The cells of the `count` tokens that llama.cpp was just given; each is used once."""
        cells = self.next_cells(count)
        self.references[cells] = 1
        self._head = int(cells[-1]) + 1
        return cells

    def pass_through(self, count: int) -> None:
        """llama.cpp was given `count` tokens and has dropped them again: only the head has moved."""
        self.drop(self.take(count))

    def share(self, cells: Cells) -> None:
        """One more slot uses `cells`."""
        assert (self.references[cells] > 0).all()
        self.references[cells] += 1

    def drop(self, cells: Cells) -> None:
        """One slot less uses `cells`."""
        self.references[cells] -= 1
        left = self.references[cells]
        assert (left >= 0).all(), "a cell was dropped more often than shared"
        freed = cells[left == 0]
        if len(freed):
            self._head = min(self._head, int(freed.min()))


def is_ascending(cells: Cells) -> bool:
    return bool((np.diff(cells) > 0).all())
