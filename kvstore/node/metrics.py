"""All metrics of a storage node.

Counts that the node keeps anyway are read when Prometheus asks; only call times are recorded as they
happen.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvstore.node.allocator import Fragmentation
from kvstore.wire import kvstore_pb2 as pb

_CALL_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_COUNTERS = (
    ("blocks_asked", "Blocks asked for by Acquire and Get."),
    ("blocks_hit_memory", "Blocks found in memory."),
    ("blocks_hit_disk", "Blocks found on disk."),
    ("blocks_stored", "Blocks committed."),
    ("blocks_evicted", "Blocks evicted from memory."),
    ("blocks_corrupt", "Blocks dropped because their checksum was wrong."),
    ("bytes_read", "Bytes of blocks leased or sent."),
    ("bytes_written", "Bytes of blocks committed."),
)
_TIERS = (
    ("blocks", "Blocks in the tier."),
    ("bytes_used", "Bytes in use."),
    ("bytes_max", "Bytes that the tier may use."),
    ("bytes_free_largest", "Bytes of the largest value that fits without evicting."),
    ("is_on", "1 while the tier is written to."),
)
_FRAGMENTATION = (
    ("external", "fragmentation", "0: free memory is in one piece; towards 1: in crumbs."),
    ("bytes_free", "free_bytes", "Bytes of the arena that no extent has."),
    ("extents_used", "extents_used", "Extents in use."),
    ("extents_free", "extents_free", "Free extents; neighbours are one."),
)


class CallTimer:
    """Times of calls, by transport and name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "stockpot_node_call_seconds",
            "Time of a call in the node.",
            ["transport", "call"],
            buckets=_CALL_BUCKETS_S,
            registry=registry,
        )
        self._by_call: dict[tuple[str, str], Histogram] = {}
        self.running = 0
        """Calls inside `time` now."""

    @contextmanager
    def time(self, transport: str, call: str) -> Iterator[None]:
        """Record how long the body takes."""
        start_s = time.perf_counter()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.record(transport, call, start_s)

    def record(self, transport: str, call: str, start_s: float) -> None:
        """Record a call that began at `start_s` on the performance counter and ends now."""
        seconds = self._by_call.get((transport, call))
        if seconds is None:  # looking a label up costs more than recording
            seconds = self._by_call[transport, call] = self._seconds.labels(transport, call)
        seconds.observe(time.perf_counter() - start_s)


class KvEventCounts:
    """What the publisher of KV events sent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.batches = Counter("stockpot_node_kv_event_batches", "Batches of KV events published.", registry=registry)
        self.batches_dropped = Counter(
            "stockpot_node_kv_event_batches_dropped",
            "Batches that at least one subscriber missed because it does not keep up.",
            registry=registry,
        )


class NodeCollector(Collector):
    """The node's own counts as metrics."""

    def __init__(self, stats: Callable[[], pb.StatsResponse], fragmentation: Callable[[], Fragmentation]) -> None:
        self._stats = stats
        self._fragmentation = fragmentation

    def collect(self) -> Iterator[Metric]:
        """Read everything now."""
        stats = self._stats()
        for name, text in _COUNTERS:
            yield CounterMetricFamily(f"stockpot_node_{name}", text, value=getattr(stats, name))
        for name, text in _TIERS:
            family = GaugeMetricFamily(f"stockpot_node_tier_{name}", text, labels=["tier"])
            for tier in stats.tiers:
                family.add_metric([pb.Tier.Name(tier.tier).removeprefix("TIER_").lower()], float(getattr(tier, name)))
            yield family
        yield GaugeMetricFamily("stockpot_node_leases", "Leases running.", value=stats.leases)
        yield GaugeMetricFamily(
            "stockpot_node_blocks_to_demote", "Blocks waiting for the disk.", value=stats.blocks_to_demote
        )
        fragmentation = self._fragmentation()
        for attribute, name, text in _FRAGMENTATION:
            yield GaugeMetricFamily(f"stockpot_node_arena_{name}", text, value=getattr(fragmentation, attribute))
        arena = GaugeMetricFamily("stockpot_node_arena_pages", "Kind of pages of the arena.", labels=["pages"])
        arena.add_metric([stats.arena_pages], 1)
        yield arena
