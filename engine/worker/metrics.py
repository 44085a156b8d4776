"""All metrics of a worker. Everything is counted anyway; it is read when Prometheus asks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from engine.worker.loop import LoopLoad
from engine.worker.store import StoreCounters
from kvstore.core.errors import ConfigError

_LOAD_GAUGES = (
    ("turns_running", "running", "Turns that have a slot."),
    ("turns_queued", "queued", "Turns that wait for a slot."),
    ("prefill_tokens_waiting", "prefill_tokens_waiting", "Prompt tokens yet to be computed."),
    ("prefill_tokens_per_second", "prefill_tokens_per_s", "Measured, smoothed; 0 until measured."),
    ("cells_used", "cells_used", "Cells of the KV cache in use."),
)
_LOAD_COUNTERS = (
    ("reseats", "reseats", "Slots written anew to keep their cells in order."),
    ("preemptions", "preemptions", "Turns sent back to the queue for want of cells."),
)
_STORE_COUNTERS = (
    ("blocks_restored", "Blocks restored from the store."),
    ("blocks_exported", "Blocks stored."),
    ("blocks_gone", "Blocks whose KV was emptied before it was exported."),
    ("blocks_corrupt", "Blocks that were not what their key promises."),
    ("restores_failed", "Restores cut short by a fault of the store or by time."),
    ("exports_failed", "Exports that failed."),
    ("exports_dropped", "Exports dropped because too many waited."),
)
_PROMPT_SOURCES = ("hot", "restored", "computed")


@dataclass(slots=True)
class TurnCounters:
    """Since start; changed on the event loop."""

    finished: int = 0
    failed: int = 0
    answer_tokens: int = 0
    prompt_tokens_hot: int = 0
    prompt_tokens_restored: int = 0
    prompt_tokens_computed: int = 0


class WorkerCollector(Collector):
    """Reads the parts' own counts; a picture of each is replaced or added to as a whole, so any thread may."""

    def __init__(self, load: Callable[[], LoopLoad], turns: TurnCounters, store: StoreCounters) -> None:
        self._load = load
        self._turns = turns
        self._store = store

    def collect(self) -> Iterator[Metric]:
        load, turns, store = self._load(), self._turns, self._store
        for name, field, text in _LOAD_GAUGES:
            yield GaugeMetricFamily(f"stockpot_worker_{name}", text, value=float(getattr(load, field)))
        for name, field, text in _LOAD_COUNTERS:
            yield CounterMetricFamily(f"stockpot_worker_{name}", text, value=getattr(load, field))
        for name, text in _STORE_COUNTERS:
            yield CounterMetricFamily(f"stockpot_worker_{name}", text, value=getattr(store, name))
        prompt = CounterMetricFamily(
            "stockpot_worker_prompt_tokens", "Prompt tokens by where they came from.", labels=["source"]
        )
        for source in _PROMPT_SOURCES:
            prompt.add_metric([source], getattr(turns, f"prompt_tokens_{source}"))
        yield prompt
        yield CounterMetricFamily("stockpot_worker_answer_tokens", "Tokens generated.", value=turns.answer_tokens)
        yield CounterMetricFamily("stockpot_worker_turns_finished", "Turns answered whole.", value=turns.finished)
        yield CounterMetricFamily("stockpot_worker_turns_failed", "Turns that failed.", value=turns.failed)


def serve_metrics(collector: WorkerCollector, host: str, port: int) -> str:
    """Answer `/metrics` on `host:port` (0: a free one) from a thread of its own, to the process's end.

    Returns the address. Raises: ConfigError when it cannot be had."""
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"metrics_port {port} cannot be used: {error.strerror}") from error
    return f"{host}:{server.server_port}"
