"""The whole of Stockpot on one machine: a storage node, workers and a gateway on free loopback ports.

           gateway  (HTTP, OpenAI's API)
          /       \\
    worker-1 ... worker-N  (gRPC; llama.cpp)
          \\       /
            node  (gRPC and shared memory; blocks in RAM and on disk)
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.core.errors import UnavailableError
from stockpot.gateway_probe import GatewayProbe
from stockpot.ports import LOOPBACK, free_ports
from stockpot.process import Command, ProcessDiedError
from stockpot.supervisor import Report, Supervisor, supervised

MIB = 1024 * 1024
_BLOCKS = "blocks"
_REACHED_DEADLINE_S = 30.0
"""For the gateway to find workers that are ready already."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    """What to start; every bound that the processes are given."""

    model: Path
    workers: int = 2
    context_tokens: int = 0
    """Largest prompt plus answer; 0 takes the model's."""
    cells: int = 0
    """KV cells of each worker, one a token: what running and hot sequences share; 0 takes twice the context."""
    arena_bytes: int = 512 * MIB
    disk_bytes_max: int = 2048 * MIB
    port: int = 0
    """The gateway's; 0 takes a free one."""
    data_dir: Path | None = None
    """Where the node keeps blocks on disk; None: in the run folder, gone with it."""
    run_dir: Path | None = None
    """Where logs and sockets go, and stay; None: a temporary folder, which is removed unless a process failed."""
    api_key: str = field(default_factory=lambda: f"sk-stockpot-{secrets.token_urlsafe(18)}", repr=False)

    @property
    def threads(self) -> int:
        """Threads of each worker: the cores shared out."""
        return max(1, len(os.sched_getaffinity(0)) // self.workers)


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack; valid inside the `async with` of `running_stack`."""

    settings: StackSettings
    supervisor: Supervisor
    gateway: GatewayProbe
    node_address: str
    worker_addresses: tuple[str, ...]

    @property
    def base_url(self) -> str:
        """For an OpenAI client."""
        return f"{self.gateway.url}/v1"

    async def kill_and_restart(self, worker: str) -> None:
        """End a worker by SIGKILL, start it again, and wait until the gateway reaches all of them.

        Raises: UnavailableError."""
        await self.supervisor.kill_and_restart(worker)
        await self.gateway.wait_for_workers(self.settings.workers, _REACHED_DEADLINE_S)


@asynccontextmanager
async def running_stack(settings: StackSettings, report: Report) -> AsyncIterator[Stack]:
    """Start everything, wait until it is ready, and end it all when the block is left.

    Raises: ProcessDiedError, UnavailableError: with the process's last log lines."""
    with _run_folder(settings.run_dir) as folder:
        report(f"logs in {folder}")
        async with supervised(folder, report) as supervisor:
            yield await _start(settings, folder, supervisor)


@contextmanager
def _run_folder(run_dir: Path | None) -> Iterator[Path]:
    """A folder for logs, sockets and the node's blocks; without its blocks once it is left."""
    # Short, since the path of a unix socket in it may have 107 bytes at most.
    folder = run_dir or Path(tempfile.mkdtemp(prefix="stockpot-"))
    folder.mkdir(parents=True, exist_ok=True)
    is_kept = run_dir is not None
    try:
        yield folder
    except (ProcessDiedError, UnavailableError):
        is_kept = True  # the message names its logs
        raise
    finally:
        shutil.rmtree(folder / _BLOCKS if is_kept else folder, ignore_errors=True)


async def _start(settings: StackSettings, folder: Path, supervisor: Supervisor) -> Stack:
    """Each tier once the one that it depends on is ready."""
    node_port, gateway_port, *worker_ports = free_ports(2 + settings.workers)
    gateway_port = settings.port or gateway_port
    [node] = await supervisor.start([node_command(settings, folder, node_port)])
    workers = await supervisor.start(
        [worker_command(settings, i, port, str(node["address"])) for i, port in enumerate(worker_ports, 1)]
    )
    addresses = [str(worker["address"]) for worker in workers]
    [ready] = await supervisor.start([gateway_command(settings, gateway_port, addresses, str(node["address"]))])
    gateway = GatewayProbe(str(ready["url"]), settings.api_key)
    await gateway.wait_for_workers(settings.workers, _REACHED_DEADLINE_S)
    return Stack(settings, supervisor, gateway, str(node["address"]), tuple(addresses))


def node_command(settings: StackSettings, folder: Path, port: int) -> Command:
    """The storage node; its unix socket and, unless set otherwise, its blocks lie in `folder`."""
    flags = {
        "--listen": f"{LOOPBACK}:{port}",
        "--arena-bytes": settings.arena_bytes,
        "--data-dir": settings.data_dir or folder / _BLOCKS,
        "--disk-bytes-max": settings.disk_bytes_max,
        "--local-socket": folder / "node.sock",
    }
    return Command("node", _module("kvstore.node", flags))


def worker_command(settings: StackSettings, number: int, port: int, store: str) -> Command:
    """Worker `number`, counted from 1, that restores from and exports to the node at `store`."""
    name = f"worker-{number}"
    flags = {
        "--model": settings.model,
        "--listen": f"{LOOPBACK}:{port}",
        "--store": store,
        "--context-tokens": settings.context_tokens,
        "--cells": settings.cells,
        "--threads": settings.threads,
        "--worker-id": name,
    }
    # Spinning OpenMP threads of one worker would take the cores from the others.
    return Command(name, _module("engine", flags), {"OMP_WAIT_POLICY": "passive"})


def gateway_command(settings: StackSettings, port: int, workers: list[str], node: str) -> Command:
    """The gateway in front of `workers` and the node, all given by address."""
    flags = {
        "--host": LOOPBACK,
        "--port": port,
        "--workers": ",".join(workers),
        "--nodes": node,
    }
    # Not a flag: every user of the machine can read those.
    return Command("gateway", _module("gateway", flags), {"STOCKPOT_GATEWAY_API_KEYS": settings.api_key})


def _module(module: str, flags: dict[str, object]) -> tuple[str, ...]:
    words = (word for name, value in flags.items() for word in (name, str(value)))
    return ("-m", module, *words)
