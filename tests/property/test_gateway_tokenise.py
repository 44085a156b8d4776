"""Segmented tokenising gives what whole-text tokenising gives, on the real vocabulary, whatever the text."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.vocab import Vocab
from gateway.segments import SegmentCache
from gateway.tokenise import Tokeniser, make_tokeniser
from kvstore.core.keys import as_tokens

pytest_plugins = ("gateway_fixtures",)

SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>", "<issue_comment>"]
# Pieces of specials, so that texts come close to one without being one.
NEAR = ["<|im_", "start|>", "<", "|", ">", "<|im_start|", "<<|im_end|>>", "<file", "_sep>"]
WORDS = [
    "user\n",
    "assistant\n",
    " hello",
    "def f(x):\n\treturn x",
    "  ",
    "\n\n",
    "naïve 日本語 🙂",
    "12345",
    "'s",
    "\x00",
    "é",
]
texts = st.lists(st.sampled_from(SPECIALS + NEAR + WORDS) | st.text(max_size=8), max_size=30).map("".join)


@pytest.fixture(scope="module")
def tokeniser(vocab: Vocab) -> Tokeniser:
    tokeniser = make_tokeniser(vocab, cache_bytes_max=20_000)  # small: entries are dropped all the time
    assert tokeniser.splitter is not None
    return tokeniser


@pytest.fixture(scope="module")
def roomy(vocab: Vocab) -> Tokeniser:
    return make_tokeniser(vocab, cache_bytes_max=1 << 24)


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_segments_are_exact(tokeniser: Tokeniser, vocab: Vocab, text: str) -> None:
    async def tokenise_twice() -> list[list[int]]:
        return [(await tokeniser.tokenise(text, b"", add_bos=False)).tolist() for _ in range(2)]

    whole = vocab.tokenize(text, parse_special=True)
    assert asyncio.run(tokenise_twice()) == [whole, whole]  # the second time from the cache
    tokeniser.cache.check_invariants()


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(st.lists(st.sampled_from(["Hel", "lo", " wor", "ld", "\n", "é", "<", "12"]), min_size=1), max_size=4)
)
def test_history_is_what_was_generated(roomy: Tokeniser, vocab: Vocab, turns: list[list[str]]) -> None:
    """A session: every prompt begins with the ids of the one before and of its answer, however it was spelt."""
    salt = repr(turns).encode()
    text, history = "<|im_start|>assistant\n", []
    for pieces in turns:
        ids = asyncio.run(roomy.tokenise(text, salt, add_bos=False)).tolist()
        assert ids[: len(history)] == history
        answer_ids = [token for piece in pieces for token in vocab.tokenize(piece, parse_special=False)]
        assert roomy.remember_answer(salt, text, "".join(pieces), answer_ids)
        history = ids + answer_ids
        text += "".join(pieces) + "<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    spelt = b"".join(vocab.piece(token) for token in history)
    assert all("".join(pieces).encode() in spelt for pieces in turns)


def test_remembered_ids_are_the_salts_own(vocab: Vocab) -> None:
    tokeniser = make_tokeniser(vocab, cache_bytes_max=1 << 20)
    letters = [token for letter in "Hello" for token in vocab.tokenize(letter, parse_special=False)]
    assert tokeniser.remember_answer(b"a", "<|im_start|>x\n", "Hello", letters)
    own = asyncio.run(tokeniser.tokenise("<|im_start|>x\nHello", b"a", add_bos=False)).tolist()
    others = asyncio.run(tokeniser.tokenise("<|im_start|>x\nHello", b"b", add_bos=False)).tolist()
    assert own[-5:] == letters
    assert others == vocab.tokenize("<|im_start|>x\nHello", parse_special=True)


@settings(max_examples=100, deadline=None)
@given(
    pieces=st.lists(st.sampled_from(["Hel", "lo", " wor", "é", "日本", "🙂", "\n", "12"]), min_size=1, max_size=8),
    cut=st.integers(0, 20),
)
def test_an_answer_that_was_cut_keeps_the_ids_before_the_cut(
    roomy: Tokeniser, vocab: Vocab, pieces: list[str], cut: int
) -> None:
    ids = [token for piece in pieces for token in vocab.tokenize(piece, parse_special=False)]
    answer = "".join(pieces)[:cut] or "x"
    salt = repr((pieces, cut)).encode()
    assert roomy.remember_answer(salt, "<|im_start|>a\n", answer, [*ids, vocab.special_tokens["<|im_end|>"]])
    found = asyncio.run(roomy.tokenise("<|im_start|>a\n" + answer, salt, add_bos=False)).tolist()
    head = vocab.tokenize("<|im_start|>a\n", parse_special=True)
    assert found[: len(head)] == head
    own = found[len(head) :]
    assert b"".join(map(vocab.piece, own)) == answer.encode()
    # Every id whose text, and that of all before it, lies whole within the answer is the generated one.
    spelt = ""
    for place, piece in enumerate(pieces):
        spelt += piece
        if not answer.startswith(spelt):
            break
        count = len([token for whole in pieces[: place + 1] for token in vocab.tokenize(whole, parse_special=False)])
        assert own[:count] == ids[:count]


@pytest.mark.parametrize("answer", ["", "a<|im_end|>b"])
def test_answers_without_a_segment_of_their_own_are_not_remembered(roomy: Tokeniser, vocab: Vocab, answer: str) -> None:
    assert not roomy.remember_answer(b"", "<|im_start|>x\n", answer, vocab.tokenize(answer, parse_special=False))


def test_long_texts_leave_the_loop_and_are_exact(tokeniser: Tokeniser, vocab: Vocab) -> None:
    text = "<|im_start|>" + "def f(x):\n    return x\n" * 5_000 + "<|im_end|>"
    ids = asyncio.run(tokeniser.tokenise(text, b"", add_bos=False))
    assert ids.tolist() == vocab.tokenize(text, parse_special=True)


class SpacePrefixVocabulary:
    """A vocabulary of single characters that puts a space before every text, as some SentencePiece models do."""

    special_tokens: Mapping[str, int] = {"<s>": 0}

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        cut = text.split("<s>")
        ids = [1000 + ord(char) for char in " " + cut[0]] if text else []
        for part in cut[1:]:
            ids += [0, *(1000 + ord(char) for char in part)]
        return [0] * add_bos + ids

    def piece(self, token: int) -> bytes:
        return chr(token - 1000).encode()


def test_a_vocabulary_that_segments_do_not_fit_is_tokenised_whole() -> None:
    vocabulary = SpacePrefixVocabulary()
    tokeniser = make_tokeniser(vocabulary, cache_bytes_max=1 << 20)
    assert tokeniser.splitter is None
    ids = asyncio.run(tokeniser.tokenise("a<s>b", b"", add_bos=True)).tolist()
    assert ids == vocabulary.tokenize("a<s>b", parse_special=True, add_bos=True)
    assert not tokeniser.remember_answer(b"", "a<s>b", "c", [1099])


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.sampled_from("xyzw"), st.integers(0, 40)), max_size=60),
    st.integers(0, 3000),
)
def test_the_cache_answers_what_was_put_and_keeps_its_bound(puts: Sequence[tuple[bytes, str, int]], bound: int) -> None:
    cache, model = SegmentCache(bound), {}
    for salt, segment, count in puts:
        cache.put(salt, segment, as_tokens(range(count)))
        model[salt, segment] = count
        cache.check_invariants()
        for (known_salt, known_segment), known_count in model.items():
            ids = cache.get(known_salt, known_segment)
            assert ids is None or ids.tolist() == list(range(known_count))
