"""Leases: bounded rights to read or fill blocks of the arena.

A lease ends by release, by its time (TTL), or with the connection that owns it. TTL only cleans up
after the dead. Ids are random, so that one client cannot end another's by guessing.
"""

import enum
import heapq
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstore.node.blocks import Block

Owner = object
"""Whoever dies with its leases: a local connection. None: only time ends the lease."""


class LeaseKind(enum.Enum):
    """What the holder does with the memory."""

    READ = "read"
    PIN = "pin"
    FILL = "fill"


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """Blocks that stay where they are until the lease ends."""

    id: int
    kind: LeaseKind
    items: Sequence[Block | None]
    """One for each item that was asked for; None where nothing is leased."""
    expires_at_s: float
    """On the table's clock."""
    owner: Owner | None

    @property
    def blocks(self) -> list[Block]:
        """The leased blocks."""
        return [block for block in self.items if block is not None]


class LeaseTable:
    """All running leases. Says which ended; what then happens to the blocks is the caller's business."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._leases: dict[int, Lease] = {}
        self._by_owner: dict[Owner, set[int]] = {}
        self._expiry: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def grant(self, kind: LeaseKind, items: Sequence[Block | None], ttl_s: float, owner: Owner | None) -> Lease:
        """A new lease on `items` for `ttl_s` seconds."""
        lease = Lease(secrets.randbits(63) | 1, kind, items, self._clock() + ttl_s, owner)
        self._leases[lease.id] = lease
        if owner is not None:
            self._by_owner.setdefault(owner, set()).add(lease.id)
        heapq.heappush(self._expiry, (lease.expires_at_s, lease.id))
        if len(self._expiry) > 2 * len(self._leases) + 64:
            self._expiry = [(running.expires_at_s, running.id) for running in self._leases.values()]
            heapq.heapify(self._expiry)
        return lease

    def ttl_ms(self, lease: Lease) -> int:
        """What is left of a lease's time; 0 when it is over."""
        return max(0, round((lease.expires_at_s - self._clock()) * 1000))

    @property
    def has_owned(self) -> bool:
        """Whether a connection holds a lease."""
        return bool(self._by_owner)

    def find(self, lease_id: int, kind: LeaseKind) -> Lease | None:
        """The running lease of that id and kind."""
        lease = self._leases.get(lease_id)
        return lease if lease is not None and lease.kind is kind else None

    def end(self, lease_id: int, kind: LeaseKind) -> Lease | None:
        """Take the lease out of the table; None when it is unknown or over."""
        lease = self.find(lease_id, kind)
        if lease is None:
            return None
        del self._leases[lease_id]
        if lease.owner is not None:
            owned = self._by_owner[lease.owner]
            owned.discard(lease_id)
            if not owned:
                del self._by_owner[lease.owner]
        return lease

    def end_expired(self) -> list[Lease]:
        """Take all leases whose time is over out of the table."""
        now = self._clock()
        ended = []
        while self._expiry and self._expiry[0][0] <= now:
            _, lease_id = heapq.heappop(self._expiry)
            if (running := self._leases.get(lease_id)) is not None and (lease := self.end(lease_id, running.kind)):
                ended.append(lease)
        return ended

    def end_owned(self, owner: Owner) -> list[Lease]:
        """Take all leases of `owner` out of the table."""
        owned = [self._leases[lease_id] for lease_id in self._by_owner.get(owner, ())]
        return [lease for running in owned if (lease := self.end(running.id, running.kind))]

    def check_invariants(self) -> None:
        """Every lease can expire and can be found by its owner."""
        assert {lease_id for _, lease_id in self._expiry} >= set(self._leases)
        owned = {lease_id for lease_ids in self._by_owner.values() for lease_id in lease_ids}
        assert owned == {lease.id for lease in self._leases.values() if lease.owner is not None}
