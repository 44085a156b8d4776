"""Flipped bytes, lost files, and everything else that can happen to a data folder; see test_store_kills for kill -9."""

import asyncio
from pathlib import Path

import lmdb
import pytest

from kvstore.client import Path as BytesPath
from kvstore.client import StoreClient
from kvstore.core.errors import StockpotError
from tests.store_node import (
    FINGERPRINT,
    MIB,
    PATHS,
    NodeProcess,
    NodeProcesses,
    all_on_disk,
    connect_by,
    get_values,
    put_chain,
    random_keys,
    until,
    value_of,
)

SIZE = 300_000


def start_with_disk(nodes: NodeProcesses, **flags: object) -> NodeProcess:
    data_dir = nodes.folder / "data"
    return nodes.start(data_dir=data_dir, disk_bytes_max=64 * MIB, **flags).wait_ready()


async def test_all_that_was_flushed_survives_a_clean_stop(nodes: NodeProcesses) -> None:
    node = start_with_disk(nodes)
    keys = random_keys(20)
    async with await StoreClient.connect(node.address) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        await put_chain(client, namespace, keys, SIZE)
    assert node.stop() == 0
    node = start_with_disk(nodes)
    async with await StoreClient.connect(node.address) as client:
        # The namespace is known without being opened again.
        assert (await client.match(namespace, keys)).blocks == len(keys)
        assert (await client.match(namespace, keys)).blocks_in_memory == 0
        assert await get_values(client, namespace, keys) == [value_of(key, SIZE) for key in keys]
        assert (await client.stats()).blocks_hit_disk == len(keys)


@pytest.mark.parametrize("path", PATHS)
async def test_a_flipped_byte_on_disk_is_a_miss_and_is_dropped(nodes: NodeProcesses, path: BytesPath) -> None:
    node = start_with_disk(nodes)
    keys = random_keys(3)
    async with await StoreClient.connect(node.address) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        await put_chain(client, namespace, keys, SIZE)
        await until(lambda: all_on_disk(client))
    node.kill()
    flip_byte_of(nodes.folder / "data", value_of(keys[1], SIZE))
    node = start_with_disk(nodes)
    async with await connect_by(path, node.address) as client:
        values = await get_values(client, namespace, keys)
        assert values == [value_of(keys[0], SIZE), None, value_of(keys[2], SIZE)]
        assert (await client.stats()).blocks_corrupt == 1
        assert (await client.match(namespace, keys)).blocks == 1
        assert await put_chain(client, namespace, keys[1:2], SIZE) == [6]
    node.kill()


def flip_byte_of(data_dir: Path, value: bytes) -> None:
    """Change one byte in the middle of `value`, wherever it lies on disk."""
    for file in (data_dir / "segments").iterdir():
        raw = bytearray(file.read_bytes())
        if (start := raw.find(value)) >= 0:
            raw[start + len(value) // 2] ^= 0x40
            file.write_bytes(raw)
            return
    raise AssertionError("the value is on no segment")


@pytest.mark.parametrize("damage", ["segment gone", "segment cut"])
async def test_blocks_of_a_lost_segment_are_misses(nodes: NodeProcesses, damage: str) -> None:
    node = start_with_disk(nodes)
    keys = random_keys(3)
    async with await StoreClient.connect(node.address) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        await put_chain(client, namespace, keys, SIZE)
        await until(lambda: all_on_disk(client))
    node.kill()
    [segment] = (nodes.folder / "data" / "segments").iterdir()
    if damage == "segment gone":
        segment.unlink()
    else:
        with segment.open("r+b") as file:
            file.truncate(SIZE + 10_000)
    node = start_with_disk(nodes)
    async with await StoreClient.connect(node.address) as client:
        n_left = 0 if damage == "segment gone" else 1
        assert (await client.match(namespace, keys)).blocks == n_left
        assert await get_values(client, namespace, keys[:n_left]) == [value_of(key, SIZE) for key in keys[:n_left]]


def test_two_nodes_on_one_data_folder(nodes: NodeProcesses) -> None:
    start_with_disk(nodes)
    second = nodes.start("second", data_dir=nodes.folder / "data")
    assert second.process.wait(30) == 2
    assert_one_line(second, "in use by another node")


def test_a_data_folder_of_an_unknown_format(nodes: NodeProcesses) -> None:
    start_with_disk(nodes).stop()
    with lmdb.open(str(nodes.folder / "data" / "index"), max_dbs=3) as env, env.begin(write=True) as transaction:
        transaction.put(b"format", (99).to_bytes(4, "little"), db=env.open_db(b"meta", transaction))
    node = nodes.start(data_dir=nodes.folder / "data", disk_bytes_max=64 * MIB)
    assert node.process.wait(30) == 2
    assert_one_line(node, "format version 99")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"arena_bytes": 1 << 50}, "choose a smaller arena"),
        ({"arena_bytes": "much"}, "bad setting"),
        ({"arena_pages": "large"}, "bad setting"),
        ({"arena_pages": "normal", "require_hugepages": True}, "choose auto, 1g or 2m"),
        ({"numa_node": 1023}, "nodes with memory here: "),
        ({"listen": "nowhere"}, "expected HOST:PORT"),
        ({"data_dir": "/dev/null"}, "not a folder"),
        ({"data_dir": "/proc/nowhere"}, "cannot be written"),
        ({"local_socket": "/nowhere/at/all"}, "cannot be used"),
        ({"local_socket": "/" + "x" * 200}, "longer than"),
        ({"arena_bytes": 3 * MIB, "require_hugepages": True}, "nr_hugepages"),
        ({"lease_ttl_ms": 90_000}, "above lease_ttl_ms_max"),
        ({"data_dir": "data", "disk_bytes_max": MIB}, "two segments"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line(nodes: NodeProcesses, flags: dict[str, object], message: str) -> None:
    node = nodes.start(**flags)
    assert node.process.wait(30) == 2
    assert_one_line(node, message)


def assert_one_line(node: NodeProcess, message: str) -> None:
    """The log says why on its last line, without a traceback."""
    lines = [line for line in node.log.read_text().splitlines() if line]
    assert message in lines[-1], lines
    assert not any("Traceback" in line for line in lines)


async def test_a_restarted_node_is_found_again(nodes: NodeProcesses) -> None:
    node = nodes.start().wait_ready()
    client = await StoreClient.connect(node.address)
    async with client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(2)
        await put_chain(client, namespace, keys, SIZE)
        node.kill()
        with pytest.raises(StockpotError):
            await client.match(namespace, keys)
        again = nodes.start(listen=node.address).wait_ready()

        async def is_back() -> bool:
            try:
                return (await client.match(namespace, keys)).blocks == 0  # opens the namespace again by itself
            except StockpotError:
                return False

        await until(is_back)
        await asyncio.sleep(1.1)  # the local socket is looked for once a second
        assert await put_chain(client, namespace, keys, SIZE) == [6, 6]
        assert await get_values(client, namespace, keys) == [value_of(key, SIZE) for key in keys]
        assert client.path == "shm"
        again.kill()
