"""The calls that manage stored blocks: touch, pin, remove, list. No payload bytes.

Runs on the node's one task, as the service does.
"""

from collections.abc import Sequence

from kvstore.core.errors import CacheDegradedError, CallerError
from kvstore.core.keys import NamespaceId
from kvstore.node import checking
from kvstore.node.blocks import IN_MEMORY, Block, BlockId, DiskPlace
from kvstore.node.reading import HeldBlock, hold_blocks, let_go
from kvstore.node.settings import Limits
from kvstore.node.store import BlockStore
from kvstore.node.tiering import DiskParts
from kvstore.wire import kvstore_pb2 as pb


class Management:
    """See the proto for each call. Raises: CallerError, NamespaceUnknownError."""

    def __init__(self, store: BlockStore, limits: Limits, disk: DiskParts | None) -> None:
        self._store = store
        self._limits = limits
        self._disk = disk

    def touch(self, request: pb.TouchRequest) -> pb.TouchResponse:
        """Make stored blocks the newest."""
        found = [block for block_id in self._block_ids(request) if (block := self._store.index.find(block_id))]
        self._store.index.touch(found)
        return pb.TouchResponse(touched=len(found))

    async def pin(self, request: pb.PinRequest) -> pb.PinResponse:
        """Bring blocks into memory and keep them there for a while."""
        ttl_ms = min(request.ttl_ms or self._limits.pin_ttl_ms_max, self._limits.pin_ttl_ms_max)
        promoter = self._disk.promoter if self._disk else None
        holding = hold_blocks(self._store, promoter, self._block_ids(request), prefix_only=False)
        held = holding if isinstance(holding, list) else await holding
        try:
            statuses = [self._pin(item, ttl_ms / 1000, is_soft=request.is_soft) for item in held]
        finally:
            let_go(self._store, held)
        return pb.PinResponse(statuses=statuses, ttl_ms=ttl_ms)

    def unpin(self, request: pb.UnpinRequest) -> pb.UnpinResponse:
        """End pins before their time."""
        found = [block for block_id in self._block_ids(request) if (block := self._store.index.find(block_id))]
        return pb.UnpinResponse(unpinned=sum(self._store.pins.end(block) for block in found))

    async def remove(self, request: pb.RemoveRequest) -> pb.RemoveResponse:
        """Take blocks away from every tier. Raises also: CacheDegradedError when the disk cannot forget them."""
        namespace = NamespaceId(request.namespace_id)
        shard_count = self._store.shard_count(namespace)
        if (bool(request.keys), bool(request.prefix_key), request.all).count(True) != 1:
            raise CallerError("a removal names exactly one of keys, prefix_key and all")
        checking.check_keys([*request.keys, request.prefix_key] if request.prefix_key else request.keys, self._limits)
        index = self._store.index
        if request.all:
            forgotten = self._store.clear(namespace)
        elif request.prefix_key:
            forgotten = self._store.remove(index.descendants(namespace, request.prefix_key))
        else:
            keys = dict.fromkeys(request.keys)
            forgotten = self._store.remove(
                [block for key in keys for block in index.shards(namespace, key, shard_count)]
            )
        await self._forget(forgotten)
        return pb.RemoveResponse(removed=len(forgotten))

    async def bump_epoch(self, request: pb.BumpEpochRequest) -> pb.BumpEpochResponse:
        """Invalidate a namespace. Raises also: CacheDegradedError when the disk cannot forget it."""
        namespace = NamespaceId(request.namespace_id)
        opened = self._store.namespace(namespace)
        opened.epoch += 1
        forgotten = self._store.clear(namespace)
        await self._forget(forgotten)
        if self._disk is not None:
            await self._disk.tier.save_epoch(namespace, opened.epoch)
        return pb.BumpEpochResponse(epoch=opened.epoch, removed=len(forgotten))

    def list_keys(self, request: pb.ListKeysRequest) -> pb.ListKeysResponse:
        """A page of what is stored."""
        namespace = NamespaceId(request.namespace_id)
        shard_count = self._store.shard_count(namespace)
        keys_max = min(request.keys_max or self._limits.items_max, self._limits.items_max)
        keys = self._store.index.keys_after(namespace, request.after_key, keys_max + 1)
        return pb.ListKeysResponse(
            keys=[self._listed(key, self._store.index.shards(namespace, key, shard_count)) for key in keys[:keys_max]],
            has_more=len(keys) > keys_max,
        )

    def _listed(self, key: bytes, shards: Sequence[Block]) -> pb.ListedKey:
        return pb.ListedKey(
            key=key,
            parent_key=shards[0].parent_key,
            shards=len(shards),
            bytes=sum(block.size for block in shards),
            tier=pb.TIER_MEMORY if all(block.state in IN_MEMORY for block in shards) else pb.TIER_DISK,
            is_pinned=any(block in self._store.pins for block in shards),
        )

    def _pin(self, held: HeldBlock, ttl_s: float, *, is_soft: bool) -> pb.Status:
        block = held.block
        if block is None:
            return held.status
        if block.state not in IN_MEMORY:  # removed while it came from the disk
            return pb.STATUS_MISS
        return pb.STATUS_OK if self._store.pins.pin(block, ttl_s, is_soft=is_soft) else pb.STATUS_OVER_QUOTA

    def _block_ids(self, request: pb.TouchRequest | pb.PinRequest | pb.UnpinRequest) -> list[BlockId]:
        namespace = NamespaceId(request.namespace_id)
        return checking.block_ids(namespace, request.blocks, self._store.shard_count(namespace), self._limits)

    async def _forget(self, forgotten: Sequence[tuple[BlockId, DiskPlace | None]]) -> None:
        if self._disk is None:
            return
        await self._disk.tier.forget(forgotten)
        if self._disk.tier.off_reason:
            raise CacheDegradedError(
                "the blocks are removed from memory, but the disk tier is off and may still name them after a "
                f"restart ({self._disk.tier.off_reason}): mend the disk and remove them again"
            )
