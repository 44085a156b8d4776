"""`stockpot bench match`: how long a node takes to match a 128k-token prompt, by how much it has stored.

Keys only: the blocks are put into the index of a real node as if a former run had left them on disk, and are
matched through the client's two ways. Client and node share this process, so a round trip holds both sides' work.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypedDict

import uvloop
from rich.console import Console
from rich.table import Table

from kvstore.client import StoreClient
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.node.blocks import BlockId, DiskPlace, StoredValue
from kvstore.node.node import Node
from kvstore.node.settings import NodeSettings

KEYS = 2_000
"""Blocks of 64 tokens in a prompt of 128k tokens."""
BLOCKS_STORED = (10_000, 100_000, 1_000_000)
_ROUNDS = 200
_FINGERPRINT = Fingerprint(model_digest=b"bench match".ljust(32), block_tokens=64)


class Times(TypedDict):
    """Milliseconds of one call."""

    p50: float
    p99: float


def run(*, as_json: bool = False) -> None:
    """Measure, and print one JSON object or a table on stdout."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(_measure())
    if as_json:
        result = {
            "keys": KEYS,
            "match_ms": {str(stored): times for stored, times in figures.items()},
            "ratios": {
                "match_1m_over_10k": round(figures[1_000_000]["shm"]["p50"] / figures[10_000]["shm"]["p50"], 3),
            },
        }
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return
    table = Table(
        "blocks stored", "shm p50 ms", "shm p99 ms", "grpc p50 ms", "grpc p99 ms", title=f"Match of {KEYS} keys"
    )
    for stored, times in figures.items():
        cells = [f"{times[way][part]:.2f}" for way in ("shm", "grpc") for part in ("p50", "p99")]
        table.add_row(f"{stored:,}", *cells)
    Console().print(table)


async def _measure() -> dict[int, dict[str, Times]]:
    figures: dict[int, dict[str, Times]] = {}
    with tempfile.TemporaryDirectory(prefix="stockpot-") as folder:
        settings = NodeSettings(arena_bytes=1 << 20, local_socket=f"{folder}/node.sock")
        async with _serving(Node(settings)) as (node, address):
            async with (
                await StoreClient.connect(address, call_deadline_s=30) as local,
                await StoreClient.connect(address, prefer_local=False, prefer_bulk=False, call_deadline_s=30) as remote,
            ):
                namespace = (await local.open_namespace(_FINGERPRINT)).namespace_id
                stored = 0
                chain: list[BlockKey] = []
                for target in BLOCKS_STORED:
                    chain = _fill(node, namespace, target - stored)[-KEYS:]
                    stored = target
                    figures[target] = {
                        "shm": await _time(lambda keys=chain: local.match(namespace, keys)),  # type: ignore[misc]
                        "grpc": await _time(lambda keys=chain: remote.match(namespace, keys)),  # type: ignore[misc]
                    }
                assert (await local.match(namespace, chain)).blocks == KEYS
    return figures


def _fill(node: Node, namespace: NamespaceId, count: int) -> list[BlockKey]:
    keys = [BlockKey(os.urandom(32)) for _ in range(count)]
    parents = [BlockKey(b""), *keys[:-1]]
    node.store.restore(
        [
            StoredValue(BlockId(namespace, key, 0), DiskPlace(1, 0), 4096, bytes(16), parent)
            for key, parent in zip(keys, parents, strict=True)
        ]
    )
    return keys


async def _time(call: Callable[[], Awaitable[object]]) -> Times:
    seconds = []
    for _ in range(_ROUNDS):
        start_s = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - start_s)
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(cuts[49] * 1000, 3), "p99": round(cuts[98] * 1000, 3)}


@asynccontextmanager
async def _serving(node: Node) -> AsyncIterator[tuple[Node, str]]:
    started = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(node.run(started, stop))
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        try:
            yield node, (await started).grpc
        finally:
            stop.set()
