"""Every block of a node: how it is found, what state it is in, and which one leaves next.

Owned by the node's one task; all methods are synchronous and never see payload bytes. It keeps the
counts that make eviction safe: leases of a block, and resident children of a parent. A block counts
for its parent only if the parent was resident first, so these links can never form a ring, whatever
parents the writers claim. Extents are the caller's: a method that frees one says so.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.blocks import IN_MEMORY, ON_DISK, RESIDENT, Block, BlockId, DiskPlace, State, StoredValue
from kvstore.node.eviction import LeastRecentlyUsed, may_go


class MatchedPrefix(NamedTuple):
    """How much of a chain is stored; see `kvstore.v1.MatchResponse`."""

    blocks: int
    blocks_in_memory: int
    bytes: int


@dataclass(slots=True)
class Usage:
    """What one namespace takes; values of all shards count."""

    blocks: int = 0
    bytes_memory: int = 0
    bytes_disk: int = 0


_FINDABLE = RESIDENT | ON_DISK
_TAKES_MEMORY = RESIDENT | {State.RESERVED, State.DOOMED}


class BlockIndex:
    """All findable blocks by namespace, with their states, leases and order of use."""

    def __init__(self, free: Callable[[int], None], *, has_quotas: bool = False) -> None:
        """`free` takes back the extent of a removed block when its last user is done.
        `has_quotas`: `next_victim_of` will be asked."""
        self._free = free
        self._blocks: dict[tuple[NamespaceId, int], dict[bytes, Block]] = {}
        """By namespace and shard, then by key."""
        self._evictable = LeastRecentlyUsed()
        self._evictable_of: dict[NamespaceId, LeastRecentlyUsed] | None = {} if has_quotas else None
        """The same blocks once more by namespace; kept only where a namespace may have to make room by itself."""
        self._tick = 0
        self.counts: dict[State, int] = dict.fromkeys(State, 0)
        self.bytes: dict[State, int] = dict.fromkeys(State, 0)
        self.usage: dict[NamespaceId, Usage] = {}

    def find(self, block_id: BlockId) -> Block | None:
        """The block, in whatever findable state it is."""
        namespace, key, shard = block_id
        blocks = self._blocks.get((namespace, shard))
        return None if blocks is None else blocks.get(key)

    def blocks(self, namespace: NamespaceId | None = None) -> Iterator[Block]:
        """All findable blocks, or those of one namespace; do not change the index meanwhile."""
        for (of_namespace, _), blocks in self._blocks.items():
            if namespace in (None, of_namespace):
                yield from blocks.values()

    def match(self, namespace: NamespaceId, keys: Sequence[bytes], shard_count: int) -> MatchedPrefix:
        """The longest head of `keys` that is stored on all shards. No side effect."""
        shards = [self._blocks.get((namespace, shard), {}) for shard in range(shard_count)]
        n_blocks = n_memory = n_bytes = 0
        for key in keys:
            size, is_in_memory = 0, True
            for blocks in shards:
                if (block := blocks.get(key)) is None:
                    return MatchedPrefix(n_blocks, n_memory, n_bytes)
                size += block.size
                is_in_memory = is_in_memory and block.state in IN_MEMORY
            n_blocks += 1
            n_memory += is_in_memory
            n_bytes += size
        return MatchedPrefix(n_blocks, n_memory, n_bytes)

    def present(self, namespace: NamespaceId, keys: Sequence[bytes], shard_count: int) -> bytes:
        """One bit for each of `keys`, the first lowest: whether it is stored on all shards. No side effect."""
        shards = [self._blocks.get((namespace, shard), {}) for shard in range(shard_count)]
        bits = bytearray(-(-len(keys) // 8))
        for place, key in enumerate(keys):
            if all(key in blocks for blocks in shards):
                bits[place >> 3] |= 1 << (place & 7)
        return bytes(bits)

    def shards(self, namespace: NamespaceId, key: bytes, shard_count: int) -> list[Block]:
        """The stored shards of `key`."""
        found = [self.find(BlockId(namespace, BlockKey(key), shard)) for shard in range(shard_count)]
        return [block for block in found if block is not None]

    def keys_after(self, namespace: NamespaceId, after: bytes, keys_max: int) -> list[bytes]:
        """The `keys_max` smallest keys above `after` that are stored on any shard. Looks at each key once: O(n)."""
        shards = [blocks for (of_namespace, _), blocks in self._blocks.items() if of_namespace == namespace]
        keys = set().union(*shards) if len(shards) != 1 else shards[0].keys()
        return heapq.nsmallest(keys_max, (key for key in keys if key > after))

    def descendants(self, namespace: NamespaceId, key: bytes) -> list[Block]:
        """All blocks whose chain goes through `key`, itself first, in all shards. Looks at each block once: O(n)."""
        children: dict[bytes, list[Block]] = {}
        for block in self.blocks(namespace):
            children.setdefault(block.parent_key, []).append(block)
        found = [block for block in self.blocks(namespace) if block.id.key == key]
        seen = {key}
        keys = [key]
        while keys:
            below = children.get(keys.pop(), [])
            found += [block for block in below if block.id.key != key]
            fresh = {block.id.key for block in below} - seen
            seen |= fresh
            keys += fresh
        return found

    def reserve(self, block_id: BlockId, size: int, parent_key: bytes, offset: int, epoch: int = 0) -> Block:
        """A new invisible block whose extent a writer is about to fill."""
        block = Block(block_id, size, parent_key, State.RESERVED, offset, epoch=epoch)
        self._count(block, +1)
        return block

    def give_up(self, block: Block) -> None:
        """End a reservation; its extent is the caller's to free."""
        self._move(block, State.GONE)

    def seal(self, block: Block, checksum: bytes) -> None:
        """Publish a filled reservation; it must not be there yet."""
        assert self.find(block.id) is None
        block.checksum = checksum
        self._publish(block)
        self._move(block, State.MEMORY)
        self.touch([block])

    def restore(self, values: Sequence[StoredValue]) -> None:
        """Publish blocks that a former run of the node left on disk. Written for a million of them."""
        sizes: dict[NamespaceId, list[int]] = {}
        for block_id, place, size, checksum, parent_key in values:
            namespace, key, shard = block_id
            blocks = self._blocks.get((namespace, shard))
            if blocks is None:
                blocks = self._blocks[namespace, shard] = {}
            assert key not in blocks
            blocks[key] = Block(block_id, size, parent_key, State.DISK, -1, checksum, place)
            sizes.setdefault(namespace, []).append(size)
        for namespace, of_namespace in sizes.items():
            self._count_all(namespace, State.DISK, len(of_namespace), sum(of_namespace))

    def demoted(self, block: Block, place: DiskPlace) -> None:
        """A block in memory is now on disk as well."""
        block.place = place
        self._move(block, State.BOTH)

    def evict(self, block: Block) -> int:
        """Take `block` out of memory (and away, unless it is on disk). Returns its extent, to be freed."""
        assert may_go(block)
        offset, block.offset = block.offset, -1
        self._move(block, State.DISK if block.state is State.BOTH else State.GONE)
        return offset

    def lose_disk(self, block: Block) -> None:
        """The copy on disk is gone; the block lives on only if it is in memory."""
        block.place = None
        self._move(block, State.MEMORY if block.state is State.BOTH else State.GONE)

    def begin_promotion(self, block: Block, offset: int) -> None:
        """A block on disk is about to be read into the extent at `offset`."""
        block.offset = offset
        self._move(block, State.PROMOTING)

    def end_promotion(self, block: Block, outcome: State) -> int | None:
        """BOTH: it was read and proven. DISK or GONE: it was not; returns the extent, to be freed."""
        freed = None
        if block.state is State.DOOMED:  # removed meanwhile: the last use frees it
            return None
        if outcome is not State.BOTH:
            freed, block.offset = block.offset, -1
        if outcome is State.GONE:
            block.place = None
        self._move(block, outcome)
        return freed

    def remove(self, block: Block) -> DiskPlace | None:
        """Make `block` unfindable; its memory is freed now, or with its last use. Returns its place on disk."""
        assert block.state in _FINDABLE
        place, block.place = block.place, None
        if block.leases:
            self._move(block, State.DOOMED)
            return place
        if block.offset >= 0:
            self._free_extent(block)
        self._move(block, State.GONE)
        return place

    def pin(self, block: Block) -> None:
        """Count one more use; the block stays where it is until `unpin`."""
        assert block.state in RESIDENT
        block.leases += 1

    def unpin(self, block: Block) -> None:
        """Take one use away. A count below zero is a bug."""
        assert block.leases > 0
        block.leases -= 1
        if block.state is State.DOOMED and block.leases == 0:
            self._free_extent(block)
            self._move(block, State.GONE)
        self._offer(block)

    def touch(self, blocks: Sequence[Block]) -> None:
        """Mark the chain `blocks`, first block first, as just used; parents become the newest."""
        for block in reversed(blocks):
            self._tick += 1
            block.last_use = self._tick
            self._offer(block)

    def next_victim(self) -> Block | None:
        """The block to evict now; None when none may go. Evict it before the next call."""
        return self._evictable.next_victim()

    def next_victim_of(self, namespace: NamespaceId) -> Block | None:
        """As `next_victim`, among the blocks of `namespace`."""
        assert self._evictable_of is not None
        evictable = self._evictable_of.get(namespace)
        return evictable.next_victim() if evictable is not None else None

    def check_invariants(self) -> None:
        """Counts, links and places agree with one another."""
        blocks = list(self.blocks())
        for state in set(State) - {State.RESERVED, State.DOOMED, State.GONE}:
            assert self.counts[state] == sum(block.state is state for block in blocks)
            assert self.bytes[state] == sum(block.size for block in blocks if block.state is state)
        for block in blocks:
            assert self.find(block.id) is block
            assert block.leases >= 0 and (block.leases == 0 or block.state in RESIDENT)
            assert (block.offset >= 0) == (block.state in RESIDENT)
            assert (block.place is not None) == (block.state in ON_DISK)
            assert block.children == sum(child.parent is block for child in blocks)
            assert block.parent is None or block.state in RESIDENT

    def _free_extent(self, block: Block) -> None:
        self._free(block.offset)
        block.offset = -1

    def _publish(self, block: Block) -> None:
        self._blocks.setdefault((block.id.namespace, block.id.shard), {})[block.id.key] = block

    def _move(self, block: Block, state: State) -> None:
        was_resident = block.state in RESIDENT
        self._count(block, -1)
        block.move_to(state)
        self._count(block, +1)
        if state in (State.GONE, State.DOOMED) and self.find(block.id) is block:
            del self._blocks[block.id.namespace, block.id.shard][block.id.key]
        is_resident = state in RESIDENT
        if is_resident and not was_resident:
            self._link(block)
        if was_resident and not is_resident:
            self._unlink(block)
        self._offer(block)

    def _link(self, block: Block) -> None:
        if block.parent_key:
            parent = self.find(block.id._replace(key=BlockKey(block.parent_key)))
            if parent is not None and parent is not block and parent.state in RESIDENT:
                block.parent = parent
                parent.children += 1

    def _unlink(self, block: Block) -> None:
        if (parent := block.parent) is not None:
            block.parent = None
            assert parent.children > 0
            parent.children -= 1
            self._offer(parent)

    def _offer(self, block: Block) -> None:
        if not may_go(block):
            return
        self._evictable.offer(block)
        if self._evictable_of is not None:
            of_namespace = self._evictable_of.get(block.id.namespace)
            if of_namespace is None:
                of_namespace = self._evictable_of[block.id.namespace] = LeastRecentlyUsed()
            of_namespace.offer(block)

    def _count(self, block: Block, step: int) -> None:
        if block.state is not State.GONE:
            self._count_all(block.id.namespace, block.state, step, step * block.size)

    def _count_all(self, namespace: NamespaceId, state: State, n_blocks: int, n_bytes: int) -> None:
        self.counts[state] += n_blocks
        self.bytes[state] += n_bytes
        usage = self.usage.get(namespace)
        if usage is None:
            usage = self.usage[namespace] = Usage()
        usage.blocks += n_blocks * (state in _FINDABLE)
        usage.bytes_memory += n_bytes * (state in _TAKES_MEMORY)
        usage.bytes_disk += n_bytes * (state in ON_DISK)
