"""From logits to the next token: pure numpy, one sampler per turn."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import CallerError

Logits = npt.NDArray[np.float32]

_SORTED_FIRST = 1024


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Raises: CallerError when a value is out of its range."""

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    seed: int | None = None
    """None draws one."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise CallerError(f"temperature is {self.temperature}, expected 0 to 100")
        if not 0.0 < self.top_p <= 1.0:
            raise CallerError(f"top_p is {self.top_p}, expected above 0 and at most 1")
        if not 0.0 <= self.min_p <= 1.0:
            raise CallerError(f"min_p is {self.min_p}, expected 0 to 1")
        if self.top_k < 0:
            raise CallerError(f"top_k is {self.top_k}, expected 0 (off) or more")


class Sampler:
    """Draws one turn's tokens; the same seed and logits give the same tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._random = np.random.Generator(np.random.PCG64(params.seed))

    def sample(self, logits: Logits) -> int:
        """The next token for `logits`, `(vocab,)`, which are not changed."""
        if self._params.temperature == 0.0:
            return int(np.argmax(logits))
        tokens, probabilities = candidates(logits, self._params)
        position = np.searchsorted(np.cumsum(probabilities), self._random.random(), side="right")
        return int(tokens[min(int(position), len(tokens) - 1)])


def candidates(logits: Logits, params: SamplingParams) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Tokens that may be drawn and their probabilities, both `(n,)` with `n >= 1`; sorted, most likely first,
    when a filter is on.

    The filters come in llama.cpp's order: top-k, top-p, min-p on the unscaled distribution, temperature last.
    `logits` must be finite."""
    scores = logits.astype(np.float64)
    if params.top_k or params.top_p < 1.0 or params.min_p > 0.0:
        tokens = _kept(scores, params)
    else:
        tokens = np.arange(len(scores))
    return tokens, _softmax(scores[tokens] / params.temperature)


def _kept(scores: npt.NDArray[np.float64], params: SamplingParams) -> npt.NDArray[np.intp]:
    """Indices of the scores that pass top-k, top-p and min-p, largest first; equal ones by index."""
    if 0 < params.top_k < len(scores):
        tokens = _largest(scores, params.top_k)
        return tokens[: _passing(scores[tokens], np.logaddexp.reduce(scores[tokens]), params)]
    normaliser = np.logaddexp.reduce(scores)
    # Sorting a whole vocabulary takes 8 ms; nearly always far fewer than these pass.
    tokens = _largest(scores, min(_SORTED_FIRST, len(scores)))
    kept = _passing(scores[tokens], normaliser, params)
    if kept == len(tokens) < len(scores):
        tokens = _largest(scores, len(scores))
        kept = _passing(scores[tokens], normaliser, params)
    return tokens[:kept]


def _passing(descending: npt.NDArray[np.float64], normaliser: np.float64, params: SamplingParams) -> int:
    """How many of the largest scores pass top-p and min-p: at least one."""
    probabilities = np.exp(descending - normaliser)
    count = int(np.count_nonzero(probabilities >= params.min_p * probabilities[0]))
    if params.top_p < 1.0:
        count = min(count, int(np.searchsorted(np.cumsum(probabilities), params.top_p)) + 1)
    return count


def _largest(scores: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` largest scores, largest first; equal ones by index."""
    if count < len(scores):
        threshold = np.partition(scores, -count)[-count]
        chosen = np.flatnonzero(scores >= threshold)
        return chosen[np.argsort(-scores[chosen], kind="stable")][:count]
    return np.argsort(-scores, kind="stable")


def _softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights
