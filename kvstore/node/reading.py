"""Holding blocks in memory for a reader, promoting those that are on disk.

The one way to blocks: `Acquire` turns what is held into a lease, `Get` streams it and lets go.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from kvstore.node.blocks import IN_MEMORY, Block, BlockId
from kvstore.node.store import BlockStore
from kvstore.node.tiering import Promoter
from kvstore.wire import kvstore_pb2 as pb


class HeldBlock(NamedTuple):
    """What became of one block asked for; `block` is set, and pinned once, when the status is OK."""

    status: pb.Status
    block: Block | None = None
    tier: pb.Tier = pb.TIER_UNSPECIFIED


_MISS = HeldBlock(pb.STATUS_MISS)


async def hold_blocks(
    store: BlockStore, promoter: Promoter | None, block_ids: Sequence[BlockId], prefix_only: bool
) -> list[HeldBlock]:
    """Pin each block in memory; with `prefix_only`, all after the first that is not there are misses.

    The caller must `let_go` of the result, or hand its pins to a lease."""
    store.traffic.blocks_asked += len(block_ids)
    held: list[HeldBlock] = []
    promotions: dict[int, asyncio.Task[pb.Status]] = {}
    for block_id in block_ids:
        found = _hold(store, promoter, block_id, promotions, len(held))
        held.append(found)
        if prefix_only and found.block is None:
            break
    if promotions:
        try:
            await asyncio.wait(promotions.values())  # does not cancel them when this caller is cancelled
        except asyncio.CancelledError:
            let_go(store, held)
            raise
        _drop_failed(store, held, promotions)
    if prefix_only:
        _cut_at_first_gap(store, held, len(block_ids))
    for item in held:
        store.traffic.blocks_hit_memory += item.tier == pb.TIER_MEMORY
        store.traffic.blocks_hit_disk += item.tier == pb.TIER_DISK
    return held


def let_go(store: BlockStore, held: Sequence[HeldBlock]) -> None:
    """Unpin all that is held."""
    for item in held:
        if item.block is not None:
            store.index.unpin(item.block)


def _hold(
    store: BlockStore,
    promoter: Promoter | None,
    block_id: BlockId,
    promotions: dict[int, asyncio.Task[pb.Status]],
    place: int,
) -> HeldBlock:
    block = store.index.find(block_id)
    if block is None:
        return _MISS
    if block.state in IN_MEMORY:
        store.index.pin(block)
        return HeldBlock(pb.STATUS_OK, block, pb.TIER_MEMORY)
    assert promoter is not None, "blocks are on disk, but there is no disk tier"
    promotion = promoter.begin(block)
    if promotion is None:
        return HeldBlock(pb.STATUS_BUSY)
    promotions[place] = promotion
    return HeldBlock(pb.STATUS_OK, block, pb.TIER_DISK)


def _drop_failed(store: BlockStore, held: list[HeldBlock], promotions: dict[int, asyncio.Task[pb.Status]]) -> None:
    for place, promotion in promotions.items():
        if (status := promotion.result()) != pb.STATUS_OK:
            let_go(store, [held[place]])
            held[place] = HeldBlock(status)


def _cut_at_first_gap(store: BlockStore, held: list[HeldBlock], n_asked: int) -> None:
    gap = next((place for place, item in enumerate(held) if item.block is None), len(held))
    let_go(store, held[gap + 1 :])
    del held[gap + 1 :]
    held.extend([_MISS] * (n_asked - len(held)))
