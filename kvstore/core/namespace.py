"""Namespaces: what must be equal for KV to be reusable.

The id is a SHA-256 over the fingerprint, every field tagged and length-prefixed, so that no two
different fingerprints give the same bytes to hash. Anything that changes the bytes of KV belongs into
the fingerprint; the path of a file never does (the same path with other weights gave wrong answers
without an error in other systems).
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvstore.core.errors import CallerError
from kvstore.core.keys import NamespaceId

BLOCK_TOKENS_MAX = 4096
SALT_BYTES_MAX = 64
_DOMAIN = b"stockpot.namespace.v1"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a namespace stands for (`kvstore.v1.Fingerprint` on the wire).

    Raises: CallerError when a field is out of its range."""

    model_digest: bytes
    """Digest of the weights, 16 to 64 bytes."""
    block_tokens: int
    """Tokens of one block, 1 to 4,096."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """What else changes the bytes: KV types, RoPE, adapters, engine build, state format, ..."""
    shard_count: int = 1
    """Values that one key has (ranks, groups, K and V)."""
    salt: bytes = b""
    """The tenant's salt, up to 64 bytes; empty for shared."""

    def __post_init__(self) -> None:
        if not 16 <= len(self.model_digest) <= 64:
            raise CallerError(f"model digest has {len(self.model_digest)} bytes, expected 16 to 64: send the SHA-256")
        if not 1 <= self.block_tokens <= BLOCK_TOKENS_MAX:
            raise CallerError(f"block_tokens is {self.block_tokens}, expected 1 to {BLOCK_TOKENS_MAX}")
        if not 1 <= self.shard_count <= 4096:
            raise CallerError(f"shard_count is {self.shard_count}, expected 1 to 4096")
        if len(self.salt) > SALT_BYTES_MAX:
            raise CallerError(f"salt has {len(self.salt)} bytes, expected at most {SALT_BYTES_MAX}: hash it first")

    def with_salt(self, salt: bytes) -> "Fingerprint":
        """The same KV for another tenant."""
        return replace(self, salt=salt)

    def namespace_id(self) -> NamespaceId:
        """32 bytes that are equal exactly when the fingerprints are."""
        fields: list[tuple[bytes, bytes]] = [
            (b"model_digest", self.model_digest),
            (b"block_tokens", struct.pack("<I", self.block_tokens)),
            (b"shard_count", struct.pack("<I", self.shard_count)),
            (b"salt", self.salt),
        ]
        fields.extend((b"property:" + name.encode(), text.encode()) for name, text in sorted(self.properties.items()))
        digest = hashlib.sha256(_DOMAIN)
        for tag, value in fields:
            digest.update(struct.pack("<II", len(tag), len(value)))
            digest.update(tag)
            digest.update(value)
        return NamespaceId(digest.digest())
