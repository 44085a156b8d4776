"""A stored block as its node sees it: a name, a size, a place, a state. Never the bytes.

RESERVED --commit--> MEMORY --demoted--> BOTH --evicted--> DISK --asked for--> PROMOTING --read--> BOTH
   |                   |  <--segment reclaimed--'            |                     |  '--failed--> DISK
   '--given up--> GONE <--evicted or reclaimed or corrupt----'---------------------'
                   ^ <------ removed on request, from any of these
                   '-- DOOMED <-- removed on request, while something still uses its memory
"""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from kvstore.core.keys import BlockKey, NamespaceId


class BlockId(NamedTuple):
    """Names one stored value on this node."""

    namespace: NamespaceId
    key: BlockKey
    shard: int


class DiskPlace(NamedTuple):
    """Where a value lies on disk: segment number, bytes from that file's start, and which of the node's devices."""

    segment: int
    offset: int
    device: int = 0


class StoredValue(NamedTuple):
    """What the index on disk knows of one value."""

    id: BlockId
    place: DiskPlace
    size: int
    checksum: bytes
    parent_key: bytes


class State(enum.Enum):
    """Where a block is in its life. Only MEMORY, BOTH, DISK and PROMOTING blocks can be found."""

    RESERVED = "being filled by a writer; invisible"
    MEMORY = "sealed, in the arena only"
    BOTH = "sealed, in the arena and on disk"
    DISK = "sealed, on disk only"
    PROMOTING = "on disk, being read into the arena"
    DOOMED = "removed; its memory waits for the last that uses it"
    GONE = "no longer stored"

    __hash__ = object.__hash__  # members are single objects; Enum's own hash is Python code, on every lookup


TRANSITIONS = frozenset(
    {
        (State.RESERVED, State.MEMORY),  # committed
        (State.RESERVED, State.GONE),  # given up, expired, rejected, or another writer was first
        (State.MEMORY, State.BOTH),  # written behind
        (State.MEMORY, State.GONE),  # evicted before it was on disk
        (State.BOTH, State.DISK),  # evicted
        (State.BOTH, State.MEMORY),  # its segment was reclaimed
        (State.DISK, State.PROMOTING),  # asked for
        (State.DISK, State.GONE),  # its segment was reclaimed
        (State.PROMOTING, State.BOTH),  # read and proven
        (State.PROMOTING, State.DISK),  # the node stops before it was read
        (State.PROMOTING, State.GONE),  # corrupt or unreadable
        (State.BOTH, State.GONE),  # removed
        (State.MEMORY, State.DOOMED),  # removed while in use, as the next two
        (State.BOTH, State.DOOMED),
        (State.PROMOTING, State.DOOMED),
        (State.DOOMED, State.GONE),  # its last user is done
    }
)

IN_MEMORY = frozenset({State.MEMORY, State.BOTH})
RESIDENT = IN_MEMORY | {State.PROMOTING}
ON_DISK = frozenset({State.BOTH, State.DISK, State.PROMOTING})


@dataclass(slots=True, eq=False)
class Block:
    """One value. Mutated by the index only, but for `token_ids`, which the store sets when it reserves."""

    id: BlockId
    size: int
    parent_key: bytes
    """Key of the block before it in its chain; empty for the first."""
    state: State
    offset: int = -1
    """Bytes from the arena's start; -1 when it has no extent."""
    checksum: bytes = b""
    """xxh3_128 of the value; empty until sealed."""
    place: DiskPlace | None = None
    epoch: int = 0
    """The namespace's when it was reserved: a fill that an epoch ends stores nothing."""
    leases: int = 0
    """Read leases, pins and the node's own uses (demotion, promotion)."""
    token_ids: bytes = b""
    """The block's tokens as its writer told them, u32 each in this machine's order; empty when it did not."""
    last_use: int = 0
    """Tick of the index; larger is later."""
    parent: "Block | None" = None
    """Counted in its `children`; set while this block is resident, if the parent was resident before it."""
    children: int = 0
    """Resident blocks whose `parent` this is."""

    def move_to(self, state: State) -> None:
        """Change the state along `TRANSITIONS`; anything else is a bug."""
        assert (self.state, state) in TRANSITIONS, f"{self.state.name} to {state.name}"
        self.state = state
