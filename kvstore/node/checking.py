"""What callers may ask: every request is checked here before it reaches the store."""

from array import array
from collections.abc import Sequence

from kvstore.core.errors import CallerError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.node.blocks import BlockId
from kvstore.node.settings import Limits
from kvstore.node.store import PutPlan
from kvstore.wire import kvstore_pb2 as pb

_KEY_BYTES_MIN, _KEY_BYTES_MAX = 16, 64
_CHECKSUM_BYTES = 16
_PROPERTIES_BYTES_MAX = 64 << 10


def fingerprint_of(message: pb.Fingerprint) -> Fingerprint:
    """The fingerprint in `message`. Raises: CallerError."""
    if message.ByteSize() > _PROPERTIES_BYTES_MAX:
        raise CallerError(f"fingerprint has {message.ByteSize()} bytes, expected at most {_PROPERTIES_BYTES_MAX}")
    return Fingerprint(
        model_digest=message.model_digest,
        block_tokens=message.block_tokens,
        properties=dict(message.properties),
        shard_count=message.shard_count or 1,
        salt=message.salt,
    )


def check_count(n_items: int, limits: Limits) -> None:
    """Raises: CallerError when a batch has too many items."""
    if n_items > limits.items_max:
        raise CallerError(f"call has {n_items} items, expected at most {limits.items_max}: split it")


def check_keys(keys: Sequence[bytes], limits: Limits) -> None:
    """Raises: CallerError when there are too many keys, or one has a bad length."""
    check_count(len(keys), limits)
    for key in keys:
        _check_key(key)


def block_ids(namespace: NamespaceId, blocks: Sequence[pb.BlockId], shard_count: int, limits: Limits) -> list[BlockId]:
    """Names on this node. Raises: CallerError."""
    check_count(len(blocks), limits)
    return [_block_id(namespace, block, shard_count) for block in blocks]


def put_plans(
    namespace: NamespaceId, items: Sequence[pb.PutItem], fingerprint: Fingerprint, limits: Limits
) -> list[PutPlan]:
    """What a writer offers. Raises: CallerError."""
    check_count(len(items), limits)
    plans = []
    for item in items:
        if not 0 < item.size <= limits.value_bytes_max:
            raise CallerError(f"value has {item.size} bytes, expected 1 to {limits.value_bytes_max} (value_bytes_max)")
        if item.parent_key:
            _check_key(item.parent_key)
        if (n_tokens := len(item.token_ids)) not in (0, fingerprint.block_tokens):
            raise CallerError(
                f"item has {n_tokens} token_ids, expected {fingerprint.block_tokens} (block_tokens) or none"
            )
        block_id = _block_id(namespace, item.block, fingerprint.shard_count)
        plans.append(PutPlan(block_id, item.size, item.parent_key, array("I", item.token_ids).tobytes()))
    return plans


def check_commit(items: Sequence[pb.PutCommitItem], n_begun: int) -> None:
    """Raises: CallerError when an item was not begun, comes twice or has no checksum."""
    seen: set[int] = set()
    for item in items:
        if item.index >= n_begun or item.index in seen:
            raise CallerError(f"commit names item {item.index}, which was not begun or comes twice")
        if len(item.checksum) != _CHECKSUM_BYTES:
            raise CallerError(f"checksum has {len(item.checksum)} bytes, expected {_CHECKSUM_BYTES} (xxh3_128)")
        seen.add(item.index)


def ttl_s(asked_ms: int, limits: Limits) -> float:
    """Seconds a lease lives: as asked, within the limit; 0 takes the default."""
    return min(asked_ms or limits.lease_ttl_ms, limits.lease_ttl_ms_max) / 1000


def _block_id(namespace: NamespaceId, block: pb.BlockId, shard_count: int) -> BlockId:
    _check_key(block.key)
    if block.shard >= shard_count:
        raise CallerError(f"shard is {block.shard}, but the namespace has {shard_count}")
    return BlockId(namespace, BlockKey(block.key), block.shard)


def _check_key(key: bytes) -> None:
    if not _KEY_BYTES_MIN <= len(key) <= _KEY_BYTES_MAX:
        raise CallerError(f"key has {len(key)} bytes, expected {_KEY_BYTES_MIN} to {_KEY_BYTES_MAX}")
