"""How each API writes an answer: chat completions and completions, whole and in chunks."""

from typing import Protocol

from gateway.schema import AnswerDelta, AnswerMessage, Choice, PromptTokensDetails, TurnFacts, Usage
from gateway.turn import Answer


class AnswerShape(Protocol):
    """One API's way to write choices."""

    id_prefix: str
    object_whole: str
    object_chunk: str

    def first(self) -> list[Choice]:
        """What a stream begins with, before any text."""
        ...

    def piece(self, text: str) -> Choice: ...

    def last(self, finish_reason: str) -> Choice: ...

    def whole(self, text: str, finish_reason: str) -> Choice: ...


class ChatShape:
    id_prefix = "chatcmpl-"
    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"

    def first(self) -> list[Choice]:
        return [Choice(None, delta=AnswerDelta(role="assistant", content=""))]

    def piece(self, text: str) -> Choice:
        return Choice(None, delta=AnswerDelta(content=text))

    def last(self, finish_reason: str) -> Choice:
        return Choice(finish_reason, delta=AnswerDelta())

    def whole(self, text: str, finish_reason: str) -> Choice:
        return Choice(finish_reason, message=AnswerMessage(text))


class CompletionShape:
    id_prefix = "cmpl-"
    object_whole = "text_completion"
    object_chunk = "text_completion"

    def first(self) -> list[Choice]:
        return []

    def piece(self, text: str) -> Choice:
        return Choice(None, text=text)

    def last(self, finish_reason: str) -> Choice:
        return Choice(finish_reason, text="")

    def whole(self, text: str, finish_reason: str) -> Choice:
        return Choice(finish_reason, text=text)


def usage_of(answer: Answer, prompt_tokens: int) -> Usage:
    """OpenAI's usage of a finished answer: cached tokens are those that were not computed."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=answer.tokens,
        total_tokens=prompt_tokens + answer.tokens,
        prompt_tokens_details=PromptTokensDetails(answer.prompt.tokens_hot + answer.prompt.tokens_restored),
    )


def facts_of(answer: Answer) -> TurnFacts:
    """Our extension of a finished answer."""
    prompt = answer.prompt
    return TurnFacts(
        worker=answer.worker,
        tokens_hot=prompt.tokens_hot,
        tokens_restored=prompt.tokens_restored,
        tokens_computed=prompt.tokens_computed,
        queue_ms=round(prompt.queue_ms, 3),
        restore_ms=round(prompt.restore_ms, 3),
        prefill_ms=round(prompt.prefill_ms, 3),
    )
