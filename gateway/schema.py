"""What clients send and get: OpenAI's chat completions, completions and models, declared once.

Fields that are not named here are ignored. Fields that are named and cannot be served are refused by
`gateway.params`. Beside OpenAI's: `top_k`, `min_p`, `cache_salt` in requests, `stockpot` in answers.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What chat completions and completions share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    cache_salt: str | None = None
    n: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(msgspec.Struct, frozen=True):
    function: FunctionCall
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]
    """Text, or token ids; a list holds one prompt."""
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TurnFacts(msgspec.Struct, frozen=True):
    """Our extension `stockpot`: where the prompt's tokens came from, and what that took."""

    worker: str
    tokens_hot: int
    tokens_restored: int
    tokens_computed: int
    queue_ms: float
    restore_ms: float
    prefill_ms: float


class AnswerMessage(msgspec.Struct, frozen=True):
    content: str
    role: str = "assistant"


class AnswerDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True):
    """Exactly one of `message` (chat), `delta` (chat stream) and `text` (completions) is set."""

    finish_reason: str | None
    index: int = 0
    message: AnswerMessage | UnsetType = UNSET
    delta: AnswerDelta | UnsetType = UNSET
    text: str | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True):
    """An answer, or one chunk of a stream, of either API; `object` tells which."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    stockpot: TurnFacts | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    created: int
    context_tokens: int
    object: str = "model"
    owned_by: str = "stockpot"


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"
