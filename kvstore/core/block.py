"""The header that our engine puts before a block's KV, so that a stored block proves itself.

    | header, padded with zeros to 64 bytes | payload: llama.cpp's state of exactly these tokens |

The key finds a block, the tokens prove it: a reader compares parent and tokens, and checks the
payload's sum, before the bytes reach the model. Other engines store bytes of their own making; the
store never looks inside either. Byte layout: docs/block-format.md. Golden files: tests/golden/.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from kvstore.core.errors import BlockCorruptError
from kvstore.core.keys import KEY_BYTES, BlockKey, Tokens, as_tokens

FORMAT_VERSION = 1
_MAGIC = b"SPKB"
_FIXED = struct.Struct("<4sHHI32s32sQ16s")  # magic, version, reserved, n_tokens, key, parent, payload bytes, sum
_ALIGN = 64

ByteView = memoryview | npt.NDArray[np.uint8] | bytes


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """Who a block is; `parent` is the namespace id for a chain's first block."""

    key: BlockKey
    parent: BlockKey
    tokens: Tokens
    """`(block_tokens,) uint32`."""


def header_bytes(block_tokens: int) -> int:
    """Size of a header with its padding, in bytes: a multiple of 64."""
    return -(-(_FIXED.size + 4 * block_tokens) // _ALIGN) * _ALIGN


def value_checksum(value: ByteView) -> bytes:
    """xxh3_128 of `value`, 16 bytes, big endian: the sum that `Put` and `Get` carry."""
    # Before Python 3.12 numpy does not declare that an array is a buffer.
    return xxhash.xxh3_128_digest(value.data if isinstance(value, np.ndarray) else value)


def encode_header(header: BlockHeader, payload: ByteView) -> bytes:
    """Header with padding for `payload`, whose sum is computed here (about 15 GB/s)."""
    tokens = as_tokens(header.tokens)
    assert len(header.key) == KEY_BYTES and len(header.parent) == KEY_BYTES
    fixed = _FIXED.pack(
        _MAGIC, FORMAT_VERSION, 0, len(tokens), header.key, header.parent, len(payload), value_checksum(payload)
    )
    return (fixed + tokens.tobytes()).ljust(header_bytes(len(tokens)), b"\0")


def open_block(value: memoryview, expected: BlockHeader) -> memoryview:
    """The payload of `value`, proven to be the block that `expected` describes; a view, no copy.

    Raises: BlockCorruptError when anything differs; the block must then be dropped and recomputed."""
    start = header_bytes(len(expected.tokens))
    if len(value) < start:
        raise BlockCorruptError(f"block has {len(value)} bytes, its header alone needs {start}")
    magic, version, _, n_tokens, key, parent, payload_bytes, checksum = _FIXED.unpack_from(value)
    if magic != _MAGIC or version != FORMAT_VERSION:
        raise BlockCorruptError(f"block begins with {bytes(magic)!r} version {version}, expected {_MAGIC!r} version 1")
    if key != expected.key or parent != expected.parent or n_tokens != len(expected.tokens):
        raise BlockCorruptError("block's key, parent or token count is another block's")
    if bytes(value[_FIXED.size : _FIXED.size + 4 * n_tokens]) != as_tokens(expected.tokens).tobytes():
        raise BlockCorruptError("block's tokens are not those of the prompt, though the key is the same")
    payload = value[start : start + payload_bytes]
    if len(payload) != payload_bytes:
        raise BlockCorruptError(f"block was cut: {len(payload)} of {payload_bytes} payload bytes")
    if value_checksum(payload) != checksum:
        raise BlockCorruptError("block's payload does not have the checksum in its header")
    return payload
