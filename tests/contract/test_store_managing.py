"""The calls that manage blocks, by every way to a node that has a disk tier: pin, touch, remove, list, leases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from kvstore.client import FillItem, PinOptions, StoreClient
from kvstore.client.link import NodeLink
from kvstore.core.errors import CallerError, LeaseExpiredError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.node.blocks import State
from kvstore.node.node import Node
from kvstore.node.settings import NodeSettings
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import decode_get_frame
from tests.store_node import (
    FINGERPRINT,
    MIB,
    all_on_disk,
    get_values,
    put_chain,
    random_keys,
    running_node,
    until,
    value_of,
)
from tests.threaded_client import ThreadedClient

AnyClient = StoreClient | ThreadedClient

BLOCKS_IN_ARENA = 8
STORED = pb.STATUS_STORED


class Rig:
    """A node of eight blocks of 1 MiB and a client of it; `link` asks what the client's calls do not."""

    def __init__(self, node: Node, client: AnyClient, link: NodeLink, namespace: NamespaceId) -> None:
        self.node = node
        self.client = client
        self.link = link
        self.namespace = namespace

    async def put(self, keys: list[BlockKey]) -> list[int]:
        return await put_chain(self.client, self.namespace, keys, MIB)

    async def crowd_out(self) -> None:
        """Store so much else that nothing stays which may go."""
        for key in random_keys(2 * BLOCKS_IN_ARENA):
            await self.put([key])
            await self.settle()

    async def settle(self) -> None:
        """Wait until the disk, if there is one, holds everything: what is being written cannot be evicted."""
        if len((await self.client.stats()).tiers) == 2:
            await until(lambda: all_on_disk(self.client))

    async def blocks_in_memory(self, keys: list[BlockKey]) -> int:
        return (await self.client.match(self.namespace, keys)).blocks_in_memory


def settings_of(folder: Path, **more: object) -> NodeSettings:
    return NodeSettings(
        arena_bytes=BLOCKS_IN_ARENA * MIB, value_bytes_max=MIB, local_socket=str(folder / "s"), items_max=64, **more
    )


@pytest.fixture(params=["memory async", "memory sync", "disk async", "disk sync"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    disk = {"data_dir": str(tmp_path / "data"), "segment_bytes": 4 * MIB, "disk_bytes_max": 64 * MIB}
    tiers, kind = request.param.split()
    settings = settings_of(tmp_path, **(disk if tiers == "disk" else {}))
    async with AsyncExitStack() as running:
        node, addresses = await running.enter_async_context(running_node(settings))
        other = await running.enter_async_context(await StoreClient.connect(addresses.grpc))
        client: AnyClient = other
        if kind == "sync":
            client = await running.enter_async_context(await ThreadedClient.connect(addresses.grpc))
        yield Rig(node, client, other._link, (await client.open_namespace(FINGERPRINT)).namespace_id)

        async def is_free() -> bool:
            stats = await client.stats()
            return stats.leases == 0 and stats.blocks_to_demote == 0

        await until(is_free)
        node.store.check_invariants()


async def test_a_pinned_block_stays_in_memory_until_unpinned(rig: Rig) -> None:
    keys = random_keys(2)
    await rig.put(keys)
    assert await rig.client.pin(rig.namespace, [*keys, *random_keys(1)]) == [pb.STATUS_OK] * 2 + [pb.STATUS_MISS]
    await rig.crowd_out()
    assert await rig.blocks_in_memory(keys) == 2
    assert (await rig.client.stats()).blocks_pinned == 2
    assert await rig.client.unpin(rig.namespace, keys) == 2
    assert await rig.client.unpin(rig.namespace, keys) == 0
    await rig.crowd_out()
    assert await rig.blocks_in_memory(keys) == 0


async def test_a_pin_ends_by_itself(rig: Rig) -> None:
    keys = random_keys(1)
    await rig.put(keys)
    await rig.client.pin(rig.namespace, keys, PinOptions(ttl_ms=1))

    async def is_over() -> bool:
        return (await rig.client.stats()).blocks_pinned == 0

    await until(is_over)


async def test_hard_pins_leave_room_to_write(rig: Rig) -> None:
    keys = random_keys(6)
    await rig.put(keys)
    half = BLOCKS_IN_ARENA // 2
    statuses = await rig.client.pin(rig.namespace, keys)
    await rig.settle()
    assert statuses == [pb.STATUS_OK] * half + [pb.STATUS_OVER_QUOTA] * (6 - half)
    assert await rig.put(random_keys(half)) == [STORED] * half


async def test_soft_pins_give_way_when_nothing_else_can(rig: Rig) -> None:
    keys = random_keys(BLOCKS_IN_ARENA)
    await rig.put(keys)
    await rig.settle()
    assert await rig.client.pin(rig.namespace, keys, PinOptions(is_soft=True)) == [pb.STATUS_OK] * BLOCKS_IN_ARENA
    assert await rig.put(random_keys(2)) == [STORED] * 2
    assert (await rig.client.stats()).blocks_pinned < BLOCKS_IN_ARENA


async def test_touched_blocks_outlive_untouched_ones(rig: Rig) -> None:
    old, other = random_keys(1), random_keys(1)
    await rig.put(old)
    await rig.put(other)
    assert await rig.client.touch(rig.namespace, [*old, *random_keys(1)]) == 1
    for key in random_keys(BLOCKS_IN_ARENA - 1):
        await rig.put([key])
    assert await rig.blocks_in_memory(old) == 1
    assert await rig.blocks_in_memory(other) == 0


async def test_removed_blocks_are_gone_from_every_tier(rig: Rig) -> None:
    keys = random_keys(3)
    await rig.put(keys)
    await rig.settle()
    assert await rig.client.remove(rig.namespace, [keys[1], keys[1], *random_keys(1)]) == 1
    assert await get_values(rig.client, rig.namespace, keys) == [value_of(keys[0], MIB), None, value_of(keys[2], MIB)]
    assert await rig.put([keys[1]]) == [STORED]
    assert (await get_values(rig.client, rig.namespace, [keys[1]])) == [value_of(keys[1], MIB)]


async def test_a_prefix_goes_with_all_that_follows_it(rig: Rig) -> None:
    trunk, left, right = random_keys(2), random_keys(1), random_keys(2)
    await rig.put(trunk)
    await put_chain(rig.client, rig.namespace, left, MIB, trunk[0])
    await put_chain(rig.client, rig.namespace, right, MIB, trunk[1])
    assert await rig.client.remove_prefix(rig.namespace, trunk[1]) == 3
    assert (await rig.client.match(rig.namespace, [trunk[0], *left])).blocks == 2
    assert (await rig.client.match(rig.namespace, [*trunk, *right])).blocks == 1


async def test_what_is_removed_under_a_lease_can_be_read_to_its_end(rig: Rig) -> None:
    keys = random_keys(2)
    await rig.put(keys)
    async with rig.client.read(rig.namespace, keys) as blocks:
        assert await rig.client.remove_all(rig.namespace) == 2
        assert (await rig.client.match(rig.namespace, keys)).blocks == 0
        await rig.crowd_out()
        assert [bytes(value) for value in blocks.values if value is not None] == [value_of(key, MIB) for key in keys]


async def test_an_epoch_ends_what_is_stored_and_what_is_being_filled(rig: Rig) -> None:
    keys, late = random_keys(2), random_keys(1)
    await rig.put(keys)
    before = (await rig.client.open_namespace(FINGERPRINT)).epoch
    async with rig.client.fill(rig.namespace, [FillItem(late[0], MIB)]) as fill:
        assert await rig.client.bump_epoch(rig.namespace) == before + 1
        assert await fill.commit() == [pb.STATUS_REJECTED]
    assert (await rig.client.open_namespace(FINGERPRINT)).epoch == before + 1
    assert await get_values(rig.client, rig.namespace, [*keys, *late]) == [None] * 3
    assert await rig.put(late) == [STORED]


async def test_keys_are_listed_in_pages(rig: Rig) -> None:
    keys = random_keys(5)
    await rig.put(keys)
    await rig.client.pin(rig.namespace, keys[:1])
    listed = [each async for each in rig.client.list_keys(rig.namespace, page_keys=2)]
    assert [each.key for each in listed] == sorted(keys)
    assert {each.key: each.parent_key for each in listed} == dict(zip(keys, [b"", *keys[:-1]], strict=True))
    assert {(each.shards, each.bytes, each.tier) for each in listed} == {(1, MIB, pb.TIER_MEMORY)}
    assert [each.key for each in listed if each.is_pinned] == keys[:1]


async def test_a_leased_match_stays(rig: Rig) -> None:
    keys = random_keys(3)
    await rig.put(keys)
    async with rig.client.lease(rig.namespace, [*keys, *random_keys(1)]) as matched:
        assert (matched.blocks, matched.bytes) == (3, 3 * MIB)
        await rig.crowd_out()
        assert await get_values(rig.client, rig.namespace, keys) == [value_of(key, MIB) for key in keys]
        assert (await rig.client.stats()).leases == 1
    assert (await rig.client.stats()).leases == 0


async def test_watchers_are_told_the_tokens_that_the_writer_told(rig: Rig) -> None:
    with_tokens, without = random_keys(2)
    tokens = [2**32 - 1, *range(FINGERPRINT.block_tokens - 1)]
    items = [FillItem(with_tokens, 5000, None, tokens), FillItem(without, 5000, with_tokens)]
    async with rig.client.fill(rig.namespace, items) as fill:
        await fill.commit()
    async with asyncio.timeout(20):
        async for response in rig.client.watch(rig.namespace):
            told = {event.key: list(event.token_ids) for event in response.events}
            assert told == {with_tokens: tokens, without: []}
            break
    with pytest.raises(CallerError, match="expected 32"):
        async with rig.client.fill(rig.namespace, [FillItem(without, 5000, None, tokens[:5])]):
            pass


async def test_a_probe_takes_nothing(rig: Rig) -> None:
    keys = random_keys(2)
    await rig.put(keys)
    for _ in range(3):
        await rig.client.match(rig.namespace, keys)
    stats = await rig.client.stats()
    assert (stats.leases, stats.blocks_pinned, stats.blocks_asked) == (0, 0, 0)
    await rig.crowd_out()
    assert await rig.blocks_in_memory(keys) == 0


async def test_stats_by_namespace(rig: Rig) -> None:
    keys = random_keys(2)
    await rig.put(keys)
    await get_values(rig.client, rig.namespace, [*keys, *random_keys(1)])
    [told] = (await rig.client.stats(with_namespaces=True)).namespaces
    assert (told.namespace_id, told.blocks, told.bytes_memory) == (rig.namespace, 2, 2 * MIB)
    assert (told.blocks_asked, told.blocks_hit) == (3, 2)


async def test_a_removal_names_one_thing(rig: Rig) -> None:
    with pytest.raises(CallerError, match="exactly one"):
        await rig.link.call("Remove", pb.RemoveRequest(namespace_id=rig.namespace))


async def test_get_by_lease_reads_ranges_of_what_it_holds(rig: Rig) -> None:
    keys = random_keys(2)
    await rig.put(keys)
    link = rig.link
    matched = await link.call("Match", pb.MatchRequest(namespace_id=rig.namespace, keys=keys, lease=True))
    request = pb.GetRequest(namespace_id=rig.namespace, lease_id=matched.lease_id, range_offset=100, range_length=1000)
    frames = [decode_get_frame(raw) async for raw in link.remote.get(request)]
    assert [bytes(frame.data) for frame in frames] == [value_of(key, MIB)[100:1100] for key in keys]
    assert (await link.call("Release", pb.ReleaseRequest(lease_ids=[matched.lease_id]))).released == 1
    with pytest.raises(LeaseExpiredError, match="match again"):
        await link.call("Acquire", pb.AcquireRequest(namespace_id=rig.namespace, lease_id=matched.lease_id))


async def test_present_tells_of_keys_beyond_a_gap(rig: Rig) -> None:
    keys = random_keys(10)
    await rig.put(keys[9:])
    await rig.put(keys[:1])
    request = pb.MatchRequest(namespace_id=rig.namespace, keys=keys, with_present=True)
    answer = await rig.link.call("Match", request)
    assert (answer.blocks, answer.present) == (1, bytes([0b1, 0b10]))


async def test_a_match_counts_keys_that_have_all_shards(tmp_path: Path) -> None:
    sharded = Fingerprint(model_digest=b"m" * 32, block_tokens=32, shard_count=2)
    async with running_node(settings_of(tmp_path)) as (node, addresses):
        async with await StoreClient.connect(addresses.grpc) as client:
            namespace = (await client.open_namespace(sharded)).namespace_id
            keys = random_keys(2)
            for shard, count in ((0, 2), (1, 1)):
                async with client.fill(namespace, [FillItem(key, 5000) for key in keys[:count]], shard) as fill:
                    await fill.commit()
            async with client.lease(namespace, keys) as matched:
                assert (matched.blocks, matched.bytes) == (1, 10_000)
                assert [block.leases for block in node.store.index.blocks(namespace)].count(1) == 2
            assert await client.remove(namespace, keys) == 3
            node.store.check_invariants()


async def test_a_namespace_at_its_quota_makes_room_among_its_own(tmp_path: Path) -> None:
    other_fingerprint = Fingerprint(model_digest=b"o" * 32, block_tokens=32)
    async with running_node(settings_of(tmp_path, namespace_bytes_max=2 * MIB)) as (node, addresses):
        async with await StoreClient.connect(addresses.grpc) as client:
            namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
            other = (await client.open_namespace(other_fingerprint)).namespace_id
            kept = random_keys(1)
            assert await put_chain(client, other, kept, MIB) == [STORED]
            keys = random_keys(4)
            for key in keys:
                assert await put_chain(client, namespace, [key], MIB) == [STORED]
            values = await get_values(client, namespace, keys)
            assert [value is not None for value in values] == [False, False, True, True]
            assert (await client.match(other, kept)).blocks == 1
            async with client.read(namespace, keys[2:]):
                assert await put_chain(client, namespace, random_keys(1), MIB) == [pb.STATUS_OVER_QUOTA]
            [told] = [each for each in (await client.stats(with_namespaces=True)).namespaces if each.blocks == 2]
            assert told.bytes_memory_max == 2 * MIB
            node.store.check_invariants()


async def test_removals_and_epochs_last_over_a_restart(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, data_dir=str(tmp_path / "data"), segment_bytes=4 * MIB, disk_bytes_max=64 * MIB)
    kept, gone, ended = random_keys(1), random_keys(1), random_keys(1)
    other_fingerprint = Fingerprint(model_digest=b"o" * 32, block_tokens=32)
    async with running_node(settings) as (_, addresses), await StoreClient.connect(addresses.grpc) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        other = (await client.open_namespace(other_fingerprint)).namespace_id
        await put_chain(client, namespace, kept, MIB)
        await put_chain(client, namespace, gone, MIB)
        await put_chain(client, other, ended, MIB)
        await until(lambda: all_on_disk(client))
        await client.remove(namespace, gone)
        await client.bump_epoch(other)
    async with running_node(settings) as (_, addresses), await StoreClient.connect(addresses.grpc) as client:
        assert await get_values(client, namespace, [*kept, *gone]) == [value_of(kept[0], MIB), None]
        assert (await client.match(other, ended)).blocks == 0
        assert (await client.open_namespace(other_fingerprint)).epoch == 2


async def test_blocks_removed_on_their_way_to_and_from_the_disk_are_gone(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, data_dir=str(tmp_path / "data"), segment_bytes=4 * MIB, disk_bytes_max=64 * MIB)
    async with running_node(settings) as (node, addresses), await StoreClient.connect(addresses.grpc) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        for _ in range(10):
            keys = random_keys(4)
            await put_chain(client, namespace, keys, MIB)
            assert await client.remove(namespace, keys) == 4  # while some are being written
        stays = random_keys(4)
        await put_chain(client, namespace, stays, MIB)
        await until(lambda: all_on_disk(client))
        for key in random_keys(BLOCKS_IN_ARENA):
            await put_chain(client, namespace, [key], MIB)
        await client.match(namespace, stays, promote=True)
        reading = asyncio.create_task(get_values(client, namespace, stays))
        await client.remove(namespace, stays)
        assert all(value in (None, value_of(key, MIB)) for key, value in zip(stays, await reading, strict=True))
        assert (await client.match(namespace, stays)).blocks == 0
        await until(lambda: all_on_disk(client))
        node.store.check_invariants()
        assert node.store.index.counts[State.DOOMED] == 0
