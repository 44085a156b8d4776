"""The disk tier: values in segment files, named by an index, written behind and read back proven.

One thread writes, two read; the loop's task decides what goes where. Order of a write: what a
reclaimed segment held leaves the index, then come the bytes, then fdatasync, then the transaction
that names them. So whatever moment the machine stops, the index never names bytes that are not there.
The first failed write turns the tier off for writing; what is stored can still be read.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import lmdb

from kvstore.core.block import value_checksum
from kvstore.core.errors import BlockCorruptError
from kvstore.core.keys import NamespaceId
from kvstore.node.blocks import BlockId, DiskPlace, StoredValue
from kvstore.node.disk_folder import DataFolder, padded_on_disk, segment_path
from kvstore.node.disk_index import IndexChange
from kvstore.node.disk_io import DiskIO
from kvstore.node.segments import Placement, SegmentTable

_READ_THREADS = 2  # two reach the speed of the device for values of 1 MiB and more

_FORGET_BATCH = 4096  # a transaction of some 20 ms: what waits to be written goes on between two

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ValueToWrite:
    """One value, sealed and leased until the write returns."""

    id: BlockId
    size: int
    checksum: bytes
    parent_key: bytes
    data: memoryview
    """The value and its padding, a multiple of 4,096 bytes at a multiple of 4,096."""


@dataclass(slots=True)
class _Run:
    """Values that lie side by side in one segment: one system call."""

    first: Placement
    buffers: list[memoryview] = field(default_factory=list)
    values: list[StoredValue] = field(default_factory=list)
    bytes: int = 0


class DiskTier:
    """Reads and writes values of one data folder. Its methods run on the loop."""

    def __init__(
        self,
        folder: DataFolder,
        io: DiskIO,
        segment_bytes: int,
        bytes_max: int,
        on_reclaimed: Callable[[Sequence[BlockId], int], None],
    ) -> None:
        self._folder = folder
        self._io = io
        self._on_reclaimed = on_reclaimed
        self._writer = ThreadPoolExecutor(1, "disk-write")
        self._readers = ThreadPoolExecutor(_READ_THREADS, "disk-read")
        self.segments = SegmentTable(0, folder.segments.values(), segment_bytes, bytes_max)
        self.off_reason = ""
        """Why nothing more is written; empty while the tier is on."""

    def turn_off(self, error: Exception) -> None:
        """Write nothing more; say why, once."""
        if not self.off_reason:
            self.off_reason = f"{type(error).__name__}: {error}"
            log.error("disk_tier_off reason=%r", self.off_reason)

    async def write(self, values: Sequence[ValueToWrite]) -> list[DiskPlace | None]:
        """Write `values` durably; None for one that has no place, or for all when the tier is (now) off.

        Old segments may be reclaimed for it: `on_reclaimed` is told first."""
        places: list[DiskPlace | None] = []
        runs: list[_Run] = []
        for value in values:
            placement = None if self.off_reason else self.segments.place(value.id, len(value.data))
            places.append(placement.place if placement else None)
            if placement is None:
                continue
            self.hold(placement.place)
            if (old := placement.reclaimed) is not None:
                self._on_reclaimed(list(old.values.values()), old.number)
            _append_to_runs(runs, placement, value)
        try:
            await self._in_thread(self._writer, partial(self._write_runs, runs))
        except (OSError, lmdb.Error) as error:
            self.turn_off(error)
            return [None] * len(values)
        finally:
            for place in places:
                if place is not None:
                    self.unhold(place)
        return places

    def hold(self, place: DiskPlace) -> None:
        """Keep the segment of `place` from being reclaimed until `unhold`."""
        self.segments.segments[place.segment].in_use += 1

    def unhold(self, place: DiskPlace) -> None:
        """End one `hold`."""
        self.segments.segments[place.segment].in_use -= 1

    async def read(self, place: DiskPlace, size: int, checksum: bytes, into: memoryview) -> None:
        """Read a value into `into` (padded like `ValueToWrite.data`) and prove it; `place` must be held.

        Raises: BlockCorruptError when the bytes are not those that were written; OSError."""
        await self._in_thread(self._readers, partial(self._read_proven, place, size, checksum, into))

    async def forget(self, values: Sequence[tuple[BlockId, DiskPlace | None]]) -> None:
        """Take values that are removed, or cannot be trusted, out of the index.

        Without a place it may be on its way to the disk: writes and this come in the order they were asked for. So even
        without values it returns only when the index no longer names what a segment lost that is being reclaimed."""
        for _, place in values:
            if place is not None:
                self.segments.forget(place)
        for start in range(0, max(1, len(values)), _FORGET_BATCH):
            await self._apply(IndexChange(removed=[block_id for block_id, _ in values[start : start + _FORGET_BATCH]]))

    async def save_epoch(self, namespace: NamespaceId, epoch: int) -> None:
        """Remember the namespace's epoch over restarts."""
        await self._apply(IndexChange(epochs={namespace: epoch}))

    async def save_namespace(self, namespace: NamespaceId, fingerprint: bytes) -> None:
        """Remember the namespace, so that calls which name it work after a restart."""
        await self._apply(IndexChange(namespaces={namespace: fingerprint}))

    async def close(self) -> None:
        """Wait for the threads and close all files."""
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        for fd in self._folder.fds.values():
            self._io.close(fd)
        self._folder.index.close()
        self._io.close(self._folder.lock_fd)

    async def _apply(self, change: IndexChange) -> None:
        if self.off_reason:
            return
        try:
            await self._in_thread(self._writer, partial(self._folder.index.apply, change))
        except (OSError, lmdb.Error) as error:
            self.turn_off(error)

    @staticmethod
    async def _in_thread(threads: ThreadPoolExecutor, work: Callable[[], None]) -> None:
        # Shielded: a cancelled caller must not give buffers back that a thread still uses.
        running = asyncio.get_running_loop().run_in_executor(threads, work)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    def _write_runs(self, runs: Sequence[_Run]) -> None:
        """On the writing thread."""
        written: dict[int, int] = {}
        for run in runs:
            fd = self._segment_fd(run.first)
            self._io.write(fd, run.buffers, run.first.place.offset)
            written[run.first.place.segment] = fd
        for fd in written.values():
            self._io.sync(fd)
        if runs:
            self._folder.index.apply(IndexChange(added=[value for run in runs for value in run.values]))

    def _segment_fd(self, placement: Placement) -> int:
        """The open file of `placement`'s segment, made or taken over from a reclaimed one if need be."""
        number, fds, folder = placement.place.segment, self._folder.fds, self._folder
        if (old := placement.reclaimed) is not None:
            folder.index.apply(IndexChange(removed=list(old.values.values())))
            self._io.rename(segment_path(folder.path, old.number), segment_path(folder.path, number))
            fds[number] = fds.pop(old.number)
        elif placement.is_new:
            size = self.segments.segments[number].bytes
            fds[number] = self._io.open_segment(segment_path(folder.path, number), size)
        return fds[number]

    def _read_proven(self, place: DiskPlace, size: int, checksum: bytes, into: memoryview) -> None:
        """On a reading thread."""
        self._io.read(self._folder.fds[place.segment], [into[: padded_on_disk(size)]], place.offset)
        if value_checksum(into[:size]) != checksum:
            raise BlockCorruptError(f"value at {place} does not have the checksum it was written with")


def _append_to_runs(runs: list[_Run], placement: Placement, value: ValueToWrite) -> None:
    last = runs[-1] if runs else None
    place = placement.place
    if (
        last is None
        or placement.reclaimed
        or placement.is_new
        or last.first.place.segment != place.segment
        or last.first.place.offset + last.bytes != place.offset
    ):
        last = _Run(placement)
        runs.append(last)
    last.buffers.append(value.data)
    last.values.append(StoredValue(value.id, place, value.size, value.checksum, value.parent_key))
    last.bytes += len(value.data)
