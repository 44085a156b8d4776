"""The node's state and the rules about it: what is stored where, who may use it, what leaves.

Owned by the node's one task. All methods are synchronous, take sizes and keys and never payload
bytes; moving bytes is the callers' part (service, tiering). The order of calls for a read is
find, pin, grant; for a write reserve, then commit or give up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvstore.core.errors import NamespaceUnknownError
from kvstore.core.keys import NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.node.allocator import ExtentAllocator
from kvstore.node.blocks import IN_MEMORY, Block, BlockId, DiskPlace, State, StoredValue
from kvstore.node.events import EventLog
from kvstore.node.index import BlockIndex
from kvstore.node.leases import Lease, LeaseKind, LeaseTable, Owner
from kvstore.node.pins import PinTable
from kvstore.wire import kvstore_pb2 as pb

ARENA_ALIGNMENT = 4096
"""Extents begin and end on pages, so that O_DIRECT moves them between arena and disk without a copy."""


@dataclass(slots=True)
class Traffic:
    """Counts since start; see `kvstore.v1.StatsResponse`."""

    blocks_asked: int = 0
    blocks_hit_memory: int = 0
    blocks_hit_disk: int = 0
    blocks_stored: int = 0
    blocks_evicted: int = 0
    blocks_removed: int = 0
    blocks_corrupt: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    leases_expired: int = 0
    releases_unknown: int = 0


@dataclass(slots=True)
class Namespace:
    """An open namespace."""

    fingerprint: Fingerprint
    epoch: int
    blocks_asked: int = 0
    blocks_hit: int = 0


@dataclass(frozen=True, slots=True)
class PutPlan:
    """One value that a writer offers."""

    id: BlockId
    size: int
    parent_key: bytes
    token_ids: bytes = b""
    """See `Block`."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a writer got for its plans: a lease on blocks to fill, None when nothing is wanted."""

    lease: Lease | None
    statuses: Sequence[pb.Status]
    """WANTED, EXISTS, BUSY or OVER_QUOTA, one for each plan; the lease's items are in the same order."""


class BlockStore:
    """Index, allocator, leases and events of one arena."""

    def __init__(
        self, arena_bytes: int, clock: Callable[[], float], event_log_events: int, namespace_bytes_max: int = 0
    ) -> None:
        """`namespace_bytes_max`: most bytes of the arena for the values of one namespace; 0: all."""
        self.allocator = ExtentAllocator(arena_bytes, ARENA_ALIGNMENT)
        self.index = BlockIndex(self.allocator.free, has_quotas=namespace_bytes_max > 0)
        self.leases = LeaseTable(clock)
        self.pins = PinTable(self.index, self.leases, arena_bytes // 2)
        self.namespace_bytes_max = namespace_bytes_max
        self.events = EventLog(event_log_events)
        self.traffic = Traffic()
        self.quarantined: dict[Owner, list[int]] = {}
        """Extents of local fill leases that expired: their writers may still write. Freed on disconnect."""
        self.namespaces: dict[NamespaceId, Namespace] = {}

    def open_namespace(self, namespace: NamespaceId, fingerprint: Fingerprint, epoch: int = 1) -> None:
        """Make `namespace`, the id of `fingerprint`, known; repeating it is fine."""
        opened = self.namespaces.setdefault(namespace, Namespace(fingerprint, epoch))
        assert opened.fingerprint == fingerprint

    def namespace(self, namespace: NamespaceId) -> Namespace:
        """The open `namespace`. Raises: NamespaceUnknownError."""
        opened = self.namespaces.get(namespace)
        if opened is None:
            raise NamespaceUnknownError(f"namespace {namespace.hex()[:16]} is not open here: call OpenNamespace first")
        return opened

    def shard_count(self, namespace: NamespaceId) -> int:
        """Shards of a key in `namespace`. Raises: NamespaceUnknownError."""
        return self.namespace(namespace).fingerprint.shard_count

    def reserve(self, plans: Sequence[PutPlan], ttl_s: float, owner: Owner | None) -> Reservation:
        """Extents for those `plans` that are not stored yet, under one fill lease; evicts to make room.

        Never evicts a block that this batch names: it would take the parents of what it stores."""
        held = [block for plan in plans if (block := self.index.find(plan.id)) and block.state in IN_MEMORY]
        self.index.touch(held)
        for block in held:
            self.index.pin(block)
        try:
            return self._reserve(plans, ttl_s, owner)
        finally:
            for block in held:
                self.index.unpin(block)

    def _reserve(self, plans: Sequence[PutPlan], ttl_s: float, owner: Owner | None) -> Reservation:
        items: list[Block | None] = []
        statuses: list[pb.Status] = []
        for plan in plans:
            block, status = None, pb.STATUS_EXISTS
            if self.index.find(plan.id) is None:
                offset = self.allocate(plan.size, plan.id.namespace)
                status = pb.STATUS_WANTED
                if offset is not None:
                    epoch = self.namespace(plan.id.namespace).epoch
                    block = self.index.reserve(plan.id, plan.size, plan.parent_key, offset, epoch)
                    block.token_ids = plan.token_ids
                else:
                    is_over = self._is_over_quota(plan.size, plan.id.namespace)
                    status = pb.STATUS_OVER_QUOTA if is_over else pb.STATUS_BUSY
            items.append(block)
            statuses.append(status)
        is_wanted = any(block is not None for block in items)
        lease = self.leases.grant(LeaseKind.FILL, items, ttl_s, owner) if is_wanted else None
        return Reservation(lease, statuses)

    def commit(self, lease: Lease, checksums: Mapping[Block, bytes]) -> dict[Block, pb.Status]:
        """End the fill lease: publish the blocks that have a checksum, give up the others.

        Returns STORED or EXISTS for each block that has a checksum; REJECTED when the epoch ended."""
        statuses: dict[Block, pb.Status] = {}
        sealed: list[Block] = []
        ended = self.leases.end(lease.id, LeaseKind.FILL)
        assert ended is lease
        for block in lease.blocks:
            checksum = checksums.get(block)
            is_stale = block.epoch != self.namespace(block.id.namespace).epoch
            if checksum is None or is_stale or self.index.find(block.id) is not None:
                self._give_up(block)
                if checksum is not None:
                    statuses[block] = pb.STATUS_REJECTED if is_stale else pb.STATUS_EXISTS
                continue
            self.index.seal(block, checksum)
            sealed.append(block)
            statuses[block] = pb.STATUS_STORED
            self.traffic.blocks_stored += 1
            self.traffic.bytes_written += block.size
            self._tell_stored(block)
        self.index.touch(sealed)
        return statuses

    def grant_read(self, blocks: Sequence[Block], ttl_s: float, owner: Owner | None) -> Lease:
        """A read lease on `blocks`, already pinned once each; the lease takes these pins over."""
        self.index.touch(blocks)
        self.traffic.bytes_read += sum(block.size for block in blocks)
        return self.leases.grant(LeaseKind.READ, blocks, ttl_s, owner)

    def release(self, lease_ids: Sequence[int]) -> int:
        """End read leases; returns how many were running. Others are ignored and counted."""
        released = 0
        for lease_id in lease_ids:
            if (lease := self.leases.end(lease_id, LeaseKind.READ)) is None:
                self.traffic.releases_unknown += 1
                continue
            self._end(lease)
            released += 1
        return released

    def give_up(self, lease: Lease) -> None:
        """End a fill lease without storing anything; nothing happens when it is over already."""
        if self.leases.end(lease.id, LeaseKind.FILL) is lease:
            self._end(lease)

    def end_expired(self) -> None:
        """End all leases whose time is over. A local writer's extents wait until it has disconnected."""
        for lease in self.leases.end_expired():
            self.traffic.leases_expired += 1
            if lease.kind is LeaseKind.FILL and lease.owner is not None:
                self.quarantined.setdefault(lease.owner, []).extend(block.offset for block in lease.blocks)
                for block in lease.blocks:
                    self.index.give_up(block)
            else:
                self._end(lease)

    def end_owned(self, owner: Owner) -> None:
        """The connection `owner` closed: give back everything that it held."""
        for lease in self.leases.end_owned(owner):
            self._end(lease)
        for offset in self.quarantined.pop(owner, ()):
            self.allocator.free(offset)

    def allocate(self, size: int, namespace: NamespaceId) -> int | None:
        """An extent of the arena for `namespace`, evicting as needed; None when what is left is in use.

        A namespace at its quota makes room among its own blocks. Soft pins give way last."""
        if size > self.allocator.capacity:
            return None
        while self._is_over_quota(size, namespace):
            if (victim := self.index.next_victim_of(namespace)) is None:
                return None
            self.evict(victim)
        while (offset := self.allocator.allocate(size)) is None:
            if (victim := self.index.next_victim()) is not None:
                self.evict(victim)
            elif not self.pins.end_oldest_soft():
                return None
        return offset

    def remove(self, blocks: Sequence[Block]) -> list[tuple[BlockId, DiskPlace | None]]:
        """Take `blocks` away from every tier; returns what the disk must forget.

        They can no longer be found; memory that is leased is freed when its last lease ends."""
        forgotten = []
        for block in blocks:
            was_complete = self._is_complete(block)
            self.pins.end(block)
            forgotten.append((block.id, self.index.remove(block)))
            self.traffic.blocks_removed += 1
            self._tell_removed(block, was_complete)
        return forgotten

    def clear(self, namespace: NamespaceId) -> list[tuple[BlockId, DiskPlace | None]]:
        """As `remove`, for all blocks of `namespace`, told as one event."""
        forgotten = []
        for block in list(self.index.blocks(namespace)):
            self.pins.end(block)
            forgotten.append((block.id, self.index.remove(block)))
        self.traffic.blocks_removed += len(forgotten)
        self.events.append(pb.BlockEvent(kind=pb.BlockEvent.KIND_CLEARED, namespace_id=namespace))
        return forgotten

    def evict(self, block: Block) -> None:
        """Take an evictable block out of memory."""
        was_complete = self._is_complete(block)
        self.allocator.free(self.index.evict(block))
        self.traffic.blocks_evicted += 1
        if block.state is State.GONE:
            self._tell_removed(block, was_complete)
        else:
            self._tell_stored(block)

    def forget_disk(self, block_ids: Sequence[BlockId], segment: int) -> None:
        """Segment `segment`, which held `block_ids`, is reclaimed."""
        for block_id in block_ids:
            block = self.index.find(block_id)
            if block is None or block.place is None or block.place.segment != segment:
                continue
            was_complete = self._is_complete(block)
            self.index.lose_disk(block)
            if block.state is State.GONE:
                self._tell_removed(block, was_complete)

    def restore(self, values: Sequence[StoredValue]) -> None:
        """Publish blocks that a former run left on disk; before any client connects, so untold."""
        self.index.restore(values)

    def end_promotion(self, block: Block, outcome: State) -> None:
        """A promotion ended as BOTH, DISK or GONE (see the index); nothing happens if it was removed meanwhile."""
        if block.state is State.DOOMED:
            return
        was_complete = self._is_complete(block)
        if (freed := self.index.end_promotion(block, outcome)) is not None:
            self.allocator.free(freed)
        if outcome is State.GONE:
            self._tell_removed(block, was_complete)
        elif outcome is State.BOTH:
            self._tell_stored(block)

    def stored_event(self, block: Block) -> pb.BlockEvent | None:
        """The event that says `block`'s key can be read; None while a shard is missing."""
        shards = self._shards_of(block)
        if shards is None:
            return None
        tier = pb.TIER_MEMORY if all(shard.state in IN_MEMORY for shard in shards) else pb.TIER_DISK
        size = sum(shard.size for shard in shards)
        return pb.BlockEvent(
            kind=pb.BlockEvent.KIND_STORED,
            namespace_id=block.id.namespace,
            key=block.id.key,
            parent_key=block.parent_key,
            tier=tier,
            size=size,
            token_ids=memoryview(block.token_ids).cast("I"),
        )

    def check_invariants(self) -> None:
        """Every used extent has one user, and pins come from leases (call it when nothing else pins)."""
        self.index.check_invariants()
        self.allocator.check_invariants()
        self.leases.check_invariants()
        padded = self.allocator.padded
        resident = sum(padded(block.size) for block in self.index.blocks() if block.offset >= 0)
        reserved = self.index.counts[State.RESERVED] + self.index.counts[State.DOOMED]
        assert resident <= self.allocator.bytes_used
        assert resident == self.allocator.bytes_used or reserved or self.quarantined

    def _end(self, lease: Lease) -> None:
        for block in lease.blocks:
            match lease.kind:
                case LeaseKind.READ:
                    self.index.unpin(block)
                case LeaseKind.PIN:
                    self.pins.expired(block)
                case LeaseKind.FILL:
                    self._give_up(block)

    def _is_over_quota(self, size: int, namespace: NamespaceId) -> bool:
        usage = self.index.usage.get(namespace)
        used = usage.bytes_memory if usage is not None else 0
        return 0 < self.namespace_bytes_max < used + size

    def _give_up(self, block: Block) -> None:
        self.index.give_up(block)
        self.allocator.free(block.offset)

    def _shards_of(self, block: Block) -> list[Block] | None:
        count = self.namespaces[block.id.namespace].fingerprint.shard_count
        found = [block if count == 1 else self.index.find(block.id._replace(shard=shard)) for shard in range(count)]
        shards = [shard for shard in found if shard is not None]
        return shards if len(shards) == count else None

    def _is_complete(self, block: Block) -> bool:
        return self._shards_of(block) is not None

    def _tell_stored(self, block: Block) -> None:
        if (event := self.stored_event(block)) is not None:
            self.events.append(event)

    def _tell_removed(self, block: Block, was_complete: bool) -> None:
        if was_complete:
            self.events.append(
                pb.BlockEvent(
                    kind=pb.BlockEvent.KIND_REMOVED,
                    namespace_id=block.id.namespace,
                    key=block.id.key,
                    parent_key=block.parent_key,
                )
            )
