"""The disk tier's system calls, behind a protocol, so that a test can fail each of them in turn.

Nothing else in the tier calls the system: folders, segment files and the index all go through here.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import lmdb

from kvstore.node.store import ARENA_ALIGNMENT

IO_ALIGNMENT = ARENA_ALIGNMENT
"""Buffers, offsets and lengths of segment files are multiples of this (O_DIRECT needs 512 or 4,096)."""


class DiskIO(Protocol):
    """What the disk tier asks of the system. Every call may raise OSError."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it; nothing happens if it is there."""

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
        """Close a descriptor."""

    def commit(self, transaction: "lmdb.Transaction") -> None:
        """Commit a transaction of the index, durably. May raise lmdb.Error."""


class SystemDiskIO:
    """The real calls: O_DIRECT where the file system allows it, buffered elsewhere."""

    def make_folder(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def lock(self, path: Path) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def list_files(self, folder: Path) -> list[tuple[str, int]]:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file()]

    def open_index(self, folder: Path, map_bytes: int) -> "lmdb.Environment":
        # The lock file of LMDB is for several processes; the node's own lock keeps those out.
        return lmdb.open(str(folder), map_size=map_bytes, max_dbs=3, lock=False)

    def open_segment(self, path: Path, size: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        is_new = not path.exists()
        try:
            fd = os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fd = os.open(path, flags, 0o600)
        try:
            if is_new:
                os.posix_fallocate(fd, 0, size)
                _sync_folder(path.parent)
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        wanted = sum(len(buffer) for buffer in buffers)
        if (written := os.pwritev(fd, buffers, offset)) != wanted:
            raise OSError(errno.EIO, f"short write: {written} of {wanted} bytes")

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        wanted = sum(len(buffer) for buffer in buffers)
        if (n_read := os.preadv(fd, buffers, offset)) != wanted:
            raise OSError(errno.EIO, f"short read: {n_read} of {wanted} bytes")

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)
        _sync_folder(new.parent)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def close(self, fd: int) -> None:
        os.close(fd)

    def commit(self, transaction: "lmdb.Transaction") -> None:
        transaction.commit()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
