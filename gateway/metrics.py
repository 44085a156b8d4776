"""All metrics of the gateway, in Prometheus form; one object for each process, no global registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)


class GatewayMetrics:
    """Names begin with `stockpot_gateway_`; nothing that a client sent becomes a label."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.turns = Counter(
            "stockpot_gateway_turns",
            "Turns that ended, by how: stop, length, cancelled (client left), failed (before it began), cut (after).",
            ["outcome"],
            registry=self.registry,
        )
        self.refused = Counter(
            "stockpot_gateway_refused_requests", "Error answers, by status.", ["status"], registry=self.registry
        )
        self.turns_running = Gauge("stockpot_gateway_turns_running", "Turns now.", registry=self.registry)
        self.retries = Counter(
            "stockpot_gateway_retries", "Turns sent to another worker before they began.", registry=self.registry
        )
        self.prompt_tokens = Counter(
            "stockpot_gateway_prompt_tokens",
            "Prompt tokens, by where they came from: hot, restored, computed.",
            ["source"],
            registry=self.registry,
        )
        self.predicted_tokens = Counter(
            "stockpot_gateway_predicted_tokens",
            "Prompt tokens that the router expected to be hot or restored.",
            registry=self.registry,
        )
        self.answer_tokens = Counter("stockpot_gateway_answer_tokens", "Answer tokens.", registry=self.registry)
        self.ttft = Histogram(
            "stockpot_gateway_ttft_seconds",
            "From a turn's arrival to its first answer token.",
            buckets=_TTFT_BUCKETS_S,
            registry=self.registry,
        )
        self.prepare = Histogram(
            "stockpot_gateway_prepare_seconds",
            "From a turn's arrival to its routing: parse, render, tokenise, hash, match.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1),
            registry=self.registry,
        )
        self.workers_ready = Gauge("stockpot_gateway_workers_ready", "Workers in reach.", registry=self.registry)
        self.nodes_watched = Gauge("stockpot_gateway_nodes_watched", "Storage nodes in reach.", registry=self.registry)
        self.index_dropped_blocks = Gauge(
            "stockpot_gateway_index_dropped_blocks",
            "Blocks that the full prefix index did not take, since start.",
            registry=self.registry,
        )
        self.index_blocks = Gauge(
            "stockpot_gateway_index_blocks", "Blocks in the prefix index.", registry=self.registry
        )

    def expose(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self.registry)
