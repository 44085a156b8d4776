"""What the client's calls take and answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.wire import kvstore_pb2 as pb

Path = Literal["shm", "bulk", "grpc"]
"""How bytes move: the node's arena mapped into this process, plain sockets, or messages."""


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """An open namespace and the node's limits."""

    namespace_id: NamespaceId
    epoch: int
    value_bytes_max: int
    items_max: int
    lease_ttl_ms: int
    lease_ttl_ms_max: int


@dataclass(frozen=True, slots=True)
class Match:
    """How much of a chain is stored, from its start."""

    blocks: int
    blocks_in_memory: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PinOptions:
    """How blocks are pinned."""

    ttl_ms: int = 0
    """0: as long as the node allows."""
    is_soft: bool = False
    """Gives way when nothing else can be evicted."""
    shard: int = 0


class FillItem(NamedTuple):
    """One value to store."""

    key: BlockKey
    size: int
    """Bytes of the value."""
    parent: BlockKey | None = None
    """Key of the block before it in its chain; None for the first."""
    token_ids: Sequence[int] = ()
    """The block's tokens, as many as the namespace's `block_tokens`, for routers that watch; may be left out."""


@dataclass(slots=True)
class ClientCounts:
    """What went otherwise than hoped, since the client was made."""

    values_corrupt: int = 0
    """Values whose checksum was wrong on arrival; they were answered as misses."""
    local_lost: int = 0
    """Times that the local socket was lost and gRPC took over."""
    bulk_lost: int = 0
    """Times that a bulk connection was lost and gRPC took over."""
    breaker_opened: int = 0
    """Times that calls began to be refused without asking the node."""


def block_ids(keys: Sequence[BlockKey], shard: int) -> list[pb.BlockId]:
    """The blocks' names on the wire."""
    return [pb.BlockId(key=key, shard=shard) for key in keys]
