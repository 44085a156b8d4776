"""The store's client: what engine, gateway and tools call.

Misses are values. What raises: CallerError (never retry), LimitError and UnavailableError (later, or
elsewhere), CacheDegradedError (recompute). Every wait has a deadline.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from kvstore.client.filling import Fill, FillPlan, fill_blocks
from kvstore.client.link import NodeLink
from kvstore.client.reading import Blocks, ReadPlan, read_blocks, read_into
from kvstore.client.types import ClientCounts, FillItem, Match, NamespaceInfo, Path, PinOptions, block_ids
from kvstore.core.errors import CallerError, LimitError, UnavailableError
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
    async def connect(
        cls, address: str, *, prefer_local: bool = True, prefer_bulk: bool = True, call_deadline_s: float = 1.0
    ) -> "StoreClient":
        """A client of the node at `address` (HOST:PORT). Raises: UnavailableError when none answers in time.

        `prefer_local`: move bytes by shared memory where the node is on this host; else, with `prefer_bulk`,
        by its bulk port; else by gRPC."""
        client = cls(
            NodeLink(address, prefer_local=prefer_local, prefer_bulk=prefer_bulk, call_deadline_s=call_deadline_s)
        )
        try:
            await client.stats()
            await client._link.try_paths()
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
        """How bytes move now: "shm", "bulk" or "grpc"."""
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

    async def match(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], *, promote: bool = False) -> Match:
        """How much of the chain `keys` is stored, on all shards; what it says may be over at once.

        No side effect, unless `promote` asks to begin reading what is on disk into memory."""
        request = pb.MatchRequest(namespace_id=namespace_id, keys=keys, promote=promote)

        async def ask() -> Match:
            if (local := await self._link.call_local(pb.LocalRequest(match=request))) is not None:
                answer = local[1].match
            else:
                answer = await self._link.call("Match", request)
            return Match(answer.blocks, answer.blocks_in_memory, answer.bytes)

        return await self._link.reopening(namespace_id, ask)

    @asynccontextmanager
    async def lease(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> AsyncIterator[Match]:
        """As `match`, and what it answers stays stored, in memory, inside the `async with` (for the lease's TTL
        at most, 10 s by default): a `read` of these blocks finds them all. Blocks on disk are promoted first."""
        request = pb.MatchRequest(namespace_id=namespace_id, keys=keys, lease=True)
        answer = await self._link.reopening(namespace_id, lambda: self._link.call("Match", request))
        try:
            yield Match(answer.blocks, answer.blocks_in_memory, answer.bytes)
        finally:
            if answer.lease_id:
                with suppress(UnavailableError, LimitError):  # the lease ends by itself then
                    await self._link.call("Release", pb.ReleaseRequest(lease_ids=[answer.lease_id]))

    def read(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], shard: int = 0, prefix_only: bool = True
    ) -> AbstractAsyncContextManager[Blocks]:
        """The values of `keys`, read-only, valid inside the `async with` only.

        By shared memory they lie in the node's arena under a lease; a reader that stops for longer than
        the lease's TTL (10 s by default) may see other bytes. So copy, or use, first, and trust after:
        leaving the block raises LeaseExpiredError when the lease ended meanwhile, and `is_valid` asks
        before that. With `prefix_only` all after the first miss are misses. Over the network, values are checked
        against their checksums, and a damaged one is a miss, counted in `counts`.

        Raises: CallerError, UnavailableError, LeaseExpiredError."""
        return read_blocks(self._link, ReadPlan(namespace_id, keys, shard, prefix_only))

    async def read_into(
        self,
        namespace_id: NamespaceId,
        keys: Sequence[BlockKey],
        into: Sequence[memoryview],
        shard: int = 0,
        prefix_only: bool = True,
    ) -> list[int | None]:
        """Read the values of `keys` into the writable buffers `into`, one for each; returns their bytes, None for
        a miss. As `read`, without a copy on the way: by the bulk port they are received where they belong.

        A buffer may be larger than its value; one whose value is missing may hold anything afterwards.
        Raises: CallerError, also when a buffer is too small; UnavailableError, LeaseExpiredError."""
        if len(into) != len(keys):
            raise CallerError(f"{len(keys)} keys are to be read into {len(into)} buffers: give one for each")
        return await read_into(self._link, ReadPlan(namespace_id, keys, shard, prefix_only), into)

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

    async def touch(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], shard: int = 0) -> int:
        """Say that the chain `keys` is in use; returns how many of them are stored."""
        request = pb.TouchRequest(namespace_id=namespace_id, blocks=block_ids(keys, shard))
        answer = await self._manage(namespace_id, "Touch", request)
        return int(answer.touched)

    async def pin(
        self, namespace_id: NamespaceId, keys: Sequence[BlockKey], pin: PinOptions | None = None
    ) -> list[pb.Status]:
        """Keep blocks in memory for a while; a status for each: OK, MISS, CORRUPT, BUSY or OVER_QUOTA."""
        pin = pin or PinOptions()
        request = pb.PinRequest(
            namespace_id=namespace_id, blocks=block_ids(keys, pin.shard), ttl_ms=pin.ttl_ms, is_soft=pin.is_soft
        )
        return list((await self._manage(namespace_id, "Pin", request)).statuses)

    async def unpin(self, namespace_id: NamespaceId, keys: Sequence[BlockKey], shard: int = 0) -> int:
        """End pins; returns how many there were."""
        request = pb.UnpinRequest(namespace_id=namespace_id, blocks=block_ids(keys, shard))
        return int((await self._manage(namespace_id, "Unpin", request)).unpinned)

    async def remove(self, namespace_id: NamespaceId, keys: Sequence[BlockKey]) -> int:
        """Remove `keys`, in all their shards, from every tier; returns how many values that were."""
        if not keys:
            return 0
        request = pb.RemoveRequest(namespace_id=namespace_id, keys=keys)
        return int((await self._manage(namespace_id, "Remove", request)).removed)

    async def remove_prefix(self, namespace_id: NamespaceId, key: BlockKey) -> int:
        """Remove the block `key` and all that follow it in its chains; returns how many values that were."""
        request = pb.RemoveRequest(namespace_id=namespace_id, prefix_key=key)
        return int((await self._manage(namespace_id, "Remove", request)).removed)

    async def remove_all(self, namespace_id: NamespaceId) -> int:
        """Remove everything in the namespace; returns how many values that were."""
        request = pb.RemoveRequest(namespace_id=namespace_id, all=True)
        return int((await self._manage(namespace_id, "Remove", request)).removed)

    async def bump_epoch(self, namespace_id: NamespaceId) -> int:
        """Invalidate the namespace at once, running fills included; returns the new epoch."""
        answer = await self._manage(namespace_id, "BumpEpoch", pb.BumpEpochRequest(namespace_id=namespace_id))
        return int(answer.epoch)

    async def list_keys(self, namespace_id: NamespaceId, page_keys: int = 0) -> AsyncIterator[pb.ListedKey]:
        """All stored blocks, in the order of their keys, asked for `page_keys` at a time (0: the node's limit).

        What is stored or removed meanwhile may or may not be among them."""
        page = pb.ListKeysResponse(has_more=True)
        while page.has_more:
            page = await self.list_page(namespace_id, BlockKey(page.keys[-1].key) if page.keys else None, page_keys)
            for listed in page.keys:
                yield listed

    async def list_page(
        self, namespace_id: NamespaceId, after_key: BlockKey | None = None, page_keys: int = 0
    ) -> pb.ListKeysResponse:
        """The stored blocks whose keys follow `after_key` (None: from the start), at most `page_keys` of them."""
        request = pb.ListKeysRequest(namespace_id=namespace_id, after_key=after_key or b"", keys_max=page_keys)
        answer: pb.ListKeysResponse = await self._manage(namespace_id, "ListKeys", request)
        return answer

    async def stats(self, *, with_namespaces: bool = False) -> pb.StatsResponse:
        """Occupancy, traffic and limits of the node now."""
        answer: pb.StatsResponse = await self._link.call("Stats", pb.StatsRequest(with_namespaces=with_namespaces))
        return answer

    async def _manage(self, namespace_id: NamespaceId, name: str, request: Any) -> Any:
        return await self._link.reopening(namespace_id, lambda: self._link.call(name, request))

    async def close(self) -> None:
        """Close all connections. What is leased is given back; views still in use stay mapped."""
        await self._link.close()
