"""Where a node is between its start and its end.

STARTING --all addresses answer--> SERVING --SIGTERM--> DRAINING --calls ended, blocks on disk--> the process ends

While it drains, what runs may finish, reads and writes alike, and nothing new begins.
"""

import asyncio
import enum
import time
from collections.abc import Callable

from kvstore.core.errors import UnavailableError

_CALLS_SHARE = 0.5
"""Of the time to stop: what calls may take before their blocks must go to disk."""


class Phase(enum.Enum):
    """The node's life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Lifecycle:
    """The phase, who is told of it, and how long the end may take. Owned by the node's one task."""

    def __init__(self, node_id: str, stop_deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.node_id = node_id
        self.phase = Phase.STARTING
        self.draining = asyncio.Event()
        self._clock = clock
        self._stop_deadline_s = stop_deadline_s
        self._started_at_s = clock()
        self._drain_began_at_s = 0.0

    @property
    def uptime_s(self) -> float:
        """Seconds since the node was made."""
        return self._clock() - self._started_at_s

    def serve(self) -> None:
        """All addresses answer."""
        assert self.phase is Phase.STARTING
        self.phase = Phase.SERVING

    def drain(self) -> None:
        """Begin nothing new from now on."""
        self.phase = Phase.DRAINING
        self._drain_began_at_s = self._clock()
        self.draining.set()

    def calls_left_s(self) -> float:
        """How long running calls may still take."""
        return self._left_s(self._stop_deadline_s * _CALLS_SHARE)

    def writes_left_s(self) -> float:
        """How long writing to disk may still take."""
        return self._left_s(self._stop_deadline_s)

    def check_takes_calls(self) -> None:
        """Raises: UnavailableError while the node drains."""
        if self.phase is Phase.DRAINING:
            raise self.draining_error()

    def draining_error(self) -> UnavailableError:
        """What new calls and watchers are answered while the node drains."""
        return UnavailableError(f"node {self.node_id} is draining: use another one, or this one once it has restarted")

    def _left_s(self, deadline_s: float) -> float:
        began_at_s = self._drain_began_at_s if self.phase is Phase.DRAINING else self._clock()
        return max(0.0, began_at_s + deadline_s - self._clock())
