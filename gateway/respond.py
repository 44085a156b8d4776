"""From a running turn to HTTP: one JSON body, or a stream of server-sent events.

Nothing is sent before the first piece of text, so that a turn that fails early has a status of its own.
A stream that fails later ends with an error event and without [DONE]. A client that leaves takes its turn
with it: the engine call is cancelled at once. Every turn leaves one log line, however it ends.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Receive, Scope, Send

from gateway.disconnect import ClientGoneError, while_connected
from gateway.errors import http_error
from gateway.runner import TurnRunner
from gateway.schema import Choice, Completion, Usage
from gateway.shapes import AnswerShape, facts_of, usage_of
from gateway.turn import Answer, Turn
from gateway.turn_log import TurnLog
from kvstore.core.errors import StockpotError, UnavailableError

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"


class TurnResponse:
    """An ASGI response: runs `turn` when it is called with a connection, and writes what comes of it.

    Raises, only while nothing has been sent: what `TurnRunner.run` raises."""

    def __init__(
        self, turn: Turn, shape: AnswerShape, runner: TurnRunner, log: TurnLog, *, deadline_s: float, has_usage: bool
    ) -> None:
        self._turn = turn
        self._shape = shape
        self._runner = runner
        self._log = log
        self._deadline_s = deadline_s
        self._has_usage = has_usage
        self._answer = Answer()
        self._created = int(time.time())
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = self._write_stream if self._turn.is_streamed else self._write_whole
        outcome, failure = "failed", None
        with self._log.running(self._turn):
            try:
                await while_connected(receive, write(send))
                outcome = self._answer.finish_reason
            except ClientGoneError:
                outcome = "cancelled"
            except StockpotError as error:
                failure = error
                if not self._is_started:
                    raise
                outcome = "cut"
                await self._send_body(send, _event(http_error(error).body), is_last=True)
            finally:
                self._log.ended(self._turn, self._answer, outcome, failure)

    async def _pieces(self) -> AsyncGenerator[str, None]:
        """The answer's text, within the turn's deadline."""
        deadline = asyncio.get_running_loop().time() + self._deadline_s
        async with contextlib.aclosing(self._runner.run(self._turn, self._answer)) as pieces:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        piece = await anext(pieces)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise UnavailableError(f"the turn took longer than {self._deadline_s:g} s") from None
                yield piece

    async def _write_whole(self, send: Send) -> None:
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for _ in pieces:
                pass  # a turn that is tried again begins anew: only the finished answer counts
        choice = self._shape.whole(self._answer.text, self._answer.finish_reason)
        body = self._completion(self._shape.object_whole, [choice], self._usage(), with_facts=True)
        await self._start(send, b"application/json")
        await self._send_body(send, _encode(body), is_last=True)

    async def _write_stream(self, send: Send) -> None:
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                if not self._is_started:
                    await self._start_stream(send)
                await self._send_body(send, self._chunk([self._shape.piece(piece)]))
        if not self._is_started:
            await self._start_stream(send)
        tail = self._chunk([self._shape.last(self._answer.finish_reason)])
        if self._has_usage:
            tail += _event(self._completion(self._shape.object_chunk, [], self._usage(), with_facts=True))
        await self._send_body(send, tail + _DONE, is_last=True)

    async def _start_stream(self, send: Send) -> None:
        await self._start(send, b"text/event-stream; charset=utf-8")
        for choice in self._shape.first():
            await self._send_body(send, self._chunk([choice]))

    async def _start(self, send: Send, content_type: bytes) -> None:
        self._is_started = True
        headers = [
            (b"content-type", content_type),
            (b"cache-control", b"no-store"),
            (b"x-request-id", self._turn.turn_id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_body(self, send: Send, body: bytes, *, is_last: bool = False) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": not is_last})

    def _chunk(self, choices: list[Choice]) -> bytes:
        # With include_usage OpenAI writes `usage: null` into every chunk but the last.
        return _event(self._completion(self._shape.object_chunk, choices, None if self._has_usage else UNSET))

    def _usage(self) -> Usage:
        return usage_of(self._answer, len(self._turn.tokens))

    def _completion(
        self, kind: str, choices: list[Choice], usage: Usage | UnsetType | None, *, with_facts: bool = False
    ) -> Completion:
        return Completion(
            id=self._shape.id_prefix + self._turn.turn_id,
            object=kind,
            created=self._created,
            model=self._turn.model.name,
            choices=choices,
            usage=usage,
            stockpot=facts_of(self._answer) if with_facts else UNSET,
        )


def _event(data: msgspec.Struct) -> bytes:
    return b"data: " + _encode(data) + b"\n\n"
