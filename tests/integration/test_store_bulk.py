"""The bulk port: what only it can get wrong. What all paths share is in the contract suite."""

import asyncio
import signal
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import xxhash

from kvstore.bulk_wire import BulkChannel, ChannelClosedError
from kvstore.client import FillItem, StoreClient
from kvstore.client.remote import RemoteNode
from kvstore.core.errors import CallerError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.bulk import BulkServer
from kvstore.node.node import Node
from kvstore.node.settings import NodeSettings
from kvstore.wire import kvstore_pb2 as pb
from tests.store_node import (
    FINGERPRINT,
    MIB,
    PATHS,
    NodeProcesses,
    connect_by,
    get_values,
    put_chain,
    random_keys,
    running_node,
    until,
    value_of,
)

SETTINGS = NodeSettings(arena_bytes=32 * MIB, value_bytes_max=8 * MIB, items_max=64)
STALL_S = 10.0


class Foreign:
    """A client of another make: its own socket and the messages of the proto."""

    def __init__(self, opened: pb.OpenBulkResponse, token: bytes | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", opened.port), STALL_S)
        self.sock.settimeout(None)
        self.channel = BulkChannel(self.sock, STALL_S)
        self.channel.send(pb.BulkRequest(token=opened.token if token is None else token))
        self.greeting = self.channel.receive(pb.BulkResponse)

    def ask(self, **call: object) -> pb.BulkResponse:
        self.channel.send(pb.BulkRequest(**call))  # type: ignore[arg-type]
        return self.channel.receive(pb.BulkResponse)

    def is_cut(self) -> bool:
        try:
            self.channel.receive(pb.BulkResponse)
        except ChannelClosedError:
            return True
        return False


@asynccontextmanager
async def opened_node(
    settings: NodeSettings = SETTINGS,
) -> AsyncIterator[tuple[Node, StoreClient, NamespaceId, RemoteNode]]:
    """A node, a gRPC client with a namespace, and the bare calls."""
    async with running_node(settings) as (node, addresses), await connect_by("grpc", addresses.grpc, 10) as client:
        remote = RemoteNode(addresses.grpc)
        try:
            yield node, client, (await client.open_namespace(FINGERPRINT)).namespace_id, remote
        finally:
            await remote.close()


async def open_bulk(remote: RemoteNode) -> pb.OpenBulkResponse:
    opened: pb.OpenBulkResponse = await remote.call("OpenBulk", pb.OpenBulkRequest())
    return opened


async def test_ranges_leases_and_gaps() -> None:
    async with opened_node() as (_, client, namespace, remote):
        keys = random_keys(40)  # more than one window
        await put_chain(client, namespace, keys, 1000)
        ids = [pb.BlockId(key=key) for key in [*keys[:20], *random_keys(1), *keys[20:]]]
        values = {key: value_of(key, 1000) for key in keys}
        matched = await remote.call("Match", pb.MatchRequest(namespace_id=namespace, keys=keys, lease=True))
        opened = await open_bulk(remote)

        def talk() -> None:
            peer = Foreign(opened)

            def get(request: pb.GetRequest) -> list[bytes | None]:
                got: list[bytes | None] = []
                answer = peer.ask(get=request).values
                while True:
                    for item in answer.items:
                        into = bytearray(item.length)
                        peer.channel.receive_value(memoryview(into))
                        got.append(bytes(into) if item.status == pb.STATUS_OK else None)
                        if item.length == 1000:
                            assert item.checksum == xxhash.xxh3_128_digest(into)
                    if answer.is_last:
                        return got
                    answer = peer.channel.receive(pb.BulkResponse).values

            everything = [values.get(BlockKey(each.key)) for each in ids]
            assert get(pb.GetRequest(namespace_id=namespace, blocks=ids)) == everything
            assert (
                get(pb.GetRequest(namespace_id=namespace, blocks=ids, prefix_only=True))
                == everything[:20] + [None] * 12
            )
            part = pb.GetRequest(namespace_id=namespace, blocks=ids[:2], range_offset=10, range_length=5)
            assert get(part) == [value_of(key, 1000)[10:15] for key in keys[:2]]
            leased = pb.GetRequest(namespace_id=namespace, lease_id=matched.lease_id)
            assert get(leased) == list(values.values())
            leased.blocks.extend(ids[19:22])
            assert get(leased) == everything[19:22]
            beyond = pb.GetRequest(namespace_id=namespace, blocks=ids[:1], range_offset=1001)
            assert "beyond the value" in peer.ask(get=beyond).error.message
            many = pb.GetRequest(namespace_id=namespace, blocks=ids[:1] * 65)
            assert "at most 64" in peer.ask(get=many).error.message
            assert "no call" in peer.ask().error.message
            assert get(pb.GetRequest(namespace_id=namespace, blocks=ids[:1])) == everything[:1]  # it can go on
            peer.sock.close()

        await asyncio.to_thread(talk)
        await remote.call("Release", pb.ReleaseRequest(lease_ids=[matched.lease_id]))
        assert (await client.stats()).leases == 0


async def test_a_token_opens_one_connection() -> None:
    async with opened_node() as (_, _, _, remote):
        opened = await open_bulk(remote)

        def talk() -> None:
            assert Foreign(opened).greeting.hello.incarnation == opened.incarnation
            for token in (opened.token, b"", b"x" * 32):
                peer = Foreign(opened, token)
                assert "ask OpenBulk" in peer.greeting.error.message
                assert peer.is_cut()

        await asyncio.to_thread(talk)


async def test_puts_that_go_wrong_store_nothing() -> None:
    async with opened_node() as (node, client, namespace, remote):
        keys = random_keys(3)
        items = [pb.PutItem(block=pb.BlockId(key=key), size=1000) for key in keys]
        begin = pb.PutBegin(namespace_id=namespace, items=items)
        sums = [xxhash.xxh3_128_digest(value_of(key, 1000)) for key in keys]

        async def begun() -> tuple[Foreign, int]:
            peer = await asyncio.to_thread(Foreign, await open_bulk(remote))
            return peer, (await asyncio.to_thread(lambda: peer.ask(put_begin=begin))).begun.lease_id

        def commit(lease_id: int, *indices: int) -> pb.PutCommit:
            chosen = [pb.PutCommitItem(index=index, checksum=sums[index % 3]) for index in indices]
            return pb.PutCommit(lease_id=lease_id, items=chosen)

        peer, lease_id = await begun()
        refused = await asyncio.to_thread(lambda: peer.ask(put_begin=begin))
        assert "a reservation is running" in refused.error.message
        # Wrong bytes are told from right ones, item by item.
        sent = [memoryview(value_of(keys[2], 1000)), memoryview(bytes(1000))]
        await asyncio.to_thread(lambda: peer.channel.send(pb.BulkRequest(put_commit=commit(lease_id, 2, 0)), sent))
        answer = await asyncio.to_thread(lambda: peer.channel.receive(pb.BulkResponse))
        assert list(answer.committed.statuses) == [pb.STATUS_STORED, pb.STATUS_REJECTED]
        assert await get_values(client, namespace, keys) == [None, None, value_of(keys[2], 1000)]
        await client.remove(namespace, keys)
        for bad in (
            lambda of: commit(of, 7),
            lambda of: commit(of, 1, 1),
            lambda of: commit(of + 1, 0),
            lambda _: commit(0),
        ):
            peer, lease_id = await begun()
            answer = await asyncio.to_thread(lambda: peer.ask(put_commit=bad(lease_id)))  # noqa: B023
            assert answer.HasField("error")
            assert await asyncio.to_thread(peer.is_cut)
        # Half a value, and then the client dies.
        peer, lease_id = await begun()
        await asyncio.to_thread(
            lambda: peer.channel.send(pb.BulkRequest(put_commit=commit(lease_id, 0)), [memoryview(bytes(500))])
        )
        peer.sock.close()

        async def is_free() -> bool:
            return len(node.store.leases) == 0 and node.store.allocator.bytes_used == 0

        await until(is_free)
        assert (await client.match(namespace, keys)).blocks == 0
        node.store.check_invariants()


async def test_a_reservation_that_ran_out_takes_its_bytes_and_rejects_them() -> None:
    settings = NodeSettings(arena_bytes=32 * MIB, value_bytes_max=8 * MIB, lease_ttl_ms=50)
    async with opened_node(settings) as (node, _, namespace, remote):
        [key] = random_keys(1)
        peer = await asyncio.to_thread(Foreign, await open_bulk(remote))
        begin = pb.PutBegin(namespace_id=namespace, items=[pb.PutItem(block=pb.BlockId(key=key), size=MIB)])
        lease_id = (await asyncio.to_thread(lambda: peer.ask(put_begin=begin))).begun.lease_id

        async def has_run_out() -> bool:
            return len(node.store.leases) == 0

        await until(has_run_out)
        assert node.store.allocator.bytes_used  # nobody else may have the memory while bytes may still come
        commit = pb.PutCommit(
            lease_id=lease_id, items=[pb.PutCommitItem(checksum=xxhash.xxh3_128_digest(value_of(key, MIB)))]
        )
        send = lambda: peer.channel.send(pb.BulkRequest(put_commit=commit), [memoryview(value_of(key, MIB))])  # noqa: E731
        await asyncio.to_thread(send)
        answer = await asyncio.to_thread(lambda: peer.channel.receive(pb.BulkResponse))
        assert list(answer.committed.statuses) == [pb.STATUS_REJECTED]
        assert node.store.allocator.bytes_used == 0
        peer.sock.close()


async def test_nonsense_ends_the_connection_and_nothing_else() -> None:
    async with opened_node() as (_, client, namespace, remote):
        keys = random_keys(2)
        await put_chain(client, namespace, keys, 1000)
        for nonsense in (
            b"\xff" * 64,
            struct.pack("<I", 9 << 20),
            struct.pack("<I", 4) + b"\xff\xff\xff\xff",
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            opened = await open_bulk(remote)
            with socket.create_connection(("127.0.0.1", opened.port)) as sock:
                sock.sendall(nonsense)  # before the token
            peer = await asyncio.to_thread(Foreign, opened)
            peer.sock.sendall(nonsense)  # and after it
            assert await asyncio.to_thread(peer.is_cut)
        assert None not in await get_values(client, namespace, keys)


async def test_a_reader_that_stops_reading_holds_its_blocks_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.node.bulk._STALL_S", 0.3)
    async with opened_node() as (node, client, namespace, remote):
        keys = random_keys(3)
        await put_chain(client, namespace, keys, 8 * MIB)  # more than the sockets' buffers
        opened = await open_bulk(remote)
        peer = await asyncio.to_thread(Foreign, opened)
        blocks = [pb.BlockId(key=key) for key in keys]
        peer.channel.send(pb.BulkRequest(get=pb.GetRequest(namespace_id=namespace, blocks=blocks)))

        async def holds(count: int) -> bool:
            return sum(block.leases for block in node.store.index.blocks()) == count

        await until(lambda: holds(3))
        await until(lambda: holds(0))
        peer.sock.close()


async def test_grpc_takes_over_when_the_port_dies_and_bulk_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[BulkServer] = []
    start = BulkServer.start

    def noted(self: BulkServer, *arguments: object) -> None:
        servers.append(self)
        start(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(BulkServer, "start", noted)
    async with running_node(SETTINGS) as (_, addresses), await connect_by("bulk", addresses.grpc, 10) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(3)
        await put_chain(client, namespace, keys, MIB)
        [server] = servers
        port = server.port
        await server.stop()
        async with client.read(namespace, keys) as blocks:
            assert blocks.path == "grpc"
            assert None not in blocks.values
        assert client.path == "grpc"
        server.start(addresses.grpc, port)

        async def is_back() -> bool:
            async with client.read(namespace, keys) as blocks:
                assert None not in blocks.values
                return blocks.path == "bulk"

        await until(is_back)


async def test_a_port_that_cannot_be_reached_costs_nothing() -> None:
    """As behind a firewall: gRPC is open, the bulk port is not."""
    async with running_node(NodeSettings(arena_bytes=16 * MIB, value_bytes_max=MIB, bulk_port=-1)) as (_, addresses):
        async with await StoreClient.connect(addresses.grpc, call_deadline_s=10) as client:
            assert client.path == "grpc"
            assert (await client.stats()).bulk_port == 0
            namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
            keys = random_keys(2)
            await put_chain(client, namespace, keys, 1000)
            assert None not in await get_values(client, namespace, keys)
            assert client.counts.bulk_lost == 0


async def test_a_restarted_node_is_found_again(nodes: NodeProcesses) -> None:
    node = nodes.start(data_dir=nodes.folder / "data").wait_ready()
    async with await connect_by("bulk", node.address, 10) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(2)
        await put_chain(client, namespace, keys, MIB)
        assert node.stop() == 0
        nodes.start(data_dir=nodes.folder / "data", listen=node.address).wait_ready()

        async def is_back() -> bool:
            try:
                async with client.read(namespace, keys) as blocks:
                    return blocks.path == "bulk" and [bytes(value or b"") for value in blocks.values] == [
                        value_of(key, MIB) for key in keys
                    ]
            except Exception:  # noqa: BLE001  # whatever it is, it ends
                return False

        await until(is_back)


async def test_a_cancelled_read_leaves_the_callers_buffers_alone(nodes: NodeProcesses) -> None:
    node = nodes.start(arena_bytes=64 * MIB).wait_ready()
    async with await connect_by("bulk", node.address, 10) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(4)
        await put_chain(client, namespace, keys, 8 * MIB)
        buffers = [memoryview(bytearray(8 * MIB)) for _ in keys]
        node.signal(signal.SIGSTOP)
        reading = asyncio.create_task(client.read_into(namespace, keys, buffers))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        before = [bytes(buffer) for buffer in buffers]
        node.signal(signal.SIGCONT)
        assert await client.read_into(namespace, keys[:1], [memoryview(bytearray(8 * MIB))]) == [8 * MIB]
        assert [bytes(buffer) for buffer in buffers] == before


@pytest.mark.parametrize("path", PATHS)
async def test_read_into_the_callers_buffers(nodes: NodeProcesses, path: str) -> None:
    node = nodes.start(arena_bytes=64 * MIB).wait_ready()
    async with await connect_by(path, node.address, 10) as client:  # type: ignore[arg-type]
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys, missing = random_keys(3), random_keys(1)
        sizes = [4 * MIB, 1000, 5 * MIB]
        for key, size in zip(keys, sizes, strict=True):
            await put_chain(client, namespace, [key], size)
        buffers = [memoryview(bytearray(6 * MIB)) for _ in range(4)]
        asked = [keys[0], *missing, *keys[1:]]
        got = await client.read_into(namespace, asked, buffers, prefix_only=False)
        assert got == [4 * MIB, None, 1000, 5 * MIB]
        for key, size, buffer in zip(asked, got, buffers, strict=True):
            assert size is None or bytes(buffer[:size]) == value_of(key, size)
        assert await client.read_into(namespace, asked, buffers) == [4 * MIB, None, None, None]
        with pytest.raises(CallerError, match="give it more room"):
            await client.read_into(namespace, keys, [memoryview(bytearray(10))] * 3)
        with pytest.raises(CallerError, match="one for each"):
            await client.read_into(namespace, keys, buffers)
        assert await client.read_into(namespace, keys, buffers[:3]) == sizes  # the path is whole
        assert client.path == path


async def test_many_readers_and_writers_side_by_side(nodes: NodeProcesses) -> None:
    node = nodes.start(arena_bytes=256 * MIB).wait_ready()
    async with await connect_by("bulk", node.address, 10) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id

        async def one() -> None:
            keys = random_keys(3)
            assert await put_chain(client, namespace, keys, 300_000) == [pb.STATUS_STORED] * 3
            assert await get_values(client, namespace, keys) == [value_of(key, 300_000) for key in keys]

        async with asyncio.TaskGroup() as tasks:
            for _ in range(80):  # more than a client has connections: the others go by gRPC
                tasks.create_task(one())
        assert client.counts.bulk_lost == 0
        async with client.fill(namespace, [FillItem(random_keys(1)[0], 10)]) as fill:
            assert fill.path == "bulk"
