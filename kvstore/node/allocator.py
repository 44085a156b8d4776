"""Extents of the arena: who has which bytes.

    | used | free | used | used | free ........ |     neighbours that are free are always one extent

Best fit: the smallest free extent that is large enough, the lowest of those, so that large extents
stay whole. Sizes are rounded up to `alignment`. A free extent is found by bisection; keeping the list
sorted moves pointers only (a million extents: 0.2 ms). Invariant: used and free extents tile the arena.
"""

from bisect import bisect_left, insort


class ExtentAllocator:
    """Hands out parts of `capacity` bytes, each a multiple of `alignment` in place and size."""

    def __init__(self, capacity: int, alignment: int) -> None:
        assert capacity > 0 and capacity % alignment == 0
        self.capacity = capacity
        self.alignment = alignment
        self.bytes_used = 0
        self._used: dict[int, int] = {}
        self._free_by_size: list[tuple[int, int]] = []
        self._free_size_at: dict[int, int] = {}
        self._free_start_by_end: dict[int, int] = {}
        self._add_free(0, capacity)

    def padded(self, size: int) -> int:
        """`size` rounded up to the alignment."""
        return -(-size // self.alignment) * self.alignment

    def allocate(self, size: int) -> int | None:
        """Offset of a new extent of at least `size` bytes; None when no free extent is large enough."""
        assert size > 0
        size = self.padded(size)
        place = bisect_left(self._free_by_size, (size, -1))
        if place == len(self._free_by_size):
            return None
        free_size, offset = self._free_by_size[place]
        self._take_free(offset, free_size)
        if free_size > size:
            self._add_free(offset + size, free_size - size)
        self._used[offset] = size
        self.bytes_used += size
        return offset

    def free(self, offset: int) -> None:
        """Give the extent at `offset` back and merge it with free neighbours."""
        size = self._used.pop(offset)
        self.bytes_used -= size
        if (after := self._free_size_at.get(offset + size)) is not None:
            self._take_free(offset + size, after)
            size += after
        if (before := self._free_start_by_end.get(offset)) is not None:
            before_size = self._free_size_at[before]
            self._take_free(before, before_size)
            offset, size = before, size + before_size
        self._add_free(offset, size)

    @property
    def bytes_free_largest(self) -> int:
        """Bytes of the largest value that fits now."""
        return self._free_by_size[-1][0] if self._free_by_size else 0

    @property
    def fragmentation(self) -> float:
        """0 when all free bytes are one extent, towards 1 when they are crumbs."""
        free = self.capacity - self.bytes_used
        return 1 - self.bytes_free_largest / free if free else 0.0

    def check_invariants(self) -> None:
        """Used and free extents tile the arena, and no two free ones touch."""
        extents = sorted(
            [(offset, size, True) for offset, size in self._used.items()]
            + [(offset, size, False) for offset, size in self._free_size_at.items()]
        )
        end, was_used = 0, True
        for offset, size, is_used in extents:
            assert offset == end and size > 0 and offset % self.alignment == 0 and size % self.alignment == 0
            assert is_used or was_used, "two free extents touch"
            end, was_used = offset + size, is_used
        assert end == self.capacity
        assert self.bytes_used == sum(self._used.values())
        assert self._free_by_size == sorted((size, offset) for offset, size in self._free_size_at.items())
        assert self._free_start_by_end == {offset + size: offset for offset, size in self._free_size_at.items()}

    def _add_free(self, offset: int, size: int) -> None:
        insort(self._free_by_size, (size, offset))
        self._free_size_at[offset] = size
        self._free_start_by_end[offset + size] = offset

    def _take_free(self, offset: int, size: int) -> None:
        del self._free_by_size[bisect_left(self._free_by_size, (size, offset))]
        del self._free_size_at[offset]
        del self._free_start_by_end[offset + size]
