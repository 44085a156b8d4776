"""Each call to the disk fails in turn: the node goes on in memory and never answers wrong bytes."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import lmdb
import pytest

from kvstore.client import StoreClient
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.disk_io import SystemCalls, SystemDiskIO
from kvstore.node.node import Node
from kvstore.node.settings import NodeSettings
from kvstore.wire import kvstore_pb2 as pb
from tests.store_node import (
    FINGERPRINT,
    MIB,
    get_values,
    put_chain,
    random_keys,
    running_node,
    until,
    value_of,
)

SIZE = 300_000
CALLS = ("open_segment", "write", "sync", "rename", "commit", "read")


class FailingDisk(SystemDiskIO):
    """The real disk, but one kind of call fails from its `after`th time on, `times` times."""

    def __init__(self, call: str = "", number: int = errno.EIO, after: int = 0, times: int = 1 << 30) -> None:
        super().__init__()
        self.call = call
        self.number = number
        self.after = after
        self.times = times

    def _maybe_fail(self, call: str) -> None:
        if call != self.call:
            return
        self.after -= 1
        if self.after < 0 and self.times > 0:
            self.times -= 1
            raise OSError(self.number, os.strerror(self.number))

    def open_segment(self, path: Path, size: int) -> int:
        self._maybe_fail("open_segment")
        return super().open_segment(path, size)

    def write(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        self._maybe_fail("write")
        super().write(fd, buffers, offset)

    def sync(self, fd: int) -> None:
        self._maybe_fail("sync")
        super().sync(fd)

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        self._maybe_fail("read")
        super().read(fd, buffers, offset)

    def rename(self, old: Path, new: Path) -> None:
        self._maybe_fail("rename")
        super().rename(old, new)

    def commit(self, transaction: lmdb.Transaction) -> None:
        self._maybe_fail("commit")
        super().commit(transaction)


def settings_for(tmp_path: Path) -> NodeSettings:
    # Four segments of some six values each: a test's values pass through all of them and reclaim some.
    return NodeSettings(
        arena_bytes=4 * MIB,
        value_bytes_max=MIB,
        data_dir=str(tmp_path / "data"),
        segment_bytes=2 * MIB,
        disk_bytes_max=8 * MIB,
        local_socket=str(tmp_path / "s"),
    )


@asynccontextmanager
async def node_with(tmp_path: Path, disk: SystemDiskIO) -> AsyncIterator[tuple[Node, StoreClient, NamespaceId]]:
    async with running_node(settings_for(tmp_path), disk) as (node, addresses):
        async with await StoreClient.connect(addresses.grpc, call_deadline_s=10) as client:
            yield node, client, (await client.open_namespace(FINGERPRINT)).namespace_id


async def disk_stats(client: StoreClient) -> pb.TierStats:
    [_, disk] = (await client.stats()).tiers
    return disk


async def check_values(client: StoreClient, namespace: NamespaceId, keys: list[BlockKey]) -> int:
    """No wrong bytes; returns how many are served."""
    n_served = 0
    for start in range(0, len(keys), 4):
        part = keys[start : start + 4]
        for key, value in zip(part, await get_values(client, namespace, part), strict=True):
            assert value is None or value == value_of(key, SIZE)
            n_served += value is not None
    return n_served


async def put_many(client: StoreClient, namespace: NamespaceId, count: int) -> list[BlockKey]:
    """Store `count` values, each written behind before the next: so that all go to disk in order."""
    keys = random_keys(count)
    for key in keys:
        assert await put_chain(client, namespace, [key], SIZE) == [pb.STATUS_STORED]

        async def is_written() -> bool:
            return (await client.stats()).blocks_to_demote == 0

        await until(is_written)
    return keys


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("after", [0, 1, 5])
async def test_one_failed_call(tmp_path: Path, call: str, after: int) -> None:
    disk = FailingDisk()
    async with node_with(tmp_path, disk) as (node, client, namespace):
        disk.call, disk.after, disk.times = call, after, 1
        keys = await put_many(client, namespace, 40)
        n_served = await check_values(client, namespace, keys)
        assert n_served >= 13 - (call == "read")  # as many as the arena holds
        again = await put_many(client, namespace, 3)
        assert await check_values(client, namespace, again) == 3
        tier = await disk_stats(client)
        assert (disk.times == 0) == (not tier.is_on), "the call did not happen, or its failure was not said"
        assert tier.is_on or "Input/output error" in tier.reason
        node.store.check_invariants()
    async with node_with(tmp_path, SystemDiskIO()) as (_, client, namespace):
        await check_values(client, namespace, keys + again)
        assert (await client.stats()).blocks_corrupt == 0
        assert (await disk_stats(client)).is_on


async def test_a_full_disk_turns_the_tier_off_and_says_so(tmp_path: Path) -> None:
    disk = FailingDisk("open_segment", errno.ENOSPC, after=1)
    async with node_with(tmp_path, disk) as (node, client, namespace):
        keys = await put_many(client, namespace, 40)
        tier = await disk_stats(client)
        assert not tier.is_on
        assert "No space left on device" in tier.reason
        # What came to disk before is served from there still.
        n_on_disk = sum(value is not None for value in await get_values(client, namespace, keys[:6]))
        assert n_on_disk == 6
        node.store.check_invariants()


async def test_old_segments_are_reclaimed_whole_and_their_blocks_are_gone(tmp_path: Path) -> None:
    async with node_with(tmp_path, SystemDiskIO()) as (node, client, namespace):
        keys = await put_many(client, namespace, 60)
        tier = await disk_stats(client)
        assert tier.is_on
        assert tier.bytes_used <= 8 * MIB
        assert sum(file.stat().st_size for file in (tmp_path / "data" / "segments").iterdir()) <= 8 * MIB
        n_served = await check_values(client, namespace, keys)
        assert 18 <= n_served < 40
        node.store.check_invariants()


async def test_a_read_promotes_and_a_second_read_finds_it_in_memory(tmp_path: Path) -> None:
    async with node_with(tmp_path, SystemDiskIO()) as (_, client, namespace):
        keys = await put_many(client, namespace, 16)
        assert (await client.match(namespace, keys)).blocks == 16
        assert (await client.match(namespace, keys[:1])).blocks_in_memory == 0
        for _ in range(2):
            assert await get_values(client, namespace, keys[:1]) == [value_of(keys[0], SIZE)]
        stats = await client.stats()
        assert (stats.blocks_hit_disk, stats.blocks_hit_memory) == (1, 1)
        assert (await client.match(namespace, keys[:1])).blocks_in_memory == 1


async def test_more_blocks_from_disk_than_the_arena_holds_are_read_by_grpc(tmp_path: Path) -> None:
    async with node_with(tmp_path, SystemDiskIO()) as (_, client, namespace):
        keys = await put_many(client, namespace, 18)
        async with client.read(namespace, keys) as blocks:  # one lease cannot hold them all
            n_leased = sum(value is not None for value in blocks.values)
            assert 0 < n_leased < len(keys)
            assert blocks.values[n_leased:] == [None] * (len(keys) - n_leased)


async def test_a_removal_waits_for_a_segment_that_is_being_reclaimed(tmp_path: Path) -> None:
    """Its blocks have left memory, so the removal finds nothing; but the index still names them."""

    class HeldCommits(SystemCalls):
        may_go = threading.Event()
        n_done = 0

        def commit(self, transaction: lmdb.Transaction) -> None:
            assert self.may_go.wait(20)
            super().commit(transaction)
            self.n_done += 1

    calls = HeldCommits()
    calls.may_go.set()
    async with node_with(tmp_path, SystemDiskIO(calls)) as (node, client, namespace):
        keys = await put_many(client, namespace, 24)  # all four segments are full
        assert (await client.match(namespace, keys[:1])).blocks == 1
        calls.may_go.clear()
        await put_chain(client, namespace, random_keys(1), SIZE)

        async def is_reclaimed() -> bool:
            return (await client.match(namespace, keys[:1])).blocks == 0

        await until(is_reclaimed)
        n_done = calls.n_done
        asyncio.get_running_loop().call_later(0.05, calls.may_go.set)
        assert await client.remove(namespace, keys[:1]) == 0
        assert calls.n_done > n_done
        node.store.check_invariants()
