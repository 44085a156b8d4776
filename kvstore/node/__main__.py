"""The storage node's process: settings, log, signals, systemd. `python -m kvstore.node --help`.

Exit codes: 0 drained after SIGTERM or SIGINT; 1 failed while running; 2 a setting cannot work (one line on
stderr says why); 128 + N ended at once by a second signal N. `--check` has its own: see preflight.
"""

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys
from typing import Any

import uvloop

from kvstore.core.config import Reading
from kvstore.core.log_lines import KeyValues, start_logging
from kvstore.core.process import exit_by_mistake, write_ready_file
from kvstore.core.systemd import ServiceManager
from kvstore.node.node import Addresses, Node
from kvstore.node.preflight import run_check
from kvstore.node.settings import NodeSettings, node_id_of, read_command_line

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

log = logging.getLogger("kvstore.node")


def main() -> None:
    """Run a node until it is told to stop, or only check whether it could."""
    with exit_by_mistake("stockpot node"):
        reading = read_command_line(sys.argv[1:])
        if "check" in reading.switches:
            raise SystemExit(run_check(reading))
        start_logging(reading.settings.log_format, node_id=node_id_of(reading.settings))
        _log_start(reading)
        _keep_large_buffers()
        _raise_file_limit()
        try:
            # Before there is a loop, whose signals would wait: touching a large arena takes a minute.
            node = Node(reading.settings)
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
        uvloop.run(_run(reading.settings, node))


def _log_start(reading: Reading[NodeSettings]) -> None:
    log.info("node_start %s", KeyValues(reading.shown() | {"node_id": node_id_of(reading.settings)}))
    for name in reading.variables_unknown:
        log.warning("environment_unknown variable=%s", name)


async def _run(settings: NodeSettings, node: Node) -> None:
    loop = asyncio.get_running_loop()
    manager = ServiceManager()
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, _on_signal, sign, stop, manager)
    started: asyncio.Future[Addresses] = loop.create_future()
    async with asyncio.TaskGroup() as tasks:
        watchdog = tasks.create_task(manager.keep_watchdog())
        running = tasks.create_task(node.run(started, stop))
        running.add_done_callback(lambda _: watchdog.cancel())
        waited: list[asyncio.Future[Any]] = [running, started]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            _tell_ready(settings, node, started.result())
            manager.tell(READY=1, STATUS=f"serving on {started.result().grpc}")
    log.info("node_end")


def _on_signal(sign: signal.Signals, stop: asyncio.Event, manager: ServiceManager) -> None:
    """The first signal drains, the second ends the process here."""
    if stop.is_set():
        log.warning("node_end_at_once signal=%s", sign.name)
        os._exit(128 + sign)
    log.info("node_stop signal=%s", sign.name)
    manager.tell(STOPPING=1, STATUS="draining")
    stop.set()


def _tell_ready(settings: NodeSettings, node: Node, addresses: Addresses) -> None:
    log.info(
        "node_ready address=%s bulk_port=%d local_socket=%s metrics_address=%s events=%s arena_pages=%s",
        addresses.grpc,
        addresses.bulk_port,
        addresses.local_socket,
        addresses.metrics,
        addresses.events,
        node.arena.pages,
    )
    write_ready_file(
        settings.ready_file,
        address=addresses.grpc,
        bulk_port=addresses.bulk_port,
        local_socket=addresses.local_socket,
        metrics_address=addresses.metrics,
        events=addresses.events,
        events_replay=addresses.events_replay,
    )


def _keep_large_buffers() -> None:
    """Have malloc reuse message buffers: mapping and clearing fresh pages for each costs more than the copy.

    Measured with 16 MiB values over gRPC: 0.18 to 0.67 GB/s."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def _raise_file_limit() -> None:
    """Take all file descriptors that we may have: each segment and each connection needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
