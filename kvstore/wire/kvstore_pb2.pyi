from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_MEMORY: _ClassVar[Tier]
    TIER_DISK: _ClassVar[Tier]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    STATUS_OK: _ClassVar[Status]
    STATUS_MISS: _ClassVar[Status]
    STATUS_CORRUPT: _ClassVar[Status]
    STATUS_WANTED: _ClassVar[Status]
    STATUS_EXISTS: _ClassVar[Status]
    STATUS_STORED: _ClassVar[Status]
    STATUS_BUSY: _ClassVar[Status]
    STATUS_OVER_QUOTA: _ClassVar[Status]
    STATUS_REJECTED: _ClassVar[Status]
TIER_UNSPECIFIED: Tier
TIER_MEMORY: Tier
TIER_DISK: Tier
STATUS_UNSPECIFIED: Status
STATUS_OK: Status
STATUS_MISS: Status
STATUS_CORRUPT: Status
STATUS_WANTED: Status
STATUS_EXISTS: Status
STATUS_STORED: Status
STATUS_BUSY: Status
STATUS_OVER_QUOTA: Status
STATUS_REJECTED: Status

class Fingerprint(_message.Message):
    __slots__ = ("model_digest", "properties", "block_tokens", "shard_count", "salt")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    model_digest: bytes
    properties: _containers.ScalarMap[str, str]
    block_tokens: int
    shard_count: int
    salt: bytes
    def __init__(self, model_digest: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., block_tokens: _Optional[int] = ..., shard_count: _Optional[int] = ..., salt: _Optional[bytes] = ...) -> None: ...

class OpenNamespaceRequest(_message.Message):
    __slots__ = ("fingerprint",)
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    fingerprint: Fingerprint
    def __init__(self, fingerprint: _Optional[_Union[Fingerprint, _Mapping]] = ...) -> None: ...

class OpenNamespaceResponse(_message.Message):
    __slots__ = ("namespace_id", "epoch", "value_bytes_max", "items_max", "lease_ttl_ms", "lease_ttl_ms_max", "local_socket")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    ITEMS_MAX_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SOCKET_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    epoch: int
    value_bytes_max: int
    items_max: int
    lease_ttl_ms: int
    lease_ttl_ms_max: int
    local_socket: str
    def __init__(self, namespace_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., value_bytes_max: _Optional[int] = ..., items_max: _Optional[int] = ..., lease_ttl_ms: _Optional[int] = ..., lease_ttl_ms_max: _Optional[int] = ..., local_socket: _Optional[str] = ...) -> None: ...

class BlockId(_message.Message):
    __slots__ = ("key", "shard")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    shard: int
    def __init__(self, key: _Optional[bytes] = ..., shard: _Optional[int] = ...) -> None: ...

class MatchRequest(_message.Message):
    __slots__ = ("namespace_id", "keys", "lease", "ttl_ms", "promote", "with_present")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_FIELD_NUMBER: _ClassVar[int]
    WITH_PRESENT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    lease: bool
    ttl_ms: int
    promote: bool
    with_present: bool
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[_Iterable[bytes]] = ..., lease: _Optional[bool] = ..., ttl_ms: _Optional[int] = ..., promote: _Optional[bool] = ..., with_present: _Optional[bool] = ...) -> None: ...

class MatchResponse(_message.Message):
    __slots__ = ("blocks", "blocks_in_memory", "bytes", "lease_id", "ttl_ms", "present")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_IN_MEMORY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    blocks_in_memory: int
    bytes: int
    lease_id: int
    ttl_ms: int
    present: bytes
    def __init__(self, blocks: _Optional[int] = ..., blocks_in_memory: _Optional[int] = ..., bytes: _Optional[int] = ..., lease_id: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., present: _Optional[bytes] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("namespace_id", "blocks", "ttl_ms", "prefix_only", "lease_id")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ONLY_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[BlockId]
    ttl_ms: int
    prefix_only: bool
    lease_id: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[BlockId, _Mapping]]] = ..., ttl_ms: _Optional[int] = ..., prefix_only: _Optional[bool] = ..., lease_id: _Optional[int] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("offset", "size")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    size: int
    def __init__(self, offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class AcquireItem(_message.Message):
    __slots__ = ("status", "place", "tier", "checksum")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    status: Status
    place: Place
    tier: Tier
    checksum: bytes
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., tier: _Optional[_Union[Tier, str]] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("lease_id", "items", "ttl_ms")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    items: _containers.RepeatedCompositeFieldContainer[AcquireItem]
    ttl_ms: int
    def __init__(self, lease_id: _Optional[int] = ..., items: _Optional[_Iterable[_Union[AcquireItem, _Mapping]]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease_ids",)
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: int
    def __init__(self, released: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("namespace_id", "blocks", "prefix_only", "range_offset", "range_length", "lease_id")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ONLY_FIELD_NUMBER: _ClassVar[int]
    RANGE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANGE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[BlockId]
    prefix_only: bool
    range_offset: int
    range_length: int
    lease_id: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[BlockId, _Mapping]]] = ..., prefix_only: _Optional[bool] = ..., range_offset: _Optional[int] = ..., range_length: _Optional[int] = ..., lease_id: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("index", "status", "size", "offset", "checksum", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    status: Status
    size: int
    offset: int
    checksum: bytes
    data: bytes
    def __init__(self, index: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., size: _Optional[int] = ..., offset: _Optional[int] = ..., checksum: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutItem(_message.Message):
    __slots__ = ("block", "size", "parent_key", "token_ids")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PARENT_KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    block: BlockId
    size: int
    parent_key: bytes
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, block: _Optional[_Union[BlockId, _Mapping]] = ..., size: _Optional[int] = ..., parent_key: _Optional[bytes] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class PutBegin(_message.Message):
    __slots__ = ("namespace_id", "items", "ttl_ms")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    items: _containers.RepeatedCompositeFieldContainer[PutItem]
    ttl_ms: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., items: _Optional[_Iterable[_Union[PutItem, _Mapping]]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class PutBegunItem(_message.Message):
    __slots__ = ("status", "place")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    status: Status
    place: Place
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class PutBegun(_message.Message):
    __slots__ = ("items", "lease_id")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[PutBegunItem]
    lease_id: int
    def __init__(self, items: _Optional[_Iterable[_Union[PutBegunItem, _Mapping]]] = ..., lease_id: _Optional[int] = ...) -> None: ...

class PutChunk(_message.Message):
    __slots__ = ("index", "offset", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    offset: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutCommitItem(_message.Message):
    __slots__ = ("index", "checksum")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    index: int
    checksum: bytes
    def __init__(self, index: _Optional[int] = ..., checksum: _Optional[bytes] = ...) -> None: ...

class PutCommit(_message.Message):
    __slots__ = ("items", "lease_id")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[PutCommitItem]
    lease_id: int
    def __init__(self, items: _Optional[_Iterable[_Union[PutCommitItem, _Mapping]]] = ..., lease_id: _Optional[int] = ...) -> None: ...

class PutCommitted(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[Status]
    def __init__(self, statuses: _Optional[_Iterable[_Union[Status, str]]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("begin", "chunk", "commit")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    begin: PutBegin
    chunk: PutChunk
    commit: PutCommit
    def __init__(self, begin: _Optional[_Union[PutBegin, _Mapping]] = ..., chunk: _Optional[_Union[PutChunk, _Mapping]] = ..., commit: _Optional[_Union[PutCommit, _Mapping]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("begun", "committed")
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    begun: PutBegun
    committed: PutCommitted
    def __init__(self, begun: _Optional[_Union[PutBegun, _Mapping]] = ..., committed: _Optional[_Union[PutCommitted, _Mapping]] = ...) -> None: ...

class TouchRequest(_message.Message):
    __slots__ = ("namespace_id", "blocks")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[BlockId]
    def __init__(self, namespace_id: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[BlockId, _Mapping]]] = ...) -> None: ...

class TouchResponse(_message.Message):
    __slots__ = ("touched",)
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    touched: int
    def __init__(self, touched: _Optional[int] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("namespace_id", "blocks", "ttl_ms", "is_soft")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    IS_SOFT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[BlockId]
    ttl_ms: int
    is_soft: bool
    def __init__(self, namespace_id: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[BlockId, _Mapping]]] = ..., ttl_ms: _Optional[int] = ..., is_soft: _Optional[bool] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("statuses", "ttl_ms")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[Status]
    ttl_ms: int
    def __init__(self, statuses: _Optional[_Iterable[_Union[Status, str]]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("namespace_id", "blocks")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[BlockId]
    def __init__(self, namespace_id: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[BlockId, _Mapping]]] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("unpinned",)
    UNPINNED_FIELD_NUMBER: _ClassVar[int]
    unpinned: int
    def __init__(self, unpinned: _Optional[int] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("namespace_id", "keys", "prefix_key", "all")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_KEY_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    prefix_key: bytes
    all: bool
    def __init__(self, namespace_id: _Optional[bytes] = ..., keys: _Optional[_Iterable[bytes]] = ..., prefix_key: _Optional[bytes] = ..., all: _Optional[bool] = ...) -> None: ...

class RemoveResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class BumpEpochRequest(_message.Message):
    __slots__ = ("namespace_id",)
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ...) -> None: ...

class BumpEpochResponse(_message.Message):
    __slots__ = ("epoch", "removed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    removed: int
    def __init__(self, epoch: _Optional[int] = ..., removed: _Optional[int] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("namespace_id", "after_key", "keys_max")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_MAX_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    after_key: bytes
    keys_max: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., after_key: _Optional[bytes] = ..., keys_max: _Optional[int] = ...) -> None: ...

class ListedKey(_message.Message):
    __slots__ = ("key", "parent_key", "shards", "bytes", "tier", "is_pinned")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_KEY_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    IS_PINNED_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    parent_key: bytes
    shards: int
    bytes: int
    tier: Tier
    is_pinned: bool
    def __init__(self, key: _Optional[bytes] = ..., parent_key: _Optional[bytes] = ..., shards: _Optional[int] = ..., bytes: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., is_pinned: _Optional[bool] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "has_more")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[ListedKey]
    has_more: bool
    def __init__(self, keys: _Optional[_Iterable[_Union[ListedKey, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class NamespaceStats(_message.Message):
    __slots__ = ("namespace_id", "epoch", "blocks", "bytes_memory", "bytes_disk", "bytes_memory_max", "blocks_pinned", "blocks_asked", "blocks_hit")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_MEMORY_FIELD_NUMBER: _ClassVar[int]
    BYTES_DISK_FIELD_NUMBER: _ClassVar[int]
    BYTES_MEMORY_MAX_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PINNED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_ASKED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HIT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    epoch: int
    blocks: int
    bytes_memory: int
    bytes_disk: int
    bytes_memory_max: int
    blocks_pinned: int
    blocks_asked: int
    blocks_hit: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., blocks: _Optional[int] = ..., bytes_memory: _Optional[int] = ..., bytes_disk: _Optional[int] = ..., bytes_memory_max: _Optional[int] = ..., blocks_pinned: _Optional[int] = ..., blocks_asked: _Optional[int] = ..., blocks_hit: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("with_namespaces",)
    WITH_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    with_namespaces: bool
    def __init__(self, with_namespaces: _Optional[bool] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("tier", "blocks", "bytes_used", "bytes_max", "bytes_free_largest", "is_on", "reason")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_FREE_LARGEST_FIELD_NUMBER: _ClassVar[int]
    IS_ON_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    blocks: int
    bytes_used: int
    bytes_max: int
    bytes_free_largest: int
    is_on: bool
    reason: str
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., blocks: _Optional[int] = ..., bytes_used: _Optional[int] = ..., bytes_max: _Optional[int] = ..., bytes_free_largest: _Optional[int] = ..., is_on: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("incarnation", "tiers", "leases", "blocks_asked", "blocks_hit_memory", "blocks_hit_disk", "blocks_stored", "blocks_evicted", "blocks_corrupt", "bytes_read", "bytes_written", "arena_pages", "local_socket", "blocks_to_demote", "namespaces", "blocks_pinned", "blocks_removed", "bulk_port")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_ASKED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HIT_MEMORY_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_HIT_DISK_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_STORED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_EVICTED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CORRUPT_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    ARENA_PAGES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SOCKET_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TO_DEMOTE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PINNED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_REMOVED_FIELD_NUMBER: _ClassVar[int]
    BULK_PORT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    leases: int
    blocks_asked: int
    blocks_hit_memory: int
    blocks_hit_disk: int
    blocks_stored: int
    blocks_evicted: int
    blocks_corrupt: int
    bytes_read: int
    bytes_written: int
    arena_pages: str
    local_socket: str
    blocks_to_demote: int
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStats]
    blocks_pinned: int
    blocks_removed: int
    bulk_port: int
    def __init__(self, incarnation: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., leases: _Optional[int] = ..., blocks_asked: _Optional[int] = ..., blocks_hit_memory: _Optional[int] = ..., blocks_hit_disk: _Optional[int] = ..., blocks_stored: _Optional[int] = ..., blocks_evicted: _Optional[int] = ..., blocks_corrupt: _Optional[int] = ..., bytes_read: _Optional[int] = ..., bytes_written: _Optional[int] = ..., arena_pages: _Optional[str] = ..., local_socket: _Optional[str] = ..., blocks_to_demote: _Optional[int] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceStats, _Mapping]]] = ..., blocks_pinned: _Optional[int] = ..., blocks_removed: _Optional[int] = ..., bulk_port: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("namespace_id", "incarnation", "sequence")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    incarnation: int
    sequence: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class BlockEvent(_message.Message):
    __slots__ = ("kind", "namespace_id", "key", "parent_key", "tier", "size", "token_ids")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[BlockEvent.Kind]
        KIND_STORED: _ClassVar[BlockEvent.Kind]
        KIND_REMOVED: _ClassVar[BlockEvent.Kind]
        KIND_CLEARED: _ClassVar[BlockEvent.Kind]
    KIND_UNSPECIFIED: BlockEvent.Kind
    KIND_STORED: BlockEvent.Kind
    KIND_REMOVED: BlockEvent.Kind
    KIND_CLEARED: BlockEvent.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_KEY_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    kind: BlockEvent.Kind
    namespace_id: bytes
    key: bytes
    parent_key: bytes
    tier: Tier
    size: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[_Union[BlockEvent.Kind, str]] = ..., namespace_id: _Optional[bytes] = ..., key: _Optional[bytes] = ..., parent_key: _Optional[bytes] = ..., tier: _Optional[_Union[Tier, str]] = ..., size: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("incarnation", "sequence", "is_reset", "is_snapshot_end", "events")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    IS_RESET_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    sequence: int
    is_reset: bool
    is_snapshot_end: bool
    events: _containers.RepeatedCompositeFieldContainer[BlockEvent]
    def __init__(self, incarnation: _Optional[int] = ..., sequence: _Optional[int] = ..., is_reset: _Optional[bool] = ..., is_snapshot_end: _Optional[bool] = ..., events: _Optional[_Iterable[_Union[BlockEvent, _Mapping]]] = ...) -> None: ...

class LocalHello(_message.Message):
    __slots__ = ("incarnation", "arena_bytes")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    arena_bytes: int
    def __init__(self, incarnation: _Optional[int] = ..., arena_bytes: _Optional[int] = ...) -> None: ...

class LocalRequest(_message.Message):
    __slots__ = ("id", "match", "acquire", "release", "put_begin", "put_commit", "open_namespace")
    ID_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    PUT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    PUT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    OPEN_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    id: int
    match: MatchRequest
    acquire: AcquireRequest
    release: ReleaseRequest
    put_begin: PutBegin
    put_commit: PutCommit
    open_namespace: OpenNamespaceRequest
    def __init__(self, id: _Optional[int] = ..., match: _Optional[_Union[MatchRequest, _Mapping]] = ..., acquire: _Optional[_Union[AcquireRequest, _Mapping]] = ..., release: _Optional[_Union[ReleaseRequest, _Mapping]] = ..., put_begin: _Optional[_Union[PutBegin, _Mapping]] = ..., put_commit: _Optional[_Union[PutCommit, _Mapping]] = ..., open_namespace: _Optional[_Union[OpenNamespaceRequest, _Mapping]] = ...) -> None: ...

class LocalResponse(_message.Message):
    __slots__ = ("id", "match", "acquire", "release", "put_begun", "put_committed", "open_namespace", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    PUT_BEGUN_FIELD_NUMBER: _ClassVar[int]
    PUT_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    OPEN_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    match: MatchResponse
    acquire: AcquireResponse
    release: ReleaseResponse
    put_begun: PutBegun
    put_committed: PutCommitted
    open_namespace: OpenNamespaceResponse
    error: LocalError
    def __init__(self, id: _Optional[int] = ..., match: _Optional[_Union[MatchResponse, _Mapping]] = ..., acquire: _Optional[_Union[AcquireResponse, _Mapping]] = ..., release: _Optional[_Union[ReleaseResponse, _Mapping]] = ..., put_begun: _Optional[_Union[PutBegun, _Mapping]] = ..., put_committed: _Optional[_Union[PutCommitted, _Mapping]] = ..., open_namespace: _Optional[_Union[OpenNamespaceResponse, _Mapping]] = ..., error: _Optional[_Union[LocalError, _Mapping]] = ...) -> None: ...

class LocalError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class OpenBulkRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenBulkResponse(_message.Message):
    __slots__ = ("port", "token", "incarnation")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    port: int
    token: bytes
    incarnation: int
    def __init__(self, port: _Optional[int] = ..., token: _Optional[bytes] = ..., incarnation: _Optional[int] = ...) -> None: ...

class BulkRequest(_message.Message):
    __slots__ = ("token", "get", "put_begin", "put_commit")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    GET_FIELD_NUMBER: _ClassVar[int]
    PUT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    PUT_COMMIT_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    get: GetRequest
    put_begin: PutBegin
    put_commit: PutCommit
    def __init__(self, token: _Optional[bytes] = ..., get: _Optional[_Union[GetRequest, _Mapping]] = ..., put_begin: _Optional[_Union[PutBegin, _Mapping]] = ..., put_commit: _Optional[_Union[PutCommit, _Mapping]] = ...) -> None: ...

class BulkResponse(_message.Message):
    __slots__ = ("hello", "values", "begun", "committed", "error")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    hello: BulkHello
    values: BulkValues
    begun: PutBegun
    committed: PutCommitted
    error: LocalError
    def __init__(self, hello: _Optional[_Union[BulkHello, _Mapping]] = ..., values: _Optional[_Union[BulkValues, _Mapping]] = ..., begun: _Optional[_Union[PutBegun, _Mapping]] = ..., committed: _Optional[_Union[PutCommitted, _Mapping]] = ..., error: _Optional[_Union[LocalError, _Mapping]] = ...) -> None: ...

class BulkHello(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class BulkValues(_message.Message):
    __slots__ = ("items", "is_last")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[BulkItem]
    is_last: bool
    def __init__(self, items: _Optional[_Iterable[_Union[BulkItem, _Mapping]]] = ..., is_last: _Optional[bool] = ...) -> None: ...

class BulkItem(_message.Message):
    __slots__ = ("status", "size", "checksum", "length")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    status: Status
    size: int
    checksum: bytes
    length: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., size: _Optional[int] = ..., checksum: _Optional[bytes] = ..., length: _Optional[int] = ...) -> None: ...
