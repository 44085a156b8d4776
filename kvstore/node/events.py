"""What happened to blocks, numbered, for those who watch.

A bounded log and no queues: a watcher only remembers its place. One that falls behind the log's start
begins again with a snapshot, so a slow watcher costs no memory.
"""

import asyncio
from collections import deque

from kvstore.wire import kvstore_pb2 as pb


class EventLog:
    """The last `capacity` events; the first event ever has sequence number 1."""

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self._events: deque[pb.BlockEvent] = deque(maxlen=capacity)
        self._grown = asyncio.Event()
        self.last_sequence = 0
        self.is_closed = False

    @property
    def first_sequence(self) -> int:
        """Number of the oldest event still known; one above the last when none is."""
        return self.last_sequence - len(self._events) + 1

    def append(self, event: pb.BlockEvent) -> None:
        """Add an event and wake the watchers."""
        self._events.append(event)
        self.last_sequence += 1
        self._grown.set()
        self._grown = asyncio.Event()

    def close(self) -> None:
        """Nobody is to wait any more."""
        self.is_closed = True
        self._grown.set()

    def is_known(self, sequence: int) -> bool:
        """Whether every event after `sequence` is still in the log."""
        return self.first_sequence - 1 <= sequence <= self.last_sequence

    def after(self, sequence: int, events_max: int) -> list[pb.BlockEvent]:
        """At most `events_max` events that follow `sequence`, which must be known."""
        assert self.is_known(sequence)
        start = sequence + 1 - self.first_sequence
        return [self._events[place] for place in range(start, min(start + events_max, len(self._events)))]

    async def wait_after(self, sequence: int) -> None:
        """Return once there is an event after `sequence`, or the log is closed."""
        while self.last_sequence <= sequence and not self.is_closed:
            await self._grown.wait()
