"""What the arena is made of: 1 GiB, 2 MiB, transparent or ordinary pages, and what would give better ones.

The budget is exact: with huge pages the arena is rounded down to whole pages, and that is told. `auto`
takes a kind only if rounding costs at most a sixteenth. Huge pages are taken from a pool that the
operator sets aside; a client that still maps the arena of a former node keeps that node's pages taken.
"""

import logging
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvstore.core.errors import ConfigError
from kvstore.node import numa

Pages = Literal["auto", "1g", "2m", "normal"]

_MFD_HUGE_SHIFT = 26  # linux/memfd.h: log2 of the page size goes into the upper bits of the flags
_HUGE_BITS = {"1g": 30, "2m": 21}
_LOSS_MAX = 1 / 16
_SHMEM_THP = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PageWish:
    """What was asked for."""

    bytes: int
    pages: Pages
    require_hugepages: bool
    nodes: Sequence[int]
    """NUMA nodes that the pages shall come from; empty: any."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """Memory that nobody has touched yet; the receiver closes `fd` and `map`."""

    fd: int
    map: mmap.mmap
    bytes: int
    name: str
    """hugetlb-1g, hugetlb-2m, thp or small."""
    page_bytes: int


def map_pages(wish: PageWish) -> Mapped:
    """A new memfd of the best pages that `wish` allows, mapped. Raises: ConfigError saying what to set."""
    if wish.bytes < mmap.PAGESIZE:
        raise ConfigError(f"arena_bytes is {wish.bytes}, expected at least {mmap.PAGESIZE}")
    for kind in ("1g", "2m"):
        if wish.pages in ("auto", kind) and (mapped := _map_huge(wish, kind)) is not None:
            return mapped
    if wish.pages in _HUGE_BITS or wish.require_hugepages:
        raise ConfigError(
            f"no huge pages for an arena of {wish.bytes} bytes: run `{fix_command(wish)}` as root, "
            "or end the processes that still map the arena of a former node (HugePages_Free in /proc/meminfo)"
        )
    return _map_normal(wish)


def _map_huge(wish: PageWish, kind: str) -> Mapped | None:
    """None when there are too few such pages, or (for `auto`) when rounding would cost too much."""
    page_bytes = 1 << _HUGE_BITS[kind]
    size = wish.bytes // page_bytes * page_bytes
    if size == 0 and wish.pages == kind:
        raise ConfigError(f"arena_bytes is {wish.bytes}, less than one page of arena_pages {kind}")
    if size < wish.bytes * (1 - _LOSS_MAX) and wish.pages != kind:
        return None
    if size == 0 or _free_huge_pages(page_bytes, wish.nodes) * page_bytes < size:
        return None
    fd = -1
    try:
        flags = os.MFD_HUGETLB | _HUGE_BITS[kind] << _MFD_HUGE_SHIFT | os.MFD_CLOEXEC
        fd = os.memfd_create("stockpot-arena", flags)
        os.ftruncate(fd, size)
        mapping = mmap.mmap(fd, size)
    except OSError:  # taken by another process since we looked: the next kind will do
        if fd >= 0:
            os.close(fd)
        return None
    _tell_rounding(wish.bytes, size, page_bytes)
    return Mapped(fd, mapping, size, f"hugetlb-{kind}", page_bytes)


def _map_normal(wish: PageWish) -> Mapped:
    _check_memory(wish)
    size = wish.bytes // mmap.PAGESIZE * mmap.PAGESIZE
    fd = os.memfd_create("stockpot-arena", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    mapping = mmap.mmap(fd, size)
    name = _advise_transparent(mapping)
    if wish.pages == "auto":
        log.warning("arena_without_hugepages pages=%s fix=%r", name, fix_command(wish))
    _tell_rounding(wish.bytes, size, mmap.PAGESIZE)
    return Mapped(fd, mapping, size, name, mmap.PAGESIZE)


def _tell_rounding(asked: int, size: int, page_bytes: int) -> None:
    if size < asked:
        log.warning("arena_rounded_down asked_bytes=%d bytes=%d page_bytes=%d", asked, size, page_bytes)


def _advise_transparent(mapping: mmap.mmap) -> str:
    """Ask for transparent huge pages; "thp" if the system grants them to shared memory, else "small"."""
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
        setting = _SHMEM_THP.read_text()
    except OSError:
        return "small"
    return "thp" if any(f"[{mode}]" in setting for mode in ("always", "within_size", "advise", "force")) else "small"


def fix_command(wish: PageWish) -> str:
    """The command that would set enough huge pages aside. The files count all pages, those in use included."""
    page_bytes = 1 << _HUGE_BITS["1g" if wish.pages == "1g" else "2m"]
    folder = _pool(page_bytes, wish.nodes[0] if len(wish.nodes) == 1 else None)
    n_pages = max(1, wish.bytes // page_bytes) + _count(folder, "nr_hugepages") - _count(folder, "free_hugepages")
    is_default = page_bytes == 1 << 21 and len(wish.nodes) != 1
    return f"echo {n_pages} > {'/proc/sys/vm/nr_hugepages' if is_default else folder / 'nr_hugepages'}"


def _pool(page_bytes: int, node: int | None) -> Path:
    parent = Path("/sys/kernel/mm") if node is None else Path(f"/sys/devices/system/node/node{node}")
    return parent / f"hugepages/hugepages-{page_bytes >> 10}kB"


def _free_huge_pages(page_bytes: int, nodes: Sequence[int]) -> int:
    """Pages of the pool that are neither in use nor promised, on `nodes` if any are given."""
    pool = _pool(page_bytes, None)
    free = _count(pool, "free_hugepages") - _count(pool, "resv_hugepages")
    return min(free, sum(_count(_pool(page_bytes, node), "free_hugepages") for node in nodes)) if nodes else free


def _count(folder: Path, name: str) -> int:
    try:
        return int((folder / name).read_text())
    except (OSError, ValueError):
        return 0


def _check_memory(wish: PageWish) -> None:
    """Raises: ConfigError when more is asked than the machine, the NUMA nodes or the cgroup have left."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    limits = {"memory available": int(meminfo["MemAvailable"].split()[0]) * 1024}
    try:
        if wish.nodes:
            limits[f"memory available on NUMA node {', '.join(map(str, wish.nodes))}"] = numa.bytes_available(
                wish.nodes
            )
    except (OSError, ValueError):
        pass  # the kernel tells no memory by node
    for file in _CGROUP_LIMITS:
        try:
            limits[file] = int(Path(file).read_text())
        except (OSError, ValueError):
            continue
    for name, limit in limits.items():
        if wish.bytes > limit:
            raise ConfigError(
                f"arena_bytes is {wish.bytes}, but the limit here is {limit} ({name}): choose a smaller arena"
            )
