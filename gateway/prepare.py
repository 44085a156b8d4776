"""From a request to a Turn: model, parameters, chat template, tokens, length."""

from dataclasses import dataclass

from gateway.errors import ApiError
from gateway.model import ModelText, ServedModel
from gateway.params import check_chat, check_completion, sampling_of, stops_of, tokens_max_of
from gateway.pool import WorkerPool
from gateway.schema import ChatRequest, CompletionRequest, GenerationRequest
from gateway.tenants import Tenant
from gateway.turn import Turn
from kvstore.core.errors import UnavailableError
from kvstore.core.keys import Tokens, as_tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a request before its body is read."""

    turn_id: str
    tenant: Tenant
    at_s: float
    """By the gateway's clock."""


class TurnMaker:
    """Makes turns for the pool's model."""

    def __init__(self, pool: WorkerPool, *, messages_max: int) -> None:
        self._pool = pool
        self._messages_max = messages_max

    async def chat_turn(self, request: ChatRequest, arrival: Arrival) -> Turn:
        """Raises: ApiError for what cannot be served, UnavailableError while no worker is ready."""
        check_chat(request)
        model = self._model(request)
        if not 1 <= len(request.messages) <= self._messages_max:
            raise ApiError(f"{len(request.messages)} messages, expected 1 to {self._messages_max}", param="messages")
        if model.text.template is None:
            raise ApiError(f"the model {model.name!r} has no chat template: use /v1/completions", param="model")
        tools = request.tools if request.tools and request.tool_choice != "none" else ()
        prompt = model.text.template.render(request.messages, tools)
        tokens = await _tokenise(model.text, prompt, arrival.tenant.salt)
        return self._turn(request, model, arrival, tokens, prompt)

    async def completion_turn(self, request: CompletionRequest, arrival: Arrival) -> Turn:
        """Raises: as `chat_turn`."""
        check_completion(request)
        model = self._model(request)
        prompt = _one_prompt(request)
        if isinstance(prompt, str):
            tokens = await _tokenise(model.text, prompt, arrival.tenant.salt)
        else:
            vocab_size = model.text.vocab.size
            if any(not 0 <= token < vocab_size for token in prompt):
                raise ApiError(f"a token id of the prompt is not within 0 to {vocab_size - 1}", param="prompt")
            tokens = as_tokens(prompt)
        return self._turn(request, model, arrival, tokens, None)

    def _model(self, request: GenerationRequest) -> ServedModel:
        model = self._pool.model
        if model is None:
            raise UnavailableError("no worker has been reached yet; try again in a moment", retry_after_s=2.0)
        if request.model != model.name:
            raise ApiError(
                f"the model `{request.model}` does not exist; this gateway serves `{model.name}`",
                status=404,
                param="model",
                code="model_not_found",
            )
        return model

    def _turn(
        self, request: GenerationRequest, model: ServedModel, arrival: Arrival, tokens: Tokens, prompt: str | None
    ) -> Turn:
        if not len(tokens):
            raise ApiError("the prompt is empty: it needs at least one token", param="prompt")
        return Turn(
            turn_id=arrival.turn_id,
            model=model,
            salt=arrival.tenant.turn_salt(request.cache_salt),
            tenant_salt=arrival.tenant.salt,
            tokens=tokens,
            tokens_max=tokens_max_of(request, len(tokens), self._pool.context_tokens()),
            sampling=sampling_of(request),
            stop=stops_of(request),
            is_streamed=bool(request.stream),
            prompt_text=prompt,
            arrived_s=arrival.at_s,
        )


async def _tokenise(text: ModelText, prompt: str, salt: bytes) -> Tokens:
    """The prompt's ids, with the begin-of-text token where the model wants one and the text does not begin with it."""
    add_bos = text.vocab.add_bos and not (text.vocab.bos_text and prompt.startswith(text.vocab.bos_text))
    return await text.tokeniser.tokenise(prompt, salt, add_bos=add_bos)


def _one_prompt(request: CompletionRequest) -> str | list[int]:
    """The prompt of a completion: text, or token ids; a list may hold one such.

    Raises: ApiError for several prompts, or a mixed list."""
    match request.prompt:
        case str() as text:
            return text
        case [str() as text]:
            return text
        case [list() as tokens]:
            return tokens
        case list() as items if all(isinstance(item, int) for item in items):
            return [item for item in items if isinstance(item, int)]
    raise ApiError("`prompt` must be one text, or the token ids of one", param="prompt")
