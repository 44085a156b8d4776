"""Batches: decodes first, prompts in order, nothing beyond the budget."""

import numpy as np

from engine.worker.sampling import Sampler, SamplingParams
from engine.worker.schedule import plan_batch, youngest
from engine.worker.text import TextStream
from engine.worker.turn import Turn, TurnState
from kvstore.core.keys import NamespaceId


def turn(state: TurnState, prompt: int, computed: int = 0, arrived_s: float = 0.0) -> Turn:
    made = Turn(
        turn_id="t",
        namespace=NamespaceId(b"n" * 32),
        prompt=np.zeros(prompt, np.uint32),
        tokens_max=8,
        sampler=Sampler(SamplingParams()),
        text=TextStream(),
        end_tokens=frozenset(),
        emit=lambda event: None,
        arrived_s=arrived_s,
    )
    made.state, made.computed = state, computed
    return made


def counts(turns: list[Turn], batch: int = 512, beside: int = 64) -> list[int]:
    return [c.count for c in plan_batch(turns, batch_tokens=batch, chunk_beside_decodes=beside)]


def test_a_lone_prompt_takes_the_whole_batch() -> None:
    assert counts([turn(TurnState.PREFILL, 1000)]) == [512]


def test_decodes_come_first_and_shrink_the_prompt_chunk() -> None:
    prompt, answer = turn(TurnState.PREFILL, 1000), turn(TurnState.DECODE, 10, 9)
    chunks = plan_batch([prompt, answer], batch_tokens=512, chunk_beside_decodes=64)
    assert [(c.turn, c.count) for c in chunks] == [(answer, 1), (prompt, 64)]


def test_prompts_share_what_is_left_in_order_of_arrival() -> None:
    assert counts([turn(TurnState.PREFILL, 100), turn(TurnState.PREFILL, 600)]) == [100, 412]


def test_only_the_chunk_that_ends_a_prompt_samples() -> None:
    first, second = plan_batch(
        [turn(TurnState.PREFILL, 100, 90), turn(TurnState.PREFILL, 600)], batch_tokens=512, chunk_beside_decodes=64
    )
    assert (first.samples, second.samples) == (True, False)


def test_more_decodes_than_the_batch_holds_are_cut() -> None:
    assert counts([turn(TurnState.DECODE, 10, 9) for _ in range(5)], batch=3) == [1, 1, 1]


def test_turns_that_wait_or_restore_compute_nothing() -> None:
    assert counts([turn(TurnState.QUEUED, 10), turn(TurnState.RESTORING, 10)]) == []


def test_the_youngest_is_preempted_but_never_the_only_one() -> None:
    old, new = turn(TurnState.DECODE, 10, 9, arrived_s=1.0), turn(TurnState.PREFILL, 10, arrived_s=2.0)
    assert youngest([old, new]) is new
    assert youngest([old]) is None
