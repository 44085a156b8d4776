"""One worker: the link to it, what it said of itself, and its load between two of its reports."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from engine.wire import engine_pb2 as pb
from gateway.route import WorkerState
from kvstore.core.namespace import Fingerprint

# A report may have been written before a turn that we sent arrived: until then we count it ourselves.
_REPORT_LAG_S = 0.2


class EngineLink(Protocol):
    """What is needed of `engine.client.EngineClient`."""

    async def describe(self) -> pb.DescribeResponse: ...

    def generate(self, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse, None]: ...

    def watch(self) -> AsyncGenerator[pb.WatchResponse, None]: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _OnTheWay:
    """A turn's prefill that no report of the worker contains yet."""

    tokens: int
    since_s: float


class Worker:
    """One worker; changed by the pool's task for it and by the turns it runs, all on one event loop."""

    def __init__(self, address: str, link: EngineLink, clock: Callable[[], float]) -> None:
        self.address = address
        self.link = link
        self.is_connected = False
        self.described = pb.DescribeResponse()
        self.fingerprint: Fingerprint | None = None
        """Without salt; None until described."""
        self._clock = clock
        self._load = pb.Load()
        self._turns: set[str] = set()
        self._on_the_way: dict[str, _OnTheWay] = {}

    @property
    def worker_id(self) -> str:
        """What the worker calls itself, for logs and answers."""
        return self.described.worker_id or self.address

    @property
    def is_ready(self) -> bool:
        return self.is_connected and not self._load.is_draining

    def state(self, queue_max: int) -> WorkerState:
        """Load as of now: the last report, and what was sent here since."""
        slots = max(1, self.described.slots)
        return WorkerState(
            name=self.address,
            slots=slots,
            turns_max=slots + queue_max,
            turns=max(len(self._turns), self._load.running + self._load.queued),
            prefill_tokens_waiting=self._load.prefill_tokens_waiting
            + sum(turn.tokens for turn in self._on_the_way.values()),
            prefill_tokens_per_s=self._load.prefill_tokens_per_s,
            restore_bytes_per_s=self._load.restore_bytes_per_s,
            kv_bytes_per_token=self.described.kv_bytes_per_token,
            block_tokens=self.described.block_tokens,
            has_store=self.described.has_store,
        )

    @contextlib.contextmanager
    def running(self, turn_id: str, prefill_tokens: int) -> Iterator[None]:
        """Counts a turn here from now, without waiting for the worker to report it."""
        self._turns.add(turn_id)
        self._on_the_way[turn_id] = _OnTheWay(prefill_tokens, self._clock())
        try:
            yield
        finally:
            self._turns.discard(turn_id)
            self._on_the_way.pop(turn_id, None)

    def prompt_done(self, turn_id: str) -> None:
        """The turn's prefill is over."""
        self._on_the_way.pop(turn_id, None)

    def described_as(self, described: pb.DescribeResponse) -> None:
        """Who the worker is, this time; its load is not known yet.

        Raises: CallerError for a fingerprint that cannot be."""
        self.fingerprint = Fingerprint(
            model_digest=described.model_digest,
            block_tokens=described.block_tokens,
            properties=dict(described.kv_properties),
        )
        self.described = described
        self._load = pb.Load()

    def reported(self, load: pb.Load) -> None:
        """A new report; turns sent well before it are in it, so they are no longer counted by us."""
        self._load = load
        known_before_s = self._clock() - _REPORT_LAG_S
        self._on_the_way = {
            turn_id: turn for turn_id, turn in self._on_the_way.items() if turn.since_s > known_before_s
        }
