"""`stockpot bench store`: put and get of single values by every path, in one run.

The machine is noisy, so paths take turns in rounds, and what counts is medians and the ratios of
paths within the same round.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvstore.client import StoreClient
from kvstore.core.namespace import Fingerprint
from stockpot.bench_paths import WORKING_SET_BYTES, MemcpyPath, StorePath, TcpPath, ValuePath, aligned_buffer
from stockpot.bench_tcp import TcpClient
from stockpot.process import Command
from stockpot.supervisor import supervised

SIZES = {"64KiB": 64 << 10, "1MiB": 1 << 20, "3MiB": 3 << 20, "16MiB": 16 << 20}
_ROUNDS = 5
_OPS_BYTES = 96 << 20  # of one path, size, direction and round; within 8 to 100 operations
_ARENA_BYTES = 8 * WORKING_SET_BYTES
_RATIOS = (("shm", "memcpy"), ("grpc", "tcp"))


@dataclass(slots=True)
class Timings:
    """Seconds of every operation of one path and size, by round."""

    put: list[list[float]] = field(default_factory=list)
    get: list[list[float]] = field(default_factory=list)


Results = dict[str, dict[str, Timings]]


def run(*, as_json: bool = False, rounds: int = _ROUNDS) -> None:
    """Measure, and print one JSON object or a table on stdout."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(_measure(rounds))
    if as_json:
        sys.stdout.write(json.dumps(_figures(results), indent=2) + "\n")
    else:
        Console().print(_table(_figures(results)))


async def _measure(rounds: int) -> Results:
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="stockpot-") as name:
        folder = Path(name)
        async with supervised(folder, lambda line: console.print(f"[dim]{line}[/]")) as supervisor:
            node, peer = await supervisor.start([_node_command(folder), Command("tcp", ("-m", "stockpot.bench_tcp"))])
            async with AsyncExitStack() as clients:
                return await _measure_paths(await _paths(node["address"], peer["address"], clients), rounds, console)


def _node_command(folder: Path) -> Command:
    # In memory only: the disk tier's writes would share the two cores with what is measured.
    flags = (f"--arena-bytes={_ARENA_BYTES}", f"--local-socket={folder}/node.sock")
    return Command("node", ("-m", "kvstore.node", *flags))


async def _paths(node: str, peer: str, clients: AsyncExitStack) -> list[ValuePath]:
    tcp = TcpClient(peer)
    clients.callback(tcp.close)
    paths: list[ValuePath] = [MemcpyPath(), TcpPath(tcp)]
    for prefer_local in (True, False):
        client = await StoreClient.connect(node, prefer_local=prefer_local, call_deadline_s=10)
        clients.push_async_callback(client.close)
        namespace = await client.open_namespace(Fingerprint(b"bench".ljust(32), block_tokens=32))
        paths.append(StorePath(client, namespace.namespace_id))
    assert [path.name for path in paths] == ["memcpy", "tcp", "shm", "grpc"], "the local socket cannot be used"
    return paths


async def _measure_paths(paths: Sequence[ValuePath], rounds: int, console: Console) -> Results:
    results: Results = {path.name: {size: Timings() for size in SIZES} for path in paths}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(SIZES) * len(paths))
        for name, size in SIZES.items():
            buffer = aligned_buffer(size)
            for path in paths:
                await path.prepare(size)
            for _ in range(rounds):
                for path in paths:
                    progress.update(task, description=f"{name} by {path.name}")
                    await _round(path, buffer, results[path.name][name])
                    progress.advance(task)
    return results


async def _round(path: ValuePath, buffer: "np.ndarray[tuple[int], np.dtype[np.uint8]]", timings: Timings) -> None:
    for operation, seconds in ((path.put, timings.put), (path.get, timings.get)):
        await operation(buffer)  # not counted: the first one wakes the other process
        taken = []
        for _ in range(max(8, min(100, _OPS_BYTES // buffer.nbytes))):
            start = time.perf_counter()
            await operation(buffer)
            taken.append(time.perf_counter() - start)
        seconds.append(taken)


def _figures(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """`{path: {size: {...}}}`, and under "ratios" how one path's get compares with another's."""
    figures = {
        path: {size: _figures_of(timings, SIZES[size]) for size, timings in by_size.items()}
        for path, by_size in results.items()
    }
    figures["ratios"] = {
        f"{path}_get_over_{yardstick}": {
            size: round(_ratio(results[path][size].get, results[yardstick][size].get), 3) for size in SIZES
        }
        for path, yardstick in _RATIOS
    }
    return figures


def _figures_of(timings: Timings, size: int) -> dict[str, float]:
    puts = [seconds for each in timings.put for seconds in each]
    gets = [seconds for each in timings.get for seconds in each]
    return {
        "put_gb_per_s": round(size / statistics.median(puts) / 1e9, 3),
        "get_gb_per_s": round(size / statistics.median(gets) / 1e9, 3),
        "p50_us": round(statistics.median(gets) * 1e6, 1),
        "p99_us": round(float(np.percentile(gets, 99)) * 1e6, 1),
    }


def _ratio(path: list[list[float]], yardstick: list[list[float]]) -> float:
    """Median over rounds of how fast `path` is, `yardstick` being 1."""
    pairs = zip(path, yardstick, strict=True)
    return statistics.median(statistics.median(base) / statistics.median(own) for own, base in pairs)


def _table(figures: dict[str, dict[str, dict[str, float]]]) -> Table:
    table = Table(title="One value at a time, one client (GB/s are 10^9 bytes; times are of get)")
    for column in ("path", "size", "put GB/s", "get GB/s", "p50 us", "p99 us", "get to yardstick"):
        table.add_column(column, justify="left" if column in ("path", "size") else "right")
    ratios = {path: figures["ratios"][f"{path}_get_over_{yardstick}"] for path, yardstick in _RATIOS}
    names = {path: f"x {yardstick}" for path, yardstick in _RATIOS}
    for path in (name for name in figures if name != "ratios"):
        for size, row in figures[path].items():
            ratio = f"{ratios[path][size]:.2f} {names[path]}" if path in ratios else ""
            table.add_row(
                path,
                size,
                f"{row['put_gb_per_s']:.2f}",
                f"{row['get_gb_per_s']:.2f}",
                f"{row['p50_us']:.0f}",
                f"{row['p99_us']:.0f}",
                ratio,
            )
        table.add_section()
    return table
