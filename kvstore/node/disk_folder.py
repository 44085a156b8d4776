"""Opening a data folder: one owner, a known format, and only values that index and segments agree on.

data_dir/LOCK   data_dir/index/data.mdb   data_dir/segments/<number, 16 hex digits>.seg
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import lmdb

from kvstore.core.errors import ConfigError
from kvstore.node.disk_index import DiskIndex, IndexChange, StoredValue
from kvstore.node.disk_io import IO_ALIGNMENT, DiskIO
from kvstore.node.segments import Segment

_INDEX_BYTES_MIN = 256 << 20


@dataclass(frozen=True, slots=True)
class DataFolder:
    """An open, locked data folder and what was found in it."""

    path: Path
    lock_fd: int
    index: DiskIndex
    segments: list[Segment]
    fds: dict[int, int]
    """Segment number to file descriptor."""
    values: list[StoredValue]


def segment_path(folder: Path, number: int) -> Path:
    """File of the segment `number`."""
    return folder / "segments" / f"{number:016x}.seg"


def padded_on_disk(size: int) -> int:
    """Bytes that a value of `size` takes in a segment."""
    return -(-size // IO_ALIGNMENT) * IO_ALIGNMENT


def open_data_folder(path: Path, disk_bytes_max: int, io: DiskIO) -> DataFolder:
    """Lock `path` and read its index; values that no segment can hold any more are dropped from it.

    Raises: ConfigError when the folder is in use, cannot be written or has an unknown format."""
    try:
        (path / "segments").mkdir(parents=True, exist_ok=True)
        (path / "index").mkdir(exist_ok=True)
        lock_fd = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"data_dir {path} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock_fd)
        raise ConfigError(f"data_dir {path} is in use by another node: stop it, or give this one its own") from error
    try:
        # 512 bytes of index for every 4 KiB of values is more than three times what a record takes.
        index = DiskIndex(path / "index", _INDEX_BYTES_MIN + disk_bytes_max // 8, io)
        return _read_folder(path, lock_fd, index, disk_bytes_max, io)
    except (OSError, lmdb.Error) as error:
        os.close(lock_fd)
        raise ConfigError(f"data_dir {path} cannot be opened: {error}") from error
    except ConfigError:
        os.close(lock_fd)
        raise


def _read_folder(path: Path, lock_fd: int, index: DiskIndex, disk_bytes_max: int, io: DiskIO) -> DataFolder:
    segments = _find_segments(path, disk_bytes_max)
    values: list[StoredValue] = []
    lost: list[StoredValue] = []
    for value in index.values():
        segment = segments.get(value.place.segment)
        end = value.place.offset + padded_on_disk(value.size)
        if segment is None or end > segment.bytes:
            lost.append(value)
            continue
        segment.tail = max(segment.tail, end)
        segment.values[value.id] = padded_on_disk(value.size)
        values.append(value)
    if lost:
        index.apply(IndexChange(removed=[value.id for value in lost]))
    fds = {number: io.open_segment(segment_path(path, number), each.bytes) for number, each in segments.items()}
    return DataFolder(path, lock_fd, index, list(segments.values()), fds, values)


def _find_segments(path: Path, disk_bytes_max: int) -> dict[int, Segment]:
    """Segments by number, newest first within the budget; files beyond it, or cut short, are deleted."""
    segments: dict[int, Segment] = {}
    total = 0
    for file in sorted((path / "segments").glob("*.seg"), reverse=True):
        size = file.stat().st_size // IO_ALIGNMENT * IO_ALIGNMENT
        total += size
        if size == 0 or total > disk_bytes_max:
            file.unlink()
            continue
        segments[int(file.stem, 16)] = Segment(int(file.stem, 16), size)
    return segments
