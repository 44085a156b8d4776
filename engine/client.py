"""One worker as its callers see it: gRPC calls with deadlines, errors in the words of `kvstore.core.errors`.

The gateway holds one client for each worker's address for as long as it runs; gRPC connects, and
connects again, underneath.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from engine.wire import engine_pb2 as pb
from engine.wire.engine_pb2_grpc import EngineStub
from kvstore.core.errors import CallerError, LimitError, StockpotError, UnavailableError

_CHANNEL_OPTIONS = (
    # A prompt of 1M tokens is at most 5 MB.
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    # A restarted worker is back within seconds; gRPC's default would look again after up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Two clients of one address must not share a connection's back-off.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class EngineDeadlines:
    """How long each wait on a worker may take, in seconds."""

    call_s: float = 10.0
    """A whole unary call."""
    first_message_s: float = 600.0
    """`generate`: queue, restore and prefill of the prompt. A long prompt takes minutes on a CPU."""
    next_message_s: float = 60.0
    """`generate`: between two messages after the first."""
    watch_s: float = 5.0
    """`watch`: between two messages; the worker promises one a second."""
    drain_s: float = 60.0


class EngineClient:
    """Owns one channel to one worker; `close()` ends it."""

    def __init__(self, channel: Any, address: str, deadlines: EngineDeadlines) -> None:
        self.address = address
        self._channel = channel
        self._stub = EngineStub(channel)  # type: ignore[no-untyped-call]
        self._deadlines = deadlines

    @classmethod
    def connect(cls, address: str, *, deadlines: EngineDeadlines | None = None) -> "EngineClient":
        """A client of the worker at `address` (`host:port`), which may be down still: the first call connects.

        Needs a running event loop."""
        channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        return cls(channel, address, deadlines or EngineDeadlines())

    async def describe(self) -> pb.DescribeResponse:
        """What the worker serves.

        Raises: UnavailableError when it is down or still loading."""
        answer: pb.DescribeResponse = await self._unary(
            self._stub.Describe, pb.DescribeRequest(), self._deadlines.call_s
        )
        return answer

    def generate(self, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Run one turn; closing the generator cancels it on the worker.

        Raises, from the first message on: CallerError, LimitError (queue full), UnavailableError (worker
        down, draining, or silent for longer than the deadline)."""
        call = self._stub.Generate
        return self._messages(call, request, self._deadlines.first_message_s, self._deadlines.next_message_s)

    def watch(self) -> AsyncGenerator[pb.WatchResponse, None]:
        """The worker's load and hot keys, a snapshot first; never ends by itself.

        Raises: UnavailableError when the worker is lost or silent."""
        watch_s = self._deadlines.watch_s
        return self._messages(self._stub.Watch, pb.WatchRequest(), watch_s, watch_s)

    async def drain(self, deadline_ms: int = 0) -> pb.DrainResponse:
        """Stop admitting, wait for what runs (`deadline_ms`, 0 for the worker's default), export it."""
        timeout_s = max(self._deadlines.drain_s, deadline_ms / 1000 + self._deadlines.call_s)
        request = pb.DrainRequest(deadline_ms=deadline_ms)
        answer: pb.DrainResponse = await self._unary(self._stub.Drain, request, timeout_s)
        return answer

    async def close(self) -> None:
        """End the channel; calls that still run are cancelled."""
        await self._channel.close()

    async def _unary(self, call: Any, request: Any, timeout_s: float) -> Any:
        try:
            return await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            self._raise(error)

    async def _messages(self, method: Any, request: Any, first_s: float, next_s: float) -> AsyncGenerator[Any, None]:
        call = method(request)
        wait_s = first_s
        try:
            while True:
                async with asyncio.timeout(wait_s):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    return
                yield message
                wait_s = next_s
        except TimeoutError:
            raise UnavailableError(f"worker {self.address} sent nothing for {wait_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            self._raise(error)
        finally:
            call.cancel()

    def _raise(self, error: Any) -> NoReturn:
        raise error_of(error.code(), f"worker {self.address}: {error.details()}") from error


def error_of(code: Any, message: str) -> StockpotError:
    """The one place where a worker's gRPC status becomes an error of ours."""
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return CallerError(message)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return LimitError(message)
    # Down, draining, cut, too slow; and a bug of that worker's, which another one may not have.
    return UnavailableError(message)
