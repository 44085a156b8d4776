"""SIGTERM: a node ends what runs, tells its watchers, writes its blocks to disk, and only then ends."""

import asyncio
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.client import FillItem, StoreClient
from kvstore.client import Path as BytesPath
from kvstore.client.remote import RemoteNode
from kvstore.core.errors import UnavailableError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.grpc_server import SERVICE
from kvstore.wire import kvstore_pb2 as pb
from tests.store_node import (
    FINGERPRINT,
    MIB,
    PATHS,
    START_DEADLINE_S,
    NodeProcess,
    NodeProcesses,
    connect_by,
    get_values,
    put_chain,
    random_keys,
    until,
    value_of,
)

STORED = pb.STATUS_STORED
LONG_MS = 60_000


def start(nodes: NodeProcesses, folder: Path, stop_deadline_ms: int = LONG_MS) -> NodeProcess:
    return nodes.start(data_dir=folder / "data", metrics_port=0, stop_deadline_ms=stop_deadline_ms).wait_ready()


async def exit_code(node: NodeProcess) -> int:
    return await asyncio.to_thread(node.process.wait, START_DEADLINE_S)


async def answer(node: NodeProcess, path: str) -> tuple[int, str]:
    """Status and body of an HTTP GET."""

    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{node.addresses['metrics_address']}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def is_draining(node: NodeProcess) -> None:
    async def seen() -> bool:
        return await answer(node, "/readyz") == (503, "draining\n")

    await until(seen)


async def stored_after_restart(nodes: NodeProcesses, folder: Path, namespace: NamespaceId, keys: list[BlockKey]) -> int:
    """How many of `keys`, all right, a new node has on disk."""
    async with await StoreClient.connect(start(nodes, folder).address, call_deadline_s=10) as client:
        await client.open_namespace(FINGERPRINT)
        values = await get_values(client, namespace, keys, prefix_only=False)
        assert all(value in (None, value_of(key, MIB)) for key, value in zip(keys, values, strict=True))
        return sum(value is not None for value in values)


@pytest.mark.parametrize("path", PATHS)
async def test_a_running_put_ends_and_reaches_the_disk(nodes: NodeProcesses, tmp_path: Path, path: BytesPath) -> None:
    node = start(nodes, tmp_path)
    async with await connect_by(path, node.address, call_deadline_s=10) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        earlier, [key] = random_keys(4), random_keys(1)
        await put_chain(client, namespace, earlier, MIB)
        async with client.fill(namespace, [FillItem(key, MIB)]) as fill:
            assert fill.path == path
            node.signal(signal.SIGTERM)
            await is_draining(node)
            assert await answer(node, "/healthz") == (200, "ok\n")
            with pytest.raises(UnavailableError):
                await put_chain(client, namespace, random_keys(1), MIB)
            [view] = fill.views
            assert view is not None
            view[:] = value_of(key, MIB)
            assert await fill.commit() == [STORED]
        assert await exit_code(node) == 0
    assert await stored_after_restart(nodes, tmp_path, namespace, [*earlier, key]) == 5


async def test_watchers_are_told_and_health_says_not_serving(nodes: NodeProcesses, tmp_path: Path) -> None:
    node = start(nodes, tmp_path)
    remote = RemoteNode(node.address)
    events = remote.watch(pb.WatchRequest())
    assert (await anext(events)).is_reset
    async with grpc.aio.insecure_channel(node.address) as channel:
        states = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await states.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert await answer(node, "/readyz") == (200, "serving\n")
        node.signal(signal.SIGTERM)
        assert (await states.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(UnavailableError, match="is draining"):
            async for _ in events:
                pass
        # Neither a watcher nor one who watches the health holds it up: the deadline is a minute.
        assert await exit_code(node) == 0
    await remote.close()


@pytest.mark.parametrize("path", PATHS)
async def test_a_call_that_does_not_end_is_cut_at_the_deadline(
    nodes: NodeProcesses, tmp_path: Path, path: BytesPath
) -> None:
    node = start(nodes, tmp_path, stop_deadline_ms=400)
    async with await connect_by(path, node.address, call_deadline_s=10) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        keys = random_keys(3)
        await put_chain(client, namespace, keys, MIB)
        async with client.fill(namespace, [FillItem(random_keys(1)[0], MIB)]):
            node.signal(signal.SIGTERM)
            assert await exit_code(node) == 0
    assert await stored_after_restart(nodes, tmp_path, namespace, keys) == 3


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(nodes: NodeProcesses, tmp_path: Path, second: signal.Signals) -> None:
    node = start(nodes, tmp_path)
    async with await StoreClient.connect(node.address, call_deadline_s=10) as client:
        namespace = (await client.open_namespace(FINGERPRINT)).namespace_id
        async with client.fill(namespace, [FillItem(random_keys(1)[0], MIB)]):
            node.signal(signal.SIGTERM)
            await is_draining(node)
            node.signal(second)
            assert await exit_code(node) == 128 + second
    assert "event=node_end_at_once" in node.log.read_text()


async def test_an_idle_node_ends_without_waiting(nodes: NodeProcesses, tmp_path: Path) -> None:
    node = start(nodes, tmp_path)
    async with await StoreClient.connect(node.address) as client:
        assert client.path == "shm"
        begin_s = time.monotonic()
        node.signal(signal.SIGINT)
        assert await exit_code(node) == 0
    assert time.monotonic() - begin_s < LONG_MS / 1000 / 2


@pytest.mark.parametrize(
    ("path", "status"), [("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/readyz?full=1", 200), ("/", 404)]
)
async def test_http_answers(nodes: NodeProcesses, tmp_path: Path, path: str, status: int) -> None:
    assert (await answer(start(nodes, tmp_path), path))[0] == status
