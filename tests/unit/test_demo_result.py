"""The demo's figures, by hand."""

from dataclasses import replace

import pytest

from stockpot.demo.result import token_hit_rate, tokens_computed, ttft_ms_p50
from tests.unit.demo_results import answer, demo_result


def test_figures() -> None:
    figures = demo_result().summary()
    assert figures["token_hit_rate"] == pytest.approx((960 + 600 + 900) / 4000)
    assert figures["token_hit_rate_cold"] == 0
    assert figures["ttft_ms_warm_p50"] == 1_500
    assert figures["ttft_ms_cold_p50"] == 10_500
    assert figures["ttft_speedup_p50"] == 7
    assert figures["prefill_tokens_warm"] == 1000 + 240 + 200 + 100
    assert figures["prefill_tokens_cold"] == 4000
    assert figures["answers_differing"] == []
    assert figures["hit_rate_after_worker_restart"] == pytest.approx(960 / 1200)
    assert figures["tokens_restored_after_worker_restart"] == 960
    assert (figures["turns"], figures["turns_cold"], figures["errors"]) == (4, 4, 0)
    assert figures["peak_rss_bytes"]["worker-1"] == 300 * 2**20
    assert figures["arena_bytes"] == 512 * 2**20


def test_comparisons_are_over_the_turns_that_ran_both_ways() -> None:
    """As with --quick, where only each session's last turn runs cold."""
    whole = demo_result()
    records = tuple(replace(record, cold=record.cold if record.turn == 2 else None) for record in whole.records)
    figures = replace(whole, records=records).summary()
    assert figures["ttft_ms_warm_p50"] == 750
    assert figures["ttft_ms_cold_p50"] == 11_500
    assert figures["prefill_tokens_warm"] == 340
    assert figures["prefill_tokens_cold"] == 2200
    assert (figures["turns"], figures["turns_cold"]) == (4, 2)
    assert figures["token_hit_rate"] == whole.summary()["token_hit_rate"]


def test_turns_whose_answers_differ_are_named() -> None:
    result = demo_result()
    first = result.records[0]
    assert first.cold is not None
    other = replace(first, cold=replace(first.cold, text="something else"))
    assert replace(result, records=(other, *result.records[1:])).answers_differing() == ["agent-1 turn 1"]


def test_nothing_answered_is_all_zeros_and_no_failure_of_its_own() -> None:
    figures = replace(demo_result(("agent-1, turn 1: cut",)), records=()).summary()
    assert figures["errors"] == 1
    assert figures["token_hit_rate"] == figures["ttft_ms_warm_p50"] == figures["ttft_speedup_p50"] == 0


def test_parts() -> None:
    answers = [answer(100, 50, 0, 1), answer(300, 0, 0, 3), answer(100, 25, 25, 2)]
    assert token_hit_rate(answers) == pytest.approx(0.2)
    assert ttft_ms_p50(answers) == 2
    assert tokens_computed(answers) == 400
