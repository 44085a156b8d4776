"""From logits to the next token: pure numpy, one sampler per turn."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstore.core.errors import CallerError

Logits = npt.NDArray[np.float32]


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
    """Tokens that may be drawn, most likely first, and their probabilities, both `(n,)` with `n >= 1`.

    The filters come in llama.cpp's order: top-k, top-p, min-p on the unscaled distribution, temperature last."""
    tokens = _largest(logits, params.top_k)
    scores = logits[tokens].astype(np.float64)
    probabilities = _softmax(scores)
    kept = len(tokens)
    if params.top_p < 1.0:
        kept = int(np.searchsorted(np.cumsum(probabilities), params.top_p)) + 1
    if params.min_p > 0.0:
        kept = min(kept, int(np.count_nonzero(probabilities >= params.min_p * probabilities[0])))
    tokens, scores = tokens[:kept], scores[:kept]
    return tokens, _softmax(scores / params.temperature)


def _largest(logits: Logits, count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` largest logits (0: all), largest first; equal ones by index."""
    if 0 < count < len(logits):
        threshold = np.partition(logits, -count)[-count]
        chosen = np.flatnonzero(logits >= threshold)
        return chosen[np.argsort(-logits[chosen], kind="stable")][:count]
    return np.argsort(-logits, kind="stable")


def _softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights
