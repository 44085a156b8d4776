"""The gRPC path: a channel and the calls on it, with gRPC's errors turned into ours."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc

from kvstore.core.errors import UnavailableError
from kvstore.rpc_codes import error_of
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import MESSAGE_BYTES_MAX

_SERVICE = pb.DESCRIPTOR.services_by_name["KVStore"]
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # A restarted node is found again within a second instead of two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A watch on a node that hangs ends after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
]

Answer = TypeVar("Answer")


class RemoteNode:
    """The gRPC calls of one node. Their deadlines are the callers' (`within`)."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._unary: dict[str, Any] = {}

    async def call(self, name: str, request: Any) -> Any:
        """The answer to the unary call `name`. Raises: StockpotError."""
        method = self._unary.get(name)
        if method is None:
            method = self._unary[name] = self._unary_method(name)
        with grpc_errors():
            return await method(request)

    def get(self, request: pb.GetRequest) -> Any:
        """A stream of serialised `GetResponse`s."""
        return self._channel.unary_stream(_path("Get"), request_serializer=pb.GetRequest.SerializeToString)(request)

    def put(self) -> Any:
        """A stream of serialised `PutRequest`s and `PutResponse`s."""
        return self._channel.stream_stream(_path("Put"))()

    async def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchResponse]:
        """Events until the stream breaks. Raises: StockpotError."""
        method = self._channel.unary_stream(
            _path("Watch"),
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        stream = method(request)
        try:
            with grpc_errors():
                async for response in stream:
                    yield response
        finally:
            stream.cancel()

    async def close(self) -> None:
        """Close the channel; running calls are cancelled."""
        await self._channel.close()

    def _unary_method(self, name: str) -> Any:
        answer_type = getattr(pb, _SERVICE.methods_by_name[name].output_type.name)
        return self._channel.unary_unary(
            _path(name),
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer_type.FromString,
        )


@contextmanager
def grpc_errors() -> Iterator[None]:
    """Turn gRPC's errors into ours."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise error_of(error.code().value[0], error.details() or error.code().name) from error
    except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
        # What gRPC raises for a write on a stream that the node has ended, and on a closed channel.
        raise UnavailableError(f"the call to the node was cut: {error}") from error


async def within(deadline_s: float, answer: Awaitable[Answer]) -> Answer:
    """`answer`, if it comes within `deadline_s` seconds. Raises: UnavailableError otherwise."""
    try:
        async with asyncio.timeout(deadline_s):
            return await answer
    except TimeoutError:
        raise UnavailableError(f"node did not answer within {deadline_s:g} s") from None


def _path(method: str) -> str:
    return f"/{_SERVICE.full_name}/{method}"
