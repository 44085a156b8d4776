"""Which segment file holds what, and where the next value goes. Pure policy, no I/O.

    oldest                                             active
    | values ...... | values ...... | values ...... | values .. | free |

Values are appended to the active segment; when the budget is used up, the oldest segment that is
not in use is reclaimed as a whole and becomes the active one under a new, higher number.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvstore.node.blocks import BlockId, DiskPlace


@dataclass(slots=True)
class Segment:
    """One segment file."""

    number: int
    bytes: int
    tail: int = 0
    """Bytes from the start that are given out."""
    in_use: int = 0
    """Reads and writes in flight; such a segment is not reclaimed."""
    values: dict[BlockId, int] = field(default_factory=dict)
    """Block to its size on disk, padded."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where to write, and what must happen before."""

    place: DiskPlace
    reclaimed: Segment | None = None
    """The old segment whose file becomes this place's segment, with the values it loses."""
    is_new: bool = False
    """The segment's file does not exist yet."""


class SegmentTable:
    """All segments of a node, oldest first, within `bytes_max`."""

    def __init__(self, segments: Iterable[Segment], segment_bytes: int, bytes_max: int) -> None:
        self.segments = {segment.number: segment for segment in sorted(segments, key=lambda each: each.number)}
        self.segment_bytes = segment_bytes
        self.bytes_max = bytes_max

    @property
    def bytes_free(self) -> int:
        """Bytes that can be written before a segment must be reclaimed."""
        files = sum(segment.bytes for segment in self.segments.values())
        new = max(0, self.bytes_max - files) // self.segment_bytes * self.segment_bytes
        active = self._active()
        return new + (active.bytes - active.tail if active else 0)

    def place(self, block_id: BlockId, padded_size: int) -> Placement | None:
        """Room for a value; None when it is larger than a segment or every old segment is in use."""
        active = self._active()
        if active is not None and active.tail + padded_size <= active.bytes:
            return Placement(self._append(active, block_id, padded_size))
        number = max(self.segments, default=0) + 1
        files = sum(segment.bytes for segment in self.segments.values())
        if files + self.segment_bytes <= self.bytes_max:
            if padded_size > self.segment_bytes:
                return None
            fresh = self.segments[number] = Segment(number, self.segment_bytes)
            return Placement(self._append(fresh, block_id, padded_size), is_new=True)
        for old in list(self.segments.values())[:-1]:
            if old.in_use == 0 and old.bytes >= padded_size:
                del self.segments[old.number]
                again = self.segments[number] = Segment(number, old.bytes)
                return Placement(self._append(again, block_id, padded_size), reclaimed=old)
        return None

    def forget(self, block_id: BlockId, place: DiskPlace) -> None:
        """A value is no longer wanted; its bytes come back with its whole segment."""
        if (segment := self.segments.get(place.segment)) is not None:
            segment.values.pop(block_id, None)

    def check_invariants(self) -> None:
        """Values fit their segments, segments fit the budget, numbers ascend."""
        assert sum(segment.bytes for segment in self.segments.values()) <= self.bytes_max
        assert list(self.segments) == sorted(self.segments)
        for segment in self.segments.values():
            assert sum(segment.values.values()) <= segment.tail <= segment.bytes and segment.in_use >= 0

    def _active(self) -> Segment | None:
        return self.segments[max(self.segments)] if self.segments else None

    @staticmethod
    def _append(segment: Segment, block_id: BlockId, padded_size: int) -> DiskPlace:
        place = DiskPlace(segment.number, segment.tail)
        segment.tail += padded_size
        segment.values[block_id] = padded_size
        return place
