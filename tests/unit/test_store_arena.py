"""The arena: its pages, its NUMA nodes and the words when the machine cannot give what was asked."""

import ctypes
import logging
import mmap
import os
from pathlib import Path

import pytest

from kvstore.core.errors import ConfigError
from kvstore.node import numa
from kvstore.node.arena import Arena, ArenaOptions
from kvstore.node.pages import PageWish, map_pages

MIB = 1 << 20
HUGE_POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")


def free_huge_pages() -> int:
    try:
        return int((HUGE_POOL / "free_hugepages").read_text()) - int((HUGE_POOL / "resv_hugepages").read_text())
    except OSError:
        return 0


def has_libnuma() -> bool:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        return False
    return True


def test_lists_of_nodes_as_the_kernel_writes_them() -> None:
    assert numa.parse_list("0\n") == [0]
    assert numa.parse_list("0-2,5,7-8\n") == [0, 1, 2, 5, 7, 8]


@pytest.mark.parametrize(
    ("setting", "nodes"), [("none", []), ("interleave", [0, 2, 3]), ("2", [2]), ("0,3", [0, 3]), ("2-3", [2, 3])]
)
def test_chosen_nodes(setting: str, nodes: list[int]) -> None:
    assert numa.chosen_nodes(setting, [0, 2, 3]) == nodes


@pytest.mark.parametrize(
    ("setting", "message"), [("1", "node 1; nodes with memory here: 0, 2"), ("all", "expected none, interleave")]
)
def test_a_node_that_is_not_there_names_those_that_are(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        numa.chosen_nodes(setting, [0, 2])


def test_a_bound_arena_lies_on_its_node(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = numa.nodes_with_memory()[0]
    arena = Arena(8 * MIB, ArenaOptions(pages="normal", numa_node=str(node)))
    try:
        arena.view(0, 4)[:] = b"here"
        address = ctypes.addressof(ctypes.c_char.from_buffer(arena._map))
        counts = numa.pages_by_node(address, arena.bytes, mmap.PAGESIZE)
    finally:
        arena.close()
    if "numa_bound" in caplog.text:
        assert list(counts) == [node]
        assert "elsewhere=0" in caplog.text
    else:  # no libnuma, or a container that forbids mbind: said, and served all the same
        assert "numa_not_bound" in caplog.text


def test_without_libnuma_the_arena_is_there_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa, "_LIBRARY", "libnuma-that-nobody-has.so.1")
    arena = Arena(MIB, ArenaOptions(pages="normal", numa_node=str(numa.nodes_with_memory()[0])))
    arena.close()
    assert "install libnuma1" in caplog.text


def test_all_nodes_in_turn() -> None:
    arena = Arena(MIB, ArenaOptions(pages="normal", numa_node="interleave"))
    arena.view(arena.bytes - 1, 1)[:] = b"x"
    arena.close()


def test_the_arena_is_never_larger_than_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    arena = Arena(10 * 4096 + 4095, ArenaOptions(pages="normal"))
    assert arena.bytes == os.fstat(arena.fd).st_size == 10 * 4096
    arena.close()
    assert "arena_rounded_down asked_bytes=45055 bytes=40960 page_bytes=4096" in caplog.text


@pytest.mark.parametrize("pages", ["1g", "2m"])
def test_pages_that_are_not_there_name_the_command(pages: str) -> None:
    size = 1 << 50  # no machine has so many
    with pytest.raises(ConfigError, match=r"echo \d+ > .*nr_hugepages`"):
        map_pages(PageWish(size, pages, False, []))  # type: ignore[arg-type]


def test_less_than_one_huge_page() -> None:
    with pytest.raises(ConfigError, match="less than one page"):
        map_pages(PageWish(MIB, "2m", False, []))


@pytest.mark.skipif(free_huge_pages() < 17, reason="needs 17 free pages of 2 MiB")
def test_huge_pages_are_rounded_down_if_that_costs_little() -> None:
    for pages, asked, name, size in (
        ("auto", 34 * MIB, "hugetlb-2m", 34 * MIB),
        ("auto", 35 * MIB, "hugetlb-2m", 34 * MIB),
        ("2m", 3 * MIB, "hugetlb-2m", 2 * MIB),
        ("auto", 3 * MIB, None, 3 * MIB),
    ):
        arena = Arena(asked, ArenaOptions(pages=pages))  # type: ignore[arg-type]
        assert arena.bytes == size
        assert arena.pages == name or (name is None and arena.pages in ("thp", "small"))
        arena.close()
