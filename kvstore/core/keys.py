"""Block keys: the name of the KV of a prefix.

A key is a chained SHA-256, so that a block's key names every token before it as well:

    key[0] = H(namespace id, tokens of block 0)      key[i] = H(key[i-1], tokens of block i)

    H(parent, tokens) = SHA-256("stockpot.block.v1" | 32 | parent | n_tokens * 4 | tokens)

with lengths as u32 and tokens as u32, all little-endian. The first link's parent is the namespace id:
two namespaces never share a key. A cryptographic chain, since with a weak hash one user's prefix can
be made to answer for another's (CVE-2025-25183 in vLLM). Golden vectors: tests/golden/keys.json.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import NewType

import numpy as np
import numpy.typing as npt

BlockKey = NewType("BlockKey", bytes)
NamespaceId = NewType("NamespaceId", bytes)

Tokens = npt.NDArray[np.uint32]

KEY_BYTES = 32
_DOMAIN = b"stockpot.block.v1"
_HEAD = struct.Struct("<I32sI")


def as_tokens(tokens: Sequence[int] | npt.NDArray[np.integer]) -> Tokens:
    """Token ids as a contiguous `(n,)` little-endian uint32 array; no copy when they already are.

    Raises: OverflowError for an id below 0 or above 2**32 - 1 in a plain sequence."""
    return np.ascontiguousarray(tokens, dtype="<u4")


def chain_keys(namespace: NamespaceId, tokens: Tokens, block_tokens: int) -> list[BlockKey]:
    """Keys of all full blocks of `tokens`, `(n,) uint32`: `n // block_tokens` of them, first first."""
    return extend_chain(BlockKey(namespace), tokens, block_tokens)


def extend_chain(parent: BlockKey, tokens: Tokens, block_tokens: int) -> list[BlockKey]:
    """Keys of the full blocks in `tokens` that follow the block named `parent`.

    `parent` is the namespace id when `tokens` begin the prompt."""
    assert len(parent) == KEY_BYTES and block_tokens > 0
    raw = as_tokens(tokens).tobytes()
    block_bytes = 4 * block_tokens
    keys: list[BlockKey] = []
    for start in range(0, len(raw) - block_bytes + 1, block_bytes):
        digest = hashlib.sha256(_DOMAIN)
        digest.update(_HEAD.pack(KEY_BYTES, parent, block_bytes))
        digest.update(raw[start : start + block_bytes])
        parent = BlockKey(digest.digest())
        keys.append(parent)
    return keys
