"""What the demo found: every turn, and the figures made of them. Plain data and arithmetic.

Figures that compare warm with cold are over the turns that ran both ways: all of them by default, each
session's last one with --quick. The token hit rate is over all warm turns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from stockpot.demo.memory import Memory
from stockpot.demo.turns import Answer


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One turn, run warm and perhaps also cold."""

    agent: str
    turn: int
    """Counted from 1."""
    warm: Answer
    cold: Answer | None = None
    is_after_restart: bool = False
    """The first turn of a session after the worker that served it was killed."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Everything that the summary, the report and the JSON are made of."""

    records: tuple[TurnRecord, ...]
    """Sessions one after the other, each in order."""
    failures: tuple[str, ...]
    """One line for each turn that failed; its session ended there."""
    wall_s_warm: float
    """Without the time for killing and restarting a worker."""
    wall_s_cold: float
    worker_killed: str
    memory: Memory
    machine: dict[str, str | int]

    def summary(self) -> dict[str, Any]:
        """The figures, by the names that `--json` prints."""
        pairs = [(record.warm, record.cold) for record in self.records if record.cold is not None]
        warm, cold = [before for before, _ in pairs], [after for _, after in pairs]
        ttft_ms_warm, ttft_ms_cold = ttft_ms_p50(warm), ttft_ms_p50(cold)
        restarted = [record.warm for record in self.records if record.is_after_restart]
        return {
            "token_hit_rate": token_hit_rate(record.warm for record in self.records),
            "token_hit_rate_cold": token_hit_rate(cold),
            "ttft_ms_warm_p50": ttft_ms_warm,
            "ttft_ms_cold_p50": ttft_ms_cold,
            "ttft_speedup_p50": round(ttft_ms_cold / ttft_ms_warm, 2) if ttft_ms_warm else 0.0,
            "prefill_tokens_warm": tokens_computed(warm),
            "prefill_tokens_cold": tokens_computed(cold),
            "wall_s_warm": round(self.wall_s_warm, 1),
            "wall_s_cold": round(self.wall_s_cold, 1),
            "turns": len(self.records),
            "turns_cold": len(cold),
            "answers_differing": self.answers_differing(),
            "errors": len(self.failures),
            "worker_killed": self.worker_killed,
            "hit_rate_after_worker_restart": token_hit_rate(restarted),
            "tokens_restored_after_worker_restart": sum(answer.extension.tokens_restored for answer in restarted),
            "peak_rss_bytes": self.memory.peak_rss_bytes,
            "memory_bound_bytes": self.memory.bound_bytes,
            "memory_within_bounds": self.memory.is_within_bounds,
            "arena_bytes": self.memory.arena_bytes,
            "disk_bytes_max": self.memory.disk_bytes_max,
            "machine": self.machine,
        }

    def answers_differing(self) -> list[str]:
        """The turns whose cold answer is another text than the warm one; none with q8_0 KV, which is bit-exact."""
        return [
            f"{record.agent} turn {record.turn}"
            for record in self.records
            if record.cold is not None and record.cold.text != record.warm.text
        ]


def token_hit_rate(answers: Iterable[Answer]) -> float:
    """Cached prompt tokens by prompt tokens, 0 to 1; 0 when there are none."""
    cached = prompt = 0
    for answer in answers:
        cached += answer.cached_tokens
        prompt += answer.prompt_tokens
    return round(cached / prompt, 4) if prompt else 0.0


def ttft_ms_p50(answers: Sequence[Answer]) -> float:
    """Median time to first token in milliseconds; 0 when there are no turns."""
    return round(median(answer.ttft_ms for answer in answers), 1) if answers else 0.0


def tokens_computed(answers: Iterable[Answer]) -> int:
    """Prompt tokens that a worker had to prefill."""
    return sum(answer.extension.tokens_computed for answer in answers)
