"""gRPC in front of the service: handlers, limits, health and reflection.

`Get` and `Put` pass bytes through (identity serialisers), as the service frames them by hand.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kvstore.core.errors import ConfigError, StockpotError
from kvstore.node.bulk import BulkServer
from kvstore.node.managing import Management
from kvstore.node.metrics import CallTimer
from kvstore.node.observing import Observer
from kvstore.node.service import Service
from kvstore.rpc_codes import status_code
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import MESSAGE_BYTES_MAX

SERVICE = pb.DESCRIPTOR.services_by_name["KVStore"].full_name
_CALLS_MAX = 1024
_DRAIN_POLL_S = 0.02
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # two nodes on one port are a mistake that must show
    # Our clients ping every 10 s to notice a node that hangs; grpc's default takes that for abuse.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

Unary = Callable[[Any], Awaitable[Any]]
Streamed = Callable[[Any], AsyncIterator[Any]]


class GrpcServer:
    """The node's gRPC front."""

    def __init__(
        self, service: Service, management: Management, observer: Observer, bulk: BulkServer, timer: CallTimer
    ) -> None:
        self._timer = timer
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_CALLS_MAX)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        handlers = _handlers(service, management, observer, bulk, timer)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def start(self, listen: str) -> str:
        """Serve on `listen`; returns the address with the real port. Raises: ConfigError."""
        try:
            port = self._server.add_insecure_port(listen)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {listen}: the address is in use or not of this host") from error
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return f"{listen.rpartition(':')[0]}:{port}"

    async def drain(self, grace_s: float) -> None:
        """Say NOT_SERVING, take no new calls, give running ones `grace_s` seconds."""
        await self._health.enter_graceful_shutdown()
        stopping = asyncio.ensure_future(self._server.stop(grace_s))
        # Whoever watches our health would keep the server for the whole time: only our own calls count.
        while self._timer.running and not stopping.done():
            await asyncio.wait([stopping], timeout=_DRAIN_POLL_S)
        await self.stop()
        await stopping

    async def stop(self) -> None:
        """End now; running calls are cut."""
        await self._server.stop(0)


def _handlers(
    service: Service, management: Management, observer: Observer, bulk: BulkServer, timer: CallTimer
) -> dict[str, grpc.RpcMethodHandler]:
    async def match(request: pb.MatchRequest) -> pb.MatchResponse:
        answer = service.match(request, None)
        return answer if isinstance(answer, pb.MatchResponse) else await answer

    async def acquire(request: pb.AcquireRequest) -> pb.AcquireResponse:
        answer = service.acquire(request, None)
        return answer if isinstance(answer, pb.AcquireResponse) else await answer

    async def release(request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        return service.release(request)

    async def stats(request: pb.StatsRequest) -> pb.StatsResponse:
        return observer.stats(with_namespaces=request.with_namespaces)

    async def touch(request: pb.TouchRequest) -> pb.TouchResponse:
        return management.touch(request)

    async def unpin(request: pb.UnpinRequest) -> pb.UnpinResponse:
        return management.unpin(request)

    async def list_keys(request: pb.ListKeysRequest) -> pb.ListKeysResponse:
        return management.list_keys(request)

    async def open_bulk(_: pb.OpenBulkRequest) -> pb.OpenBulkResponse:
        return bulk.open()

    return {
        "OpenNamespace": _unary("OpenNamespace", service.open_namespace, pb.OpenNamespaceRequest, timer),
        "Match": _unary("Match", match, pb.MatchRequest, timer),
        "Acquire": _unary("Acquire", acquire, pb.AcquireRequest, timer),
        "Release": _unary("Release", release, pb.ReleaseRequest, timer),
        "Touch": _unary("Touch", touch, pb.TouchRequest, timer),
        "Pin": _unary("Pin", management.pin, pb.PinRequest, timer),
        "Unpin": _unary("Unpin", unpin, pb.UnpinRequest, timer),
        "Remove": _unary("Remove", management.remove, pb.RemoveRequest, timer),
        "BumpEpoch": _unary("BumpEpoch", management.bump_epoch, pb.BumpEpochRequest, timer),
        "ListKeys": _unary("ListKeys", list_keys, pb.ListKeysRequest, timer),
        "OpenBulk": _unary("OpenBulk", open_bulk, pb.OpenBulkRequest, timer),
        "Stats": _unary("Stats", stats, pb.StatsRequest, timer),
        "Get": grpc.unary_stream_rpc_method_handler(
            _streamed("Get", service.get, timer), request_deserializer=pb.GetRequest.FromString
        ),
        "Put": grpc.stream_stream_rpc_method_handler(_streamed("Put", service.put, timer)),
        "Watch": grpc.unary_stream_rpc_method_handler(
            _streamed("Watch", observer.watch, timer),
            request_deserializer=pb.WatchRequest.FromString,
            response_serializer=pb.WatchResponse.SerializeToString,
        ),
    }


def _unary(name: str, call: Unary, request_type: Any, timer: CallTimer) -> grpc.RpcMethodHandler:
    async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with timer.time("grpc", name):
            try:
                return await call(request)
            except StockpotError as error:
                await context.abort(status_code(error), str(error))

    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request_type.FromString, response_serializer=_serialize
    )


def _streamed(name: str, call: Streamed, timer: CallTimer) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def answer(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        with timer.time("grpc", name):
            answers = call(request)
            try:
                async for message in answers:
                    yield message
            except StockpotError as error:
                await context.abort(status_code(error), str(error))
            finally:
                await answers.aclose()  # type: ignore[attr-defined]  # gives leases back at once

    return answer


def _serialize(message: Any) -> bytes:
    raw: bytes = message.SerializeToString()
    return raw
