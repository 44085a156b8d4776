"""The link to one node: which path a call takes, how long it may take, what happens when it fails.

Each call has one deadline, whatever it tries within it. A local socket or bulk connection that dies hands over
to gRPC in the same call, and is looked for again later. A node that does not answer opens the breaker.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kvstore.client.breaker import CircuitBreaker
from kvstore.client.buffers import BufferPool
from kvstore.client.bulk import BulkConnection, BulkLink, BulkLostError, BulkStalledError
from kvstore.client.local import ConnectionLostError, LocalConnection, connect_local
from kvstore.client.remote import RemoteNode, within
from kvstore.client.types import ClientCounts, Path
from kvstore.core.errors import (
    CacheDegradedError,
    CallerError,
    LimitError,
    NamespaceUnknownError,
    UnavailableError,
)
from kvstore.core.keys import NamespaceId
from kvstore.wire import kvstore_pb2 as pb

_LOCAL_RETRY_S = 1.0
_NAMESPACES_REMEMBERED_MAX = 8192

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class NodeLink:
    """One node: bytes by shared memory when it is on this host, else by its bulk port, else by gRPC."""

    def __init__(self, address: str, *, prefer_local: bool, prefer_bulk: bool, call_deadline_s: float) -> None:
        self.remote = RemoteNode(address)
        self.deadline_s = call_deadline_s
        self.buffers = BufferPool()
        self.counts = ClientCounts()
        self._fingerprints: dict[NamespaceId, pb.Fingerprint] = {}
        self.bulk = BulkLink(self.remote, call_deadline_s)
        self._prefer_local = prefer_local
        self._prefer_bulk = prefer_bulk
        self._breaker = CircuitBreaker(time.monotonic, call_deadline_s)
        self._local: LocalConnection | None = None
        self._is_connecting = False
        self._local_retry_at_s = 0.0

    @property
    def path(self) -> Path:
        """How the next read or fill would go, as far as is known now."""
        if self._local is not None and self._local.is_open:
            return "shm"
        return "bulk" if self.bulk.is_ready else "grpc"

    async def local(self) -> LocalConnection | None:
        """The open local connection, made now if it can be; None: use gRPC."""
        if self._local is not None and self._local.is_open:
            return self._local
        if self._local is not None:
            self._local = None
            self.counts.local_lost += 1
        if not self._prefer_local or self._is_connecting or time.monotonic() < self._local_retry_at_s:
            return None
        self._is_connecting = True
        self._local_retry_at_s = time.monotonic() + _LOCAL_RETRY_S
        try:
            self._local = await self._connect_local()
        finally:
            self._is_connecting = False
        return self._local

    async def take_bulk(self) -> BulkConnection | None:
        """A bulk connection for one read or fill, to be given to `bulk.end`; None: use gRPC."""
        if not self._prefer_bulk:
            return None
        try:
            return await self.bulk.take()
        except UnavailableError:
            self._lose_bulk()
            return None

    async def by_bulk(self, connection: BulkConnection, work: Callable[[], Answer]) -> Answer | None:
        """What `work` answers in a thread, using `connection`; None: the connection broke, use gRPC."""
        try:
            return await self.bulk.run(connection, work)
        except BulkLostError:
            self._lose_bulk()
            return None
        except BulkStalledError:
            self._lose_bulk()
            raise

    async def try_paths(self) -> None:
        """Find the best path now, rather than with the first call."""
        local = await self.guarded(lambda: within(self.deadline_s, self.local()))
        if local is None and self._prefer_bulk:
            await self.bulk.probe()

    async def guarded(self, attempt: Callable[[], Awaitable[Answer]], *, is_begun: bool = False) -> Answer:
        """What `attempt` answers; its success or failure moves the breaker. It brings its own deadline.

        Raises: UnavailableError, at once while the breaker is open, unless `attempt` ends what the node has begun:
        a node that drains refuses new calls, and waits for that."""
        if not is_begun:
            self._breaker.check()
        try:
            answer = await attempt()
        except UnavailableError:
            self._breaker.failed()
            self.counts.breaker_opened = self._breaker.times_opened
            raise
        except (CallerError, LimitError, CacheDegradedError):
            self._breaker.succeeded()
            raise
        self._breaker.succeeded()
        return answer

    def remember(self, namespace_id: NamespaceId, fingerprint: pb.Fingerprint) -> None:
        """Keep what is needed to open the namespace again; the oldest go beyond a bound."""
        self._fingerprints.pop(namespace_id, None)
        self._fingerprints[namespace_id] = fingerprint
        if len(self._fingerprints) > _NAMESPACES_REMEMBERED_MAX:
            del self._fingerprints[next(iter(self._fingerprints))]

    async def reopening(self, namespace_id: NamespaceId, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """What `ask` answers; once more if the node has restarted and forgotten the namespace."""
        try:
            return await ask()
        except NamespaceUnknownError:
            if (fingerprint := self._fingerprints.get(namespace_id)) is None:
                raise
        await self.call("OpenNamespace", pb.OpenNamespaceRequest(fingerprint=fingerprint))
        return await ask()

    async def call(self, name: str, request: Any) -> Any:
        """The answer to the unary gRPC call `name`."""
        return await self.guarded(lambda: within(self.deadline_s, self.remote.call(name, request)))

    async def call_local(self, request: pb.LocalRequest) -> tuple[LocalConnection, pb.LocalResponse] | None:
        """The answer on the local socket and the connection it came by; None: there is none, use gRPC."""

        async def attempt() -> tuple[LocalConnection, pb.LocalResponse] | None:
            connection = await self.local()
            if connection is None:
                return None
            try:
                return connection, await connection.call(request)
            except ConnectionLostError:
                return None

        return await self.guarded(lambda: within(self.deadline_s, attempt()))

    async def close(self) -> None:
        """Close all paths; all leases are given back."""
        if self._local is not None:
            self._local.close()
        await self.bulk.close()
        await self.remote.close()

    def _lose_bulk(self) -> None:
        self.counts.bulk_lost += 1
        self.bulk.lose()

    async def _connect_local(self) -> LocalConnection | None:
        stats: pb.StatsResponse = await self.remote.call("Stats", pb.StatsRequest())
        if not stats.local_socket:
            return None
        try:
            connection = await connect_local(stats.local_socket)
        except OSError as error:
            log.info("local_socket_unusable path=%s reason=%r", stats.local_socket, str(error))
            return None
        if connection.incarnation != stats.incarnation:
            # The node is on another host, and a node of this host has a socket of the same name.
            connection.close()
            return None
        return connection
