"""The disk tier's system calls, behind a protocol, so that a test can fail each of them in turn."""

import errno
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

    def open_segment(self, path: Path, size: int) -> int:
        """Open, or create and preallocate, a segment file of `size` bytes; returns its descriptor."""

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        """Write all of `buffers` at `offset`."""

    def sync(self, fd: int) -> None:
        """Return once all that was written to the file is on the medium."""

    def read(self, fd: int, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a segment file, durably."""

    def close(self, fd: int) -> None:
        """Close a segment file."""

    def commit(self, transaction: "lmdb.Transaction") -> None:
        """Commit a transaction of the index, durably. May raise lmdb.Error."""


class SystemDiskIO:
    """The real calls: O_DIRECT where the file system allows it, buffered elsewhere."""

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

    def read(self, fd: int, buffer: memoryview, offset: int) -> None:
        if (n_read := os.preadv(fd, [buffer], offset)) != len(buffer):
            raise OSError(errno.EIO, f"short read: {n_read} of {len(buffer)} bytes")

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)
        _sync_folder(new.parent)

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
