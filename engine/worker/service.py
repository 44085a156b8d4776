"""The worker's gRPC service: checks a request, follows its turn, answers its stream."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import grpc
import numpy as np

from engine.llama.model import LlamaModel
from engine.wire import engine_pb2 as pb
from engine.wire import engine_pb2_grpc as pb_grpc
from engine.worker.loop import ModelLoop
from engine.worker.metrics import TurnCounters
from engine.worker.sampling import Sampler, SamplingParams
from engine.worker.settings import WorkerSettings
from engine.worker.store import StoreBridge
from engine.worker.text import TextStream
from engine.worker.turn import Admitted, Delta, Finished, FinishReason, PromptDone, Turn, TurnEvent
from kvstore.core.errors import CallerError, LimitError, StockpotError, UnavailableError
from kvstore.core.keys import BlockKey, as_tokens, chain_keys
from kvstore.core.namespace import Fingerprint

log = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 0.05
_WATCH_HEARTBEATS = 20  # intervals without a change after which a message is sent all the same: one second
_DRAIN_DEADLINE_MS = 30_000
_CODES: tuple[tuple[type[StockpotError], grpc.StatusCode], ...] = (
    (CallerError, grpc.StatusCode.INVALID_ARGUMENT),
    (LimitError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
)


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What does not change while the worker runs."""

    worker_id: str
    model_name: str
    fingerprint: Fingerprint
    context_tokens: int
    cells: int
    value_bytes: int
    """Bytes of one stored block; 0 without a store."""
    store_reason: str


class HotKeys:
    """The block keys in the worker's KV cache, as the event loop knows them, with a version that grows."""

    def __init__(self) -> None:
        self.keys: set[BlockKey] = set()
        self.version = 0

    def apply(self, added: Sequence[BlockKey], removed: Sequence[BlockKey]) -> None:
        self.keys.difference_update(removed)
        self.keys.update(added)
        self.version += 1


class EngineService(pb_grpc.EngineServicer):
    """Turns run in the model loop; restores and exports in the bridge, which is None without a store."""

    def __init__(
        self,
        model: LlamaModel,
        loop: ModelLoop,
        bridge: StoreBridge | None,
        settings: WorkerSettings,
        facts: WorkerFacts,
    ) -> None:
        self._model = model
        self._loop = loop
        self._bridge = bridge
        self._settings = settings
        self._facts = facts
        self._incarnation = int.from_bytes(os.urandom(8), "little")
        self._end_tokens = frozenset(t for t in range(model.vocab_size) if model.is_end_of_generation(t))
        self._turns: set[Turn] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_draining = False
        self.hot = HotKeys()
        self.counters = TurnCounters()

    async def Describe(self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext) -> pb.DescribeResponse:  # noqa: N802
        facts = self._facts
        return pb.DescribeResponse(
            incarnation=self._incarnation,
            worker_id=facts.worker_id,
            model_name=facts.model_name,
            model_digest=facts.fingerprint.model_digest,
            kv_properties=dict(facts.fingerprint.properties),
            block_tokens=facts.fingerprint.block_tokens,
            context_tokens=facts.context_tokens,
            vocab_size=self._model.vocab_size,
            slots=self._settings.slots,
            kv_bytes_per_token=facts.value_bytes // facts.fingerprint.block_tokens,
            model_path=str(self._model.path.resolve()),
            has_store=self._bridge is not None,
            store_reason=facts.store_reason,
        )

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        events: asyncio.Queue[TurnEvent] = asyncio.Queue()  # bounded by the turn's tokens
        try:
            turn = self._turn_of(request, events)
            self._loop.submit(turn)
        except StockpotError as error:
            await context.abort(_code_of(error), str(error))
        self._turns.add(turn)
        self._is_idle.clear()
        try:
            async for response in self._follow(turn, request.salt, events, context):
                yield response
        finally:
            self._turns.discard(turn)
            if not self._turns:
                self._is_idle.set()
            self._loop.cancel(turn)

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchResponse]:
        sent = set(self.hot.keys)
        version, load = self.hot.version, self._load()
        yield pb.WatchResponse(incarnation=self._incarnation, is_reset=True, hot_added=sorted(sent), load=load)
        quiet = 0
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            now = self._load()
            quiet += 1
            if self.hot.version == version and now == load and quiet < _WATCH_HEARTBEATS:
                continue
            added, removed = self.hot.keys - sent, sent - self.hot.keys
            sent, version, load, quiet = set(self.hot.keys), self.hot.version, now, 0
            yield pb.WatchResponse(
                incarnation=self._incarnation, hot_added=sorted(added), hot_removed=sorted(removed), load=load
            )

    async def Drain(self, request: pb.DrainRequest, context: grpc.aio.ServicerContext) -> pb.DrainResponse:  # noqa: N802
        cut = await self.drain((request.deadline_ms or _DRAIN_DEADLINE_MS) / 1000)
        return pb.DrainResponse(turns_cut=cut)

    async def drain(self, deadline_s: float) -> int:
        """Refuse new turns, wait for running ones and their exports; answers how many did not make it."""
        self._is_draining = True
        try:
            async with asyncio.timeout(deadline_s):
                await self._is_idle.wait()
                if self._bridge is not None:
                    await self._bridge.flush()
        except TimeoutError:
            log.warning("drain_deadline turns_cut=%d", len(self._turns))
        return len(self._turns)

    def _turn_of(self, request: pb.GenerateRequest, events: "asyncio.Queue[TurnEvent]") -> Turn:
        """The turn that `request` asks for.

        Raises: CallerError, LimitError or UnavailableError, in words for the client."""
        facts = self._facts
        if self._is_draining:
            raise UnavailableError("the worker is draining; send the turn to another one")
        if len(self._turns) >= self._settings.queue_max + self._settings.slots:
            raise LimitError(f"{len(self._turns)} turns run or wait on this worker already; retry later")
        if not request.tokens or request.tokens_max == 0:
            raise CallerError("a turn needs at least one prompt token, and tokens_max of at least 1")
        prompt = as_tokens(np.fromiter(request.tokens, dtype=np.uint32, count=len(request.tokens)))
        if len(prompt) >= facts.context_tokens:
            raise CallerError(f"the prompt has {len(prompt)} tokens, the context {facts.context_tokens}")
        if int(prompt.max()) >= self._model.vocab_size:
            raise CallerError(f"token {int(prompt.max())} is out of range, the vocabulary has {self._model.vocab_size}")
        fingerprint = facts.fingerprint.with_salt(request.salt)
        namespace = fingerprint.namespace_id()
        event_loop = asyncio.get_running_loop()
        end_tokens = frozenset() if request.ignore_end_of_generation else self._end_tokens
        return Turn(
            turn_id=request.turn_id,
            namespace=namespace,
            prompt=prompt,
            tokens_max=request.tokens_max,
            sampler=Sampler(_sampling_of(request.sampling)),
            text=TextStream(request.stop),
            end_tokens=end_tokens | frozenset(request.stop_tokens),
            emit=lambda event: _hand_over(event_loop, events, event),
            keys=chain_keys(namespace, prompt, fingerprint.block_tokens),
        )

    async def _follow(
        self, turn: Turn, salt: bytes, events: "asyncio.Queue[TurnEvent]", context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Answer the turn's events until it is finished; restore when it has its slot, export what is full."""
        exported = 0
        while True:
            match await events.get():
                case Admitted() as admitted:
                    if self._bridge is not None:
                        await self._bridge.restore(turn, salt, admitted)
                    self._loop.start_prefill(turn, admitted.admission)
                case PromptDone() as done:
                    exported = self._export(turn, salt, exported, done.blocks)
                    answer = _prompt_done(turn, done)
                    self._count_prompt(answer)
                    yield pb.GenerateResponse(prompt_done=answer)
                case Delta() as delta:
                    exported = self._export(turn, salt, exported, delta.blocks)
                    self.counters.answer_tokens += len(delta.tokens)
                    yield pb.GenerateResponse(delta=pb.Delta(tokens=delta.tokens, text=delta.text))
                case Finished(reason=FinishReason.FAILED, message=message):
                    self.counters.failed += 1
                    await context.abort(grpc.StatusCode.INTERNAL, message)
                case Finished() as finished:
                    self.counters.finished += 1
                    yield pb.GenerateResponse(finished=_finished(finished))
                    return

    def _count_prompt(self, done: pb.PromptDone) -> None:
        self.counters.prompt_tokens_hot += done.tokens_hot
        self.counters.prompt_tokens_restored += done.tokens_restored
        self.counters.prompt_tokens_computed += done.tokens_computed

    def _export(self, turn: Turn, salt: bytes, first: int, blocks: int) -> int:
        """Queue the turn's blocks from `first` on, of `blocks` that are full; answers how many are queued in all.

        Blocks that were hot are offered again: the node wants only what it has lost."""
        if self._bridge is not None:
            self._bridge.export_later(turn, salt, first, blocks)
        return max(first, blocks)

    def _load(self) -> pb.Load:
        load = self._loop.load
        return pb.Load(
            running=load.running,
            queued=load.queued,
            prefill_tokens_waiting=load.prefill_tokens_waiting,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            restore_bytes_per_s=self._bridge.counters.restore_bytes_per_s if self._bridge else 0.0,
            cells_used=load.cells_used,
            cells=self._facts.cells,
            is_draining=self._is_draining,
        )


def _hand_over(event_loop: asyncio.AbstractEventLoop, events: "asyncio.Queue[TurnEvent]", event: TurnEvent) -> None:
    if not event_loop.is_closed():  # at exit the model thread may outlive the event loop by one step
        event_loop.call_soon_threadsafe(events.put_nowait, event)


def _sampling_of(sampling: pb.Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p or 1.0,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed if sampling.HasField("seed") else None,
    )


def _prompt_done(turn: Turn, done: PromptDone) -> pb.PromptDone:
    tokens = len(turn.prompt)
    hot, restored = min(done.tokens_hot, tokens), min(done.tokens_restored, tokens)
    return pb.PromptDone(
        tokens=tokens,
        tokens_hot=hot,
        tokens_restored=restored,
        tokens_computed=tokens - hot - restored,
        queue_ms=done.queue_ms,
        restore_ms=done.restore_ms,
        prefill_ms=done.prefill_ms,
    )


def _finished(finished: Finished) -> pb.Finished:
    assert finished.reason in (FinishReason.STOP, FinishReason.LENGTH), "others have no answer to end"
    reason = pb.Finished.REASON_STOP if finished.reason is FinishReason.STOP else pb.Finished.REASON_LENGTH
    return pb.Finished(reason=reason, tokens=finished.answer_tokens, stop=finished.stop)


def _code_of(error: StockpotError) -> grpc.StatusCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
