"""The router's choice, term by term."""

import pytest

from gateway.index import Match, StoredRun
from gateway.route import PREFILL_TOKENS_PER_S_DEFAULT, WorkerState, choose, estimate
from kvstore.core.errors import LimitError, UnavailableError

A = WorkerState("a", slots=4, turns_max=8, prefill_tokens_per_s=100, restore_bytes_per_s=1e9, kv_bytes_per_token=10_000)


def like_a(name: str = "b", **changes: object) -> WorkerState:
    fields = {slot: getattr(A, slot) for slot in A.__slots__}
    return WorkerState(**{**fields, "name": name, **changes})  # type: ignore[arg-type]


def test_the_terms_of_an_estimate() -> None:
    match = Match(hot={"a": 2}, stored={"n": StoredRun(blocks=10, blocks_on_disk=3)})
    worker = like_a("a", prefill_tokens_waiting=300, turns=2)
    found = estimate(worker, match, prompt_tokens=32 * 12 + 5)
    assert (found.tokens_hot, found.tokens_restored, found.tokens_computed) == (64, 256, 69)
    assert found.prefill_s == pytest.approx(0.69 * 1.16)  # two running turns share each step
    block_bytes = 32 * 10_000
    assert found.restore_s == pytest.approx(5 * block_bytes / 1e9 + 3 * block_bytes / 5e8)
    assert found.queue_s == pytest.approx(3.0 + 2 * 0.05)
    assert found.ttft_s == pytest.approx(found.queue_s + found.restore_s + found.prefill_s)


def test_one_token_is_always_computed() -> None:
    match = Match(hot={"a": 2}, stored={"n": StoredRun(2, 0)})
    found = estimate(A, match, prompt_tokens=64)
    assert (found.tokens_hot, found.tokens_restored, found.tokens_computed) == (32, 0, 32)
    assert estimate(A, match, prompt_tokens=1).tokens_computed == 1


def test_an_unmeasured_worker_is_taken_at_the_default_speed() -> None:
    found = estimate(like_a(prefill_tokens_per_s=0.0), Match(), prompt_tokens=300)
    assert found.prefill_s == pytest.approx(300 / PREFILL_TOKENS_PER_S_DEFAULT)


def test_a_worker_without_store_restores_nothing() -> None:
    match = Match(stored={"n": StoredRun(10, 0)})
    assert estimate(like_a(has_store=False), match, 400).tokens_restored == 0


def test_the_best_node_counts() -> None:
    match = Match(stored={"n": StoredRun(3, 0), "m": StoredRun(5, 5), "o": StoredRun(5, 1)})
    found = estimate(A, match, 400)
    assert found.tokens_restored == 5 * 32
    assert found.restore_s == pytest.approx((4 / 1e9 + 1 / 5e8) * 320_000)


def test_a_session_goes_back_to_where_it_is_hot() -> None:
    # Another worker could restore nearly all of it, and is idle; this one runs a turn of another session.
    match = Match(hot={"b": 60}, stored={"n": StoredRun(58, 0)})
    decision = choose([A, like_a()], {"a": match, "b": match}, 2000)
    assert decision.chosen.worker == "b"
    assert [one.worker for one in decision.considered] == ["b", "a"]


def test_without_its_worker_a_session_is_restored_elsewhere() -> None:
    match = Match(stored={"n": StoredRun(60, 0)})
    decision = choose([A], {"a": match}, 2000)
    assert decision.chosen.tokens_restored == 60 * 32 and decision.chosen.ttft_s < 1.5


def test_noise_in_measured_speeds_does_not_move_a_session() -> None:
    match = Match(hot={"a": 58}, stored={"n": StoredRun(58, 0)})
    workers = [like_a("a", prefill_tokens_per_s=45), like_a("b", prefill_tokens_per_s=60)]
    assert choose(workers, {"a": match, "b": match}, 2000).chosen.worker == "a"


def test_a_worker_that_is_really_faster_is_preferred() -> None:
    workers = [like_a("a", prefill_tokens_per_s=30), like_a("b", prefill_tokens_per_s=60)]
    assert choose(workers, {}, 2000).chosen.worker == "b"


def test_a_worker_that_came_back_is_taken_to_be_like_the_others() -> None:
    fresh = like_a("b", prefill_tokens_per_s=0.0, restore_bytes_per_s=0.0)
    decision = choose([like_a("a", prefill_tokens_per_s=40), fresh], {}, 2000)
    assert {one.prefill_s for one in decision.considered} == {50.0}


def test_a_session_leaves_a_busy_worker_when_it_can_be_restored() -> None:
    match = Match(hot={"a": 58}, stored={"n": StoredRun(58, 0)})
    assert choose([like_a("a", turns=2), like_a()], {"a": match, "b": match}, 2000).chosen.worker == "b"


def test_a_long_queue_outweighs_a_hot_prefix() -> None:
    match = Match(hot={"a": 10})
    busy = like_a("a", prefill_tokens_waiting=5000)
    assert choose([busy, like_a()], {"a": match, "b": match}, 400).chosen.worker == "b"


def test_full_slots_outweigh_a_small_advantage() -> None:
    match = Match(hot={"a": 1})
    busy = like_a("a", turns=4)
    assert choose([busy, like_a()], {"a": match, "b": match}, 400).chosen.worker == "b"


def test_equals_go_to_the_one_with_fewer_turns_then_by_name() -> None:
    assert choose([like_a(), A], {}, 100).chosen.worker == "a"
    quick = like_a("c", turns=1, prefill_tokens_per_s=1e12)
    assert choose([like_a("a", turns=2, prefill_tokens_per_s=1e12), quick], {}, 100).chosen.worker == "c"


def test_full_workers_are_not_chosen() -> None:
    full = like_a("a", turns=8)
    assert choose([full, like_a()], {}, 100).chosen.worker == "b"
    with pytest.raises(LimitError) as caught:
        choose([full, like_a(turns=9, prefill_tokens_waiting=100_000)], {}, 100)
    assert 1.0 <= caught.value.retry_after_s <= 60.0


def test_without_workers_nothing_can_be_chosen() -> None:
    with pytest.raises(UnavailableError):
        choose([], {}, 100)
