"""Which worker answers a turn first: the least estimated time to first token.

    TTFT = queue     what the worker has promised already: prompt tokens that wait, running turns, full slots
         + restore   blocks that some node holds beyond the worker's hot prefix, by measured speed
         + prefill   tokens that nobody holds, by measured speed

What must still be waited for and computed is scored, never a share of the prompt: agents share long
heads, so a ratio would send every session to one worker. Pure: the caller brings state, gets a Decision
with all of its terms, and carries it out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.index import Match
from kvstore.core.errors import LimitError, UnavailableError

# Until any worker has measured: SmolLM2-135M on two cores does 190 tokens/s and 2.9 GB/s.
PREFILL_TOKENS_PER_S_DEFAULT = 150.0
RESTORE_BYTES_PER_S_DEFAULT = 1e9
# Cold reads of 1-4 MiB from NVMe, measured 0.5-0.8 GB/s.
DISK_BYTES_PER_S = 5e8
# Measured speeds of like machines differ by what else ran meanwhile: within this factor of the typical one
# they count as equal, else noise would send a session away from where it is hot.
_LIKE_SPEED_FACTOR = 1.5
# What running turns cost ours: the decode step that must end first, and their share of each step of our
# prefill (four decodes beside it took 189 tokens/s down to 142).
RUNNING_TURN_S = 0.05
RUNNING_TURN_SLOWDOWN = 0.08
# What each turn adds that has to end before a slot is free: some two hundred tokens of decoding.
SLOT_WAIT_S = 3.0
_RETRY_AFTER_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker as the router sees it at the moment of choice."""

    name: str
    slots: int
    """Turns that can run at once."""
    turns_max: int
    """Turns it may have, running and queued, before it counts as full."""
    turns: int = 0
    """Running and queued now, those on their way to it included."""
    prefill_tokens_waiting: int = 0
    """Prompt tokens yet to be computed, those on their way to it included."""
    prefill_tokens_per_s: float = 0.0
    """Measured; 0 until then."""
    restore_bytes_per_s: float = 0.0
    """Measured; 0 until then."""
    kv_bytes_per_token: int = 0
    block_tokens: int = 32
    has_store: bool = True
    """False for a worker that serves without the store: nothing can be restored."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one worker would need until the first token; tokens add up to the prompt's."""

    worker: str
    tokens_hot: int
    tokens_restored: int
    tokens_computed: int
    queue_s: float
    restore_s: float
    prefill_s: float
    turns: int
    """The worker's load, which breaks ties."""

    @property
    def tokens_cached(self) -> int:
        return self.tokens_hot + self.tokens_restored

    @property
    def ttft_s(self) -> float:
        return self.queue_s + self.restore_s + self.prefill_s


@dataclass(frozen=True, slots=True)
class Decision:
    chosen: Estimate
    considered: tuple[Estimate, ...]
    """Every worker that could have been chosen, best first."""


def choose(workers: Sequence[WorkerState], matches: Mapping[str, Match], prompt_tokens: int) -> Decision:
    """The worker for a prompt of `prompt_tokens`; `matches` by worker, as namespaces may differ between them.

    Raises: UnavailableError without workers; LimitError when all are full, with the least of their waits."""
    if not workers:
        raise UnavailableError("no worker is ready; try again in a moment", retry_after_s=2.0)
    open_workers = [worker for worker in workers if worker.turns < worker.turns_max]
    if not open_workers:
        wait_s = min(_queue_s(worker) for worker in workers)
        raise LimitError(
            f"all {len(workers)} workers have as many turns as they may queue; try again later",
            retry_after_s=min(max(wait_s, 1.0), _RETRY_AFTER_S_MAX),
        )
    levelled = _with_like_speeds(open_workers)
    estimates = [estimate(worker, matches.get(worker.name, Match()), prompt_tokens) for worker in levelled]
    estimates.sort(key=lambda one: (one.ttft_s, one.turns, one.worker))
    return Decision(estimates[0], tuple(estimates))


def estimate(worker: WorkerState, match: Match, prompt_tokens: int) -> Estimate:
    """What `worker` would need until the first token of a prompt of which `match` is held."""
    # At least one token is always computed, for its logits.
    blocks_max = (prompt_tokens - 1) // worker.block_tokens
    hot = min(match.hot.get(worker.name, 0), blocks_max)
    restored, on_disk = _restorable(worker, match, hot, blocks_max)
    computed = prompt_tokens - (hot + restored) * worker.block_tokens
    block_bytes = worker.block_tokens * worker.kv_bytes_per_token
    memory_bytes_per_s = worker.restore_bytes_per_s or RESTORE_BYTES_PER_S_DEFAULT
    restore_s = (restored - on_disk) * block_bytes / memory_bytes_per_s + on_disk * block_bytes / min(
        memory_bytes_per_s, DISK_BYTES_PER_S
    )
    return Estimate(
        worker=worker.name,
        tokens_hot=hot * worker.block_tokens,
        tokens_restored=restored * worker.block_tokens,
        tokens_computed=computed,
        queue_s=_queue_s(worker),
        restore_s=restore_s,
        prefill_s=computed / _prefill_tokens_per_s(worker) * (1 + RUNNING_TURN_SLOWDOWN * _running(worker)),
        turns=worker.turns,
    )


def _restorable(worker: WorkerState, match: Match, hot: int, blocks_max: int) -> tuple[int, int]:
    """Blocks beyond the `hot` ones that the best node holds, and how many of them lie on disk."""
    if not worker.has_store:
        return 0, 0
    best = (0, 0)
    for run in match.stored.values():
        beyond = max(0, min(run.blocks, blocks_max) - hot)
        # A parent outlives its children in memory, so those on disk are the run's last.
        on_disk = min(run.blocks_on_disk, beyond)
        best = max(best, (beyond, on_disk), key=lambda found: (found[0], -found[1]))
    return best


def _queue_s(worker: WorkerState) -> float:
    slots_short = max(0, worker.turns + 1 - worker.slots)
    return (
        worker.prefill_tokens_waiting / _prefill_tokens_per_s(worker)
        + _running(worker) * RUNNING_TURN_S
        + slots_short * SLOT_WAIT_S
    )


def _running(worker: WorkerState) -> int:
    return min(worker.turns, worker.slots)


def _with_like_speeds(workers: Sequence[WorkerState]) -> list[WorkerState]:
    """The workers with their speeds levelled: unmeasured and like ones get what is typical of all."""
    prefill = _typical([worker.prefill_tokens_per_s for worker in workers])
    restore = _typical([worker.restore_bytes_per_s for worker in workers])
    return [
        replace(
            worker,
            prefill_tokens_per_s=_levelled(worker.prefill_tokens_per_s, prefill),
            restore_bytes_per_s=_levelled(worker.restore_bytes_per_s, restore),
        )
        for worker in workers
    ]


def _typical(speeds: Sequence[float]) -> float:
    """The median of the measured speeds (the faster one of two); 0 without any."""
    measured = sorted(speed for speed in speeds if speed > 0)
    return measured[len(measured) // 2] if measured else 0.0


def _levelled(speed: float, typical: float) -> float:
    is_like = typical / _LIKE_SPEED_FACTOR <= speed <= typical * _LIKE_SPEED_FACTOR
    return typical if is_like or speed == 0 else speed


def _prefill_tokens_per_s(worker: WorkerState) -> float:
    return worker.prefill_tokens_per_s or PREFILL_TOKENS_PER_S_DEFAULT
