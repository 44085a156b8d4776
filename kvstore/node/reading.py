"""Holding blocks in memory for a reader, promoting those that are on disk.

The one way to blocks: `Acquire` turns what is held into a lease, `Get` streams it and lets go.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

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


def hold_blocks(
    store: BlockStore, promoter: Promoter | None, block_ids: Sequence[BlockId], prefix_only: bool
) -> list[HeldBlock] | Coroutine[Any, Any, list[HeldBlock]]:
    """Pin each block in memory; with `prefix_only`, all after the first that is not there are misses.

    Answers at once when nothing must be promoted, as nearly always: a task and a turn of the loop would cost
    more than the work. The caller must `let_go` of what is held, or hand its pins to a lease."""
    store.traffic.blocks_asked += len(block_ids)
    if block_ids:
        store.namespaces[block_ids[0].namespace].blocks_asked += len(block_ids)
    held: list[HeldBlock] = []
    promotions: dict[int, asyncio.Task[pb.Status]] = {}
    for block_id in block_ids:
        found = _hold(store, promoter, block_id, promotions, len(held))
        held.append(found)
        if prefix_only and found.block is None:
            break
    n_asked = len(block_ids) if prefix_only else 0
    return _promoted(store, held, promotions, n_asked) if promotions else _finished(store, held, n_asked)


def let_go(store: BlockStore, held: Sequence[HeldBlock]) -> None:
    """Unpin all that is held."""
    for item in held:
        if item.block is not None:
            store.index.unpin(item.block)


async def _promoted(
    store: BlockStore, held: list[HeldBlock], promotions: dict[int, asyncio.Task[pb.Status]], n_asked: int
) -> list[HeldBlock]:
    """`held`, once all `promotions` (by place in it) have ended."""
    try:
        await asyncio.wait(promotions.values())  # does not cancel them when this caller is cancelled
    except asyncio.CancelledError:
        let_go(store, held)
        raise
    for place, promotion in promotions.items():
        if (status := promotion.result()) != pb.STATUS_OK:
            let_go(store, [held[place]])
            held[place] = HeldBlock(status)
    return _finished(store, held, n_asked)


def _finished(store: BlockStore, held: list[HeldBlock], n_asked: int) -> list[HeldBlock]:
    """`held`, counted; if `n_asked` is not 0, cut at the first gap and filled up with misses."""
    if n_asked:
        gap = next((place for place, item in enumerate(held) if item.block is None), len(held))
        let_go(store, held[gap + 1 :])
        del held[gap + 1 :]
        held.extend([_MISS] * (n_asked - len(held)))
    for item in held:
        if item.block is not None:
            store.namespaces[item.block.id.namespace].blocks_hit += 1
        store.traffic.blocks_hit_memory += item.tier == pb.TIER_MEMORY
        store.traffic.blocks_hit_disk += item.tier == pb.TIER_DISK
    return held


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
