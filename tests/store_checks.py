"""What must hold of a storage node in every test, asked from outside: nothing leaks, budgets hold, no stray files."""

import stat
from pathlib import Path

from kvstore.client import FillItem, StoreClient
from kvstore.core.keys import NamespaceId
from kvstore.node.store import ARENA_ALIGNMENT
from kvstore.wire import kvstore_pb2 as pb
from tests.store_node import FINGERPRINT, random_keys, until

_FILES_OF_A_DATA_FOLDER = {"LOCK", "index", "index/data.mdb", "segments"}


async def assert_nothing_leaked(client: StoreClient) -> None:
    """Once all other clients are gone: no lease is left, and all memory in use is that of findable blocks.

    Pins may be left; namespaces must have one shard. Waits for what the node does behind its answers."""
    left = "nothing was asked"

    async def is_clean() -> bool:
        nonlocal left
        left = await _what_is_left(client)
        return not left

    try:
        await until(is_clean)
    except TimeoutError:
        raise AssertionError(left) from None


async def assert_arena_can_be_emptied(client: StoreClient) -> None:
    """As `assert_nothing_leaked`, and every block in memory can be evicted: no use of it was forgotten.

    Fills the whole arena once and gives it up, so all blocks leave memory. Pins must be over.
    The arena has at most `items_max` pages."""
    await assert_nothing_leaked(client)
    info = await client.open_namespace(FINGERPRINT)
    n_extents = (await client.stats()).tiers[0].bytes_max // ARENA_ALIGNMENT  # the smallest: they fit every gap
    items = [FillItem(key, ARENA_ALIGNMENT) for key in random_keys(n_extents)]
    async with client.fill(info.namespace_id, items) as fill:
        assert set(fill.statuses) == {pb.STATUS_WANTED}, "something in the arena cannot be evicted"
    await assert_nothing_leaked(client)


def assert_folder_is_tidy(data_dir: Path, disk_bytes_max: int) -> None:
    """The data folder holds its own files only, and its segments keep the budget, by name and by blocks taken."""
    files = {file.relative_to(data_dir).as_posix(): file.stat() for file in data_dir.rglob("*")}
    segments = {name: found for name, found in files.items() if name.startswith("segments/") and name.endswith(".seg")}
    assert set(files) - set(segments) <= _FILES_OF_A_DATA_FOLDER
    assert all(stat.S_ISREG(found.st_mode) for found in segments.values())
    assert sum(found.st_size for found in segments.values()) <= disk_bytes_max
    # A file system may round up, and takes some blocks for its own tables.
    assert sum(found.st_blocks * 512 for found in segments.values()) <= disk_bytes_max + len(segments) * 65_536


async def _what_is_left(client: StoreClient) -> str:
    """What is not as it should be; empty when all is well."""
    stats = await client.stats(with_namespaces=True)
    for tier in stats.tiers:
        assert tier.bytes_used <= tier.bytes_max, f"{pb.Tier.Name(tier.tier)} is above its budget"
    if stats.leases or stats.blocks_to_demote:
        return f"{stats.leases} leases are running, {stats.blocks_to_demote} blocks wait for the disk"
    expected = 0
    for namespace in stats.namespaces:
        async for listed in client.list_keys(NamespaceId(namespace.namespace_id)):
            assert listed.shards == 1
            if listed.tier == pb.TIER_MEMORY:
                expected += -(-listed.bytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
    used = stats.tiers[0].bytes_used
    return "" if used == expected else f"{used} bytes of the arena are in use, but its blocks take {expected}"
