"""Restored equals computed: block bytes, logits and greedy text, whatever else the worker does.

With q8_0 everything is compared bit for bit; f16 by what a recompute with another split shows.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.worker.process import Engine
from engine.worker.turn import Admitted, Turn
from kvstore.core.block import BlockHeader, header_bytes
from kvstore.core.keys import BlockKey, NamespaceId, chain_keys
from tests.engine.conftest import NAMESPACE, Outcome, RunningTurn, empty_hot_tier

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

MakeEngine = Callable[..., Engine]
ANSWER_TOKENS = 64


def export(engine: Engine, turn: Turn) -> list[bytes]:
    """All full blocks of a finished turn's prompt."""
    count = len(turn.prompt) // engine.facts.fingerprint.block_tokens

    def job() -> list[bytes]:
        values = []
        for index in range(count):
            value = np.empty(engine.facts.value_bytes, np.uint8)
            assert engine.loop.export_block(turn, index, value.data)
            values.append(value.tobytes())
        return values

    return engine.loop.run(job).result()


def restore_into(engine: Engine, values: list[bytes]) -> Callable[[Turn, Admitted], None]:
    """For RunningTurn: restores `values` once the turn has its slot."""

    def on_admitted(turn: Turn, admitted: Admitted) -> None:
        def job() -> None:
            for index, value in enumerate(values):
                assert engine.loop.restore_block(turn, admitted.admission, index, memoryview(value))

        engine.loop.run(job).result()

    return on_admitted


def logits_after(engine: Engine, prompt: np.ndarray) -> np.ndarray:
    """Logits of the prompt's last token; whatever of the prompt is hot is used."""
    captured: list[np.ndarray] = []
    running = RunningTurn(engine, prompt, 1)
    sampler = running.turn.sampler
    original = sampler.sample

    def sample(logits: np.ndarray) -> int:
        captured.append(logits.copy())
        return original(logits)

    sampler.sample = sample  # type: ignore[method-assign]
    running.wait()
    return captured[0]


def answer(engine: Engine, prompt: np.ndarray, tokens_max: int = ANSWER_TOKENS) -> Outcome:
    return RunningTurn(engine, prompt, tokens_max).wait()


@pytest.fixture(scope="module")
def prompts(source_tokens: np.ndarray) -> list[np.ndarray]:
    return [source_tokens[0:333], source_tokens[3000:3700], source_tokens[7000:7097]]


def test_blocks_are_the_same_bytes_in_another_process_and_another_slot(
    make_engine: MakeEngine, prompts: list[np.ndarray], tmp_path: Path, model_path: Path
) -> None:
    engine = make_engine()
    exported = []
    for prompt in prompts:
        running = RunningTurn(engine, prompt, 1)
        running.wait()
        exported.append(export(engine, running.turn))
    for i, values in enumerate(exported):
        (tmp_path / f"{i}.bin").write_bytes(b"".join(values))
        (tmp_path / f"{i}.json").write_text(json.dumps(prompts[i].tolist()))
    command = [sys.executable, "-m", "tests.engine.reexport", model_path, tmp_path]
    subprocess.run(command, check=True, timeout=300, cwd=Path(__file__).parents[2])
    for i, values in enumerate(exported):
        assert (tmp_path / f"{i}.again").read_bytes() == b"".join(values)
    # Another slot of this process, beside the first one.
    restored = RunningTurn(engine, prompts[0], 1, on_admitted=restore_into(engine, exported[0]))
    restored.wait()
    assert export(engine, restored.turn) == exported[0]


def test_q8_0_logits_and_greedy_text_after_a_restore_are_bit_for_bit_the_cold_run_s(
    make_engine: MakeEngine, prompts: list[np.ndarray]
) -> None:
    engine = make_engine()
    for prompt in prompts:
        empty_hot_tier(engine)
        cold = RunningTurn(engine, prompt, ANSWER_TOKENS)
        cold_outcome = cold.wait()
        values = export(engine, cold.turn)
        cold_logits = logits_after(engine, prompt)
        empty_hot_tier(engine)
        warm = RunningTurn(engine, prompt, ANSWER_TOKENS, on_admitted=restore_into(engine, values))
        warm_outcome = warm.wait()
        assert warm_outcome.prompt_done is not None
        assert warm_outcome.prompt_done.tokens_restored == len(prompt) // 32 * 32
        assert warm_outcome.tokens == cold_outcome.tokens
        assert len(cold_outcome.tokens) == ANSWER_TOKENS
        assert (logits_after(engine, prompt) == cold_logits).all()


@pytest.mark.parametrize(
    "other", [{"batch_tokens": 32}, {"batch_tokens": 97}, {"threads": 2}, {"block_tokens": 16}, {"cells": 2048}]
)
def test_q8_0_answers_do_not_depend_on_chunking_threads_or_cells(
    make_engine: MakeEngine, prompts: list[np.ndarray], other: dict[str, int]
) -> None:
    import os

    if other.get("threads", 1) > (os.cpu_count() or 1):
        pytest.skip("needs two cores")
    plain, changed = make_engine(), make_engine(**{"chunk_beside_decodes": 32} | other)
    for prompt in prompts[:2]:
        assert answer(changed, prompt).tokens == answer(plain, prompt).tokens
        assert (logits_after(changed, prompt) == logits_after(plain, prompt)).all()


def test_q8_0_answers_do_not_depend_on_company(make_engine: MakeEngine, source_tokens: np.ndarray) -> None:
    engine = make_engine()
    prompts = [source_tokens[i * 500 : i * 500 + 200 + 31 * i] for i in range(6)]
    together = [running.wait().tokens for running in [RunningTurn(engine, p, ANSWER_TOKENS) for p in prompts]]
    for prompt, tokens in zip(prompts, together, strict=True):
        empty_hot_tier(engine)
        assert answer(engine, prompt).tokens == tokens


def test_q8_0_answers_survive_wrap_around_eviction_and_preemption(
    make_engine: MakeEngine, source_tokens: np.ndarray
) -> None:
    """Cells for barely two turns: slots are emptied and refilled below running ones, turns are preempted."""
    engine = make_engine(context_tokens=1024, cells=1024, slots=4)
    prompts = [source_tokens[i * 600 : i * 600 + 250 + 40 * i] for i in range(6)]
    runs = [RunningTurn(engine, p, 100) for p in prompts]
    together = [running.wait().tokens for running in runs]
    load = engine.loop.load
    assert load.reseats > 0 and load.preemptions > 0, "the test must reach what it is about"
    engine.loop.run(engine.cache.table.check_invariants).result()
    for prompt, tokens in zip(prompts, together, strict=True):
        empty_hot_tier(engine)
        assert answer(engine, prompt, 100).tokens == tokens


def test_blocks_restored_around_the_end_of_the_cache_give_the_cold_answer(
    make_engine: MakeEngine, source_tokens: np.ndarray
) -> None:
    """Half of the blocks fit behind an idle turn; the others come before it once that is emptied."""
    engine = make_engine(context_tokens=1024, cells=1024, slots=4)
    prompt = source_tokens[5000:5700]
    cold = RunningTurn(engine, prompt, ANSWER_TOKENS)
    cold_tokens = cold.wait().tokens
    values = export(engine, cold.turn)
    empty_hot_tier(engine)
    RunningTurn(engine, source_tokens[:600], 1).wait()
    reseats = engine.loop.load.reseats
    warm = RunningTurn(engine, prompt, ANSWER_TOKENS, on_admitted=restore_into(engine, values))
    assert warm.wait().tokens == cold_tokens
    assert engine.loop.load.reseats > reseats, "the test must reach what it is about"


def test_the_mirror_knows_where_llama_puts_each_token(make_engine: MakeEngine, source_tokens: np.ndarray) -> None:
    """llama.cpp writes a sequence's cells in cell order: the positions tell whether the mirror is right."""
    engine = make_engine(context_tokens=1024, cells=1024, slots=4)
    prompts = [source_tokens[i * 600 : i * 600 + 200 + 40 * i] for i in range(5)]
    runs = [RunningTurn(engine, p, 40) for p in prompts]

    def positions_by_cell(slot: int) -> tuple[list[int], list[int]]:
        context, table = engine.context, engine.cache.table
        state = np.empty(context.state_bytes(slot), np.uint8)
        context.read_state(slot, state)
        words = state[: 16 + 12 * table.slot(slot).length].view(np.int32)
        return words[4::3].tolist(), np.argsort(table.slot(slot).cells[: table.slot(slot).length]).tolist()

    for running in runs:
        running.wait()
        for slot in range(1, 5):
            if engine.cache.table.slot(slot).length:
                llama, mirror = engine.loop.run(lambda slot=slot: positions_by_cell(slot)).result()
                assert llama == mirror


def test_f16_after_a_restore_differs_no_more_than_another_split(
    make_engine: MakeEngine, prompts: list[np.ndarray]
) -> None:
    engine, split = make_engine(kv_type="f16"), make_engine(kv_type="f16", batch_tokens=48, chunk_beside_decodes=48)
    for prompt in prompts[:2]:
        cold = RunningTurn(engine, prompt, 1)
        cold.wait()
        values = export(engine, cold.turn)
        empty_hot_tier(engine)
        reference = logits_after(engine, prompt)
        empty_hot_tier(engine)
        RunningTurn(engine, prompt, 1, on_admitted=restore_into(engine, values)).wait()
        restored = np.abs(logits_after(engine, prompt) - reference).max()
        resplit = np.abs(logits_after(split, prompt) - reference).max()
        assert resplit > 0, "f16 is expected to depend on the split; if not, compare it exactly"
        assert restored <= 2 * resplit


def test_a_block_of_another_prefix_is_refused_and_recomputed(
    make_engine: MakeEngine, prompts: list[np.ndarray]
) -> None:
    from kvstore.core.errors import BlockCorruptError

    engine = make_engine()
    first = RunningTurn(engine, prompts[0], 1)
    first.wait()
    values = export(engine, first.turn)
    flipped = bytearray(values[0])
    flipped[header_bytes(32) + 5000] ^= 1
    empty_hot_tier(engine)
    seen: list[type[Exception]] = []

    def on_admitted(turn: Turn, admitted: Admitted) -> None:
        for value in (bytes(flipped), values[1], values[0][:100], b"\0" * len(values[0])):
            try:
                engine.loop.run(
                    lambda value=value: engine.loop.restore_block(turn, admitted.admission, 0, memoryview(value))
                ).result()
            except BlockCorruptError as error:
                seen.append(type(error))

    outcome = RunningTurn(engine, prompts[0], 8, on_admitted=on_admitted).wait()
    assert len(seen) == 4
    assert outcome.prompt_done is not None and outcome.prompt_done.tokens_restored == 0
    empty_hot_tier(engine)
    assert outcome.tokens == answer(engine, prompts[0], 8).tokens


def test_state_of_other_positions_is_refused_though_its_header_is_right(
    make_engine: MakeEngine, prompts: list[np.ndarray]
) -> None:
    """The header is rebuilt by a writer that got it wrong: positions are llama.cpp's own word."""
    from kvstore.core.block import encode_header
    from kvstore.core.errors import BlockCorruptError

    engine = make_engine()
    running = RunningTurn(engine, prompts[0], 1)
    running.wait()
    values = export(engine, running.turn)
    keys = chain_keys(NAMESPACE, prompts[0], 32)
    payload = values[1][header_bytes(32) :]
    forged = encode_header(BlockHeader(keys[0], BlockKey(NamespaceId(NAMESPACE)), prompts[0][:32]), payload) + payload
    empty_hot_tier(engine)

    def on_admitted(turn: Turn, admitted: Admitted) -> None:
        with pytest.raises(BlockCorruptError, match="positions"):
            engine.loop.run(lambda: engine.loop.restore_block(turn, admitted.admission, 0, memoryview(forged))).result()

    outcome = RunningTurn(engine, prompts[0], 8, on_admitted=on_admitted).wait()
    engine.loop.run(engine.cache.table.check_invariants).result()
    empty_hot_tier(engine)
    assert outcome.tokens == answer(engine, prompts[0], 8).tokens
