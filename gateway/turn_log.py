"""What is kept of every turn: one log line, and its share of the metrics."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from gateway.log import log_event
from gateway.metrics import GatewayMetrics
from gateway.turn import Answer, Turn


class TurnLog:
    """Writes down how turns end; one for each process."""

    def __init__(self, metrics: GatewayMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock

    @contextlib.contextmanager
    def running(self, turn: Turn) -> Iterator[None]:
        """While a turn runs; counts how long it took to get this far."""
        self._metrics.prepare.observe(self._clock() - turn.arrived_s)
        with self._metrics.turns_running.track_inprogress():
            yield

    def ended(self, turn: Turn, answer: Answer, outcome: str, error: Exception | None = None) -> None:
        """One line. `outcome`: stop, length; cancelled (the client left), failed (before it began), cut (after)."""
        self._metrics.turns.labels(outcome).inc()
        self._metrics.answer_tokens.inc(len(answer.token_ids))
        prompt, predicted = answer.prompt, answer.estimate
        predicted_tokens = predicted.tokens_cached if predicted else 0
        self._metrics.predicted_tokens.inc(predicted_tokens)
        for source, tokens in (
            ("hot", prompt.tokens_hot),
            ("restored", prompt.tokens_restored),
            ("computed", prompt.tokens_computed),
        ):
            self._metrics.prompt_tokens.labels(source).inc(tokens)
        if answer.ttft_s:
            self._metrics.ttft.observe(answer.ttft_s)
        log_event(
            "turn",
            level=logging.INFO if error is None else logging.WARNING,
            turn_id=turn.turn_id,
            outcome=outcome,
            error=type(error).__name__ if error else "none",
            worker=answer.worker or "none",
            tokens=len(turn.tokens),
            tokens_hot=prompt.tokens_hot,
            tokens_restored=prompt.tokens_restored,
            tokens_predicted=predicted_tokens,
            tokens_out=len(answer.token_ids),
            retries=answer.retries,
            queue_ms=prompt.queue_ms,
            restore_ms=prompt.restore_ms,
            prefill_ms=prompt.prefill_ms,
            ttft_predicted_ms=predicted.ttft_s * 1000 if predicted else 0.0,
            ttft_ms=answer.ttft_s * 1000,
            total_ms=(self._clock() - turn.arrived_s) * 1000,
        )
