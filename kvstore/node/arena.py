"""The node's memory for values: one memfd, mapped here and, read-write, by local clients.

Huge pages of 1 GiB, then of 2 MiB, then transparent ones, then small ones; what it became is said, and
what command would have given better pages. All pages are touched at start, so that a budget that the
machine cannot keep fails then and not in the middle of a turn. A client that still maps the arena of a
former node keeps its huge pages taken: hence the advice to look at /proc/meminfo first.
"""

import ctypes
import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from kvstore.core.errors import ConfigError

_MFD_HUGE_SHIFT = 26  # linux/memfd.h: log2 of the page size goes into the upper bits of the flags
_HUGE_PAGES = (("hugetlb-1g", 30), ("hugetlb-2m", 21))
_MADV_POPULATE_WRITE = 23  # linux/mman.h, since 5.14
_POPULATE_CHUNK_BYTES = 256 << 20
_SHMEM_THP = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")

log = logging.getLogger(__name__)


class Arena:
    """`size` bytes of shared memory. Raises: ConfigError when the machine cannot give them."""

    def __init__(self, size: int, *, require_hugepages: bool = False) -> None:
        self.bytes = size
        _check_memory(size)
        self.fd, self._map, self.pages = _map_best(size, require_hugepages)
        try:
            self._populate()
        except OSError as error:
            self._map.close()
            os.close(self.fd)
            raise ConfigError(f"arena_bytes is {size}, but the system gave less memory: {error.strerror}") from error
        self._view = memoryview(self._map)

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes at `offset`, writable; valid while the arena is open."""
        assert 0 <= offset <= offset + size <= self.bytes
        return self._view[offset : offset + size]

    def close(self) -> None:
        """Unmap; clients that still map it keep the memory until they unmap too."""
        self._view.release()
        with suppress(BufferError):  # a view is still in use: the memory goes with it
            self._map.close()
        os.close(self.fd)

    def _populate(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        # The export that from_buffer takes on the mapping ends with this statement.
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        console = Console(stderr=True)
        with Progress(
            TextColumn("touching the arena ({task.fields[pages]})"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        ) as progress:
            task = progress.add_task("touch", total=self.bytes, pages=self.pages)
            for offset in range(0, self.bytes, _POPULATE_CHUNK_BYTES):
                chunk = min(_POPULATE_CHUNK_BYTES, self.bytes - offset)
                address = ctypes.c_void_p(start + offset)
                if libc.madvise(address, ctypes.c_size_t(chunk), _MADV_POPULATE_WRITE) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code))
                progress.advance(task, chunk)


def _map_best(size: int, require_hugepages: bool) -> tuple[int, mmap.mmap, str]:
    """Descriptor, mapping and kind of pages."""
    for name, page_bits in _HUGE_PAGES:
        if size % (1 << page_bits) == 0 and _free_huge_pages(page_bits) >= size >> page_bits:
            fd = -1
            try:
                fd = os.memfd_create("stockpot-arena", os.MFD_HUGETLB | page_bits << _MFD_HUGE_SHIFT | os.MFD_CLOEXEC)
                os.ftruncate(fd, size)
                return fd, mmap.mmap(fd, size), name
            except OSError:  # taken by another process since we looked: the next kind will do
                if fd >= 0:
                    os.close(fd)
    n_pages = -(-size >> 21)
    fix = f"echo {n_pages} > /proc/sys/vm/nr_hugepages"
    if require_hugepages:
        raise ConfigError(
            f"no huge pages for an arena of {size} bytes: run `{fix}` as root, "
            "or end the processes that still map the arena of a former node (HugePages_Free in /proc/meminfo)"
        )
    fd = os.memfd_create("stockpot-arena", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    mapping = mmap.mmap(fd, size)
    pages = _advise_transparent(mapping)
    log.warning("arena_without_hugepages pages=%s fix=%r", pages, fix)
    return fd, mapping, pages


def _advise_transparent(mapping: mmap.mmap) -> str:
    """Ask for transparent huge pages; "thp" if the system grants them to shared memory, else "small"."""
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
        setting = _SHMEM_THP.read_text()
    except OSError:
        return "small"
    return "thp" if any(f"[{mode}]" in setting for mode in ("always", "within_size", "advise", "force")) else "small"


def _free_huge_pages(page_bits: int) -> int:
    folder = Path(f"/sys/kernel/mm/hugepages/hugepages-{1 << page_bits >> 10}kB")
    try:
        free = int((folder / "free_hugepages").read_text())
        return free - int((folder / "resv_hugepages").read_text())
    except (OSError, ValueError):
        return 0


def _check_memory(size: int) -> None:
    """Raises: ConfigError when `size` is more than the machine or its cgroup has left."""
    if size <= 0 or size % mmap.PAGESIZE:
        raise ConfigError(f"arena_bytes is {size}, expected a positive multiple of {mmap.PAGESIZE}")
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    # Huge pages are set aside already: they are not part of what is "available".
    reserved = sum(_free_huge_pages(bits) << bits for _, bits in _HUGE_PAGES)
    limits = {"memory available": int(meminfo["MemAvailable"].split()[0]) * 1024}
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits[file] = int(Path(file).read_text())
        except (OSError, ValueError):
            continue
    for name, limit in limits.items():
        if size > max(limit, reserved):
            raise ConfigError(f"arena_bytes is {size}, but the limit here is {limit} ({name}): choose a smaller arena")
