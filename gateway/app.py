"""The HTTP side: routes, bodies, and every error in OpenAI's shape.

Walk of a turn: authenticate, read and decode the body (here), `prepare` (template, tokens), `turn` (route,
stream), `respond` (JSON or events).
"""

import time
import uuid
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.bugs import CatchBugs, json_response
from gateway.errors import ApiError, ErrorBody, ErrorDetail, HttpError, http_error
from gateway.index import PrefixIndex
from gateway.log import log_event
from gateway.metrics import GatewayMetrics
from gateway.nodes import NodeFollower
from gateway.pool import WorkerPool
from gateway.prepare import Arrival, TurnMaker
from gateway.respond import TurnResponse
from gateway.runner import TurnRunner
from gateway.schema import ChatRequest, CompletionRequest, GenerationRequest, ModelCard, ModelList
from gateway.settings import GatewaySettings
from gateway.shapes import AnswerShape, ChatShape, CompletionShape
from gateway.tenants import Tenant, Tenants
from gateway.turn import Turn
from gateway.turn_log import TurnLog
from kvstore.core.errors import StockpotError

_Body = TypeVar("_Body", bound=GenerationRequest)


class Api:
    """Handlers of all routes; holds what they share."""

    def __init__(
        self,
        settings: GatewaySettings,
        pool: WorkerPool,
        nodes: NodeFollower,
        index: PrefixIndex,
        metrics: GatewayMetrics,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._nodes = nodes
        self._index = index
        self._metrics = metrics
        self._tenants = Tenants(settings.api_keys, shared_prefix=settings.shared_prefix)
        self._maker = TurnMaker(pool, messages_max=settings.messages_max)
        self._log = TurnLog(metrics)
        self._runner = TurnRunner(
            pool,
            index,
            metrics,
            queue_per_worker_max=settings.queue_per_worker_max,
            retries_max=settings.turn_retries,
        )

    def asgi(self) -> ASGIApp:
        """The application; errors of any kind leave it as OpenAI's error body."""
        routes = [
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.metrics),
        ]
        handlers = {StockpotError: self.on_error, HTTPException: self.on_http_exception}
        return CatchBugs(Starlette(routes=routes, exception_handlers=handlers), self._metrics)  # type: ignore[arg-type]

    async def chat_completions(self, request: Request) -> TurnResponse:
        arrival = self._arrival(request)
        chat = await self._body(request, ChatRequest)
        return self._respond(await self._maker.chat_turn(chat, arrival), chat, ChatShape())

    async def completions(self, request: Request) -> TurnResponse:
        arrival = self._arrival(request)
        completion = await self._body(request, CompletionRequest)
        return self._respond(await self._maker.completion_turn(completion, arrival), completion, CompletionShape())

    async def models(self, request: Request) -> Response:
        self._authenticate(request)
        return json_response(ModelList(self._model_cards()))

    async def model(self, request: Request) -> Response:
        self._authenticate(request)
        name = request.path_params["name"]
        for card in self._model_cards():
            if card.id == name:
                return json_response(card)
        raise ApiError(f"the model `{name}` does not exist", status=404, param="model", code="model_not_found")

    async def health(self, request: Request) -> Response:
        """The process answers: nothing is said about workers."""
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when turns can be served."""
        workers = len(self._pool.ready())
        return json_response(
            {"status": "ready" if workers else "no worker is ready", "workers": workers}, 200 if workers else 503
        )

    async def metrics(self, request: Request) -> Response:
        self._metrics.workers_ready.set(len(self._pool.ready()))
        self._metrics.nodes_watched.set(len(self._nodes.watched))
        self._metrics.index_blocks.set(len(self._index))
        self._metrics.index_dropped_blocks.set(self._index.blocks_dropped)
        return Response(self._metrics.expose(), media_type="text/plain; version=0.0.4")

    async def on_error(self, request: Request, error: StockpotError) -> Response:
        return self._error_response(http_error(error))

    async def on_http_exception(self, request: Request, error: HTTPException) -> Response:
        """Starlette's own: no such path, or not with this method."""
        detail = ErrorDetail(f"{error.detail}: {request.method} {request.url.path}", "invalid_request_error")
        return self._error_response(HttpError(error.status_code, ErrorBody(detail), error.headers or {}))

    def _error_response(self, error: HttpError) -> Response:
        self._metrics.refused.labels(error.status).inc()
        detail = error.body.error
        log_event("request_refused", status=error.status, type=detail.type, code=detail.code or "none")
        response = json_response(error.body, error.status)
        response.headers.update(error.headers)
        return response

    def _respond(self, turn: Turn, request: GenerationRequest, shape: AnswerShape) -> TurnResponse:
        options = request.stream_options
        return TurnResponse(
            turn,
            shape,
            self._runner,
            self._log,
            deadline_s=self._settings.turn_deadline_s,
            has_usage=bool(options and options.include_usage),
        )

    def _arrival(self, request: Request) -> Arrival:
        return Arrival(uuid.uuid4().hex, self._authenticate(request), time.monotonic())

    def _authenticate(self, request: Request) -> Tenant:
        return self._tenants.authenticate(request.headers.get("authorization"))

    def _model_cards(self) -> list[ModelCard]:
        if (model := self._pool.model) is None or not self._pool.ready():
            return []
        return [ModelCard(model.name, model.created, self._pool.context_tokens())]

    async def _body(self, request: Request, kind: type[_Body]) -> _Body:
        """The decoded body.

        Raises: ApiError for one that is too large, is no JSON, or lacks a field."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._settings.body_bytes_max:
                raise ApiError(
                    f"the body is larger than {self._settings.body_bytes_max} bytes", status=413, code="body_too_large"
                )
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise ApiError(f"the request does not fit: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(f"the body is no valid JSON: {error}") from None
        except RecursionError:
            raise ApiError("the body is nested too deeply") from None
