"""One connection of the bulk port, from either end: frames, and the bytes of values without a copy in Python.

    u32 little-endian length | message | bytes that the message announced

Blocking, for a thread of its own: `sendmsg` takes views of the arena as they are, `recv_into` fills the place
where the value belongs, and both leave the other threads alone meanwhile. Called by the node and the client.
"""

import contextlib
import select
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from typing import TypeVar

import xxhash
from google.protobuf.message import DecodeError, Message

from kvstore.core.errors import CallerError
from kvstore.wire_codec import MESSAGE_BYTES_MAX

_LENGTH = struct.Struct("<I")
_PIECE_BYTES = 512 << 10
"""Received, then summed while it is in the cache: 512 KiB leave room in L2 for the kernel's buffers."""
_VIEWS_PER_CALL_MAX = 256  # of `sendmsg`; the system takes 1,024
_KEEPALIVE_S = (socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)
"""A peer whose host vanished is noticed within 25 s even when nothing is sent."""

Received = TypeVar("Received", bound=Message)


class ChannelClosedError(ConnectionError):
    """The other side closed the connection, stalled, or sent what is no frame."""


class ChannelStalledError(ChannelClosedError):
    """The other side neither sent nor took a byte for too long."""


class BulkChannel:
    """Owns `sock`, connected and blocking; with TLS its handshake is done."""

    def __init__(self, sock: socket.socket, stall_s: float) -> None:
        """`stall_s`: how long the other side may neither send nor take a byte within an exchange."""
        self._sock = sock
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        if self._is_tls:
            sock.settimeout(stall_s)
        else:
            set_stall(sock, stall_s)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE_S:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, message: Message, values: Sequence[memoryview] = ()) -> None:
        """Send a frame and the bytes it announces. Raises: ChannelClosedError; CallerError, nothing sent."""
        raw = message.SerializeToString()
        if len(raw) > MESSAGE_BYTES_MAX:
            raise CallerError(f"the call takes {len(raw)} bytes, more than {MESSAGE_BYTES_MAX}: ask for fewer items")
        with _as_closed():
            if self._is_tls:
                for view in (memoryview(_LENGTH.pack(len(raw)) + raw), *values):
                    self._sock.sendall(view)
            else:
                self._send_views([memoryview(_LENGTH.pack(len(raw)) + raw), *values])

    def receive(self, kind: type[Received]) -> Received:
        """The next frame's message. Raises: ChannelClosedError."""
        head = bytearray(_LENGTH.size)
        self._fill(memoryview(head))
        (length,) = _LENGTH.unpack(head)
        if length > MESSAGE_BYTES_MAX:
            raise ChannelClosedError(f"the other side announced a frame of {length} bytes, which none has")
        raw = bytearray(length)
        self._fill(memoryview(raw))
        try:
            return kind.FromString(bytes(raw))
        except DecodeError as error:
            raise ChannelClosedError(f"the other side sent a frame that is no {kind.DESCRIPTOR.name}") from error

    def receive_value(self, into: memoryview) -> bytes:
        """Fill `into` with the next bytes; returns their xxh3_128. Raises: ChannelClosedError."""
        total = xxhash.xxh3_128()
        for start in range(0, len(into), _PIECE_BYTES):
            piece = into[start : start + _PIECE_BYTES]
            self._fill(piece)
            total.update(piece)
        return total.digest()

    def wait_for_frame(self, deadline_s: float) -> bool:
        """Whether the other side sends something, or closes, within `deadline_s`."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(deadline_s * 1000))

    def abort(self) -> None:
        """Make all that waits on the connection fail at once; from any thread."""
        with contextlib.suppress(OSError):
            # The plain socket's call: a TLS one would wait for the other side's goodbye.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; nothing may use it any more."""
        self._sock.close()

    def _send_views(self, views: list[memoryview]) -> None:
        at = 0
        while at < len(views):
            n_sent = self._sock.sendmsg(views[at : at + _VIEWS_PER_CALL_MAX])
            while at < len(views) and n_sent >= len(views[at]):
                n_sent -= len(views[at])
                at += 1
            if n_sent:
                views[at] = views[at][n_sent:]

    def _fill(self, into: memoryview) -> None:
        n_received = 0
        flags = 0 if self._is_tls else socket.MSG_WAITALL
        with _as_closed():
            while n_received < len(into):
                n_bytes = self._sock.recv_into(into[n_received:], 0, flags)
                if n_bytes == 0:
                    raise ChannelClosedError("the other side closed the connection")
                n_received += n_bytes


def set_stall(sock: socket.socket, stall_s: float) -> None:
    """Let `sock`, which stays blocking, wait at most `stall_s`: Python's own timeout would poll before each call."""
    timeout = struct.pack("ll", int(stall_s), int(stall_s % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, timeout)


@contextlib.contextmanager
def _as_closed() -> Iterator[None]:
    try:
        yield
    except ChannelClosedError:
        raise
    except (BlockingIOError, TimeoutError) as error:
        raise ChannelStalledError("the other side stalled") from error
    except OSError as error:
        raise ChannelClosedError(f"the connection broke: {error}") from error
