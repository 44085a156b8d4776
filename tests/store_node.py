"""Storage nodes for tests: as processes of their own, or inside the test's own loop."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from kvstore.client import FillItem, StoreClient
from kvstore.client import Path as BytesPath
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.node.disk_io import DiskIO
from kvstore.node.node import Addresses, Node
from kvstore.node.settings import NodeSettings
from tests.threaded_client import ThreadedClient

MIB = 1 << 20
START_DEADLINE_S = 30.0
PATHS: tuple[BytesPath, ...] = ("shm", "bulk", "grpc")
FINGERPRINT = Fingerprint(model_digest=b"m" * 32, block_tokens=32)


class NodeProcess:
    """One `python -m kvstore.node`; ports are chosen by the system."""

    def __init__(self, folder: Path, flags: dict[str, object]) -> None:
        self.ready_file = folder / "ready.json"
        self.ready_file.unlink(missing_ok=True)
        self.log = folder / "node.log"
        arguments = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in flags.items()
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvstore.node", f"--ready-file={self.ready_file}", *arguments],
                stderr=log,
                stdout=log,
            )

    def wait_ready(self) -> "NodeProcess":
        """Return once it serves."""
        deadline = time.monotonic() + START_DEADLINE_S
        while not self.ready_file.exists():
            assert self.process.poll() is None, f"node ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"node did not start: {self.log.read_text()}"
            time.sleep(0.01)
        self.addresses = json.loads(self.ready_file.read_text())
        self.address: str = self.addresses["address"]
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL and wait."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.terminate()
        return self.process.wait(START_DEADLINE_S)


class NodeProcesses:
    """Makes node processes below one folder and ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[NodeProcess] = []

    def start(self, name: str = "node", **flags: object) -> NodeProcess:
        """Start without waiting; the same name shares the folder."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        defaults: dict[str, object] = {"arena_bytes": 16 * MIB, "value_bytes_max": 8 * MIB, "segment_bytes": 16 * MIB}
        node = NodeProcess(folder, defaults | {"local_socket": folder / "s"} | flags)
        self._running.append(node)
        return node

    def kill_all(self) -> None:
        for node in self._running:
            if node.process.poll() is None:
                node.kill()


@asynccontextmanager
async def running_node(settings: NodeSettings, io: DiskIO | None = None) -> AsyncIterator[tuple[Node, Addresses]]:
    """A node in this process, on this loop."""
    node = Node(settings, io)
    started: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(node.run(started, stop))
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            try:
                yield node, started.result()
            finally:
                stop.set()


async def connect_by(path: BytesPath, address: str, call_deadline_s: float = 1.0) -> StoreClient:
    """A client whose bytes go by `path`."""
    client = await StoreClient.connect(
        address, prefer_local=path == "shm", prefer_bulk=path == "bulk", call_deadline_s=call_deadline_s
    )
    assert client.path == path
    return client


def random_keys(count: int) -> list[BlockKey]:
    """Keys nobody has used."""
    return [BlockKey(os.urandom(32)) for _ in range(count)]


def value_of(key: BlockKey, size: int) -> bytes:
    """The one right value of `key`: tests compare what they read with it."""
    seed = int.from_bytes(key[:8], "little")
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


async def put_chain(
    client: StoreClient | ThreadedClient,
    namespace: NamespaceId,
    keys: list[BlockKey],
    size: int,
    parent: BlockKey | None = None,
) -> list[int]:
    """Store `value_of` each key as one chain; returns the statuses."""
    parents = [parent, *keys[:-1]]
    items = [FillItem(key, size, before) for key, before in zip(keys, parents, strict=True)]
    async with client.fill(namespace, items) as fill:
        for key, view in zip(keys, fill.views, strict=True):
            if view is not None:
                view[:] = value_of(key, size)
        return list(await fill.commit())


async def get_values(
    client: StoreClient | ThreadedClient, namespace: NamespaceId, keys: list[BlockKey], prefix_only: bool = False
) -> list[bytes | None]:
    """Copies of the values."""
    async with client.read(namespace, keys, prefix_only=prefix_only) as blocks:
        return [None if value is None else bytes(value) for value in blocks.values]


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 20.0) -> None:
    """Return once `condition` answers true. Raises: TimeoutError."""
    async with asyncio.timeout(deadline_s):
        while not await condition():  # noqa: ASYNC110  # it asks another process
            await asyncio.sleep(0.01)


async def all_on_disk(client: StoreClient | ThreadedClient) -> bool:
    """Whether nothing waits for the disk."""
    stats = await client.stats()
    memory, disk = stats.tiers
    return stats.blocks_to_demote == 0 and disk.blocks >= memory.blocks
