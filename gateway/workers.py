"""The workers: one connection each, kept up in the background, and what is known of their load.

    down -- describe, same model --> described -- first Watch message --> ready -- stream lost --> down

A worker may be down at start, die and come back. Whenever its stream is lost its hot keys are
forgotten: it tells them again in the snapshot that begins the next stream.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.wire import engine_pb2 as pb
from gateway.index import PrefixIndex
from gateway.log import log_event
from gateway.model import ModelText, ServedModel, check_vocabulary
from gateway.route import WorkerState
from kvstore.core.errors import ConfigError, StockpotError, UnavailableError
from kvstore.core.keys import BlockKey
from kvstore.core.namespace import Fingerprint

_RETRY_S_MIN = 0.1
_RETRY_S_MAX = 2.0
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
    def name(self) -> str:
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


class WorkerPool:
    """Keeps every worker connected and the index told; `model` is what the first one to answer serves."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        connect: Callable[[str], EngineLink],
        index: PrefixIndex,
        text: ModelText | None,
        cache_bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workers = [Worker(address, connect(address), clock) for address in addresses]
        self.model: ServedModel | None = None
        self._text = text
        self._cache_bytes_max = cache_bytes_max
        self._index = index
        self._model_lock = asyncio.Lock()

    def ready(self) -> list[Worker]:
        """Workers that take turns now."""
        return [worker for worker in self.workers if worker.is_ready]

    def context_tokens(self) -> int:
        """Prompt plus answer that every ready worker can take, in tokens.

        Raises: UnavailableError when none is ready."""
        if not (ready := self.ready()):
            raise UnavailableError("no worker is ready; try again in a moment", retry_after_s=2.0)
        return min(worker.described.context_tokens for worker in ready)

    async def run(self) -> None:
        """Follow all workers until cancelled, then close the connections."""
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self.workers:
                    group.create_task(self._keep(worker))
        finally:
            for worker in self.workers:
                await worker.link.close()

    async def _keep(self, worker: Worker) -> None:
        wait_s, told = _RETRY_S_MIN, ""
        while True:
            try:
                await self._follow(worker)
            except StockpotError as error:
                if worker.is_connected:
                    wait_s, told = _RETRY_S_MIN, ""
                level = logging.ERROR if isinstance(error, ConfigError) else logging.WARNING
                if told != type(error).__name__:  # one line for each change, not for each attempt
                    log_event("worker_lost", level=level, worker=worker.address, reason=error)
                    told = type(error).__name__
            finally:
                worker.is_connected = False
                self._index.reset_worker(worker.address)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)

    async def _follow(self, worker: Worker) -> None:
        """Describe, then apply Watch messages; returns only by an error."""
        described = await worker.link.describe()
        await self._check_model(described)
        worker.described_as(described)
        async with contextlib.aclosing(worker.link.watch()) as messages:
            async for message in messages:
                if message.incarnation != described.incarnation:
                    raise UnavailableError("the worker restarted between Describe and Watch")
                if message.is_reset:
                    self._index.reset_worker(worker.address)
                self._index.remove_hot(worker.address, map(BlockKey, message.hot_removed))
                self._index.add_hot(worker.address, map(BlockKey, message.hot_added))
                if message.HasField("load"):
                    worker.reported(message.load)
                if not worker.is_connected:
                    worker.is_connected = True
                    log_event("worker_ready", worker=worker.address, name=worker.name, slots=described.slots)
        raise UnavailableError("the worker ended its stream")

    async def _check_model(self, described: pb.DescribeResponse) -> None:
        """The first worker's model becomes the gateway's; later ones must have the same.

        Raises: ConfigError for another model, or one whose vocabulary cannot be loaded."""
        async with self._model_lock:
            if self.model is not None:
                self.model.check_same(described)
                return
            if self._text is None:
                path = Path(described.model_path)
                self._text = await asyncio.to_thread(ModelText.load, path, self._cache_bytes_max)
            check_vocabulary(self._text, described)
            self.model = ServedModel(described.model_name, described.model_digest, self._text, int(time.time()))
            is_segmented = self._text.tokeniser.splitter is not None
            log_event("model_served", model=described.model_name, is_tokenised_in_segments=is_segmented)
