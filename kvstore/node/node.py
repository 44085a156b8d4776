"""A storage node put together: arena, store, disk tier, service and its transports.

Starts from below and stops from above. The process around it is `__main__`; tests run it in their own.
"""

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from kvstore.core.errors import ConfigError
from kvstore.node.arena import Arena, ArenaOptions
from kvstore.node.bulk import BulkServer
from kvstore.node.bulk_steps import BulkSteps
from kvstore.node.disk import DiskTier
from kvstore.node.disk_folder import open_data_folder
from kvstore.node.disk_io import DiskIO, SystemDiskIO
from kvstore.node.disk_opening import restore_folders
from kvstore.node.grpc_server import GrpcServer
from kvstore.node.http_server import HttpServer
from kvstore.node.lifecycle import Lifecycle
from kvstore.node.local import LocalServer
from kvstore.node.managing import Management
from kvstore.node.metrics import CallTimer, KvEventCounts, NodeCollector
from kvstore.node.observing import Observer
from kvstore.node.service import Service
from kvstore.node.settings import NodeSettings, check_settings, limits_of, node_id_of, publishes_events
from kvstore.node.store import BlockStore
from kvstore.node.tiering import Demoter, DiskParts, Promoter

_EXPIRY_PERIOD_S = 0.25
_DRAIN_POLL_S = 0.02

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a running node answers; empty for what it does not offer."""

    grpc: str
    local_socket: str
    metrics: str
    bulk_port: int = 0
    events: str = ""
    events_replay: str = ""


class Node:
    """One storage node. Raises (on creation): ConfigError for a setting that cannot work."""

    def __init__(self, settings: NodeSettings, io: DiskIO | None = None) -> None:
        check_settings(settings)
        self.lifecycle = Lifecycle(node_id_of(settings), settings.stop_deadline_ms / 1000)
        self._io = io or SystemDiskIO()
        # The folder first: what is wrong with it shows before memory is taken.
        self._folder = (
            open_data_folder(Path(settings.data_dir), settings.disk_bytes_max, self._io) if settings.data_dir else None
        )
        options = ArenaOptions(settings.arena_pages, settings.require_hugepages, str(settings.numa_node))
        self.arena = Arena(settings.arena_bytes, options)
        # What whole pages left of the budget is what limits are reckoned from.
        self._settings = msgspec.structs.replace(settings, arena_bytes=self.arena.bytes)
        self.store = BlockStore(
            self.arena.bytes, time.monotonic, settings.event_log_events, settings.namespace_bytes_max
        )

    async def run(self, started: "asyncio.Future[Addresses]", stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain; `started` gets the addresses. Raises: ConfigError."""
        registry = CollectorRegistry()
        try:
            async with asyncio.TaskGroup() as tasks, AsyncExitStack() as watched:
                metrics_address = await self._serve_http(registry, watched)
                disk = self._open_disk(tasks)
                background = [tasks.create_task(self._expire_leases())]
                if disk is not None:
                    background.append(tasks.create_task(disk.demoter.run()))
                try:
                    await self._serve(disk, registry, metrics_address, started, stop)
                finally:
                    for task in background:
                        task.cancel()
                    await asyncio.wait(background)
                    if disk is not None:
                        await disk.close(self.lifecycle.writes_left_s())
        finally:
            self.arena.close()

    async def _serve(
        self,
        disk: DiskParts | None,
        registry: CollectorRegistry,
        metrics_address: str,
        started: "asyncio.Future[Addresses]",
        stop: asyncio.Event,
    ) -> None:
        settings, lifecycle = self._settings, self.lifecycle
        socket_path = settings.local_socket or ""
        service = Service(self.store, self.arena, limits_of(settings), socket_path, disk, lifecycle)
        observer = Observer(self.store, self.arena, socket_path, disk, lifecycle)
        registry.register(NodeCollector(observer.stats, lambda: self.store.allocator.fragmentation))
        timer = CallTimer(registry)
        local = LocalServer(service, self.arena, observer.incarnation, timer)
        async with AsyncExitStack() as running:
            if socket_path:
                await local.start(Path(socket_path))
                running.callback(local.stop, Path(socket_path))
            bulk = self._bulk_server(service, observer, disk, timer)
            running.push_async_callback(bulk.stop)
            published_at = await self._publish_events(observer, registry, running)
            management = Management(self.store, limits_of(settings), disk)
            server = GrpcServer(service, management, observer, bulk, timer)
            running.push_async_callback(server.stop)
            address = await server.start(settings.listen)
            lifecycle.serve()
            started.set_result(Addresses(address, socket_path, metrics_address, bulk.port, *published_at))
            await stop.wait()
            await self._drain(server, local, bulk)

    async def _drain(self, server: GrpcServer, local: LocalServer, bulk: BulkServer) -> None:
        """Let what runs end, within its share of the time to stop."""
        lifecycle = self.lifecycle
        lifecycle.drain()
        log.info("node_draining leases=%d deadline_ms=%d", len(self.store.leases), self._settings.stop_deadline_ms)
        self.store.events.close()
        local.stop_listening()
        bulk.stop_listening()
        await server.drain(lifecycle.calls_left_s())
        doors = (local, bulk)
        while not all(each.is_idle() for each in doors) and (left_s := lifecycle.calls_left_s()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left_s, _DRAIN_POLL_S))
        if not all(each.is_idle() for each in doors):
            log.warning("calls_cut leases=%d", len(self.store.leases))

    def _bulk_server(
        self, service: Service, observer: Observer, disk: DiskParts | None, timer: CallTimer
    ) -> BulkServer:
        steps = BulkSteps(service, self.store, limits_of(self._settings), disk, self.lifecycle)
        bulk = BulkServer(steps, self.arena, observer.incarnation, timer)
        if self._settings.bulk_port >= 0:
            bulk.start(self._settings.listen, self._settings.bulk_port)
            observer.bulk_port = bulk.port
        return bulk

    async def _serve_http(self, registry: CollectorRegistry, watched: AsyncExitStack) -> str:
        if self._settings.metrics_port is None:
            return ""
        host = self._settings.listen.rpartition(":")[0]
        try:
            server = await HttpServer(registry, self.lifecycle).start(host, self._settings.metrics_port)
        except OSError as error:
            raise ConfigError(f"metrics_port {self._settings.metrics_port} cannot be used: {error.strerror}") from error
        watched.callback(server.close)
        return f"{host}:{server.sockets[0].getsockname()[1]}"

    async def _publish_events(
        self, observer: Observer, registry: CollectorRegistry, running: AsyncExitStack
    ) -> tuple[str, str]:
        """Addresses of the events and of their replay."""
        if not publishes_events(self._settings):
            return "", ""
        try:
            from kvstore.node.zmq_publisher import KvEventPublisher, publishing
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"KV events need the package pyzmq, which is not installed ({error}): "
                "pip install 'stockpot[events]', or unset zmq_listen and zmq_connect"
            ) from error
        publisher = KvEventPublisher(self._settings, observer, self.store, KvEventCounts(registry))
        return await running.enter_async_context(publishing(publisher))

    def _open_disk(self, tasks: asyncio.TaskGroup) -> DiskParts | None:
        if self._folder is None:
            return None
        settings, folder = self._settings, self._folder
        restore_folders([folder], self.store)
        tier = DiskTier(folder, self._io, settings.segment_bytes, settings.disk_bytes_max, self.store.forget_disk)
        demoter = Demoter(self.store, self.arena, tier, settings.demote_queue_blocks)
        return DiskParts(tier, demoter, Promoter(self.store, self.arena, tier, tasks))

    async def _expire_leases(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_PERIOD_S)
            self.store.end_expired()
