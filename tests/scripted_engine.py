"""A worker for tests of the gateway: the engine's gRPC protocol, with answers from a script and no model.

It tokenises its scripted answers with the real vocabulary, so that what it streams is what a model could.
"""

import asyncio
import hashlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from engine.vocab import Vocab
from engine.wire import engine_pb2 as pb
from engine.wire.engine_pb2_grpc import EngineServicer, add_EngineServicer_to_server

_incarnations = itertools.count(1)


@dataclass
class Script:
    """How one turn is answered."""

    pieces: Sequence[str] = ("Hello", ", ", "world", "!")
    ids: Sequence[Sequence[int]] | None = None
    """Token ids of each piece; by default those of its text."""
    tokens_hot: int = 0
    tokens_restored: int = 0
    finish: "pb.Finished.Reason" = pb.Finished.REASON_STOP
    fail_at: int | None = None
    """Fail with `fail_code` before this piece; 0 is before the answer begins."""
    fail_code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    hold_at: int | None = None
    """Wait for `release` before this piece."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    is_silent_end: bool = False
    """End the stream without `finished`, as no worker should."""


class ScriptedEngine(EngineServicer):
    """Answers turns by `scripts`, first in first out, then by default ones; notes what it was asked."""

    def __init__(self, vocab: Vocab, model_path: Path, **described: object) -> None:
        self.vocab = vocab
        self.described: dict[str, object] = {
            "worker_id": "scripted",
            "model_name": "smollm2",
            "model_digest": hashlib.sha256(b"model").digest(),
            "kv_properties": {"kv_type_k": "q8_0"},
            "block_tokens": 32,
            "context_tokens": 2048,
            "vocab_size": vocab.size,
            "slots": 4,
            "kv_bytes_per_token": 12_000,
            "model_path": str(model_path),
            "has_store": True,
            **described,
        }
        self.scripts: deque[Script] = deque()
        self.describes = 0
        self.requests: list[pb.GenerateRequest] = []
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.load = pb.Load()
        self.hot: set[bytes] = set()
        self.address = ""
        self._changes: list[asyncio.Queue[pb.WatchResponse]] = []
        self._incarnation = 0
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen: on a free port the first time, on the same one after `kill`."""
        self._incarnation = next(_incarnations)
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_EngineServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = self.address or f"127.0.0.1:{port}"
        await self._server.start()

    async def kill(self) -> None:
        """Cut every stream and forget what is hot, as a process that dies does."""
        if self._server is not None:
            await self._server.stop(None)
        self._server = None
        self.hot.clear()
        self._changes.clear()

    def change(
        self, *, added: Sequence[bytes] = (), removed: Sequence[bytes] = (), load: pb.Load | None = None
    ) -> None:
        """Tell the watchers."""
        self.hot.update(added)
        self.hot.difference_update(removed)
        self.load = load or self.load
        for queue in self._changes:
            queue.put_nowait(self._message(added, removed))

    async def Describe(self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext) -> pb.DescribeResponse:  # noqa: N802
        self.describes += 1
        return pb.DescribeResponse(incarnation=self._incarnation, **self.described)  # type: ignore[arg-type]

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchResponse]:
        queue: asyncio.Queue[pb.WatchResponse] = asyncio.Queue()
        self._changes.append(queue)
        snapshot = self._message(sorted(self.hot), ())
        snapshot.is_reset = True
        yield snapshot
        while True:
            try:
                async with asyncio.timeout(1):
                    yield await queue.get()
            except TimeoutError:
                yield self._message((), ())

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        self.begun.put_nowait(request.turn_id)
        script = self.scripts.popleft() if self.scripts else Script()
        try:
            async for response in self._answer(script, request, context):
                yield response
        except (asyncio.CancelledError, GeneratorExit):  # the latter when gRPC was sending
            self.cancelled.put_nowait(request.turn_id)
            raise

    async def _answer(
        self, script: Script, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        tokens = len(request.tokens)
        cached = script.tokens_hot + script.tokens_restored
        answer_tokens = 1  # the end-of-generation token
        for place, piece in enumerate([*script.pieces, ""]):
            if script.hold_at == place:
                await script.release.wait()
            if script.fail_at == place:
                await context.abort(script.fail_code, "scripted failure")
            if place == 0:
                done = pb.PromptDone(
                    tokens=tokens,
                    tokens_hot=script.tokens_hot,
                    tokens_restored=script.tokens_restored,
                    tokens_computed=tokens - cached,
                    prefill_ms=1.5,
                )
                yield pb.GenerateResponse(prompt_done=done)
            if piece:
                ids = script.ids[place] if script.ids else self.vocab.tokenize(piece, parse_special=False)
                answer_tokens += len(ids)
                yield pb.GenerateResponse(delta=pb.Delta(tokens=ids, text=piece))
        if not script.is_silent_end:
            yield pb.GenerateResponse(finished=pb.Finished(reason=script.finish, tokens=answer_tokens))

    def _message(self, added: Sequence[bytes], removed: Sequence[bytes]) -> pb.WatchResponse:
        return pb.WatchResponse(incarnation=self._incarnation, hot_added=added, hot_removed=removed, load=self.load)
