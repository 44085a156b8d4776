"""Sampling: filters keep what they say, seeds repeat, distributions are right."""

import numpy as np
import pytest

from engine.worker.sampling import Sampler, SamplingParams, candidates
from kvstore.core.errors import CallerError

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], np.float32))


def kept(**params: float) -> list[int]:
    tokens, probabilities = candidates(LOGITS, SamplingParams(temperature=1.0, **params))  # type: ignore[arg-type]
    assert probabilities.sum() == pytest.approx(1.0)
    return [int(token) for token in tokens]


def test_filters_keep_the_most_likely_tokens() -> None:
    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.7) == [0, 1]
    assert kept(top_p=0.76) == [0, 1, 2]
    assert kept(min_p=0.2) == [0, 1, 2]
    assert kept(top_p=0.01) == [0]
    assert kept(min_p=1.0) == [0]


def test_ties_at_the_edge_of_top_k_keep_exactly_k() -> None:
    tokens, _ = candidates(np.zeros(10, np.float32), SamplingParams(temperature=1.0, top_k=3))
    assert tokens.tolist() == [0, 1, 2]


def test_greedy_is_the_largest_logit_and_leaves_logits_alone() -> None:
    logits = LOGITS.copy()
    assert Sampler(SamplingParams()).sample(logits) == 0
    assert (logits == LOGITS).all()


def test_a_seed_repeats_and_another_differs() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        return [sampler.sample(LOGITS) for _ in range(50)]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_draws_follow_the_distribution() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=1))
    counts = np.bincount([sampler.sample(LOGITS) for _ in range(20_000)], minlength=5) / 20_000
    # Five standard deviations of a binomial share at n = 20,000.
    assert np.abs(counts - np.exp(LOGITS)).max() < 5 * 0.5 / np.sqrt(20_000)


def test_temperature_sharpens_and_flattens() -> None:
    _, cold = candidates(LOGITS, SamplingParams(temperature=0.5))
    _, hot = candidates(LOGITS, SamplingParams(temperature=2.0))
    assert cold[0] > 0.5 > hot[0]


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"min_p": 2.0}, {"top_k": -1}, {"temperature": 1e9}]
)
def test_values_out_of_range_are_refused_in_words(bad: dict[str, float]) -> None:
    with pytest.raises(CallerError, match="expected"):
        SamplingParams(**bad)  # type: ignore[arg-type]
