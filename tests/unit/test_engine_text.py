"""The text of an answer: UTF-8 never split, stop strings cut exactly."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.worker.text import TextStream
from kvstore.core.errors import CallerError


def stream(pieces: list[bytes], stops: list[str]) -> tuple[str, str]:
    text = TextStream(stops)
    out = ""
    for piece in pieces:
        out += text.feed(piece)
        if text.stopped_by:
            return out, text.stopped_by
    return out + text.flush(), text.stopped_by


def test_a_character_split_over_tokens_comes_whole() -> None:
    raw = "aé€😀".encode()
    text = TextStream()
    parts = [text.feed(raw[i : i + 1]) for i in range(len(raw))]
    assert [part for part in parts if part] == ["a", "é", "€", "😀"]


def test_a_cut_character_at_the_end_is_replaced() -> None:
    assert stream(["é".encode()[:1]], []) == ("\ufffd", "")


def test_stop_string_over_several_tokens_is_cut_and_nothing_of_it_was_sent() -> None:
    text = TextStream(["</tool>"])
    assert text.feed(b"call</") == "call"
    assert text.feed(b"to") == ""
    assert text.feed(b"ol> more") == ""
    assert text.stopped_by == "</tool>"


def test_the_earliest_stop_string_wins() -> None:
    assert stream([b"one two three"], ["three", "two"]) == ("one ", "two")


def test_what_only_looked_like_a_stop_string_is_sent() -> None:
    assert stream([b"a</to", b"p>b"], ["</tool>"]) == ("a</top>b", "")


@pytest.mark.parametrize("stops", [[""], ["x" * 257], ["s"] * 17])
def test_bad_stop_strings_are_refused(stops: list[str]) -> None:
    with pytest.raises(CallerError):
        TextStream(stops)


@given(st.text("ab<é", max_size=40), st.lists(st.text("ab<é", min_size=1, max_size=4), max_size=3), st.data())
def test_any_split_gives_the_same_text(answer: str, stops: list[str], data: st.DataObject) -> None:
    raw = answer.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    bounds = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(bounds)]
    text, stopped_by = stream(pieces, stops)
    found = [at for stop in stops if (at := answer.find(stop)) >= 0]
    if stopped_by:
        # Whatever came first in time; with a single stop string it is the first in the text.
        assert answer.startswith(text + stopped_by)
    else:
        assert not found
        assert text == answer
