"""KV events as a foreign router sees them: its own structs, a real SUB socket, gaps and replays."""

import asyncio
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from kvstore.client import FillItem, StoreClient, SyncStoreClient
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.node.node import Addresses, Node
from kvstore.node.settings import NodeSettings
from tests.store_node import FINGERPRINT, MIB, NodeProcesses, all_on_disk, put_chain, random_keys, running_node, until

GUIDE = Path(__file__).parents[2] / "docs" / "events.md"
REPLAY_END = b"\xff" * 8


# What vLLM declares, written down anew: what is required there is required here.
class Event(msgspec.Struct, tag=True, omit_defaults=True):
    pass


class BlockStored(Event):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(Event):
    block_hashes: list[int | bytes]
    medium: str | None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Subscriber:
    """Follows the sequence, and can ask for what it missed."""

    def __init__(self, addresses: Addresses, topic: bytes = b"") -> None:
        self.context = zmq.asyncio.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.set(zmq.RCVHWM, 1)
        self.sub.connect(addresses.events)
        self.sub.subscribe(topic)
        self.replays = self.context.socket(zmq.DEALER)
        if addresses.events_replay:
            self.replays.connect(addresses.events_replay)

    async def next(self) -> tuple[int, Batch]:
        async with asyncio.timeout(20):
            topic, sequence, payload = await self.sub.recv_multipart()
        assert topic == b"kv@pod-1@llama"
        assert len(sequence) == 8
        return int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload, type=Batch)

    async def replay(self, first: int) -> list[tuple[int, Batch]]:
        await self.replays.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        async with asyncio.timeout(20):
            while True:
                empty, sequence, payload = await self.replays.recv_multipart()
                assert empty == b""
                if sequence == REPLAY_END:
                    assert payload == b""
                    return batches
                batches.append((int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload, type=Batch)))

    def close(self) -> None:
        self.context.destroy(linger=0)


def settings_of(folder: Path, **more: Any) -> NodeSettings:
    defaults: dict[str, Any] = {
        "arena_bytes": 16 * MIB,
        "value_bytes_max": MIB,
        "metrics_port": 0,
        "zmq_listen": f"ipc://{folder}/events",
        "zmq_replay": f"ipc://{folder}/replay",
        "zmq_topic": "kv@pod-1@llama",
    }
    return NodeSettings(**(defaults | more))


@asynccontextmanager
async def subscribed(
    settings: NodeSettings,
) -> AsyncIterator[tuple[Node, Addresses, Subscriber, StoreClient, NamespaceId]]:
    """A node with a subscriber that is really subscribed, a client and a namespace."""
    async with running_node(settings) as (node, addresses), await StoreClient.connect(addresses.grpc) as client:
        subscriber = Subscriber(addresses)
        try:
            namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
            probe = (await client.open_namespace(FINGERPRINT.with_salt(b"probe"))).namespace_id
            while not await subscriber.sub.poll(50):  # a subscription takes effect a little after it was asked for
                await put_chain(client, probe, random_keys(1), 10)
            await client.remove_all(probe)
            while not isinstance((await subscriber.next())[1].events[0], AllBlocksCleared):
                pass
            yield node, addresses, subscriber, client, namespace
        finally:
            subscriber.close()


def low64(key: BlockKey) -> int:
    return int.from_bytes(key[-8:], "big")


async def put_with_tokens(client: StoreClient, namespace: NamespaceId, keys: list[BlockKey], tokens: list[int]) -> None:
    parents = [None, *keys[:-1]]
    items = [FillItem(key, 100, parent, tokens) for key, parent in zip(keys, parents, strict=True)]
    async with client.fill(namespace, items) as fill:
        await fill.commit()


async def test_stored_removed_and_cleared(tmp_path: Path) -> None:
    async with subscribed(settings_of(tmp_path)) as (_, _, subscriber, client, namespace):
        keys = random_keys(3)
        tokens = list(range(32))
        await put_with_tokens(client, namespace, keys, tokens)
        first, batch = await subscriber.next()
        hashes = [low64(key) for key in keys]
        assert batch.events == [BlockStored(hashes, None, tokens * 3, 32, None, "CPU", None)]
        assert batch.data_parallel_rank == 0
        await client.remove(namespace, keys[2:])
        sequence, batch = await subscriber.next()
        assert (sequence, batch.events) == (first + 1, [BlockRemoved(hashes[2:], "CPU")])
        await client.bump_epoch(namespace)
        sequence, batch = await subscriber.next()
        assert (sequence, batch.events) == (first + 2, [AllBlocksCleared()])


async def test_what_other_namespaces_hold_is_told_anew_after_a_clearing(tmp_path: Path) -> None:
    async with subscribed(settings_of(tmp_path)) as (_, _, subscriber, client, namespace):
        other = (await client.open_namespace(FINGERPRINT.with_salt(b"other"))).namespace_id
        kept, gone = random_keys(1), random_keys(1)
        await put_chain(client, other, kept, 100)
        await put_chain(client, namespace, gone, 100)
        await client.remove_all(namespace)
        known: set[int | bytes] = set()
        is_cleared = False
        while not is_cleared or not known:
            for event in (await subscriber.next())[1].events:
                if isinstance(event, AllBlocksCleared):
                    is_cleared = True
                    known.clear()
                elif isinstance(event, BlockStored):
                    known.update(event.block_hashes)
        assert known == {low64(kept[0])}


async def test_a_restarted_node_announces_what_it_holds_on_disk(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, data_dir=str(tmp_path / "data"), segment_bytes=4 * MIB, disk_bytes_max=64 * MIB)
    [key] = random_keys(1)
    async with subscribed(settings) as (_, _, subscriber, client, namespace):
        await put_chain(client, namespace, [key], 100)
        last, _ = await subscriber.next()
        await until(lambda: all_on_disk(client))
    async with running_node(settings) as (_, addresses):
        subscriber = Subscriber(addresses)
        try:
            told = await subscriber.replay(last + 1)
        finally:
            subscriber.close()
    assert all(sequence > last for sequence, _ in told)
    assert told[0][1].events == [AllBlocksCleared()]
    assert told[1][1].events == [BlockStored([low64(key)], None, [], 32, None, "DISK", None)]


async def metric(addresses: Addresses, name: str) -> float:
    url = f"http://{addresses.metrics}/metrics"
    text = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())).decode()
    [value] = re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(value)


async def test_a_slow_subscriber_misses_batches_sees_it_and_asks_again(tmp_path: Path) -> None:
    large = Fingerprint(model_digest=b"m" * 32, block_tokens=4096)
    tokens = [2**32 - 1] * 4096  # 20 KB a block, to fill the socket's buffers soon
    settings = settings_of(tmp_path, zmq_queue_batches=1)
    async with subscribed(settings) as (_, addresses, subscriber, client, _):
        namespace = (await client.open_namespace(large)).namespace_id
        published: list[BlockKey] = []
        got: dict[int, Batch] = {}
        missing: list[int] = []
        async with asyncio.timeout(60):
            while not missing:  # a queue found full may have room again by the time that its batch would be dropped
                dropped = await metric(addresses, "stockpot_node_kv_event_batches_dropped_total")
                while await metric(addresses, "stockpot_node_kv_event_batches_dropped_total") == dropped:
                    keys = random_keys(50)
                    await put_with_tokens(client, namespace, keys, tokens)
                    published += keys
                while await subscriber.sub.poll(500):
                    sequence, batch = await subscriber.next()
                    got[sequence] = batch
                [last] = random_keys(1)
                await put_chain(client, namespace, [last], 100)
                published.append(last)
                sequence, batch = await subscriber.next()
                got[sequence] = batch
                missing = sorted(set(range(min(got), sequence)) - set(got))
        replayed = dict(await subscriber.replay(missing[0]))
        assert set(missing) <= set(replayed)
        told = {low64(key) for key in published}
        assert {each for batch in (replayed | got).values() for each in stored_hashes(batch)} == told


def stored_hashes(batch: Batch) -> list[int | bytes]:
    return [each for event in batch.events if isinstance(event, BlockStored) for each in event.block_hashes]


async def test_who_asks_for_too_old_a_batch_is_told_all_that_is_there(tmp_path: Path) -> None:
    async with subscribed(settings_of(tmp_path, zmq_replay_bytes=2000)) as (_, _, subscriber, client, namespace):
        keys = random_keys(100)
        for key in keys:
            await put_chain(client, namespace, [key], 100)
        await client.remove(namespace, keys[:50])
        for _ in range(101):
            last, _ = await subscriber.next()
        for nonsense in ([b""], [b"", b"short"], [b"x", bytes(8)], [b"", bytes(8), b""], [os.urandom(100)] * 5):
            await subscriber.replays.send_multipart(nonsense)
        for first in (0, last - 60):
            told = await subscriber.replay(first)
            assert {sequence for sequence, _ in told} == {last}
            assert told[0][1].events == [AllBlocksCleared()]
            assert {each for _, batch in told for each in stored_hashes(batch)} == {low64(key) for key in keys[50:]}
        assert [sequence for sequence, _ in await subscriber.replay(last - 1)] == [last - 1, last]
        assert await subscriber.replay(last + 1) == []


async def test_the_older_form_is_positional(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, zmq_events="positional", zmq_hashes="sglang")
    async with running_node(settings) as (_, addresses), await StoreClient.connect(addresses.grpc) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        [key] = random_keys(1)
        await put_chain(client, namespace, [key], 100)
        context = zmq.asyncio.Context()
        try:
            replays = context.socket(zmq.DEALER)
            replays.connect(addresses.events_replay)
            await replays.send_multipart([b"", bytes(8)])
            async with asyncio.timeout(20):
                _, _, cleared = await replays.recv_multipart()
                _, _, payload = await replays.recv_multipart()
        finally:
            context.destroy(linger=0)
        hashed = int.from_bytes(key[:8], "big", signed=True)
        assert msgspec.msgpack.decode(cleared)[1] == [["AllBlocksCleared"]]
        assert msgspec.msgpack.decode(payload)[1] == [["BlockStored", [hashed], None, [], 32, None, "CPU", None]]


async def test_a_publisher_that_connects(tmp_path: Path) -> None:
    context = zmq.asyncio.Context()
    try:
        sub = context.socket(zmq.SUB)
        sub.subscribe(b"kv@")
        sub.bind(f"ipc://{tmp_path}/central")
        settings = settings_of(tmp_path, zmq_listen=None, zmq_replay=None, zmq_connect=f"ipc://{tmp_path}/central")
        async with running_node(settings) as (_, addresses), await StoreClient.connect(addresses.grpc) as client:
            assert addresses.events == ""
            namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
            async with asyncio.timeout(20):
                while not await sub.poll(50):
                    await put_chain(client, namespace, random_keys(1), 100)
                topic, _, _ = await sub.recv_multipart()
        assert topic == b"kv@pod-1@llama"
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--zmq-listen=5557"], "zmq_listen is '5557', expected tcp://HOST:PORT"),
        (["--zmq-listen=tcp://127.0.0.1:99999"], "expected tcp://HOST:PORT"),
        (["--zmq-listen=tcp://192.0.2.1:5557"], "zmq_listen tcp://192.0.2.1:5557 cannot be used: Cannot assign"),
        (["--zmq-listen=tcp://127.0.0.1:*", "--zmq-replay=ipc:///no/such/x"], "zmq_replay ipc:///no/such/x cannot be"),
        (["--zmq-replay=tcp://127.0.0.1:*"], "neither zmq_listen nor zmq_connect"),
        (["--zmq-listen=tcp://127.0.0.1:*", "--zmq-events=tuples"], "Invalid enum value 'tuples'"),
    ],
)
def test_mistakes_are_named(flags: list[str], message: str) -> None:
    command = [sys.executable, "-m", "kvstore.node", "--arena-bytes=1048576", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_off_by_default(nodes: NodeProcesses) -> None:
    node = nodes.start().wait_ready()
    assert node.addresses["events"] == node.addresses["events_replay"] == ""
    maps = Path(f"/proc/{node.process.pid}/maps").read_text()
    assert "zmq" not in maps


def test_without_pyzmq_the_node_says_what_is_missing(tmp_path: Path) -> None:
    without = "import sys; sys.modules['zmq'] = None; from kvstore.node.__main__ import main; main()"
    arguments = ["--zmq-listen=tcp://127.0.0.1:*", "--arena-bytes=1048576"]
    ended = subprocess.run([sys.executable, "-c", without, *arguments], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "pip install 'stockpot[events]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_guides_subscriber_runs(nodes: NodeProcesses) -> None:
    folder = nodes.folder
    flags = {"zmq_listen": f"ipc://{folder}/events", "zmq_replay": f"ipc://{folder}/replay"}
    node = nodes.start(**flags).wait_ready()
    [code] = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "events_guide"}
    exec(compile(code, str(GUIDE), "exec"), names)
    keys = random_keys(3)
    with SyncStoreClient.connect(node.address, call_deadline_s=10) as client:
        namespace = client.open_namespace(FINGERPRINT).namespace_id
        for key in keys:
            with client.fill(namespace, [FillItem(key, 10)]) as fill:
                fill.commit()
        follower = names["Follower"](node.addresses["events"], node.addresses["events_replay"])
        follower.catch_up()
        assert set(follower.blocks) == {low64(key) for key in keys}
        client.remove(namespace, keys[:1])
        deadline = time.monotonic() + 20
        while len(follower.blocks) != 2:
            assert time.monotonic() < deadline
            follower.follow(wait_ms=100)
        assert set(follower.blocks) == {low64(key) for key in keys[1:]}
        follower.close()
