"""The bulk path: connections to a node's bulk port, each used by one exchange at a time, in a thread.

A probe in the background finds out whether the port can be reached, so that no read or fill waits for one
that cannot: they go by gRPC meanwhile.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from kvstore.bulk_wire import BulkChannel, ChannelClosedError, ChannelStalledError, set_stall
from kvstore.client.remote import RemoteNode, within
from kvstore.core.errors import StockpotError, UnavailableError
from kvstore.rpc_codes import error_of
from kvstore.wire import kvstore_pb2 as pb

_CONNECTIONS_MAX = 64
_IDLE_MAX = 8
_PROBE_PERIOD_S_FIRST = 0.5
_PROBE_PERIOD_S_MAX = 30.0

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class BulkLostError(UnavailableError):
    """The bulk connection is gone, or none can be had; gRPC may still work."""


class BulkStalledError(UnavailableError):
    """The node neither sends nor takes bytes: it hangs, and would by gRPC."""


class BulkValue(NamedTuple):
    """What became of one item of a get."""

    status: int
    size: int
    is_sound: bool
    """Its bytes have the checksum that the node sent."""


@dataclass(frozen=True, slots=True)
class BulkDoor:
    """How to open one connection."""

    host: str
    open: pb.OpenBulkResponse
    stall_s: float
    tls: ssl.SSLContext | None
    server_name: str


class BulkConnection:
    """One connection, for one thread at a time; made by `connect_bulk`.

    Its calls raise BulkLostError, BulkStalledError, or the StockpotError that the node answered."""

    def __init__(self, channel: BulkChannel, stall_s: float) -> None:
        self._channel = channel
        self._stall_s = stall_s
        self.is_in_order = True
        """No exchange is under way: nothing is left to be read."""

    def ask(self, request: pb.BulkRequest, values: Sequence[memoryview] = ()) -> pb.BulkResponse:
        """Send `request` and the bytes it announces; its one answer."""
        response = self._begin(request, values)
        self.is_in_order = True
        return response

    def get(self, request: pb.GetRequest, place_of: Callable[[int, int], memoryview]) -> list[BulkValue]:
        """Receive values to where `place_of` (item, bytes) says; raises what it raises.

        Returns what came, in order; items beyond that are missing."""
        received: list[BulkValue] = []
        response = self._begin(pb.BulkRequest(get=request), ())
        while True:
            for item in response.values.items:
                place = place_of(len(received), item.length) if item.length else memoryview(b"")
                is_sound = item.status == pb.STATUS_OK and self._receive_value(place) == item.checksum
                received.append(BulkValue(item.status, item.length, is_sound))
            if response.values.is_last:
                self.is_in_order = True
                return received
            response = self._receive()

    @property
    def is_fresh(self) -> bool:
        """Whether an idle connection can be used: the node has not ended it."""
        return not self._channel.wait_for_frame(0)

    def abort(self) -> None:
        """Make the thread that uses the connection fail at once."""
        self.is_in_order = False
        self._channel.abort()

    def close(self) -> None:
        """Close the socket; the node takes back what it had reserved."""
        self._channel.close()

    def _begin(self, request: pb.BulkRequest, values: Sequence[memoryview]) -> pb.BulkResponse:
        self.is_in_order = False
        # What the node refuses it says, and then it takes no more: so the answer is read even when sending failed.
        with suppress(ChannelClosedError):
            self._channel.send(request, values)
        return self._receive()

    def _receive(self) -> pb.BulkResponse:
        with self._channel_errors():
            response = self._channel.receive(pb.BulkResponse)
        if response.HasField("error"):
            self.is_in_order = True
            raise error_of(response.error.code, response.error.message)
        return response

    def _receive_value(self, into: memoryview) -> bytes:
        with self._channel_errors():
            return self._channel.receive_value(into)

    @contextmanager
    def _channel_errors(self) -> Iterator[None]:
        try:
            yield
        except ChannelStalledError as error:
            raise BulkStalledError(f"node did not answer within {self._stall_s:g} s") from error
        except ChannelClosedError as error:
            raise BulkLostError(f"the bulk connection broke: {error}") from error


def connect_bulk(door: BulkDoor) -> BulkConnection:
    """Connect and show the token. Blocks for at most a few times `door.stall_s`. Raises: BulkLostError."""
    sock: socket.socket | None = None
    try:
        sock = socket.create_connection((door.host, door.open.port), door.stall_s)
        if door.tls is not None:
            sock = door.tls.wrap_socket(sock, server_hostname=door.server_name)
        else:
            sock.settimeout(None)
            set_stall(sock, door.stall_s)
        connection = BulkConnection(BulkChannel(sock, door.stall_s), door.stall_s)
        hello = connection.ask(pb.BulkRequest(token=door.open.token)).hello
        if hello.incarnation != door.open.incarnation:
            raise BulkLostError("another node answers on the bulk port")
        return connection
    except (OSError, StockpotError) as error:
        if sock is not None:
            sock.close()
        raise BulkLostError(f"the bulk port {door.host}:{door.open.port} cannot be used: {error}") from error


class BulkLink:
    """The bulk connections to one node. Belongs to one event loop."""

    def __init__(
        self, remote: RemoteNode, deadline_s: float, tls: ssl.SSLContext | None = None, server_name: str = ""
    ) -> None:
        host = remote.address.rpartition("/")[2].rpartition(":")[0].strip("[]")
        self._remote = remote
        self._door = BulkDoor(host, pb.OpenBulkResponse(), deadline_s, tls, server_name or host)
        self._threads = ThreadPoolExecutor(_CONNECTIONS_MAX, "kvstore-bulk")
        self._idle: list[BulkConnection] = []
        self._busy: set[BulkConnection] = set()
        self._probing: asyncio.Task[None] | None = None
        self._probe_period_s = 0.0
        self._probe_at_s = 0.0
        self.is_ready = False
        """Whether the port answered last time."""

    async def take(self) -> BulkConnection | None:
        """A connection for one read or fill, to be given to `end`; None: use gRPC. Raises: StockpotError."""
        if not self.is_ready:
            self._probe()
            return None
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                self._busy.add(connection)
                return connection
            connection.close()
        if len(self._busy) >= _CONNECTIONS_MAX:
            return None
        connection = await self._connect()
        self._busy.add(connection)
        return connection

    async def run(self, connection: BulkConnection, work: Callable[[], Answer]) -> Answer:
        """What `work`, which uses `connection`, answers in a thread. When cancelled it first ends the thread, so
        that afterwards nothing is written to the caller's buffers."""
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            connection.abort()
            while not working.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([working])
            if not working.cancelled():
                working.exception()  # taken note of: it failed because of us
            raise

    def end(self, connection: BulkConnection) -> None:
        """Keep the connection for the next one who asks if its exchange ended in order, else close it."""
        if connection not in self._busy:
            return
        self._busy.discard(connection)
        if connection.is_in_order and len(self._idle) < _IDLE_MAX and self.is_ready:
            self._idle.append(connection)
        else:
            connection.abort()
            connection.close()

    def lose(self) -> None:
        """A connection broke: gRPC takes over until a probe has found the port again."""
        self.is_ready = False
        while self._idle:
            self._idle.pop().close()
        self._probe()

    async def probe(self) -> None:
        """Find out now whether the port can be reached."""
        self._probe()
        if self._probing is not None:
            await asyncio.wait([self._probing])

    async def close(self) -> None:
        """End all connections and threads."""
        self.is_ready = False
        self._probe_at_s = float("inf")
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        while self._idle:
            self._idle.pop().close()
        for connection in self._busy:
            connection.abort()
        self._threads.shutdown(wait=False)

    def _probe(self) -> None:
        """Begin a probe unless one runs or ran just now."""
        if self._probing is None and time.monotonic() >= self._probe_at_s:
            self._probing = asyncio.get_running_loop().create_task(self._probe_once())
            self._probing.add_done_callback(lambda _: setattr(self, "_probing", None))

    async def _probe_once(self) -> None:
        try:
            connection = await self._connect()
        except StockpotError as error:
            longer_s = min(max(2 * self._probe_period_s, _PROBE_PERIOD_S_FIRST), _PROBE_PERIOD_S_MAX)
            self._probe_period_s = longer_s
            self._probe_at_s = time.monotonic() + longer_s
            log.info("bulk_port_unusable node=%s reason=%r next_try_s=%g", self._remote.address, str(error), longer_s)
            return
        self._probe_period_s = 0.0
        self.is_ready = True
        self._idle.append(connection)

    async def _connect(self) -> BulkConnection:
        """Raises: StockpotError."""
        opened = await within(self._door.stall_s, self._remote.call("OpenBulk", pb.OpenBulkRequest()))
        if not opened.port:
            raise BulkLostError("the node offers no bulk port")
        door = replace(self._door, open=opened)
        connecting = asyncio.get_running_loop().run_in_executor(self._threads, connect_bulk, door)
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_late)
            raise


def _close_late(connecting: "asyncio.Future[BulkConnection]") -> None:
    """Nobody waits for the connection any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()
