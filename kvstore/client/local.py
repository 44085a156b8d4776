"""The local path: a unix socket for small calls, and the node's arena mapped into this process.

A view of the arena keeps the mapping alive, so a view in use never faults, even after the node is gone;
when the connection ends, the mapping goes with the last view. (A mapping that stays would keep a dead
node's huge pages.)
"""

import asyncio
import itertools
import mmap
import os
import socket
import struct
from contextlib import suppress
from typing import cast

from google.protobuf.message import DecodeError

from kvstore.core.errors import UnavailableError
from kvstore.rpc_codes import error_of
from kvstore.wire import kvstore_pb2 as pb
from kvstore.wire_codec import MESSAGE_BYTES_MAX

_LENGTH = struct.Struct("<I")
_HELLO_BYTES_MAX = 256
_RELEASE_DELAY_S = 0.001
_NO_ANSWER_ID = 0


class ConnectionLostError(UnavailableError):
    """The local socket is gone; gRPC may still work."""


class LocalConnection(asyncio.Protocol):
    """One connection to a node's local socket; made by `connect_local`."""

    def __init__(self, hello: pb.LocalHello, arena: mmap.mmap) -> None:
        self.incarnation = hello.incarnation
        self._arena = arena
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._to_release: list[int] = []
        self._waiting: dict[int, asyncio.Future[pb.LocalResponse]] = {}
        self._ids = itertools.count(1)
        self.is_open = True

    def view(self, place: pb.Place) -> memoryview:
        """The bytes at `place`, writable; whose they are, and how long, the lease says."""
        return memoryview(self._arena)[place.offset : place.offset + place.size]

    async def call(self, request: pb.LocalRequest) -> pb.LocalResponse:
        """Ask and wait. The caller sets the deadline.

        Raises: ConnectionLostError; the StockpotError that the node answered."""
        request.id = next(self._ids)
        self._send(request)
        answered = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = answered
        try:
            response: pb.LocalResponse = await answered
        except asyncio.CancelledError:
            if answered.done() and not answered.cancelled():  # it came in the very moment of the cancelling
                self._give_back(answered.result())
            raise
        finally:
            del self._waiting[request.id]
        if response.HasField("error"):
            raise error_of(response.error.code, response.error.message)
        return response

    def tell(self, request: pb.LocalRequest) -> None:
        """Ask without waiting; on a lost connection there is nothing left to ask for."""
        request.id = _NO_ANSWER_ID
        with suppress(ConnectionLostError):
            self._send(request)

    def release(self, lease_id: int) -> None:
        """Give a read lease back: with the next call, or in a moment if none comes."""
        self._to_release.append(lease_id)
        if len(self._to_release) == 1:
            asyncio.get_running_loop().call_later(_RELEASE_DELAY_S, self._release_now)

    def close(self) -> None:
        """End the connection; the node takes all leases back."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()

    def data_received(self, data: bytes) -> None:
        self._received += data
        at = 0
        while len(self._received) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, at)
            end = at + _LENGTH.size + length
            if length > MESSAGE_BYTES_MAX:
                self.close()
                return
            if end > len(self._received):
                break
            self._answer(bytes(self._received[at + _LENGTH.size : end]))
            at = end
        del self._received[:at]

    def _send(self, request: pb.LocalRequest) -> None:
        if not self.is_open or self._transport is None:
            raise ConnectionLostError("the local socket is closed")
        raw = request.SerializeToString()
        self._transport.write(self._released() + _LENGTH.pack(len(raw)) + raw)

    def _released(self) -> bytes:
        """The frame that gives back what is to be released, if anything."""
        if not self._to_release:
            return b""
        request = pb.LocalRequest(id=_NO_ANSWER_ID, release=pb.ReleaseRequest(lease_ids=self._to_release))
        self._to_release.clear()
        raw = request.SerializeToString()
        return _LENGTH.pack(len(raw)) + raw

    def _release_now(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.write(self._released())

    def _answer(self, raw: bytes) -> None:
        try:
            response = pb.LocalResponse.FromString(raw)
        except DecodeError:
            self.close()
            return
        answered = self._waiting.get(response.id)
        if answered is not None and not answered.done():
            answered.set_result(response)
        else:
            self._give_back(response)

    def _give_back(self, response: pb.LocalResponse) -> None:
        """The caller is gone (deadline, cancelled): what it was leased would wait for its TTL."""
        if response.acquire.lease_id:
            self.release(response.acquire.lease_id)
        if response.match.lease_id:
            self.release(response.match.lease_id)
        if response.put_begun.lease_id:
            self.tell(pb.LocalRequest(put_commit=pb.PutCommit(lease_id=response.put_begun.lease_id)))

    def _lose(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(ConnectionLostError("the local socket was closed by the node"))
        with suppress(BufferError):  # views are in use: the last of them unmaps
            self._arena.close()


async def connect_local(path: str) -> LocalConnection:
    """Connect to a node's local socket and map its arena. The caller sets the deadline.

    Raises: OSError when the socket cannot be used."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await loop.sock_connect(sock, path)
        hello, arena = await _receive_hello(sock)
    except BaseException:
        sock.close()
        raise
    _, connection = await loop.create_unix_connection(lambda: LocalConnection(hello, arena), sock=sock)
    return connection


async def _receive_hello(sock: socket.socket) -> tuple[pb.LocalHello, mmap.mmap]:
    """The node's first message and the mapping of the descriptor that came with it."""
    raw, fds = b"", []
    try:
        while len(raw) < _LENGTH.size or len(raw) < _LENGTH.size + _LENGTH.unpack_from(raw)[0]:
            await _readable(sock)
            part, new_fds, _, _ = socket.recv_fds(sock, _HELLO_BYTES_MAX, 1)
            if not part:
                raise ConnectionResetError("the node closed the local socket")
            raw += part
            fds += new_fds
        hello = pb.LocalHello.FromString(raw[_LENGTH.size :])
        return hello, mmap.mmap(fds[0], hello.arena_bytes)
    except (DecodeError, IndexError, ValueError) as error:
        raise ConnectionResetError("the local socket is not a node's") from error
    finally:
        for fd in fds:
            os.close(fd)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock.fileno())
