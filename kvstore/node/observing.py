"""`Stats` and `Watch`: the calls that only look."""

import heapq
import secrets
from collections.abc import AsyncGenerator, Iterator

from kvstore.core.keys import NamespaceId
from kvstore.node.arena import Arena
from kvstore.node.blocks import IN_MEMORY, State
from kvstore.node.index import Usage
from kvstore.node.lifecycle import Lifecycle
from kvstore.node.store import BlockStore
from kvstore.node.tiering import DiskParts
from kvstore.wire import kvstore_pb2 as pb

_NAMESPACES_TOLD_MAX = 1000
_EVENTS_PER_MESSAGE = 1024  # about 150 KB


class Observer:
    """What a node tells about itself."""

    def __init__(
        self, store: BlockStore, arena: Arena, local_socket: str, disk: DiskParts | None, lifecycle: Lifecycle
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._arena = arena
        self._local_socket = local_socket
        self._disk = disk
        self.incarnation = secrets.randbits(63) | 1
        self.bulk_port = 0
        """As told to clients; set once the port is open."""

    def stats(self, *, with_namespaces: bool = False) -> pb.StatsResponse:
        """See the proto."""
        traffic = self._store.traffic
        return pb.StatsResponse(
            incarnation=self.incarnation,
            tiers=self._tiers(),
            leases=len(self._store.leases) - len(self._store.pins),
            blocks_asked=traffic.blocks_asked,
            blocks_hit_memory=traffic.blocks_hit_memory,
            blocks_hit_disk=traffic.blocks_hit_disk,
            blocks_stored=traffic.blocks_stored,
            blocks_evicted=traffic.blocks_evicted,
            blocks_corrupt=traffic.blocks_corrupt,
            bytes_read=traffic.bytes_read,
            bytes_written=traffic.bytes_written,
            arena_pages=self._arena.pages,
            local_socket=self._local_socket,
            blocks_to_demote=len(self._disk.demoter) if self._disk else 0,
            namespaces=self._namespaces() if with_namespaces else [],
            blocks_pinned=len(self._store.pins),
            blocks_removed=traffic.blocks_removed,
            bulk_port=self.bulk_port,
        )

    async def watch(self, request: pb.WatchRequest) -> AsyncGenerator[pb.WatchResponse]:
        """A snapshot, unless the cursor can be resumed, then changes until the node drains.

        Raises: UnavailableError when it does."""
        events = self._store.events
        sequence = request.sequence
        is_resumed = request.incarnation == self.incarnation and sequence > 0 and events.is_known(sequence)
        while True:
            if not is_resumed:
                sequence = events.last_sequence
                for message in self.snapshot(NamespaceId(request.namespace_id), sequence):
                    yield message
            while events.is_known(sequence):
                await events.wait_after(sequence)
                if events.is_closed and events.last_sequence <= sequence:
                    raise self._lifecycle.draining_error()
                if not events.is_known(sequence):
                    break
                news = events.after(sequence, _EVENTS_PER_MESSAGE)
                sequence += len(news)
                wanted = [each for each in news if request.namespace_id in (b"", each.namespace_id)]
                yield pb.WatchResponse(incarnation=self.incarnation, sequence=sequence, events=wanted)
            is_resumed = False  # the watcher was too slow for the log: begin again

    def snapshot(self, namespace: NamespaceId, sequence: int) -> Iterator[pb.WatchResponse]:
        """Blocks of `namespace` (of all, if empty) as they were when it began.

        What leaves meanwhile is told by the events that follow."""
        blocks = [block for block in self._store.index.blocks(namespace or None) if block.id.shard == 0]
        starts = range(0, max(1, len(blocks)), _EVENTS_PER_MESSAGE)
        for start in starts:
            told = [self._store.stored_event(block) for block in blocks[start : start + _EVENTS_PER_MESSAGE]]
            yield pb.WatchResponse(
                incarnation=self.incarnation,
                sequence=sequence,
                is_reset=start == 0,
                is_snapshot_end=start == starts[-1],
                events=[event for event in told if event is not None],
            )

    def _namespaces(self) -> list[pb.NamespaceStats]:
        """The largest first."""
        store = self._store
        usage = {namespace: store.index.usage.get(namespace, Usage()) for namespace in store.namespaces}
        largest = heapq.nlargest(_NAMESPACES_TOLD_MAX, usage, key=lambda namespace: usage[namespace].blocks)
        return [
            pb.NamespaceStats(
                namespace_id=namespace,
                epoch=store.namespaces[namespace].epoch,
                blocks=usage[namespace].blocks,
                bytes_memory=usage[namespace].bytes_memory,
                bytes_disk=usage[namespace].bytes_disk,
                bytes_memory_max=store.namespace_bytes_max,
                blocks_pinned=store.pins.count(namespace),
                blocks_asked=store.namespaces[namespace].blocks_asked,
                blocks_hit=store.namespaces[namespace].blocks_hit,
            )
            for namespace in largest
        ]

    def _tiers(self) -> list[pb.TierStats]:
        index, allocator = self._store.index, self._store.allocator
        memory = pb.TierStats(
            tier=pb.TIER_MEMORY,
            blocks=sum(index.counts[state] for state in IN_MEMORY),
            bytes_used=allocator.bytes_used,
            bytes_max=allocator.capacity,
            bytes_free_largest=allocator.bytes_free_largest,
            is_on=True,
        )
        if self._disk is None:
            return [memory]
        tier = self._disk.tier
        on_disk = (State.BOTH, State.DISK, State.PROMOTING)
        disk = pb.TierStats(
            tier=pb.TIER_DISK,
            blocks=sum(index.counts[state] for state in on_disk),
            bytes_used=sum(index.bytes[state] for state in on_disk),
            bytes_max=tier.segments.bytes_max,
            bytes_free_largest=min(tier.segments.bytes_free, tier.segments.segment_bytes),
            is_on=not tier.off_reason,
            reason=tier.off_reason,
        )
        return [memory, disk]
