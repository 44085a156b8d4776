"""What all ways to a storage node must do alike: the service itself, gRPC, bulk, shared memory; async and blocking."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kvstore.client import FillItem, StoreClient
from kvstore.core.block import value_checksum
from kvstore.core.errors import CallerError, NamespaceUnknownError, StockpotError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.arena import Arena
from kvstore.node.lifecycle import Lifecycle
from kvstore.node.service import Service
from kvstore.node.settings import NodeSettings, limits_of
from kvstore.node.store import BlockStore
from kvstore.wire import kvstore_pb2 as pb
from tests.store_node import FINGERPRINT, MIB, random_keys, running_node, until, value_of
from tests.threaded_client import ThreadedClient

ARENA_BYTES = 16 * MIB
VALUE_BYTES_MAX = 8 * MIB


class ClientWay:
    """Through the client library."""

    def __init__(self, client: StoreClient | ThreadedClient) -> None:
        self.client = client

    async def open_namespace(self) -> NamespaceId:
        return (await self.client.open_namespace(FINGERPRINT)).namespace_id

    async def match(self, namespace: NamespaceId, keys: Sequence[BlockKey]) -> int:
        return (await self.client.match(namespace, keys)).blocks

    async def put(
        self, namespace: NamespaceId, values: dict[BlockKey, bytes], commit: Sequence[int] | None = None
    ) -> list[int]:
        items = [FillItem(key, len(value)) for key, value in values.items()]
        async with self.client.fill(namespace, items) as fill:
            for view, value in zip(fill.views, values.values(), strict=True):
                if view is not None:
                    view[:] = value
            return list(await fill.commit(commit))

    async def get(self, namespace: NamespaceId, keys: Sequence[BlockKey], prefix_only: bool) -> list[bytes | None]:
        async with self.client.read(namespace, keys, prefix_only=prefix_only) as blocks:
            return [None if value is None else bytes(value) for value in blocks.values]


class ServiceWay:
    """Straight to the service, as the local socket does it."""

    def __init__(self, service: Service, arena: Arena) -> None:
        self.service = service
        self.arena = arena

    async def open_namespace(self) -> NamespaceId:
        fingerprint = pb.Fingerprint(model_digest=FINGERPRINT.model_digest, block_tokens=FINGERPRINT.block_tokens)
        answer = await self.service.open_namespace(pb.OpenNamespaceRequest(fingerprint=fingerprint))
        return NamespaceId(answer.namespace_id)

    async def match(self, namespace: NamespaceId, keys: Sequence[BlockKey]) -> int:
        answer = self.service.match(pb.MatchRequest(namespace_id=namespace, keys=keys), self)
        assert isinstance(answer, pb.MatchResponse), "no lease is asked for"
        return answer.blocks

    async def put(
        self, namespace: NamespaceId, values: dict[BlockKey, bytes], commit: Sequence[int] | None = None
    ) -> list[int]:
        items = [pb.PutItem(block=pb.BlockId(key=key), size=len(value)) for key, value in values.items()]
        begun = self.service.put_begin(pb.PutBegin(namespace_id=namespace, items=items), self)
        chosen = list(range(len(items))) if commit is None else list(commit)
        statuses = [begun.items[index].status for index in chosen]
        sums = []
        for index, (item, value) in enumerate(zip(begun.items, values.values(), strict=True)):
            if item.status == pb.STATUS_WANTED:
                self.arena.view(item.place.offset, item.place.size)[:] = value
                if index in chosen:
                    sums.append(pb.PutCommitItem(index=index, checksum=value_checksum(value)))
        if begun.lease_id:
            committed = self.service.put_commit(pb.PutCommit(lease_id=begun.lease_id, items=sums), self)
            for item, status in zip(sums, committed.statuses, strict=True):
                statuses[chosen.index(item.index)] = status
        return statuses

    async def get(self, namespace: NamespaceId, keys: Sequence[BlockKey], prefix_only: bool) -> list[bytes | None]:
        request = pb.AcquireRequest(
            namespace_id=namespace, blocks=[pb.BlockId(key=key) for key in keys], prefix_only=prefix_only
        )
        answer = self.service.acquire(request, self)
        assert isinstance(answer, pb.AcquireResponse), "nothing is on disk"
        values = [
            bytes(self.arena.view(item.place.offset, item.place.size)) if item.status == pb.STATUS_OK else None
            for item in answer.items
        ]
        assert self.service.release(pb.ReleaseRequest(lease_ids=[answer.lease_id])).released == bool(answer.lease_id)
        return values


Way = ClientWay | ServiceWay


CLIENTS = {"async": StoreClient, "sync": ThreadedClient}


@pytest.fixture(params=["service", "grpc async", "grpc sync", "bulk async", "bulk sync", "shm async", "shm sync"])
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Way]:
    settings = NodeSettings(
        arena_bytes=ARENA_BYTES, value_bytes_max=VALUE_BYTES_MAX, local_socket=str(tmp_path / "s"), items_max=64
    )
    if request.param == "service":
        store, arena = BlockStore(ARENA_BYTES, asyncio.get_running_loop().time, 1000), Arena(ARENA_BYTES)
        yield ServiceWay(Service(store, arena, limits_of(settings), "", None, Lifecycle("contract", 0.0)), arena)
        store.check_invariants()
        assert len(store.leases) == 0
        arena.close()
        return
    async with running_node(settings) as (node, addresses):
        path, kind = request.param.split()
        async with await CLIENTS[kind].connect(
            addresses.grpc, prefer_local=path == "shm", prefer_bulk=path == "bulk"
        ) as client:
            assert client.path == path
            yield ClientWay(client)
            assert client.path == path

        async def is_free() -> bool:
            return len(node.store.leases) == 0

        await until(is_free)  # the last release may still be on its way
        node.store.check_invariants()


@pytest.mark.parametrize("size", [1, 63, 64, 4096, 100_001, 5 * MIB])
async def test_what_is_put_is_got(way: Way, size: int) -> None:
    namespace, keys = await way.open_namespace(), random_keys(2)
    values = {key: value_of(key, size) for key in keys}
    assert await way.put(namespace, values) == [pb.STATUS_STORED] * 2
    assert await way.match(namespace, keys) == 2
    assert await way.get(namespace, keys, prefix_only=True) == list(values.values())


async def test_a_miss_is_a_value(way: Way) -> None:
    namespace, keys = await way.open_namespace(), random_keys(3)
    assert await way.match(namespace, keys) == 0
    assert await way.get(namespace, keys, prefix_only=True) == [None] * 3
    assert await way.get(namespace, [], prefix_only=True) == []


async def test_prefix_only_stops_at_the_gap(way: Way) -> None:
    namespace, keys = await way.open_namespace(), random_keys(3)
    values = {key: value_of(key, 1000) for key in (keys[0], keys[2])}
    await way.put(namespace, values)
    assert await way.match(namespace, keys) == 1
    assert await way.get(namespace, keys, prefix_only=True) == [values[keys[0]], None, None]
    assert await way.get(namespace, keys, prefix_only=False) == [values[keys[0]], None, values[keys[2]]]


async def test_only_what_is_committed_is_stored(way: Way) -> None:
    namespace, keys = await way.open_namespace(), random_keys(3)
    values = {key: value_of(key, 5000) for key in keys}
    assert await way.put(namespace, values, commit=[0, 2]) == [pb.STATUS_STORED] * 2
    assert await way.get(namespace, keys, prefix_only=False) == [values[keys[0]], None, values[keys[2]]]


async def test_a_block_never_changes(way: Way) -> None:
    namespace, [key] = await way.open_namespace(), random_keys(1)
    await way.put(namespace, {key: b"first"})
    assert await way.put(namespace, {key: b"other"}) == [pb.STATUS_EXISTS]
    assert await way.get(namespace, [key], prefix_only=True) == [b"first"]


async def test_a_full_arena_evicts(way: Way) -> None:
    namespace, keys = await way.open_namespace(), random_keys(8)
    for key in keys:
        assert await way.put(namespace, {key: value_of(key, 3 * MIB)}) == [pb.STATUS_STORED]
    values = await way.get(namespace, keys, prefix_only=False)
    assert [value is not None for value in values] == [False] * 3 + [True] * 5
    assert values[-1] == value_of(keys[-1], 3 * MIB)


async def test_more_than_fits_in_one_batch_is_busy(way: Way) -> None:
    namespace, keys = await way.open_namespace(), random_keys(4)
    statuses = await way.put(namespace, {key: value_of(key, 7 * MIB) for key in keys})
    assert statuses == [pb.STATUS_STORED] * 2 + [pb.STATUS_BUSY] * 2


async def test_the_same_block_twice_in_a_batch(way: Way) -> None:
    namespace, [key] = await way.open_namespace(), random_keys(1)
    await way.put(namespace, {key: b"x" * 100})
    assert await way.get(namespace, [key, key], prefix_only=True) == [b"x" * 100] * 2


async def test_the_callers_mistakes_are_named(way: Way) -> None:
    namespace, [key] = await way.open_namespace(), random_keys(1)
    mistakes = [
        (way.match(namespace, [BlockKey(b"short")]), "16 to 64"),
        (way.match(namespace, random_keys(65)), "at most 64"),
        (way.get(namespace, [BlockKey(b"k" * 65)], prefix_only=True), "16 to 64"),
        (way.put(namespace, {key: b""}), "expected 1 to"),
        (way.put(namespace, {key: bytes(VALUE_BYTES_MAX + 1)}), "value_bytes_max"),
    ]
    for mistake, message in mistakes:
        with pytest.raises(CallerError, match=message):
            await mistake


async def test_an_unknown_namespace_is_said(way: Way) -> None:
    with pytest.raises(NamespaceUnknownError, match="OpenNamespace"):
        await way.match(NamespaceId(b"?" * 32), random_keys(1))


async def test_side_by_side(way: Way) -> None:
    namespace = await way.open_namespace()

    async def one() -> None:
        [key] = random_keys(1)
        value = value_of(key, 200_000)
        assert await way.put(namespace, {key: value}) == [pb.STATUS_STORED]
        assert await way.get(namespace, [key], prefix_only=True) == [value]

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(40):
                tasks.create_task(one())
    except* StockpotError as errors:
        raise AssertionError(errors.exceptions) from errors
