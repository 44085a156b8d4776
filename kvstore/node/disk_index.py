"""The disk tier's index file: LMDB, which after any crash is either before or after a transaction.

    meta        "format" -> u32, "epoch" | namespace id -> u64 (absent: 1)
    namespaces  namespace id -> serialised kvstore.v1.Fingerprint
    blocks      namespace id (32) | shard u32 big endian | key  ->  segment, offset, size, checksum, parent key

Written by the disk tier's one writing thread, read once when the node starts.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from kvstore.core.errors import ConfigError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.blocks import BlockId, DiskPlace
from kvstore.node.disk_io import DiskIO

FORMAT_VERSION = 1
_VERSION = struct.Struct("<I")
_SHARD = struct.Struct(">I")
_EPOCH = struct.Struct("<Q")
_EPOCH_PREFIX = b"epoch"
_RECORD = struct.Struct("<IQQ16s")  # segment, offset, size, checksum; the parent key follows
_NAMESPACE_BYTES = 32


@dataclass(frozen=True, slots=True)
class StoredValue:
    """What the index knows of one value."""

    id: BlockId
    place: DiskPlace
    size: int
    checksum: bytes
    parent_key: bytes


@dataclass(slots=True)
class IndexChange:
    """What one transaction does; removals come first."""

    removed: Sequence[BlockId] = ()
    added: Sequence[StoredValue] = ()
    namespaces: dict[NamespaceId, bytes] = field(default_factory=dict)
    epochs: dict[NamespaceId, int] = field(default_factory=dict)


class DiskIndex:
    """The open index file. Raises (on opening): ConfigError when its format is of another version."""

    def __init__(self, folder: Path, map_bytes: int, io: DiskIO) -> None:
        self._io = io
        # The lock file of LMDB is for several processes; the node's own lock keeps those out.
        self._env = lmdb.open(str(folder), map_size=map_bytes, max_dbs=3, lock=False)
        self._meta = self._env.open_db(b"meta")
        self._namespaces = self._env.open_db(b"namespaces")
        self._blocks = self._env.open_db(b"blocks")
        with self._env.begin(write=True) as transaction:
            raw = transaction.get(b"format", db=self._meta)
            if raw is None:
                transaction.put(b"format", _VERSION.pack(FORMAT_VERSION), db=self._meta)
            elif raw != _VERSION.pack(FORMAT_VERSION):
                raise ConfigError(
                    f"{folder} has format version {int.from_bytes(raw, 'little')}, this node knows {FORMAT_VERSION}: "
                    "use the node version that wrote it, or another data_dir"
                )

    def namespaces(self) -> dict[NamespaceId, bytes]:
        """Namespace ids and their serialised fingerprints."""
        with self._env.begin(db=self._namespaces) as transaction:
            return {NamespaceId(bytes(key)): bytes(value) for key, value in transaction.cursor()}

    def epoch(self, namespace: NamespaceId) -> int:
        """The epoch that was last saved for `namespace`."""
        with self._env.begin(db=self._meta) as transaction:
            raw = transaction.get(_EPOCH_PREFIX + namespace)
            return _EPOCH.unpack(raw)[0] if raw is not None else 1

    def values(self) -> Iterator[StoredValue]:
        """All values, in the order of their keys."""
        with self._env.begin(db=self._blocks) as transaction:
            for key, record in transaction.cursor():
                yield _decode(key, record)

    def apply(self, change: IndexChange) -> None:
        """Do `change` in one durable transaction. Raises: lmdb.Error, OSError; then nothing is changed."""
        transaction = self._env.begin(write=True)
        try:
            for namespace, fingerprint in change.namespaces.items():
                transaction.put(namespace, fingerprint, db=self._namespaces)
            for namespace, epoch in change.epochs.items():
                transaction.put(_EPOCH_PREFIX + namespace, _EPOCH.pack(epoch), db=self._meta)
            for block_id in change.removed:
                transaction.delete(_encode_key(block_id), db=self._blocks)
            for value in change.added:
                record = _RECORD.pack(value.place.segment, value.place.offset, value.size, value.checksum)
                transaction.put(_encode_key(value.id), record + value.parent_key, db=self._blocks)
            self._io.commit(transaction)
        except (lmdb.Error, OSError):
            transaction.abort()
            raise

    def close(self) -> None:
        """Close the file."""
        self._env.close()


def _encode_key(block_id: BlockId) -> bytes:
    return block_id.namespace + _SHARD.pack(block_id.shard) + block_id.key


def _decode(key: bytes, record: bytes) -> StoredValue:
    segment, offset, size, checksum = _RECORD.unpack_from(record)
    (shard,) = _SHARD.unpack_from(key, _NAMESPACE_BYTES)
    block_key = BlockKey(bytes(key[_NAMESPACE_BYTES + _SHARD.size :]))
    block_id = BlockId(NamespaceId(bytes(key[:_NAMESPACE_BYTES])), block_key, shard)
    return StoredValue(block_id, DiskPlace(segment, offset), size, checksum, bytes(record[_RECORD.size :]))
