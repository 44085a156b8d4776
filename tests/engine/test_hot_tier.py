"""What stays hot between turns, on the real model."""

from collections.abc import Callable

import numpy as np
import pytest

from engine.worker.process import Engine
from tests.engine.conftest import RunningTurn

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


def test_sixteen_agents_hold_their_system_prompt_once(
    make_engine: Callable[..., Engine], source_tokens: np.ndarray
) -> None:
    engine = make_engine(slots=16)
    system = source_tokens[:256]
    tails = [source_tokens[1000 + 20 * i : 1010 + 20 * i] for i in range(16)]
    RunningTurn(engine, system, 1).wait()
    for turn in [RunningTurn(engine, np.concatenate([system, tail]), 2) for tail in tails]:
        done = turn.wait().prompt_done
        assert done is not None and done.tokens_hot >= 255
    # 16 tails of 10 tokens, and each answer's first token; the last one sampled is never computed.
    assert engine.loop.load.cells_used <= 256 + 16 * 11 + 16


def test_finished_turns_keep_no_more_than_they_may(
    make_engine: Callable[..., Engine], source_tokens: np.ndarray
) -> None:
    engine = make_engine(idle_cells_max=500)
    for i in range(5):
        RunningTurn(engine, source_tokens[i * 300 : i * 300 + 200], 1).wait()
    assert engine.loop.run(engine.cache.table.idle_cells).result() <= 500
    hot = RunningTurn(engine, source_tokens[1200:1400], 1).wait().prompt_done
    assert hot is not None and hot.tokens_hot == 199, "the newest stays"


def test_stop_strings_end_the_answer_at_once(make_engine: Callable[..., Engine], source_tokens: np.ndarray) -> None:
    engine = make_engine()
    free = RunningTurn(engine, source_tokens[:300], 30).wait()
    stop = free.text[10:14]
    cut = RunningTurn(engine, source_tokens[:300], 30, stops=[stop]).wait()
    assert cut.text == free.text[: free.text.index(stop)]
    assert cut.finished is not None and cut.finished.stop == stop
    assert cut.finished.answer_tokens < 30
