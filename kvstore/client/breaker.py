"""A circuit breaker: after a node failed to answer, refuse calls at once for a while.

A node that hangs (stopped, not dead) costs each caller its whole deadline; with the breaker only one
caller per period pays it.
"""

from collections.abc import Callable

from kvstore.core.errors import UnavailableError

_OPEN_S_FIRST = 0.5
_OPEN_S_MAX = 4.0


class CircuitBreaker:
    """Closed at first. `failed` opens it for a period that doubles; one call may then try."""

    def __init__(self, clock: Callable[[], float], trial_s: float) -> None:
        self._clock = clock
        self._trial_s = trial_s
        self._open_s = 0.0
        self._open_until_s = 0.0
        self.times_opened = 0

    def check(self) -> None:
        """Raises: UnavailableError while the breaker is open."""
        now = self._clock()
        if now < self._open_until_s:
            wait_s = self._open_until_s - now
            raise UnavailableError(f"node did not answer lately; next try in {wait_s:.1f} s", retry_after_s=wait_s)
        if self._open_s:
            self._open_until_s = now + self._trial_s  # this caller tries; the others wait for what it finds

    def succeeded(self) -> None:
        """The node answered, whatever it said."""
        self._open_s = self._open_until_s = 0.0

    def failed(self) -> None:
        """The node did not answer in time, or could not be reached."""
        self._open_s = min(self._open_s * 2, _OPEN_S_MAX) if self._open_s else _OPEN_S_FIRST
        self._open_until_s = self._clock() + self._open_s
        self.times_opened += 1
