"""The unix socket for clients of the same host: the arena's descriptor, then small calls.

A plain asyncio Protocol, since streams cost several times the call itself (about 100 us). What a
connection leased is given back when it closes, however it closes.
"""

import asyncio
import logging
import os
import socket
import struct
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from google.protobuf.message import DecodeError

from kvstore.core.errors import CallerError, ConfigError, StockpotError
from kvstore.node.arena import Arena
from kvstore.node.metrics import CallTimer
from kvstore.node.service import Service
from kvstore.rpc_codes import status_code
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import MESSAGE_BYTES_MAX

_LENGTH = struct.Struct("<I")
_NO_ANSWER_ID = 0
_CALLS_PER_CONNECTION_MAX = 256
_CONNECTIONS_MAX = 256

Answer = dict[str, Any]
"""The one field of `LocalResponse.answer` that is set, by name."""

log = logging.getLogger(__name__)


class LocalServer:
    """Listens on `path`, which only this user can open."""

    def __init__(self, service: Service, arena: Arena, incarnation: int, timer: CallTimer) -> None:
        self.service = service
        self.arena = arena
        self.timer = timer
        self.hello = pb.LocalHello(incarnation=incarnation, arena_bytes=arena.bytes).SerializeToString()
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, path: Path) -> None:
        """Serve. Raises: ConfigError when another node has the socket, or the path cannot be used."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=_bound_socket(path))

    def is_idle(self) -> bool:
        """Whether no connection runs a call or holds a lease."""
        return not self.service.has_owned_leases and not any(each.is_calling for each in self.connections)

    def stop_listening(self) -> None:
        """Take no new connections."""
        if self._server is not None:
            self._server.close()

    def stop(self, path: Path) -> None:
        """Close the socket and all connections."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.close()
        _unlink(path)


class _Connection(asyncio.Protocol):
    """One client. It is also the owner of what the client leases."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_writable = True

    @property
    def is_calling(self) -> bool:
        """Whether a call waits for its answer."""
        return bool(self._calls)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        if len(self._server.connections) >= _CONNECTIONS_MAX:
            log.warning("local_connections_limit limit=%d", _CONNECTIONS_MAX)
            self._transport.abort()
            return
        self._server.connections.add(self)
        hello = self._server.hello
        # The transport's own socket cannot send descriptors; a duplicate of it can. A new socket's
        # buffer always has room for these few bytes.
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as direct:
            socket.send_fds(direct, [_LENGTH.pack(len(hello)) + hello], [self._server.arena.fd])

    def connection_lost(self, exc: Exception | None) -> None:
        for call in self._calls:
            call.cancel()
        self._server.connections.discard(self)
        self._server.service.disconnected(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        at = 0
        while len(self._received) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, at)
            if length > MESSAGE_BYTES_MAX:
                log.warning("local_frame_too_large bytes=%d limit=%d", length, MESSAGE_BYTES_MAX)
                self.close()
                return
            end = at + _LENGTH.size + length
            if end > len(self._received):
                break
            self._begin(bytes(self._received[at + _LENGTH.size : end]))
            at = end
        del self._received[:at]

    def pause_writing(self) -> None:
        self._is_writable = False
        self._throttle()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._throttle()

    def close(self) -> None:
        """End the connection."""
        assert self._transport is not None
        self._transport.abort()

    def _begin(self, raw: bytes) -> None:
        try:
            request = pb.LocalRequest.FromString(raw)
        except DecodeError:
            log.warning("local_frame_is_no_request bytes=%d", len(raw))
            self.close()
            return
        name = request.WhichOneof("call") or ""
        start_s = time.perf_counter()
        answer: Answer | Coroutine[Any, Any, Answer]
        try:
            answer = self._call(name, request)
        except StockpotError as error:
            answer = _error_answer(error)
        if isinstance(answer, dict):
            self._send(request.id, answer)
            self._server.timer.record("local", name, start_s)
            return
        call = asyncio.get_running_loop().create_task(self._answer_later(request.id, name, start_s, answer))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        self._throttle()

    def _ended(self, call: "asyncio.Task[None]") -> None:
        self._calls.discard(call)
        self._throttle()

    def _throttle(self) -> None:
        """Read no further call while too many are running or the client does not read its answers."""
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if self._is_writable and len(self._calls) < _CALLS_PER_CONNECTION_MAX:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    async def _answer_later(
        self, request_id: int, name: str, start_s: float, answer: Coroutine[Any, Any, Answer]
    ) -> None:
        try:
            self._send(request_id, await answer)
        except StockpotError as error:
            self._send(request_id, _error_answer(error))
        self._server.timer.record("local", name, start_s)

    def _send(self, request_id: int, answer: Answer) -> None:
        if request_id == _NO_ANSWER_ID:
            return
        assert self._transport is not None
        raw = pb.LocalResponse(id=request_id, **answer).SerializeToString()
        self._transport.write(_LENGTH.pack(len(raw)) + raw)

    def _call(self, name: str, request: pb.LocalRequest) -> Answer | Coroutine[Any, Any, Answer]:
        """The answer, or a coroutine for it when the call must wait for the disk."""
        service = self._server.service
        match name:
            case "match":
                matched = service.match(request.match, self)
                return {"match": matched} if isinstance(matched, pb.MatchResponse) else _named("match", matched)
            case "acquire":
                acquired = service.acquire(request.acquire, self)
                return (
                    {"acquire": acquired} if isinstance(acquired, pb.AcquireResponse) else _named("acquire", acquired)
                )
            case "release":
                return {"release": service.release(request.release)}
            case "put_begin":
                return {"put_begun": service.put_begin(request.put_begin, self)}
            case "put_commit":
                return {"put_committed": service.put_commit(request.put_commit, self)}
            case "open_namespace":
                return _named("open_namespace", service.open_namespace(request.open_namespace))
            case _:
                raise CallerError("request names no call that this node knows")


async def _named(name: str, answer: Coroutine[Any, Any, Any]) -> Answer:
    return {name: await answer}


def _error_answer(error: StockpotError) -> Answer:
    return {"error": pb.LocalError(code=status_code(error).value[0], message=str(error))}


def _bound_socket(path: Path) -> socket.socket:
    """A socket on `path` for this user only. Raises: ConfigError."""
    try:
        _remove_dead_socket(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listening.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"local_socket {path} cannot be used: {error.strerror}") from error
    return listening


def is_answered(path: Path) -> bool:
    """Whether a process listens on the unix socket `path`."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)


def _remove_dead_socket(path: Path) -> None:
    """Remove a socket that a killed node left. Raises: ConfigError when a node still answers on it."""
    if not path.is_socket():
        return
    if is_answered(path):
        raise ConfigError(f"local_socket {path} is another node's: give this one its own")
    path.unlink()
