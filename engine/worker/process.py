"""Puts a worker together from its settings, serves until told to stop, and takes it apart."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from engine.llama.context import ContextSettings, LlamaContext
from engine.llama.model import LlamaModel
from engine.wire import engine_pb2 as pb
from engine.wire import engine_pb2_grpc as pb_grpc
from engine.worker.blocks import BlockMover
from engine.worker.cache import KvCache
from engine.worker.identity import fingerprint
from engine.worker.loop import LoopSettings, ModelLoop
from engine.worker.metrics import WorkerCollector, serve_metrics
from engine.worker.selftest import run_self_test
from engine.worker.service import EngineService, WorkerFacts
from engine.worker.settings import WorkerSettings
from engine.worker.slots import SlotTable
from engine.worker.store import StoreBridge, StoreCounters
from kvstore.core.errors import ConfigError
from kvstore.core.process import write_ready_file

log = logging.getLogger(__name__)

_CONTEXT_TOKENS_DEFAULT_MAX = 32_768
_STOP_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model with everything that runs turns on it; `loop` is not started yet."""

    model: LlamaModel
    context: LlamaContext
    cache: KvCache
    loop: ModelLoop
    facts: WorkerFacts

    def close(self) -> None:
        self.context.close()
        self.model.close()


def load_engine(settings: WorkerSettings) -> Engine:
    """Load the model, make its context, test that its KV can be stored.

    Raises: ConfigError for whatever the user can mend: the file, the context, the memory."""
    settings.check()
    model = LlamaModel(settings.model_path)
    context_tokens = _context_tokens(settings, model)
    cells = settings.cells or 2 * context_tokens
    if context_tokens < 2 * settings.block_tokens + 3:
        raise ConfigError(
            f"context_tokens is {context_tokens}, too small for two blocks of {settings.block_tokens} tokens; "
            "set a smaller block_tokens"
        )
    if cells < context_tokens:
        raise ConfigError(f"cells is {cells}, below the context of {context_tokens} tokens; set at least that many")
    threads = settings.threads or os.cpu_count() or 1
    context = LlamaContext(
        model, ContextSettings(cells, settings.slots, settings.batch_tokens, threads, settings.kv_type)
    )
    # llama.cpp rounds the cells up.
    table = SlotTable(
        slots=settings.slots,
        cells=context.cells,
        context_tokens=context_tokens,
        block_tokens=settings.block_tokens,
        is_divisible=not (model.sliding_window or model.is_recurrent),
    )
    mover = BlockMover(context, table, settings.block_tokens)
    tested = run_self_test(model, context, table, mover, settings.block_tokens)
    table.take_hot_changes()
    facts = WorkerFacts(
        worker_id=settings.worker_id or settings.listen,
        model_name=settings.model_name or settings.model_path.name.removesuffix(".gguf"),
        fingerprint=fingerprint(settings.model_path, kv_type=settings.kv_type, block_tokens=settings.block_tokens),
        context_tokens=context_tokens,
        cells=context.cells,
        value_bytes=tested.value_bytes,
        store_reason=tested.reason,
    )
    loop_settings = LoopSettings(
        block_tokens=settings.block_tokens,
        context_tokens=context_tokens,
        batch_tokens=context.batch_tokens,
        chunk_beside_decodes=settings.chunk_beside_decodes,
    )
    idle_cells_max = settings.idle_cells_max or (context.cells // 2 if settings.store else context.cells)
    cache = KvCache(context, table, mover, idle_cells_max)
    return Engine(model, context, cache, ModelLoop(context, cache, model.piece, loop_settings), facts)


async def serve(settings: WorkerSettings, engine: Engine) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises: ConfigError when the address cannot be bound."""
    facts = engine.facts
    bridge = None
    if settings.store and facts.value_bytes:
        bridge = StoreBridge(settings.store, engine.loop, facts.fingerprint, facts.value_bytes)
    elif settings.store:
        log.warning("store_off reason=%r", facts.store_reason)
    service = EngineService(engine.model, engine.loop, bridge, settings, facts)
    ending = _Ending(asyncio.get_running_loop())
    engine.loop.on_death = ending.failed
    engine.loop.on_hot_change = lambda added, removed: ending.call(service.hot.apply, added, removed)
    engine.loop.start()
    exporting = asyncio.create_task(bridge.run()) if bridge else None
    if bridge and exporting:
        exporting.add_done_callback(ending.task_done)
        await bridge.has_tried.wait()
    metrics_address = _serve_metrics(settings, engine, service, bridge)
    server, address, health_service = await _start_server(service, settings.listen)
    write_ready_file(settings.ready_file, address=address, metrics_address=metrics_address)
    log.info(
        "worker_ready address=%s metrics_address=%s model=%s store=%s",
        address,
        metrics_address,
        facts.model_name,
        settings.store or "none",
    )
    await ending.asked.wait()
    await health_service.enter_graceful_shutdown()
    if ending.failure is None:
        await service.drain(_STOP_DEADLINE_S)
    await server.stop(grace=1.0)
    if exporting:
        exporting.cancel()
        await asyncio.wait([exporting], timeout=_STOP_DEADLINE_S)
    engine.loop.stop()
    if ending.failure is not None:
        raise RuntimeError("a part of the worker ended by a bug") from ending.failure


def _serve_metrics(settings: WorkerSettings, engine: Engine, service: EngineService, bridge: StoreBridge | None) -> str:
    """The address of `/metrics`; empty when it is not asked for."""
    if settings.metrics_port is None:
        return ""
    store = bridge.counters if bridge else StoreCounters()
    collector = WorkerCollector(lambda: engine.loop.load, service.counters, store)
    return serve_metrics(collector, settings.listen.rpartition(":")[0], settings.metrics_port)


class _Ending:
    """Why and when the worker ends: a signal, or a part of it that failed."""

    def __init__(self, event_loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self.failure: BaseException | None = None
        self._event_loop = event_loop
        for number in (signal.SIGTERM, signal.SIGINT):
            event_loop.add_signal_handler(number, self.asked.set)

    def failed(self, error: BaseException) -> None:
        """From any thread: a part that everything depends on is gone; a restart is the cure."""
        self.failure = error
        self.call(self.asked.set)

    def task_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed(error)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """From any thread: call `function` on the event loop, unless that has ended."""
        if not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(function, *arguments)


async def _start_server(
    service: EngineService, listen: str
) -> "tuple[grpc.aio.Server, str, health.aio.HealthServicer]":
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20)])
    pb_grpc.add_EngineServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    health_service = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_service, server)
    name = pb.DESCRIPTOR.services_by_name["Engine"].full_name
    reflection.enable_server_reflection([name, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise ConfigError(f"cannot listen on {listen}: {error}; choose another port, or 0 for a free one") from error
    await server.start()
    for served in (name, ""):
        await health_service.set(served, health_pb2.HealthCheckResponse.SERVING)
    return server, f"{listen.rsplit(':', 1)[0]}:{port}", health_service


def _context_tokens(settings: WorkerSettings, model: LlamaModel) -> int:
    trained = model.context_tokens_train
    if settings.context_tokens > trained:
        raise ConfigError(
            f"context_tokens is {settings.context_tokens}, the model was trained for {trained}: set at most that"
        )
    return settings.context_tokens or min(trained, _CONTEXT_TOKENS_DEFAULT_MAX)
