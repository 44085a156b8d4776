"""The model thread: admit, build the batch, decode, sample, emit. It alone touches llama.cpp and turns.

Others hand it jobs, which run between two steps: a turn to admit, blocks to restore or export. With nothing
to do it sleeps on the queue of jobs, and wakes at the first one.
"""

import concurrent.futures
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from engine.llama.context import Batch, DecodeResult, LlamaContext
from engine.worker.blocks import BlockMover
from engine.worker.schedule import Chunk, plan_batch, youngest
from engine.worker.slots import SlotState, SlotTable
from engine.worker.turn import Admitted, Delta, Finished, FinishReason, PromptDone, Turn, TurnState
from kvstore.core.keys import BlockKey, NamespaceId, Tokens, as_tokens, extend_chain

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Cells kept free beyond a turn's own tokens when it is admitted, so that it does not preempt another at once.
_ADMISSION_MARGIN_CELLS = 64
# Weight of the newest measurement in smoothed speeds.
_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class LoopSettings:
    block_tokens: int
    context_tokens: int
    batch_tokens: int
    chunk_beside_decodes: int
    idle_cells_max: int


@dataclass(frozen=True, slots=True)
class LoopLoad:
    """A picture of the loop, replaced as a whole after each step; safe to read from any thread."""

    running: int = 0
    queued: int = 0
    prefill_tokens_waiting: int = 0
    prefill_tokens_per_s: float = 0.0
    cells_used: int = 0
    reseats: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class _Counters:
    prefill_tokens_per_s: float = 0.0
    reseats: int = 0
    preemptions: int = 0


class ModelLoop:
    """Runs on one thread of its own between `start()` and `stop()`."""

    def __init__(
        self,
        context: LlamaContext,
        table: SlotTable,
        mover: BlockMover,
        piece: Callable[[int], bytes],
        settings: LoopSettings,
    ) -> None:
        self.load = LoopLoad()
        self.on_hot_change: Callable[[list[BlockKey], list[BlockKey]], None] = lambda added, removed: None
        """Called on the model thread with block keys that became hot and that went."""
        self._context = context
        self._table = table
        self._mover = mover
        self._piece = piece
        self._settings = settings
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._queued: deque[Turn] = deque()
        self._running: list[Turn] = []
        self._counters = _Counters()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._main, name="model", daemon=True)

    # -- called from any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in; running turns get no more events."""
        self._jobs.put(self._note_stop)
        self._thread.join()

    def submit(self, turn: Turn) -> None:
        """Queue `turn`; everything that becomes of it comes through `turn.emit`."""
        self._jobs.put(lambda: self._queued.append(turn))

    def cancel(self, turn: Turn) -> None:
        """Free the turn's slot before the next step."""
        turn.is_cancelled = True
        self._jobs.put(lambda: None)

    def start_prefill(self, turn: Turn, tokens_restored: int) -> None:
        """Restoring is over: compute what is missing."""
        self._jobs.put(lambda: self._start_prefill(turn, tokens_restored))

    def run(self, job: Callable[[], Result]) -> "concurrent.futures.Future[Result]":
        """Run `job` on the model thread between two steps. Keep it under some 5 ms: answers wait for it."""
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def run_job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:  # noqa: BLE001  # it belongs to whoever waits for the future
                    future.set_exception(error)

        self._jobs.put(run_job)
        return future

    # -- the model thread

    def _main(self) -> None:
        while not self._is_stopping:
            self._run_jobs(wait=not self._has_work())
            self._drop_cancelled()
            self._admit()
            self._step()
            self._publish()

    def _note_stop(self) -> None:
        self._is_stopping = True

    def _has_work(self) -> bool:
        return any(turn.state in (TurnState.PREFILL, TurnState.DECODE) for turn in self._running)

    def _run_jobs(self, *, wait: bool) -> None:
        if wait:
            self._jobs.get()()
        while not self._jobs.empty():
            self._jobs.get()()

    def _drop_cancelled(self) -> None:
        for turn in [t for t in (*self._running, *self._queued) if t.is_cancelled]:
            self._finish(turn, FinishReason.CANCELLED)

    def _admit(self) -> None:
        """Lend slots to queued turns, first come first served, while there are slots and cells."""
        while self._queued:
            turn = self._queued[0]
            tokens = turn.tokens(0, turn.length)
            if self._running and not self._has_cells_for(turn.namespace, tokens):
                return
            claim = self._table.claim(turn.namespace, tokens)
            if claim is None:
                return
            self._queued.popleft()
            if claim.source == claim.slot:
                self._context.remove(claim.slot, claim.hot_tokens)
            else:
                self._context.remove(claim.slot)
                self._context.copy(claim.source, claim.slot, 0, claim.hot_tokens)
            turn.slot, turn.computed, turn.tokens_hot = claim.slot, claim.hot_tokens, claim.hot_tokens
            turn.state, turn.admitted_s = TurnState.RESTORING, time.monotonic()
            self._running.append(turn)
            turn.emit(Admitted(claim.hot_tokens))

    def _has_cells_for(self, namespace: NamespaceId, tokens: Tokens) -> bool:
        """Whether a new turn fits beside what the running ones hold and have yet to compute."""
        source, hot = self._table.match(namespace, tokens)
        shared = hot if source and self._table.slot(source).state is SlotState.BUSY else 0
        promised = sum(turn.missing for turn in self._running)
        return self._table.cells_available() - promised >= len(tokens) - shared + _ADMISSION_MARGIN_CELLS

    def restore_block(self, turn: Turn, index: int, value: memoryview) -> bool:
        """Append block `index` to the turn's slot. A job: call through `run`.

        False when the turn is gone or there is no room without preempting another turn.
        Raises: BlockCorruptError when the block is not the turn's; the slot is then unchanged."""
        size = self._settings.block_tokens
        if turn.state is not TurnState.RESTORING or turn.is_cancelled or not self._make_room(size):
            return False
        if turn.computed > index * size:  # a hot tail shorter than a block: the stored block covers it
            self.discard_blocks(turn, index)
        self._keep_order([(turn.slot, size)])
        self._mover.restore(turn.slot, turn.header(index, size), value)
        turn.computed += size
        return True

    def discard_blocks(self, turn: Turn, first: int) -> None:
        """Forget what the restoring turn's slot holds from block `first` on. A job: call through `run`."""
        if turn.state is TurnState.RESTORING:
            self._cut(turn, min(turn.computed, first * self._settings.block_tokens))

    def _cut(self, turn: Turn, length: int) -> None:
        """Keep only the first `length` tokens of the turn's slot."""
        self._table.truncate(turn.slot, length)
        self._context.remove(turn.slot, length)
        turn.computed = length
        turn.tokens_hot = min(turn.tokens_hot, length)

    def export_block(self, turn: Turn, index: int, out: memoryview) -> bool:
        """Write block `index` of the turn into `out`; False when its KV is gone. A job: call through `run`."""
        return self._mover.export(turn.slot, index, turn.header(index, self._settings.block_tokens), out)

    def _start_prefill(self, turn: Turn, tokens_restored: int) -> None:
        if turn.state is TurnState.RESTORING:
            if turn.missing == 0:  # all of the prompt was stored; its last token is needed for its logits
                self._cut(turn, turn.length - 1)
                tokens_restored -= 1
            turn.tokens_restored = tokens_restored
            turn.restored_s = time.monotonic()
            turn.state = TurnState.PREFILL

    def _step(self) -> None:
        settings = self._settings
        chunks = plan_batch(
            self._running, batch_tokens=settings.batch_tokens, chunk_beside_decodes=settings.chunk_beside_decodes
        )
        if not chunks or not self._make_room_for_batch(chunks):
            return
        self._keep_order([(chunk.turn.slot, chunk.count) for chunk in chunks])
        started = time.monotonic()
        try:
            result = self._context.decode(_batch_of(chunks))
        except RuntimeError as error:
            log.error("decode_failed error=%r", str(error))
            for chunk in chunks:
                self._finish(chunk.turn, FinishReason.FAILED, f"the model failed: {error}")
            return
        assert result is DecodeResult.OK, "the mirror of the cells says there is room"
        self._measure_prefill(chunks, time.monotonic() - started)
        row = 0
        for chunk in chunks:
            row += chunk.count
            self._advance(chunk, row - 1)

    def _advance(self, chunk: Chunk, row: int) -> None:
        """Account for a computed chunk; sample from the logits of batch row `row` when it was the last."""
        turn, samples = chunk.turn, chunk.samples
        tokens = turn.tokens(turn.computed, turn.computed + chunk.count)
        turn.computed += chunk.count
        self._extend_keys(turn)
        self._table.append(turn.slot, tokens, turn.keys)
        if not samples:
            return
        if not turn.is_prompt_reported:
            turn.is_prompt_reported = True
            turn.emit(_prompt_done(turn))
        turn.state = TurnState.DECODE
        self._accept(turn, turn.sampler.sample(self._context.logits(row)))

    def _accept(self, turn: Turn, token: int) -> None:
        """`token` is the answer's next: emit it, and finish when it ends the answer."""
        turn.answer.append(token)
        if token in turn.end_tokens:
            turn.emit(Delta([token], turn.text.flush()))
            self._finish(turn, FinishReason.STOP)
            return
        text = turn.text.feed(self._piece(token))
        is_full = len(turn.answer) >= turn.tokens_max or turn.length >= self._settings.context_tokens
        if is_full and not turn.text.stopped_by:
            text += turn.text.flush()
        turn.emit(Delta([token], text))
        if turn.text.stopped_by:
            self._finish(turn, FinishReason.STOP)
        elif is_full:
            self._finish(turn, FinishReason.LENGTH)

    def _finish(self, turn: Turn, reason: FinishReason, message: str = "") -> None:
        if turn in self._queued:
            self._queued.remove(turn)
        if turn in self._running:
            self._running.remove(turn)
            if reason is FinishReason.FAILED:
                self._empty(turn.slot)
            else:
                self._table.release(turn.slot)
                self._trim_idle()
        turn.state = TurnState.DONE
        turn.emit(Finished(reason, len(turn.answer), turn.text.stopped_by, message))

    def _extend_keys(self, turn: Turn) -> None:
        size = self._settings.block_tokens
        start = len(turn.keys) * size
        if turn.computed >= start + size:
            parent = turn.keys[-1] if turn.keys else BlockKey(turn.namespace)
            turn.keys.extend(extend_chain(parent, turn.tokens(start, turn.computed), size))

    # -- cells

    def _make_room(self, count: int) -> bool:
        """Empty idle slots, coldest first, until `count` cells are free; False when they cannot be."""
        while self._table.cells.free < count:
            if not (idle := self._table.coldest_idle()):
                return False
            self._empty(idle)
        return True

    def _trim_idle(self) -> None:
        """Empty the coldest idle slots beyond what may stay hot; the newest one always stays."""
        while self._table.idle_cells() > self._settings.idle_cells_max:
            coldest, newest = self._table.coldest_idle(), self._table.newest_idle()
            if coldest == newest:
                return
            self._empty(coldest)

    def _make_room_for_batch(self, chunks: Sequence[Chunk]) -> bool:
        """As `_make_room`; a turn is preempted when that is not enough, and False means plan anew."""
        if self._make_room(sum(chunk.count for chunk in chunks)):
            return True
        if (turn := youngest(self._running)) is None:
            self._finish(chunks[0].turn, FinishReason.FAILED, "the turn needs more KV cells than the worker has")
            return False
        self._running.remove(turn)
        self._table.release(turn.slot)
        turn.state, turn.computed = TurnState.QUEUED, 0
        self._queued.appendleft(turn)
        self._counters.preemptions += 1
        return False

    def _empty(self, slot: int) -> None:
        self._table.empty(slot)
        self._context.remove(slot)

    def _keep_order(self, parts: Sequence[tuple[int, int]]) -> None:
        """Reseat the slots whose cells would no longer ascend: their answers stay exact to the last bit.

        `parts` are the next tokens to enter the cache, in order: (slot, count)."""
        total = sum(count for _, count in parts)
        for _ in range(2):  # reseating one slot moves the head, so look once more
            offset, is_ordered = 0, True
            for slot, count in parts:
                if not self._table.stays_ordered(slot, offset, count, total) and self._table.can_reseat(slot):
                    self._mover.reseat(slot)
                    self._counters.reseats += 1
                    is_ordered = False
                offset += count
            if is_ordered:
                return

    # -- what others see

    def _measure_prefill(self, chunks: Sequence[Chunk], seconds: float) -> None:
        prefilled = sum(chunk.count for chunk in chunks if chunk.turn.state is TurnState.PREFILL)
        if prefilled >= self._settings.block_tokens:
            speed = prefilled / seconds
            old = self._counters.prefill_tokens_per_s
            self._counters.prefill_tokens_per_s = speed if not old else old + _SMOOTHING * (speed - old)

    def _publish(self) -> None:
        waiting = sum(t.missing for t in (*self._running, *self._queued) if t.state is not TurnState.DECODE)
        self.load = LoopLoad(
            running=len(self._running),
            queued=len(self._queued),
            prefill_tokens_waiting=waiting,
            prefill_tokens_per_s=self._counters.prefill_tokens_per_s,
            cells_used=self._table.cells.used,
            reseats=self._counters.reseats,
            preemptions=self._counters.preemptions,
        )
        added, removed = self._table.take_hot_changes()
        if added or removed:
            self.on_hot_change(added, removed)


def _batch_of(chunks: Sequence[Chunk]) -> Batch:
    """One batch of all chunks, in order; logits only for the last token of those that sample."""
    logits = np.zeros(sum(chunk.count for chunk in chunks), np.int8)
    row = 0
    for chunk in chunks:
        row += chunk.count
        logits[row - 1] = chunk.samples
    spans = [(chunk.turn, chunk.turn.computed, chunk.turn.computed + chunk.count) for chunk in chunks]
    return Batch(
        tokens=np.concatenate([as_tokens(turn.tokens(start, end)) for turn, start, end in spans]).astype(np.int32),
        positions=np.concatenate([np.arange(start, end, dtype=np.int32) for _, start, end in spans]),
        slots=np.concatenate([np.full(end - start, turn.slot, np.int32) for turn, start, end in spans]),
        logits=logits,
    )


def _prompt_done(turn: Turn) -> PromptDone:
    now = time.monotonic()
    return PromptDone(
        tokens_hot=turn.tokens_hot,
        tokens_restored=turn.tokens_restored,
        queue_ms=1e3 * (turn.admitted_s - turn.arrived_s),
        restore_ms=1e3 * (turn.restored_s - turn.admitted_s),
        prefill_ms=1e3 * (now - turn.restored_s),
    )
