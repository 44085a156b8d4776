"""NUMA nodes: which there are, and binding a mapping to some of them by mbind(2), through libnuma.

One node asked for: all pages from there (MPOL_BIND); several: in turn (MPOL_INTERLEAVE). Constants are
those of numaif.h. A machine that cannot bind (no libnuma, a container that forbids it) still gets its
arena: where pages lie is a matter of speed, and the log says that they were left where the kernel puts them.
"""

import ctypes
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from kvstore.core.errors import ConfigError

NONE, INTERLEAVE = "none", "interleave"

_FOLDER = Path("/sys/devices/system/node")
_LIBRARY = "libnuma.so.1"
_MPOL_BIND, _MPOL_INTERLEAVE = 2, 3
_MASK_BITS = 1024  # CONFIG_NODES_SHIFT is at most 10
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_SAMPLED_PAGES = 1024
_RECLAIMABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")

log = logging.getLogger(__name__)


def nodes_with_memory() -> list[int]:
    """The machine's nodes that have memory; [0] where the kernel does not know of nodes."""
    try:
        return parse_list((_FOLDER / "has_memory").read_text())
    except (OSError, ValueError):
        return [0]


def parse_list(text: str) -> list[int]:
    """Numbers and ranges with commas, as the kernel writes them: "0-2,5" is [0, 1, 2, 5]. Raises: ValueError."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def chosen_nodes(setting: str, present: Sequence[int]) -> list[int]:
    """The nodes that `numa_node` asks for; empty for "none". Raises: ConfigError naming those there are."""
    if setting == NONE:
        return []
    if setting == INTERLEAVE:
        return list(present)
    there_are = f"nodes with memory here: {', '.join(map(str, present))}"
    try:
        chosen = parse_list(setting)
    except ValueError:
        chosen = []
    if not chosen:
        raise ConfigError(
            f"numa_node is {setting!r}, expected none, interleave, a node or a list such as 0,1; {there_are}"
        )
    if missing := sorted(set(chosen) - set(present)):
        raise ConfigError(f"numa_node asks for node {', '.join(map(str, missing))}; {there_are}")
    return chosen


def bytes_available(nodes: Sequence[int]) -> int:
    """Memory of `nodes` that is free, or can be freed without swapping. Raises: OSError."""
    total_kib = 0
    for node in nodes:
        for line in (_FOLDER / f"node{node}" / "meminfo").read_text().splitlines():
            _, _, name, kib, *_ = line.split()
            total_kib += int(kib) * (name.rstrip(":") in _RECLAIMABLE)
    return total_kib * 1024


def bind(address: int, size: int, nodes: Sequence[int]) -> bool:
    """Have pages of the mapping that are touched from now on come from `nodes`; says in the log when it cannot."""
    assert nodes
    try:
        library = ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        log.warning("numa_not_bound nodes=%s reason=%r", _text(nodes), f"{_LIBRARY} is not there: install libnuma1")
        return False
    mode = _MPOL_BIND if len(nodes) == 1 else _MPOL_INTERLEAVE
    mask = _mask(nodes)
    # The kernel takes the mask's length to be one more than its bits.
    arguments = (ctypes.c_void_p(address), ctypes.c_ulong(size), mode, mask, ctypes.c_ulong(_MASK_BITS + 1), 0)
    if library.mbind(*arguments) != 0:
        code = ctypes.get_errno()
        log.warning("numa_not_bound nodes=%s reason=%r", _text(nodes), f"mbind: {os.strerror(code)}")
        return False
    if nodes_with_memory() == list(nodes):
        log.info("numa_bound nodes=%s note='the machine has no other node with memory'", _text(nodes))
    else:
        log.info("numa_bound nodes=%s", _text(nodes))
    return True


def pages_by_node(address: int, size: int, page_bytes: int) -> dict[int, int]:
    """Where pages of a touched mapping really lie: counts by node, of up to 1,024 pages spread over it.

    Empty when the system does not say (move_pages(2) without a target only asks)."""
    n_pages = size // page_bytes
    step = -(-n_pages // _SAMPLED_PAGES) * page_bytes
    sampled = range(address, address + size, step)
    addresses = (ctypes.c_void_p * len(sampled))(*sampled)
    found = (ctypes.c_int * len(sampled))()
    try:
        library = ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        return {}
    if library.move_pages(0, ctypes.c_ulong(len(sampled)), addresses, None, found, 0) != 0:
        return {}
    return {node: list(found).count(node) for node in sorted(set(found)) if node >= 0}


def check_pages(address: int, size: int, page_bytes: int, nodes: Sequence[int]) -> None:
    """Say in the log how many of the sampled pages are not on `nodes`."""
    counts = pages_by_node(address, size, page_bytes)
    elsewhere = sum(count for node, count in counts.items() if node not in nodes)
    tell = log.warning if elsewhere else log.info
    tell("numa_pages sampled=%d elsewhere=%d by_node=%s", sum(counts.values()), elsewhere, counts)


def _mask(nodes: Sequence[int]) -> "ctypes.Array[ctypes.c_ulong]":
    mask = (ctypes.c_ulong * (_MASK_BITS // _WORD_BITS))()
    for node in nodes:
        mask[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    return mask


def _text(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))
