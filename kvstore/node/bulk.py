"""The bulk port: bytes of blocks over plain sockets, from and to the arena without a copy in Python.

    OpenBulk by gRPC --token--> connect --> a thread for the connection --each step of a call--> the node's loop

State is the loop's alone: a thread asks it to hold blocks, or to reserve them, and moves bytes only between
such steps. A connection is the owner of what it reserved, so when it ends, in whatever way, all is given back.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kvstore.bulk_wire import BulkChannel, ChannelClosedError
from kvstore.core.errors import CallerError, ConfigError, StockpotError, UnavailableError
from kvstore.node.arena import Arena
from kvstore.node.bulk_steps import BulkSteps
from kvstore.node.leases import Lease
from kvstore.node.metrics import CallTimer
from kvstore.rpc_codes import status_code
from kvstore.wire import kvstore_pb2 as pb

_CONNECTIONS_MAX = 256
_TOKENS_MAX = 1024
_TOKEN_TTL_S = 10.0
_STALL_S = 5.0
_IDLE_S = 300.0
_STOP_DEADLINE_S = 5.0

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class BulkServer:
    """Listens on a TCP port; `open` makes the tokens that open connections."""

    def __init__(self, steps: BulkSteps, arena: Arena, incarnation: int, timer: CallTimer) -> None:
        self.steps = steps
        self.arena = arena
        self.incarnation = incarnation
        self.timer = timer
        self.port = 0
        """0 until it listens."""
        self._tokens: OrderedDict[bytes, float] = OrderedDict()
        """One-time tokens, and when they end on the monotonic clock; the oldest first."""
        self._connections: dict[_Connection, asyncio.Future[None]] = {}
        self._listening: socket.socket | None = None
        self._tls: Callable[[], ssl.SSLContext] | None = None

    def start(self, listen: str, port: int, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Listen on `port` (0: a free one) of the host in `listen`; `tls` makes each connection's context.

        Raises: ConfigError."""
        host = listen.rpartition(":")[0].strip("[]")
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listening = socket.create_server((host, port), family=family, backlog=_CONNECTIONS_MAX)
        except OSError as error:
            raise ConfigError(f"bulk_port {port} cannot be used on {host}: {error.strerror}") from error
        self._listening.setblocking(False)
        self._tls = tls
        self.port = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def open(self) -> pb.OpenBulkResponse:
        """See the proto."""
        self.steps.check_takes_calls()
        if not self.port:
            return pb.OpenBulkResponse()
        now = time.monotonic()
        while self._tokens and (len(self._tokens) >= _TOKENS_MAX or next(iter(self._tokens.values())) < now):
            self._tokens.popitem(last=False)
        token = secrets.token_bytes(32)
        self._tokens[token] = now + _TOKEN_TTL_S
        return pb.OpenBulkResponse(port=self.port, token=token, incarnation=self.incarnation)

    def take_token(self, token: bytes) -> bool:
        """Whether `token` opens a connection; it does so once."""
        return self._tokens.pop(token, 0.0) >= time.monotonic()

    def is_idle(self) -> bool:
        """Whether no connection runs a call or holds a reservation."""
        return not any(connection.is_busy for connection in self._connections)

    def stop_listening(self) -> None:
        """Take no new connections."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    async def stop(self) -> None:
        """Cut all connections and wait for their threads, which must not outlive the arena."""
        self.stop_listening()
        for connection in self._connections:
            connection.abort()
        if ended := list(self._connections.values()):
            _, running = await asyncio.wait(ended, timeout=_STOP_DEADLINE_S)
            assert not running, f"{len(running)} bulk connections did not end within {_STOP_DEADLINE_S:g} s"

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            sock, _ = self._listening.accept()
        except OSError as error:  # it is gone already, or the process has no descriptor left
            log.warning("bulk_accept_failed reason=%r", str(error))
            return
        if len(self._connections) >= _CONNECTIONS_MAX:
            log.warning("bulk_connections_limit limit=%d", _CONNECTIONS_MAX)
            sock.close()
            return
        loop = asyncio.get_running_loop()
        connection, ended = _Connection(self, loop, sock), loop.create_future()
        self._connections[connection] = ended
        connection.start(self._tls() if self._tls else None, lambda: self._ended(connection))

    def _ended(self, connection: "_Connection") -> None:
        self.steps.disconnected(connection)
        self._connections.pop(connection).set_result(None)


class _Connection:
    """One client and its thread. It is also the owner of what the client reserved."""

    def __init__(self, server: BulkServer, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._server = server
        self._loop = loop
        self._sock = sock
        self._fill: Lease | None = None
        self.is_busy = False

    def start(self, tls: ssl.SSLContext | None, ended: Callable[[], None]) -> None:
        """Serve in a thread; `ended` is called on the loop."""

        def serve() -> None:
            try:
                self._serve(tls)
            finally:
                self._sock.close()
                self._loop.call_soon_threadsafe(ended)

        threading.Thread(target=serve, name="bulk", daemon=True).start()

    def abort(self) -> None:
        """Make the thread end."""
        with contextlib.suppress(OSError):  # it ends already
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def _serve(self, tls: ssl.SSLContext | None) -> None:
        try:
            if tls is not None:
                self._sock.settimeout(_STALL_S)
                self._sock = tls.wrap_socket(self._sock, server_side=True)
            channel = BulkChannel(self._sock, _STALL_S)
            if not self._greet(channel):
                return
            while channel.wait_for_frame(_IDLE_S):
                self._answer(channel, channel.receive(pb.BulkRequest))
        except (ChannelClosedError, OSError) as error:  # OSError: of the TLS handshake
            if self.is_busy:
                log.info("bulk_connection_cut reason=%r", str(error))

    def _greet(self, channel: BulkChannel) -> bool:
        """Whether the client showed a token of ours."""
        if not channel.wait_for_frame(_STALL_S):
            return False
        token = channel.receive(pb.BulkRequest).token
        if not self._on_loop(lambda: self._server.take_token(token)):
            error = UnavailableError("the bulk token is unknown or ran out: ask OpenBulk for another")
            channel.send(pb.BulkResponse(error=_words(error)))
            return False
        channel.send(pb.BulkResponse(hello=pb.BulkHello(incarnation=self._server.incarnation)))
        return True

    def _answer(self, channel: BulkChannel, request: pb.BulkRequest) -> None:
        """One exchange. Raises: ChannelClosedError, also after a refusal that leaves bytes unread."""
        self.is_busy = True
        start_s = time.perf_counter()
        name = request.WhichOneof("call") or ""
        try:
            match name:
                case "get":
                    self._get(channel, request.get)
                case "put_begin":
                    channel.send(pb.BulkResponse(begun=self._on_loop(lambda: self._put_begin(request.put_begin))))
                case "put_commit":
                    channel.send(pb.BulkResponse(committed=self._put_commit(channel, request.put_commit)))
                case _:
                    raise CallerError("request names no call that the bulk port knows")
        except StockpotError as error:
            channel.send(pb.BulkResponse(error=_words(error)))
            if name == "put_commit":
                raise ChannelClosedError("its bytes were refused") from error
        self._loop.call_soon_threadsafe(self._server.timer.record, "bulk", name, start_s)
        self.is_busy = self._fill is not None

    def _get(self, channel: BulkChannel, request: pb.GetRequest) -> None:
        arena, steps, at = self._server.arena, self._server.steps, 0
        while True:
            window = self._on_loop(lambda at=at: steps.hold_window(request, at))  # type: ignore[misc]
            try:
                values = [arena.view(*extent) for extent in window.extents]
                items = pb.BulkValues(items=window.items, is_last=window.is_last)
                channel.send(pb.BulkResponse(values=items), values)
                del values
            finally:
                self._loop.call_soon_threadsafe(steps.let_go_window, window)
            if window.is_last:
                return
            at += len(window.items)

    def _put_begin(self, request: pb.PutBegin) -> pb.PutBegun:
        if self._fill is not None:
            raise CallerError("a reservation is running on this connection: commit it first, or open another one")
        begun, self._fill = self._server.steps.put_begin(request, self)
        return begun

    def _put_commit(self, channel: BulkChannel, commit: pb.PutCommit) -> pb.PutCommitted:
        """Receives into the reserved extents. They stay this connection's even when the lease runs out meanwhile."""
        fill, self._fill = self._fill, None
        if fill is None or commit.lease_id != fill.id:
            raise CallerError("commit names no reservation of this connection: begin one first")
        blocks = self._on_loop(lambda: self._server.steps.blocks_of_commit(fill, commit))
        digests = [channel.receive_value(self._server.arena.view(block.offset, block.size)) for block in blocks]
        return self._on_loop(lambda: self._server.steps.commit_received(fill, commit, digests))

    def _on_loop(self, call: Callable[[], Answer | Coroutine[Any, Any, Answer]]) -> Answer:
        """What `call` answers there. Waits without a deadline of its own: the loop outlives the threads, and what
        `call` itself may wait for, the disk, has one."""
        answered: concurrent.futures.Future[Answer] = concurrent.futures.Future()

        def begin() -> None:
            try:
                answer = call()
            except BaseException as error:
                answered.set_exception(error)
                if isinstance(error, StockpotError):
                    return
                raise  # a bug of ours: the loop's to tell
            if isinstance(answer, Coroutine):
                task = self._loop.create_task(answer)
                task.add_done_callback(lambda done: _hand_over(done, answered))
            else:
                answered.set_result(answer)

        self._loop.call_soon_threadsafe(begin)
        return answered.result()


def _hand_over(done: "asyncio.Task[Answer]", answered: "concurrent.futures.Future[Answer]") -> None:
    if done.cancelled():
        answered.set_exception(UnavailableError("the node is ending"))
    elif (error := done.exception()) is not None:
        answered.set_exception(error)
    else:
        answered.set_result(done.result())


def _words(error: StockpotError) -> pb.LocalError:
    return pb.LocalError(code=status_code(error).value[0], message=str(error))
