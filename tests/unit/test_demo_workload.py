"""The demo's sessions are the same every time and as large as they are meant to be."""

import pytest

from stockpot.demo.run import DEFAULT_SIZE, FULL_SIZE, QUICK_SIZE
from stockpot.demo.system_prompt import SYSTEM_PROMPT
from stockpot.demo.workload import CHARS_PER_TOKEN, WorkloadSize, make_sessions

FRAME_TOKENS = 12
"""The chat template's marks around a question and its answer."""
SIZES = [(QUICK_SIZE, 1_700), (DEFAULT_SIZE, 2_700), (FULL_SIZE, 6_000)]


def approximate_tokens(text: str) -> float:
    return len(text) / CHARS_PER_TOKEN


@pytest.mark.parametrize("size", [size for size, _ in SIZES])
def test_same_size_same_sessions(size: WorkloadSize) -> None:
    assert make_sessions(size) == make_sessions(size)


@pytest.mark.parametrize(("size", "tokens"), SIZES)
def test_contexts_grow_to_what_is_promised(size: WorkloadSize, tokens: int) -> None:
    # The estimate is some 7 % low on the default size: docstrings and numbers take more tokens than code.
    for session in make_sessions(size):
        said = approximate_tokens(SYSTEM_PROMPT) + sum(map(approximate_tokens, session.user_messages))
        whole = said + (size.turns - 1) * size.answer_tokens_max + size.turns * FRAME_TOKENS
        assert 0.8 * tokens <= whole <= 1.1 * tokens


@pytest.mark.parametrize("size", [size for size, _ in SIZES])
def test_every_agent_has_its_own_files_and_turns(size: WorkloadSize) -> None:
    sessions = make_sessions(size)
    assert len(sessions) == size.agents
    assert {len(session.user_messages) for session in sessions} == {size.turns}
    firsts = {session.user_messages[0] for session in sessions}
    assert len(firsts) == size.agents


def test_a_session_reads_on_where_it_stopped_and_goes_to_the_next_file() -> None:
    size = WorkloadSize(agents=1, turns=30, source_tokens_first=400, source_tokens_later=200, answer_tokens_max=1)
    [session] = make_sessions(size)
    heads = [message.splitlines()[0] for message in session.user_messages]
    assert heads[0].startswith("Result of read_file(path='Lib/json/decoder.py', first_line=1, last_line=")
    assert any("path='Lib/json/encoder.py', first_line=1," in head for head in heads)
    last_line = int(heads[0].rpartition("last_line=")[2].removesuffix("):"))
    assert f"first_line={last_line + 1}," in heads[1]


def test_the_system_prompt_is_about_600_tokens() -> None:
    # 603 by SmolLM2's vocabulary.
    assert 550 <= approximate_tokens(SYSTEM_PROMPT) <= 650
