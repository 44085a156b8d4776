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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from engine.llama.context import DecodeResult, LlamaContext
from engine.worker.batch import batch_of, last_rows
from engine.worker.cache import KvCache
from engine.worker.schedule import plan_batch, youngest
from engine.worker.speed import PrefillSpeed
from engine.worker.turn import Admitted, Delta, Finished, FinishReason, PromptDone, Turn, TurnState
from kvstore.core.errors import UnavailableError
from kvstore.core.keys import BlockKey, extend_chain

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LoopSettings:
    block_tokens: int
    context_tokens: int
    batch_tokens: int
    chunk_beside_decodes: int


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


class ModelLoop:
    """Runs on one thread of its own between `start()` and `stop()`.

    Jobs come from turns that were accepted and from exports, both bounded, so the queue of jobs is too."""

    def __init__(
        self, context: LlamaContext, cache: KvCache, piece: Callable[[int], bytes], settings: LoopSettings
    ) -> None:
        self.load = LoopLoad()
        self.on_hot_change: Callable[[list[BlockKey], list[BlockKey]], None] = lambda added, removed: None
        """Called on the model thread with block keys that became hot and that went."""
        self.on_death: Callable[[BaseException], None] = lambda error: None
        """Called on the model thread as its last act when it ends by a bug; every turn has failed by then."""
        self._context = context
        self._cache = cache
        self._piece = piece
        self._settings = settings
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._queued: deque[Turn] = deque()
        self._running: list[Turn] = []
        self._speed = PrefillSpeed()
        self._preemptions = 0
        self._is_stopping = False
        self._is_dead = False
        self._thread = threading.Thread(target=self._main, name="model", daemon=True)

    # -- called from any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in; running turns get no more events."""
        self._jobs.put(self._note_stop)
        self._thread.join()

    def submit(self, turn: Turn) -> None:
        """Queue `turn`; everything that becomes of it comes through `turn.emit`.

        Raises: UnavailableError when the model thread has ended by a bug."""
        self._check_alive()
        self._jobs.put(lambda: self._queued.append(turn))

    def cancel(self, turn: Turn) -> None:
        """Free the turn's slot before the next step."""
        turn.is_cancelled = True
        self._jobs.put(lambda: None)

    def start_prefill(self, turn: Turn, admission: int) -> None:
        """Restoring is over: compute what is missing."""
        self._jobs.put(lambda: self._start_prefill(turn, admission))

    def run(self, job: Callable[[], Result]) -> "concurrent.futures.Future[Result]":
        """Run `job` on the model thread between two steps. Keep it under some 5 ms: answers wait for it.

        Raises: UnavailableError when the model thread has ended by a bug."""
        self._check_alive()
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()

        def run_job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:  # noqa: BLE001  # it belongs to whoever waits for the future
                    future.set_exception(error)

        self._jobs.put(run_job)
        return future

    # -- jobs: call through `run`

    def restore_block(self, turn: Turn, admission: int, index: int, value: memoryview) -> bool:
        """Append block `index` to the turn's slot; False when the turn is no longer there for it, or there is no
        room without preempting another one.

        Raises: BlockCorruptError when the block is not the turn's; no KV of it is kept."""
        if not self._is_restoring(turn, admission):
            return False
        size = self._settings.block_tokens
        try:
            return self._cache.restore(turn.slot, index, turn.header(index, size), value)
        finally:
            length = self._cache.table.slot(turn.slot).length
            if length != turn.computed:
                turn.computed, turn.tokens_hot = length, min(turn.tokens_hot, index * size)

    def discard_blocks(self, turn: Turn, admission: int, first: int) -> None:
        """Forget what the restoring turn's slot holds from block `first` on."""
        if self._is_restoring(turn, admission):
            self._cut(turn, min(turn.computed, first * self._settings.block_tokens))

    def export_block(self, turn: Turn, index: int, out: memoryview) -> bool:
        """Write block `index` of the turn into `out`; False when its KV is gone."""
        return self._cache.export(turn.slot, index, turn.header(index, self._settings.block_tokens), out)

    # -- the model thread

    def _main(self) -> None:
        try:
            while not self._is_stopping:
                self._run_jobs(wait=not self._has_work())
                self._cycle()
        except BaseException as error:
            self._is_dead = True
            log.exception("model_thread_died")
            for turn in (*self._running, *self._queued):
                turn.emit(Finished(FinishReason.FAILED, len(turn.answer), message="the worker failed; it restarts"))
            self.on_death(error)

    def _cycle(self) -> None:
        self._drop_cancelled()
        self._admit()
        self._step()
        self._admit()  # the step may have freed a slot, and the thread may sleep now
        self._publish()

    def _check_alive(self) -> None:
        if self._is_dead:
            raise UnavailableError("the worker has failed and ends; send the turn to another one")

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
            promised = sum(other.missing for other in self._running)
            if self._running and not self._cache.has_cells_for(turn.namespace, tokens, promised):
                return
            if (claim := self._cache.claim(turn.namespace, tokens)) is None:
                return
            self._queued.popleft()
            turn.slot, turn.computed, turn.tokens_hot = claim.slot, claim.hot_tokens, claim.hot_tokens
            turn.state, turn.admission, turn.admitted_s = TurnState.RESTORING, turn.admission + 1, time.monotonic()
            self._running.append(turn)
            turn.emit(Admitted(turn.admission, claim.hot_tokens, len(turn.keys)))

    def _is_restoring(self, turn: Turn, admission: int) -> bool:
        return turn.state is TurnState.RESTORING and turn.admission == admission and not turn.is_cancelled

    def _start_prefill(self, turn: Turn, admission: int) -> None:
        if not self._is_restoring(turn, admission):
            return
        if turn.missing == 0:  # all of the prompt was stored; its last token is needed for its logits
            self._cut(turn, turn.length - 1)
        turn.tokens_restored = turn.computed - turn.tokens_hot
        turn.restored_s = time.monotonic()
        turn.state = TurnState.PREFILL

    def _step(self) -> None:
        """One batch: compute it, account for all of it, then sample."""
        settings = self._settings
        low = max(settings.block_tokens, len(self._running))  # each answer gets its token in every batch
        batch_tokens = self._speed.batch_tokens(low, settings.batch_tokens)
        chunks = plan_batch(
            self._running, batch_tokens=batch_tokens, chunk_beside_decodes=settings.chunk_beside_decodes
        )
        if not chunks:
            return
        if not self._cache.prepare([(chunk.turn.slot, chunk.count) for chunk in chunks]):
            self._preempt(chunks[0].turn)
            return
        started = time.monotonic()
        try:
            result = self._context.decode(batch_of(chunks))
        except RuntimeError as error:
            log.error("decode_failed error=%r", str(error))
            for chunk in chunks:
                self._finish(chunk.turn, FinishReason.FAILED, f"the model failed: {error}")
            return
        assert result is DecodeResult.OK, "the mirror of the cells says there is room"
        prefilled = sum(chunk.count for chunk in chunks if chunk.turn.state is TurnState.PREFILL)
        self._speed.observe(prefilled, time.monotonic() - started)
        sampling = [(chunk.turn, row) for chunk, row in last_rows(chunks) if chunk.samples]
        for chunk in chunks:
            self._advance(chunk.turn, chunk.count)
        for turn, row in sampling:
            self._sample(turn, row)

    def _advance(self, turn: Turn, count: int) -> None:
        """The KV of the turn's next `count` tokens is in its slot."""
        tokens = turn.tokens(turn.computed, turn.computed + count)
        turn.computed += count
        size = self._settings.block_tokens
        start = len(turn.keys) * size
        if turn.computed >= start + size:
            parent = turn.keys[-1] if turn.keys else BlockKey(turn.namespace)
            turn.keys.extend(extend_chain(parent, turn.tokens(start, turn.computed), size))
        self._cache.append(turn.slot, tokens, turn.keys)

    def _sample(self, turn: Turn, row: int) -> None:
        """Draw the turn's next token from the logits of batch row `row`; finish the turn when it is the last."""
        logits = self._context.logits(row)
        if not np.isfinite(logits.max()):
            self._finish(turn, FinishReason.FAILED, "the model computed logits that are no numbers")
            return
        if not turn.is_prompt_reported:
            turn.is_prompt_reported = True
            turn.emit(_prompt_done(turn, self._blocks(turn)))
        turn.state = TurnState.DECODE
        self._accept(turn, turn.sampler.sample(logits))

    def _accept(self, turn: Turn, token: int) -> None:
        """`token` is the answer's next: emit it, and finish when it ends the answer."""
        turn.answer.append(token)
        blocks = self._blocks(turn)
        if token in turn.end_tokens:
            turn.emit(Delta(blocks, [token], turn.text.flush()))
            self._finish(turn, FinishReason.STOP)
            return
        text = turn.text.feed(self._piece(token))
        is_full = len(turn.answer) >= turn.tokens_max or turn.length >= self._settings.context_tokens
        if is_full and not turn.text.stopped_by:
            text += turn.text.flush()
        turn.emit(Delta(blocks, [token], text))
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
                self._cache.discard(turn.slot)
            else:
                self._cache.release(turn.slot)
        turn.state = TurnState.DONE
        turn.emit(Finished(reason, len(turn.answer), turn.text.stopped_by, message))

    def _preempt(self, wanting: Turn) -> None:
        """No cells are left for the next batch: send the youngest turn back to the queue, with what it has."""
        if (turn := youngest(self._running)) is None:
            self._finish(wanting, FinishReason.FAILED, "the turn needs more KV cells than the worker has")
            return
        self._running.remove(turn)
        self._cache.release(turn.slot)
        turn.state, turn.computed = TurnState.QUEUED, 0
        self._queued.appendleft(turn)
        self._preemptions += 1

    def _cut(self, turn: Turn, length: int) -> None:
        self._cache.cut(turn.slot, length)
        turn.computed = length
        turn.tokens_hot = min(turn.tokens_hot, length)

    def _blocks(self, turn: Turn) -> int:
        """Full blocks of the turn that are in its slot."""
        return turn.computed // self._settings.block_tokens

    def _publish(self) -> None:
        waiting = sum(t.missing for t in (*self._running, *self._queued) if t.state is not TurnState.DECODE)
        self.load = LoopLoad(
            running=len(self._running),
            queued=len(self._queued),
            prefill_tokens_waiting=waiting,
            prefill_tokens_per_s=self._speed.tokens_per_s,
            cells_used=self._cache.table.cells.used,
            reseats=self._cache.reseats,
            preemptions=self._preemptions,
        )
        added, removed = self._cache.table.take_hot_changes()
        if added or removed:
            self.on_hot_change(added, removed)


def _prompt_done(turn: Turn, blocks: int) -> PromptDone:
    now = time.monotonic()
    return PromptDone(
        blocks=blocks,
        tokens_hot=turn.tokens_hot,
        tokens_restored=turn.tokens_restored,
        queue_ms=1e3 * (turn.admitted_s - turn.arrived_s),
        restore_ms=1e3 * (turn.restored_s - turn.admitted_s),
        prefill_ms=1e3 * (now - turn.restored_s),
    )
