"""The node as a foreign client sees it: plain gRPC, health, reflection, metrics; and Watch."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator

import grpc
import pytest
import xxhash
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kvstore.client import StoreClient
from kvstore.node.node import Addresses, Node
from kvstore.node.settings import NodeSettings
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire import kvstore_pb2_grpc
from tests.store_node import FINGERPRINT, MIB, put_chain, random_keys, running_node, value_of

Running = tuple[Node, Addresses]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    settings = NodeSettings(arena_bytes=16 * MIB, value_bytes_max=8 * MIB, metrics_port=0, event_log_events=8)
    async with running_node(settings) as node_and_addresses:
        yield node_and_addresses


async def open_namespace(stub: kvstore_pb2_grpc.KVStoreStub) -> bytes:
    fingerprint = pb.Fingerprint(model_digest=b"f" * 32, block_tokens=16)
    namespace_id: bytes = (await stub.OpenNamespace(pb.OpenNamespaceRequest(fingerprint=fingerprint))).namespace_id
    return namespace_id


async def test_generated_stubs_put_and_get(running: Running) -> None:
    [key] = random_keys(1)
    value = value_of(key, 5 * MIB)
    async with grpc.aio.insecure_channel(running[1].grpc, [("grpc.max_receive_message_length", 8 * MIB)]) as channel:
        stub = kvstore_pb2_grpc.KVStoreStub(channel)
        namespace = await open_namespace(stub)
        put = stub.Put()
        item = pb.PutItem(block=pb.BlockId(key=key), size=len(value))
        await put.write(pb.PutRequest(begin=pb.PutBegin(namespace_id=namespace, items=[item])))
        assert (await put.read()).begun.items[0].status == pb.STATUS_WANTED
        for offset in range(0, len(value), MIB):
            await put.write(pb.PutRequest(chunk=pb.PutChunk(offset=offset, data=value[offset : offset + MIB])))
        commit = pb.PutCommitItem(checksum=xxhash.xxh3_128_digest(value))
        await put.write(pb.PutRequest(commit=pb.PutCommit(items=[commit])))
        assert list((await put.read()).committed.statuses) == [pb.STATUS_STORED]

        blocks = [pb.BlockId(key=key), pb.BlockId(key=b"?" * 16)]
        frames = [frame async for frame in stub.Get(pb.GetRequest(namespace_id=namespace, blocks=blocks))]
        assert b"".join(frame.data for frame in frames if frame.index == 0) == value
        assert {frame.status for frame in frames if frame.index == 0} == {pb.STATUS_OK}
        assert [frame.status for frame in frames if frame.index == 1] == [pb.STATUS_MISS]
        part = pb.GetRequest(namespace_id=namespace, blocks=blocks[:1], range_offset=10, range_length=5)
        assert [frame.data async for frame in stub.Get(part)] == [value[10:15]]


async def put_six_bytes(address: str, chunks: list[tuple[int, bytes]], checksum_of: bytes) -> pb.Status:
    """Offer a value of six bytes, send `chunks` and commit; the value must not be stored."""
    [key] = random_keys(1)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = kvstore_pb2_grpc.KVStoreStub(channel)
        namespace = await open_namespace(stub)
        item = pb.PutItem(block=pb.BlockId(key=key), size=6)
        commit = pb.PutCommitItem(checksum=xxhash.xxh3_128_digest(checksum_of))
        requests = [
            pb.PutRequest(begin=pb.PutBegin(namespace_id=namespace, items=[item])),
            *[pb.PutRequest(chunk=pb.PutChunk(offset=offset, data=data)) for offset, data in chunks],
            pb.PutRequest(commit=pb.PutCommit(items=[commit])),
        ]
        try:
            answers = [answer async for answer in stub.Put(iter_async(requests))]
        finally:
            assert (await stub.Match(pb.MatchRequest(namespace_id=namespace, keys=[key]))).blocks == 0
        return answers[-1].committed.statuses[0]


@pytest.mark.parametrize(("data", "checksum_of"), [(b"abc", b"abc"), (b"abcdef", b"abcdeF")])
async def test_values_that_are_not_what_was_promised(running: Running, data: bytes, checksum_of: bytes) -> None:
    assert await put_six_bytes(running[1].grpc, [(0, data)], checksum_of) == pb.STATUS_REJECTED
    assert running[0].store.allocator.bytes_used == 0


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([(0, b"abc"), (4, b"ef")], "send in order"),
        ([(0, b"abcdefg")], "beyond the value's 6 bytes"),
    ],
)
async def test_chunks_that_do_not_fit(running: Running, chunks: list[tuple[int, bytes]], message: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=message) as refused:
        await put_six_bytes(running[1].grpc, chunks, b"")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert running[0].store.allocator.bytes_used == 0


async def iter_async(requests: list[pb.PutRequest]) -> AsyncIterator[pb.PutRequest]:
    for request in requests:
        yield request


async def test_a_stream_cut_before_commit_leaves_nothing(running: Running) -> None:
    node, addresses = running
    async with grpc.aio.insecure_channel(addresses.grpc) as channel:
        stub = kvstore_pb2_grpc.KVStoreStub(channel)
        put = stub.Put()
        item = pb.PutItem(block=pb.BlockId(key=b"k" * 32), size=MIB)
        begin = pb.PutBegin(namespace_id=await open_namespace(stub), items=[item])
        await put.write(pb.PutRequest(begin=begin))
        await put.read()
        assert node.store.allocator.bytes_used == MIB
        put.cancel()
        async with asyncio.timeout(10):
            while node.store.allocator.bytes_used:  # noqa: ASYNC110  # the server hears of it a little later
                await asyncio.sleep(0.01)
    assert len(node.store.leases) == 0


async def test_health_and_reflection(running: Running) -> None:
    async with grpc.aio.insecure_channel(running[1].grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "stockpot.kvstore.v1.KVStore"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        [listed] = [answer async for answer in reflection.ServerReflectionInfo(iter_async(asked))]  # type: ignore[arg-type]
        assert "stockpot.kvstore.v1.KVStore" in {each.name for each in listed.list_services_response.service}


async def test_metrics(running: Running) -> None:
    async with await StoreClient.connect(running[1].grpc, prefer_bulk=False) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        await put_chain(client, namespace, random_keys(2), 1000)
    url = f"http://{running[1].metrics}/metrics"
    text = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())).decode()
    assert "stockpot_node_blocks_stored_total 2.0" in text
    assert 'stockpot_node_tier_blocks{tier="memory"} 2.0' in text
    assert 'stockpot_node_call_seconds_count{call="Put",transport="grpc"} 1.0' in text


async def test_watch_tells_a_snapshot_then_changes(running: Running) -> None:
    async with await StoreClient.connect(running[1].grpc) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        before, after = random_keys(2), random_keys(1)
        await put_chain(client, namespace, before, 1000)
        watch = client.watch(namespace)
        async with asyncio.timeout(20):
            first = await anext(watch)
            assert first.is_reset
            assert first.is_snapshot_end
            assert {event.key for event in first.events} == set(before)
            await put_chain(client, namespace, after, 1000, parent=before[-1])
            [event] = (await anext(watch)).events
        assert (event.kind, event.key, event.parent_key) == (pb.BlockEvent.KIND_STORED, after[0], before[-1])
        assert (event.tier, event.size, event.namespace_id) == (pb.TIER_MEMORY, 1000, namespace)
        await watch.aclose()


async def test_watch_resumes_where_it_was_and_resets_when_it_cannot(running: Running) -> None:
    async with await StoreClient.connect(running[1].grpc) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        await put_chain(client, namespace, random_keys(2), 1000)
        async with grpc.aio.insecure_channel(running[1].grpc) as channel:
            stub = kvstore_pb2_grpc.KVStoreStub(channel)
            snapshot = await stub.Watch(pb.WatchRequest()).read()
            cursor = pb.WatchRequest(incarnation=snapshot.incarnation, sequence=snapshot.sequence)
            keys = random_keys(3)
            await put_chain(client, namespace, keys, 1000)
            resumed = await stub.Watch(cursor).read()
            assert not resumed.is_reset
            assert [event.key for event in resumed.events] == keys
            await put_chain(client, namespace, random_keys(9), 1000)  # more than the log holds
            assert (await stub.Watch(cursor).read()).is_reset
            cursor.incarnation += 1
            assert (await stub.Watch(cursor).read()).is_reset


async def test_a_watcher_slower_than_the_log_begins_again(running: Running) -> None:
    node, addresses = running
    async with await StoreClient.connect(addresses.grpc) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(200)
        async with grpc.aio.insecure_channel(addresses.grpc) as channel:
            watch = kvstore_pb2_grpc.KVStoreStub(channel).Watch(pb.WatchRequest())
            await watch.read()
            known: set[bytes] = set()
            for start in range(0, len(keys), 20):  # each put is more events than the log holds
                await put_chain(client, namespace, keys[start : start + 20], 1000)
            async with asyncio.timeout(20):
                while known != set(keys):
                    message = await watch.read()
                    known = set() if message.is_reset else known
                    known |= {event.key for event in message.events}
        assert node.store.events.last_sequence == len(keys)
