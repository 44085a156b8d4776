"""How fast the worker prefills, as measured, and how large a batch may be for that."""

# Weight of the newest measurement; chunks below the minimum say little.
_SMOOTHING = 0.2
_MEASURED_TOKENS_MIN = 16
# A batch takes no longer than this: restores, exports, new turns and cancels wait for its end.
_BATCH_SECONDS_MAX = 2.0


class PrefillSpeed:
    """Tokens per second, smoothed over batches; 0 until measured."""

    def __init__(self) -> None:
        self.tokens_per_s = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A batch with `tokens` of prompts in it took `seconds`."""
        if tokens >= _MEASURED_TOKENS_MIN:
            speed, old = tokens / seconds, self.tokens_per_s
            self.tokens_per_s = speed if not old else old + _SMOOTHING * (speed - old)

    def batch_tokens(self, low: int, high: int) -> int:
        """The most tokens, within `low` to `high`, that one batch computes in its time."""
        if not self.tokens_per_s:
            return high
        return max(low, min(high, int(_BATCH_SECONDS_MAX * self.tokens_per_s)))
