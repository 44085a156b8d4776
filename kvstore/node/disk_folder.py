"""Opening a data folder: one owner, a known format, segments within the budget.

data_dir/LOCK   data_dir/index/data.mdb   data_dir/segments/<number, 16 hex digits>.seg
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import lmdb

from kvstore.core.errors import ConfigError
from kvstore.node.disk_index import DiskIndex
from kvstore.node.disk_io import IO_ALIGNMENT, DiskIO
from kvstore.node.segments import Segment

_INDEX_BYTES_MIN = 256 << 20


@dataclass(frozen=True, slots=True)
class DataFolder:
    """An open, locked data folder and what was found in it."""

    path: Path
    bytes_max: int
    lock_fd: int
    index: DiskIndex
    segments: dict[int, Segment]
    """By number; which values they hold is not read yet."""
    fds: dict[int, int]
    """Segment number to file descriptor."""


def segment_path(folder: Path, number: int) -> Path:
    """File of the segment `number`."""
    return folder / "segments" / f"{number:016x}.seg"


def padded_on_disk(size: int) -> int:
    """Bytes that a value of `size` takes in a segment."""
    return -(-size // IO_ALIGNMENT) * IO_ALIGNMENT


def open_data_folder(path: Path, bytes_max: int, io: DiskIO) -> DataFolder:
    """Lock `path`, open its index and its segments; those beyond `bytes_max` are deleted.

    Raises: ConfigError when the folder is in use, cannot be written or has an unknown format."""
    with ExitStack() as undo:
        try:
            io.make_folder(path / "segments")
            io.make_folder(path / "index")
            lock_fd = io.lock(path / "LOCK")
            undo.callback(io.close, lock_fd)
        except BlockingIOError as error:
            raise ConfigError(
                f"data_dir {path} is in use by another node: stop it, or give this one its own"
            ) from error
        except OSError as error:
            raise ConfigError(f"data_dir {path} cannot be written: {error.strerror}") from error
        try:
            # 512 bytes of index for every 4 KiB of values is more than three times what a record takes.
            index = DiskIndex(path / "index", _INDEX_BYTES_MIN + bytes_max // 8, io)
            undo.callback(index.close)
            segments = _find_segments(path, bytes_max, io)
            fds: dict[int, int] = {}
            for number, segment in segments.items():
                fds[number] = io.open_segment(segment_path(path, number), segment.bytes)
                undo.callback(io.close, fds[number])
        except (OSError, lmdb.Error) as error:
            raise ConfigError(f"data_dir {path} cannot be opened: {error}") from error
        undo.pop_all()
    return DataFolder(path, bytes_max, lock_fd, index, segments, fds)


def _find_segments(path: Path, bytes_max: int, io: DiskIO) -> dict[int, Segment]:
    """Segments by number, newest first within the budget; files beyond it, or cut short, are deleted."""
    segments: dict[int, Segment] = {}
    total = 0
    for name, file_bytes in sorted(io.list_files(path / "segments"), reverse=True):
        file = path / "segments" / name
        if file.suffix != ".seg":
            continue
        size = file_bytes // IO_ALIGNMENT * IO_ALIGNMENT
        total += size
        if size == 0 or total > bytes_max:
            io.remove(file)
            continue
        segments[int(file.stem, 16)] = Segment(int(file.stem, 16), size)
    return segments
