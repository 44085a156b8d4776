"""From text to token ids, incrementally, and exactly as the model's own history has them.

llama.cpp cuts a text at the special tokens written in it before it does anything else, so the ids of a
text are those of its segments, one after the other:

    <|im_start|> | user\\nhello | <|im_end|> | \\n | <|im_start|> | assistant\\n
    special        segment        special      seg   special        tail: the answer goes on from here

A segment seen before is not tokenised again. After an answer, the segment `tail + answer` is remembered
with the ids the model really generated: their text alone would often tokenise otherwise (in 5 of 32
answers measured), and the next turn would lose its prefix from there on.

Invariant: the ids remembered for a segment spell its text, byte for byte. `make_tokeniser` proves at
start that segments give what the whole text gives; a vocabulary for which they do not is tokenised whole.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from gateway.segments import SegmentCache
from kvstore.core.keys import Tokens, as_tokens

_Input = TypeVar("_Input")
_Output = TypeVar("_Output")

# 150 KB of text took 25 ms: what takes longer than about 5 ms leaves the event loop.
_THREAD_CHARS = 32 << 10

_CHECK_TEXTS = (
    "Hello, world! ",
    " leading and trailing  \n\n",
    "def f(x):\n\treturn x  # naïve — 日本語 🙂\n",
    "",
    "\n",
    "1234567890 's 're ...",
)
_CHECK_SPECIALS_MAX = 64


class Vocabulary(Protocol):
    """What is needed of `engine.vocab.Vocab`; called from several threads."""

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]: ...

    def piece(self, token: int) -> bytes: ...


class Tokeniser:
    """Turns prompts into ids; `splitter` matches the special tokens to cut at, None tokenises whole texts."""

    def __init__(self, vocabulary: Vocabulary, splitter: re.Pattern[str] | None, cache: SegmentCache) -> None:
        self.cache = cache
        self.splitter = splitter
        self._vocabulary = vocabulary

    async def tokenise(self, text: str, salt: bytes, *, add_bos: bool) -> Tokens:
        """The prompt's ids, `(n,) uint32`; `add_bos` puts the begin-of-text token first. Long work leaves the loop."""
        segments = await _off_loop(len(text), self._split, text)
        found: dict[str, Tokens] = {}
        missing: list[str] = []
        for segment in dict.fromkeys(segments):
            if (ids := self.cache.get(salt, segment)) is None:
                missing.append(segment)
            else:
                found[segment] = ids
        made = await _off_loop(sum(map(len, missing)), self._tokenise_all, missing)
        for segment, ids in zip(missing, made, strict=True):
            self.cache.put(salt, segment, ids)
            found[segment] = ids
        bos = self._vocabulary.tokenize("", parse_special=True, add_bos=True)[:1] if add_bos else []
        return np.concatenate([as_tokens(bos), *(found[segment] for segment in segments)])

    def remember_answer(self, salt: bytes, prompt: str, answer: str, answer_ids: Sequence[int]) -> bool:
        """After an answer: keep its own ids for when it comes back as part of a prompt.

        `answer_ids` are those generated, which may go beyond `answer` when a stop string cut it. False when
        nothing can be kept: no answer, or one that would be cut at a special token written in it."""
        if self.splitter is None or not answer or self.splitter.search(answer):
            return False
        tail = self._split(prompt)[-1]
        if self.splitter.fullmatch(tail):
            tail = ""
        ids = [*self._tokenise(tail).tolist(), *self._own_ids(answer, answer_ids)]
        self.cache.put(salt, tail + answer, as_tokens(ids))
        return True

    def _own_ids(self, answer: str, answer_ids: Sequence[int]) -> list[int]:
        """`answer_ids` as far as they spell `answer`, then the ids of what is left of its text."""
        raw = answer.encode()
        count, end, spelt = 0, 0, 0  # up to the last whole character; and bytes spelt so far
        for number, token in enumerate(answer_ids, 1):
            piece = self._vocabulary.piece(token)
            if not piece or raw[spelt : spelt + len(piece)] != piece:
                break
            spelt += len(piece)
            is_whole = spelt == len(raw) or raw[spelt] & 0b1100_0000 != 0b1000_0000  # no UTF-8 continuation byte
            if is_whole:
                count, end = number, spelt
        return [*answer_ids[:count], *self._tokenise(raw[end:].decode()).tolist()]

    def _split(self, text: str) -> list[str]:
        """The segments and the special tokens between them, in order; no empty ones, but for an empty text."""
        if self.splitter is None:
            return [text]
        cuts = [0, *itertools.chain.from_iterable(match.span() for match in self.splitter.finditer(text)), len(text)]
        return [text[start:end] for start, end in itertools.pairwise(cuts) if start < end] or [""]

    def _tokenise_all(self, segments: Iterable[str]) -> list[Tokens]:
        return [self._tokenise(segment) for segment in segments]

    def _tokenise(self, segment: str) -> Tokens:
        return as_tokens(self._vocabulary.tokenize(segment, parse_special=True))


def make_tokeniser(vocabulary: Vocabulary, cache_bytes_max: int) -> Tokeniser:
    """A tokeniser that is proven on sample texts; its `splitter` is None when segments are not exact."""
    cache = SegmentCache(cache_bytes_max)
    cuts = _cut_tokens(vocabulary.special_tokens)
    if not cuts:
        return Tokeniser(vocabulary, None, cache)
    splitter = re.compile("|".join(map(re.escape, cuts)))
    segmented = Tokeniser(vocabulary, splitter, cache)
    is_exact = all(_is_exact(segmented, vocabulary, text) for text in _check_texts(cuts))
    return segmented if is_exact else Tokeniser(vocabulary, None, cache)


def _cut_tokens(special_tokens: Iterable[str]) -> list[str]:
    """The special tokens that a text can be cut at, longest first: those that share no text with another.

    llama.cpp looks for one special token after the other, the longest first, all over the text. Cutting
    from left to right is the same only for tokens that can neither contain nor overlap another one."""
    texts = {text for text in special_tokens if text}
    starts = {text[:end] for text in texts for end in range(1, len(text))}
    entangled: set[str] = set()
    for text in texts:
        inner = {text[start:end] for start in range(len(text)) for end in range(start + 1, len(text) + 1)} - {text}
        contained = inner & texts
        ends = {text[start:] for start in range(1, len(text))} & starts
        overlapping = {other for other in texts if any(other.startswith(end) for end in ends)}
        if contained or overlapping:
            entangled |= contained | overlapping | {text}
    return sorted(texts - entangled, key=lambda text: (-len(text), text))


def _check_texts(cuts: Sequence[str]) -> Iterable[str]:
    yield from _CHECK_TEXTS
    for cut in cuts[:_CHECK_SPECIALS_MAX]:
        for before, after in zip(_CHECK_TEXTS, reversed(_CHECK_TEXTS), strict=True):
            yield before + cut + after
    yield "".join(itertools.chain.from_iterable(zip(cuts, itertools.cycle(_CHECK_TEXTS), strict=False)))


def _is_exact(segmented: Tokeniser, vocabulary: Vocabulary, text: str) -> bool:
    pieces = segmented._tokenise_all(segmented._split(text))
    ids: list[int] = np.concatenate(pieces).tolist()
    return ids == vocabulary.tokenize(text, parse_special=True)


async def _off_loop(chars: int, work: Callable[[_Input], _Output], argument: _Input) -> _Output:
    """`work(argument)`, in a thread when there are many `chars` of it."""
    if chars <= _THREAD_CHARS:
        return work(argument)
    return await asyncio.to_thread(work, argument)
