"""The disk tier's system calls, behind a protocol, so that a test can fail each of them in turn.

Nothing else in the tier calls the system: folders, segment files and the index all go through here.
"""

import errno
import fcntl
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import lmdb

from kvstore.node.store import ARENA_ALIGNMENT

IO_ALIGNMENT = ARENA_ALIGNMENT
"""Buffers, offsets and lengths of segment files are multiples of this (O_DIRECT needs 512 or 4,096)."""

log = logging.getLogger(__name__)


class DiskIO(Protocol):
    """What the disk tier asks of the system. Every call may raise OSError."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it, durably; nothing happens if it is there."""

    def lock(self, path: Path) -> int:
        """Open, or create, the file and lock it for this process; returns its descriptor.

        Raises: BlockingIOError when another process has the lock."""

    def list_files(self, folder: Path) -> list[tuple[str, int]]:
        """Names and sizes of the files in `folder`."""

    def open_index(self, folder: Path, map_bytes: int) -> "lmdb.Environment":
        """Open, or create, an index of at most `map_bytes`. May raise lmdb.Error."""

    def open_segment(self, path: Path, size: int) -> int:
        """Open, or create and preallocate, a segment file of `size` bytes; returns its descriptor."""

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        """Write all of `buffers` at `offset`."""

    def sync(self, fd: int) -> None:
        """Return once all that was written to the file is on the medium."""

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        """Fill all of `buffers` from `offset`, one after the other."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a segment file, durably."""

    def remove(self, path: Path) -> None:
        """Remove a file; nothing happens if it is not there."""

    def close(self, fd: int) -> None:
        """Close a descriptor; never raises."""

    def commit(self, transaction: "lmdb.Transaction") -> None:
        """Commit a transaction of the index, durably. May raise lmdb.Error."""


class SystemCalls:
    """The system's calls that `SystemDiskIO` makes, as they are: a test fails, cuts short or records any of them."""

    def mkdir(self, path: Path) -> None:
        path.mkdir()

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def flock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def scandir(self, folder: Path) -> list[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            return list(entries)

    def fallocate(self, fd: int, size: int) -> None:
        os.posix_fallocate(fd, 0, size)

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def open_index(self, folder: Path, map_bytes: int) -> "lmdb.Environment":
        # The lock file of LMDB is for several processes; the node's own lock keeps those out.
        return lmdb.open(str(folder), map_size=map_bytes, max_dbs=3, lock=False)

    def commit(self, transaction: "lmdb.Transaction") -> None:
        transaction.commit()


class SystemDiskIO:
    """Real files: O_DIRECT where the file system allows it, buffered elsewhere."""

    def __init__(self, calls: SystemCalls | None = None) -> None:
        self._calls = calls or SystemCalls()

    def make_folder(self, path: Path) -> None:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            with suppress(FileExistsError):  # another process was faster
                self._calls.mkdir(folder)
            self._sync_folder(folder.parent)

    def lock(self, path: Path) -> int:
        fd = self._calls.open(path, os.O_RDWR | os.O_CREAT)
        try:
            self._calls.flock(fd)
        except OSError:
            self.close(fd)
            raise
        return fd

    def list_files(self, folder: Path) -> list[tuple[str, int]]:
        return [(entry.name, entry.stat().st_size) for entry in self._calls.scandir(folder) if entry.is_file()]

    def open_index(self, folder: Path, map_bytes: int) -> "lmdb.Environment":
        index = self._calls.open_index(folder, map_bytes)
        try:
            self._sync_folder(folder)  # LMDB makes its file, but not the file's name, durable
        except OSError:
            index.close()
            raise
        return index

    def open_segment(self, path: Path, size: int) -> int:
        flags = os.O_RDWR | os.O_CREAT
        is_new = not path.exists()
        try:
            fd = self._calls.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fd = self._calls.open(path, flags)
        try:
            if is_new:
                self._calls.fallocate(fd, size)
                self._sync_folder(path.parent)
        except OSError:
            with suppress(OSError):  # the first failure is the one to tell
                self._calls.unlink(path)
            self.close(fd)
            raise
        return fd

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        wanted = sum(len(buffer) for buffer in buffers)
        if (written := self._calls.pwritev(fd, buffers, offset)) != wanted:
            raise OSError(errno.EIO, f"short write: {written} of {wanted} bytes")

    def sync(self, fd: int) -> None:
        self._calls.fdatasync(fd)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        wanted = sum(len(buffer) for buffer in buffers)
        if (n_read := self._calls.preadv(fd, buffers, offset)) != wanted:
            raise OSError(errno.EIO, f"short read: {n_read} of {wanted} bytes")

    def rename(self, old: Path, new: Path) -> None:
        self._calls.rename(old, new)
        self._sync_folder(new.parent)

    def remove(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            self._calls.unlink(path)

    def close(self, fd: int) -> None:
        try:
            self._calls.close(fd)
        except OSError as error:  # Linux has closed it all the same, and what counts is synced before
            log.warning("disk_close_failed reason=%r", str(error))

    def commit(self, transaction: "lmdb.Transaction") -> None:
        self._calls.commit(transaction)

    def _sync_folder(self, folder: Path) -> None:
        fd = self._calls.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._calls.fsync(fd)
        finally:
            self.close(fd)
