"""The store's client: what engine, gateway and tools call.

Misses are values. What raises: CallerError (never retry), LimitError and UnavailableError (later, or
elsewhere), CacheDegradedError (recompute). Every wait has a deadline.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

from kvstore.client.filling import Fill, FillPlan, fill_blocks
from kvstore.client.link import NodeLink
from kvstore.client.reading import Blocks, ReadPlan, read_blocks
from kvstore.client.types import ClientCounts, FillItem, Match, NamespaceInfo, Path
from kvstore.core.errors import LimitError, UnavailableError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.wire import kvstore_pb2 as pb

_WATCH_RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)


class StoreClient:
    """One storage node. Belongs to one event loop; calls may run side by side.

    Made by `connect`, and closed by `close` or by leaving `async with`. It survives restarts of the
    node: paths are made again and namespaces opened again as needed."""

    def __init__(self, link: NodeLink) -> None:
        self._link = link

    @classmethod
    async def connect(cls, address: str, *, prefer_local: bool = True, call_deadline_s: float = 1.0) -> "StoreClient":
        """A client of the node at `address` (HOST:PORT). Raises: UnavailableError when none answers in time."""
        client = cls(NodeLink(address, prefer_local=prefer_local, call_deadline_s=call_deadline_s))
        try:
            await client.stats()
            await client._link.try_local()
        except BaseException:
            await client.close()
            raise
        return client

    async def __aenter__(self) -> "StoreClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def path(self) -> Path:
        """How bytes move now: "shm" or "grpc"."""
        return self._link.path

    @property
    def counts(self) -> ClientCounts:
        """What went otherwise than hoped so far."""
        return self._link.counts

    async def open_namespace(self, fingerprint: Fingerprint) -> NamespaceInfo:
        """Declare what KV is about to be used. Raises: CallerError, LimitError, UnavailableError."""
        message = pb.Fingerprint(
            model_digest=fingerprint.model_digest,
            properties=fingerprint.properties,
            block_tokens=fingerprint.block_tokens,
            shard_count=fingerprint.shard_count,
            salt=fingerprint.salt,
        )
        answer = await self._link.call("OpenNamespace", pb.OpenNamespaceRequest(fingerprint=message))
        namespace_id = NamespaceId(answer.namespace_id)
        self._link.remember(namespace_id, message)
        return NamespaceInfo(
            namespace_id=namespace_id,
            epoch=answer.epoch,
            value_bytes_max=answer.value_bytes_max,
            items_max=answer.items_max,
            lease_ttl_ms=answer.lease_ttl_ms,
            lease_ttl_ms_max=answer.lease_ttl_ms_max,
        )

    async def match(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> Match:
        """How much of the chain `keys` is stored. No side effect; what it says may be over at once."""
        request = pb.MatchRequest(namespace_id=namespace_id, keys=keys)

        async def ask() -> Match:
            if (local := await self._link.call_local(pb.LocalRequest(match=request))) is not None:
                answer = local[1].match
            else:
                answer = await self._link.call("Match", request)
            return Match(answer.blocks, answer.blocks_in_memory, answer.bytes)

        return await self._link.reopening(namespace_id, ask)

    def read(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], shard: int = 0, prefix_only: bool = True
    ) -> AbstractAsyncContextManager[Blocks]:
        """The values of `keys`, read-only, valid inside the `async with` only.

        By shared memory they lie in the node's arena under a lease; a reader that stops for longer than
        the lease's TTL (10 s by default) may see other bytes. So copy, or use, first, and trust after:
        leaving the block raises LeaseExpiredError when the lease ended meanwhile, and `is_valid` asks
        before that. With `prefix_only` all after the first miss are misses. By gRPC, values are checked
        against their checksums, and a damaged one is a miss, counted in `counts`.

        Raises: CallerError, UnavailableError, LeaseExpiredError."""
        return read_blocks(self._link, ReadPlan(namespace_id, keys, shard, prefix_only))

    def fill(
        self, namespace_id: NamespaceId, items: Sequence[FillItem], shard: int = 0
    ) -> AbstractAsyncContextManager[Fill]:
        """Space for the values `items`, to be written and then committed inside the `async with`.

        Without `commit`, or when it raises, nothing is stored. A writer has the lease's TTL (10 s by
        default) from here to the commit.

        Raises: CallerError, UnavailableError, LeaseExpiredError."""
        return fill_blocks(self._link, FillPlan(namespace_id, items, shard))

    async def watch(self, namespace_id: NamespaceId | None = None) -> AsyncIterator[pb.WatchResponse]:
        """Block events of one namespace or all, without end: a snapshot, then changes.

        When the stream breaks it begins again by itself where it was, or with a new snapshot
        (`is_reset`) when the node no longer knows that place."""
        cursor = pb.WatchRequest(namespace_id=namespace_id or b"")
        failures = 0
        while True:
            try:
                is_whole = cursor.sequence > 0
                async for response in self._link.remote.watch(cursor):
                    failures = 0
                    # Inside a snapshot there is no place to resume from.
                    is_whole = response.is_snapshot_end or (is_whole and not response.is_reset)
                    cursor.incarnation = response.incarnation if is_whole else 0
                    cursor.sequence = response.sequence if is_whole else 0
                    yield response
            except (UnavailableError, LimitError):
                pass  # what it says is what the next attempt finds out
            await asyncio.sleep(_WATCH_RETRY_S[min(failures, len(_WATCH_RETRY_S) - 1)])
            failures += 1

    async def stats(self) -> pb.StatsResponse:
        """Occupancy, traffic and limits of the node now."""
        answer: pb.StatsResponse = await self._link.call("Stats", pb.StatsRequest())
        return answer

    async def close(self) -> None:
        """Close all connections. What is leased is given back; views still in use stay mapped."""
        await self._link.close()
