"""One turn of an agent, through the OpenAI API: ask, stream the answer, note what it cost."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionMessageParam

Message = dict[str, str]
TURN_DEADLINE_S = 1800.0
"""For the whole turn, as the gateway's own. Two cold 6k-token prompts on one core take four minutes together."""


class TurnError(Exception):
    """The turn brought no whole answer; the message is for a person."""


class TurnExtension(msgspec.Struct, frozen=True):
    """The object `stockpot` in a stream's last chunk (docs/api.md): where the prompt's KV came from."""

    worker: str
    tokens_hot: int
    tokens_restored: int
    tokens_computed: int
    queue_ms: float
    restore_ms: float
    prefill_ms: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one prompt."""

    text: str
    ttft_ms: float
    """From sending the request to the first piece of text."""
    total_ms: float
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    extension: TurnExtension


def new_salt() -> str:
    """A salt that no turn has used: its namespace is empty."""
    return uuid.uuid4().hex


async def ask(
    client: openai.AsyncOpenAI, model: str, messages: Sequence[Message], tokens_max: int, cache_salt: str | None
) -> Answer:
    """Stream one greedy answer of at most `tokens_max` tokens to `messages`.

    With a `cache_salt` only KV stored under the same salt is used.
    Raises: TurnError."""
    start = time.perf_counter()
    first_text: float | None = None
    pieces: list[str] = []
    usage: CompletionUsage | None = None
    extension: Any = None
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=cast("list[ChatCompletionMessageParam]", list(messages)),
            max_tokens=tokens_max,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={} if cache_salt is None else {"cache_salt": cache_salt},
        )
        async for chunk in stream:
            if chunk.choices and (text := chunk.choices[0].delta.content):
                first_text = first_text or time.perf_counter()
                pieces.append(text)
            if chunk.usage is not None:
                usage = chunk.usage
                extension = (chunk.model_extra or {}).get("stockpot")
    except openai.OpenAIError as error:
        raise TurnError(f"{type(error).__name__}: {error}") from error
    end = time.perf_counter()
    if usage is None:
        raise TurnError("the stream ended before its usage chunk: the answer was cut")
    return Answer(
        text="".join(pieces),
        ttft_ms=1000 * ((first_text or end) - start),
        total_ms=1000 * (end - start),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0,
        answer_tokens=usage.completion_tokens,
        extension=_extension(extension),
    )


def _extension(value: Any) -> TurnExtension:
    try:
        return msgspec.convert(value, TurnExtension)
    except msgspec.ValidationError as error:
        raise TurnError(f"the usage chunk has no `stockpot` object as docs/api.md describes it: {error}") from error
