"""A fixed result of the demo, with figures that can be checked by hand."""

from stockpot.demo.memory import Memory
from stockpot.demo.result import DemoResult, TurnRecord
from stockpot.demo.turns import Answer, TurnExtension
from stockpot.stack import MIB


def answer(prompt: int, hot: int, restored: int, ttft_ms: float, worker: str = "worker-1") -> Answer:
    """An answer to `prompt` tokens, of which `hot` and `restored` were cached."""
    origin = TurnExtension(
        worker=worker,
        tokens_hot=hot,
        tokens_restored=restored,
        tokens_computed=prompt - hot - restored,
        queue_ms=0.1,
        restore_ms=1.0,
        prefill_ms=ttft_ms - 2,
    )
    return Answer(
        text="It <decodes> & returns.",
        ttft_ms=ttft_ms,
        total_ms=ttft_ms + 500,
        prompt_tokens=prompt,
        cached_tokens=hot + restored,
        answer_tokens=8,
        extension=origin,
    )


def demo_result(failures: tuple[str, ...] = ()) -> DemoResult:
    """Two agents of two turns, all run both ways; agent-1's worker was killed after its first turn."""
    return DemoResult(
        records=(
            TurnRecord("agent-1", 1, answer(1000, 0, 0, 10_000), answer(1000, 0, 0, 11_000)),
            TurnRecord("agent-1", 2, answer(1200, 0, 960, 1_000), answer(1200, 0, 0, 13_000), is_after_restart=True),
            TurnRecord("agent-2", 1, answer(800, 600, 0, 2_000), answer(800, 0, 0, 9_000, "worker-2")),
            TurnRecord("agent-2", 2, answer(1000, 900, 0, 500, "worker-2"), answer(1000, 0, 0, 10_000, "worker-2")),
        ),
        failures=failures,
        wall_s_warm=15.04,
        wall_s_cold=45.0,
        worker_killed="worker-1",
        memory=Memory(
            peak_rss_bytes={"node": 90 * MIB, "worker-1": 300 * MIB, "demo": 80 * MIB},
            bound_bytes={"node": 192 * MIB, "worker-1": 640 * MIB},
            arena_bytes=512 * MIB,
            disk_bytes_max=2048 * MIB,
        ),
        machine={"processor": "An <old> one", "cores": 2, "model": "smollm2", "threads_per_worker": 1},
    )
