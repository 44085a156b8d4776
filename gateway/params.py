"""From a request's fields to the engine's parameters; what cannot be served is refused in words.

Whatever would change the answer and is not built is refused, so that no client gets another answer
than it asked for without knowing. Defaults are OpenAI's (temperature 1), but for the length: without
`max_tokens` an answer may take the rest of the context.
"""

import math

from engine.wire import engine_pb2 as pb
from gateway.errors import ApiError
from gateway.schema import ChatRequest, CompletionRequest, GenerationRequest

TEMPERATURE_MAX = 2.0
STOPS_MAX = 16
STOP_BYTES_MAX = 256
_UINT64_MASK = (1 << 64) - 1
_UINT32_MAX = (1 << 32) - 1


def check_chat(request: ChatRequest) -> None:
    """Raises: ApiError naming the first field that cannot be served."""
    _check_common(request)
    choice = request.tool_choice
    _refuse("tool_choice", isinstance(choice, dict) or choice not in (None, "auto", "none"), "only auto and none")
    _refuse("functions", bool(request.functions), "send `tools` instead")
    format_type = request.response_format.type if request.response_format else "text"
    _refuse("response_format", format_type != "text", "only text")
    _refuse("logprobs", bool(request.logprobs or request.top_logprobs), "leave it out")
    _refuse("modalities", any(kind != "text" for kind in request.modalities or ()), "only text")


def check_completion(request: CompletionRequest) -> None:
    """Raises: ApiError naming the first field that cannot be served."""
    _check_common(request)
    _refuse("best_of", request.best_of not in (None, 1), "only 1")
    _refuse("echo", bool(request.echo), "leave it out")
    _refuse("suffix", bool(request.suffix), "leave it out")
    _refuse("logprobs", request.logprobs is not None, "leave it out")


def sampling_of(request: GenerationRequest) -> pb.Sampling:
    """The engine's sampling parameters.

    Raises: ApiError for a value out of its range."""
    temperature = 1.0 if request.temperature is None else request.temperature
    _check_range("temperature", temperature, 0.0, TEMPERATURE_MAX)
    top_p = 1.0 if request.top_p is None else request.top_p
    _check_range("top_p", top_p, 0.0, 1.0)
    min_p = request.min_p or 0.0
    _check_range("min_p", min_p, 0.0, 1.0)
    top_k = max(0, request.top_k or 0) if request.top_k != -1 else 0  # -1 is what vLLM calls off
    _check_range("top_k", request.top_k or 0, -1, _UINT32_MAX)
    if top_p == 0.0:
        temperature = 0.0  # no probability mass but the likeliest token's; 0 means off to the engine
    sampling = pb.Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    if request.seed is not None:
        sampling.seed = request.seed & _UINT64_MASK
    return sampling


def stops_of(request: GenerationRequest) -> list[str]:
    """The stop strings, at most 16.

    Raises: ApiError when there are more, or one is empty or too long."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > STOPS_MAX:
        raise ApiError(f"{len(stops)} stop strings, expected at most {STOPS_MAX}", param="stop")
    for stop in stops:
        if not 1 <= len(stop.encode()) <= STOP_BYTES_MAX:
            raise ApiError(
                f"a stop string has {len(stop.encode())} bytes, expected 1 to {STOP_BYTES_MAX}", param="stop"
            )
    return stops


def tokens_max_of(request: GenerationRequest, prompt_tokens: int, context_tokens: int) -> int:
    """Tokens that the answer may have: what was asked for, within what the context leaves.

    Raises: ApiError for a prompt that fills the context, or a limit below 1."""
    if prompt_tokens >= context_tokens:
        raise ApiError(
            f"the prompt has {prompt_tokens} tokens, and the context of this model is {context_tokens} tokens, "
            "prompt and answer together: shorten the prompt",
            param="messages" if isinstance(request, ChatRequest) else "prompt",
            code="context_length_exceeded",
        )
    asked = request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        asked = request.max_completion_tokens
    if asked is not None and asked < 1:
        raise ApiError(f"max_tokens is {asked}, expected at least 1", param="max_tokens")
    rest = context_tokens - prompt_tokens
    return rest if asked is None else min(asked, rest)


def _check_common(request: GenerationRequest) -> None:
    _refuse("n", request.n not in (None, 1), "only 1")
    _refuse("logit_bias", bool(request.logit_bias), "leave it out")
    _refuse("presence_penalty", bool(request.presence_penalty), "only 0")
    _refuse("frequency_penalty", bool(request.frequency_penalty), "only 0")


def _refuse(param: str, is_asked: bool, hint: str) -> None:
    if is_asked:
        raise ApiError(f"`{param}` with this value is not supported ({hint})", param=param, code="unsupported_value")


def _check_range(param: str, value: float, low: float, high: float) -> None:
    if math.isnan(value) or not low <= value <= high:
        raise ApiError(f"{param} is {value}, expected {low} to {high}", param=param)
