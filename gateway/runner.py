"""Runs a turn from its tokens to its last piece of text: hash, match, route, stream, remember.

A worker that fails before the client was sent anything is left out and the turn tried on another one. Once the
answer has begun, a failure is the stream's end: the client is told, and nothing is repeated.
"""

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable

from engine.wire import engine_pb2 as pb
from gateway.index import Match, PrefixIndex
from gateway.metrics import GatewayMetrics
from gateway.pool import WorkerPool
from gateway.route import Estimate, choose
from gateway.turn import Answer, Turn
from gateway.worker import Worker
from kvstore.core.errors import LimitError, UnavailableError
from kvstore.core.keys import NamespaceId, chain_keys

_FINISH_REASONS = {pb.Finished.REASON_STOP: "stop", pb.Finished.REASON_LENGTH: "length"}


class TurnRunner:
    """Runs turns on the pool's workers; one for each process."""

    def __init__(
        self,
        pool: WorkerPool,
        index: PrefixIndex,
        metrics: GatewayMetrics,
        *,
        queue_per_worker_max: int,
        retries_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._index = index
        self._metrics = metrics
        self._queue_max = queue_per_worker_max
        self._retries_max = retries_max
        self._clock = clock

    async def run(self, turn: Turn, answer: Answer) -> AsyncGenerator[str, None]:
        """The answer's text, piece by piece, none empty; fills `answer` on the way.

        Closing the generator cancels the turn on its worker.
        Raises: CallerError, LimitError (all workers full), UnavailableError (none left, or lost in mid-answer)."""
        failed: dict[str, LimitError | UnavailableError] = {}
        while True:
            worker, estimate = self._route(turn, failed)
            answer.begin_on(worker.worker_id, estimate)
            try:
                async with contextlib.aclosing(self._run_on(worker, estimate, turn, answer)) as pieces:
                    async for piece in pieces:
                        yield piece
                self._remember(turn, answer)
                return
            except (LimitError, UnavailableError) as error:
                if (turn.is_streamed and answer.pieces) or answer.retries >= self._retries_max:
                    raise
                failed[worker.address] = error
                answer.retries += 1
                self._metrics.retries.inc()

    def _route(self, turn: Turn, failed: dict[str, LimitError | UnavailableError]) -> tuple[Worker, Estimate]:
        """The worker that answers first, of those that have not failed this turn.

        Raises: the last failure when no other worker is left; else as `choose`."""
        workers = {worker.address: worker for worker in self._pool.ready() if worker.address not in failed}
        if failed and not workers:
            raise list(failed.values())[-1]
        matches = self._match(turn, workers.values())
        states = [worker.state(self._queue_max) for worker in workers.values()]
        chosen = choose(states, matches, len(turn.tokens)).chosen
        return workers[chosen.worker], chosen

    def _match(self, turn: Turn, workers: Iterable[Worker]) -> dict[str, Match]:
        """By worker, what is held of the prompt; workers of one fingerprint share the hashing and the look-up."""
        by_namespace: dict[NamespaceId, Match] = {}
        matches: dict[str, Match] = {}
        for worker in workers:
            assert worker.fingerprint is not None, "a ready worker has been described"
            namespace = worker.fingerprint.with_salt(turn.salt).namespace_id()
            if namespace not in by_namespace:
                keys = chain_keys(namespace, turn.tokens, worker.fingerprint.block_tokens)
                by_namespace[namespace] = self._index.match(namespace, keys)
            matches[worker.address] = by_namespace[namespace]
        return matches

    async def _run_on(
        self, worker: Worker, estimate: Estimate, turn: Turn, answer: Answer
    ) -> AsyncGenerator[str, None]:
        """The text as `worker` sends it; UnavailableError when its stream ends without `finished`."""
        with worker.running(turn.turn_id, estimate.tokens_computed):
            async with contextlib.aclosing(worker.link.generate(turn.request())) as messages:
                async for message in messages:
                    if message.HasField("prompt_done"):
                        answer.prompt = message.prompt_done
                        worker.prompt_done(turn.turn_id)
                    elif message.HasField("delta"):
                        answer.token_ids.extend(message.delta.tokens)
                        if not answer.ttft_s:
                            answer.ttft_s = self._clock() - turn.arrived_s
                        if message.delta.text:
                            answer.pieces.append(message.delta.text)
                            yield message.delta.text
                    elif message.HasField("finished"):
                        answer.tokens = message.finished.tokens
                        answer.finish_reason = _FINISH_REASONS.get(message.finished.reason, "stop")
                        return
        raise UnavailableError(f"worker {worker.address} ended its stream without finishing the answer")

    def _remember(self, turn: Turn, answer: Answer) -> None:
        """Keep the answer's own ids, so that the session's next prompt has the tokens whose KV is stored."""
        if turn.prompt_text is None:
            return
        turn.model.text.tokeniser.remember_answer(turn.tenant_salt, turn.prompt_text, answer.text, answer.token_ids)
