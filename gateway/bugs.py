"""The outermost layer of the HTTP side: what nobody expected still gets an answer."""

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import http_error
from gateway.log import log_bug
from gateway.metrics import GatewayMetrics


class CatchBugs:
    """An error that nobody expected becomes a 500 and a log line without its message."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except ClientDisconnect:
            return  # while it was sending its body
        except Exception as error:  # noqa: BLE001 the outermost handler
            self._metrics.refused.labels(500).inc()
            log_bug("bug", error, path=scope.get("path", ""))
            if not is_started:
                answer = http_error(error)
                await json_response(answer.body, answer.status)(scope, receive, send)


def json_response(body: object, status: int = 200) -> Response:
    """A whole JSON answer."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")
