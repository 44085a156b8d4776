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
    values: dict[int, BlockId] = field(default_factory=dict)
    """What lies where: bytes from the file's start to block."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where to write, and what must happen before."""

    place: DiskPlace
    reclaimed: Segment | None = None
    """The old segment whose file becomes this place's segment, with the values it loses."""
    is_new: bool = False
    """The segment's file does not exist yet."""


class SegmentTable:
    """All segments of one device, oldest first, within `bytes_max`."""

    def __init__(self, device: int, segments: Iterable[Segment], segment_bytes: int, bytes_max: int) -> None:
        self.device = device
        self.segments = {segment.number: segment for segment in sorted(segments, key=lambda each: each.number)}
        self.segment_bytes = segment_bytes
        self.bytes_max = bytes_max
        self._active = next(reversed(self.segments.values()), None)

    @property
    def has_room_for_segment(self) -> bool:
        """Whether the next segment will be a new file, not an old one's."""
        return sum(segment.bytes for segment in self.segments.values()) + self.segment_bytes <= self.bytes_max

    @property
    def bytes_free(self) -> int:
        """Bytes that can be written before a segment must be reclaimed."""
        files = sum(segment.bytes for segment in self.segments.values())
        new = max(0, self.bytes_max - files) // self.segment_bytes * self.segment_bytes
        active = self._active
        return new + (active.bytes - active.tail if active else 0)

    def place(self, block_id: BlockId, padded_size: int) -> Placement | None:
        """Room for a value; None when it is larger than a segment or every old segment is in use."""
        active = self._active
        if active is not None and active.tail + padded_size <= active.bytes:
            return Placement(self._append(active, block_id, padded_size))
        number = active.number + 1 if active is not None else 1
        if self.has_room_for_segment:
            if padded_size > self.segment_bytes:
                return None
            return Placement(self._begin(Segment(number, self.segment_bytes), block_id, padded_size), is_new=True)
        for old in list(self.segments.values())[:-1]:
            if old.in_use == 0 and old.bytes >= padded_size:
                del self.segments[old.number]
                return Placement(self._begin(Segment(number, old.bytes), block_id, padded_size), reclaimed=old)
        return None

    def forget(self, place: DiskPlace) -> None:
        """The value at `place` is no longer wanted; its bytes come back with its whole segment."""
        if (segment := self.segments.get(place.segment)) is not None:
            segment.values.pop(place.offset, None)

    def check_invariants(self) -> None:
        """Values fit their segments, segments fit the budget, numbers ascend."""
        assert sum(segment.bytes for segment in self.segments.values()) <= self.bytes_max
        assert list(self.segments) == sorted(self.segments)
        assert self._active is next(reversed(self.segments.values()), None)
        for segment in self.segments.values():
            assert max(segment.values, default=-1) < segment.tail <= segment.bytes or not segment.tail
            assert segment.in_use >= 0

    def _begin(self, fresh: Segment, block_id: BlockId, padded_size: int) -> DiskPlace:
        self.segments[fresh.number] = self._active = fresh
        return self._append(fresh, block_id, padded_size)

    def _append(self, segment: Segment, block_id: BlockId, padded_size: int) -> DiskPlace:
        place = DiskPlace(segment.number, segment.tail, self.device)
        segment.values[segment.tail] = block_id
        segment.tail += padded_size
        return place
