"""Keys, namespaces and block files of the past: they must never come out otherwise.

`keys.json` and `block-v1.bin` were made from the definitions in docs/block-format.md by other code than
ours. A change that fails here loses every stored block, or worse, takes one for another.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.core.block import BlockHeader, encode_header, header_bytes, open_block
from kvstore.core.errors import BlockCorruptError
from kvstore.core.keys import BlockKey, NamespaceId, as_tokens, chain_keys, extend_chain
from kvstore.core.namespace import Fingerprint

GOLDEN = Path(__file__).parent
CASES = json.loads((GOLDEN / "keys.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_keys(case: dict[str, Any]) -> None:
    fingerprint = Fingerprint(
        model_digest=bytes.fromhex(case["model_digest"]),
        block_tokens=case["block_tokens"],
        properties=case["properties"],
        shard_count=case["shard_count"],
        salt=bytes.fromhex(case["salt"]),
    )
    namespace = fingerprint.namespace_id()
    assert namespace.hex() == case["namespace_id"]
    keys = chain_keys(namespace, as_tokens(np.array(case["tokens"], np.uint32)), case["block_tokens"])
    assert [key.hex() for key in keys] == case["keys"]


def test_a_chain_is_the_same_in_parts() -> None:
    case = CASES[0]
    tokens = as_tokens(case["tokens"])
    first = chain_keys(NamespaceId(bytes.fromhex(case["namespace_id"])), tokens[:4], 4)
    assert [key.hex() for key in first + extend_chain(first[-1], tokens[4:], 4)] == case["keys"]


def golden_header() -> BlockHeader:
    first, second = (BlockKey(bytes.fromhex(key)) for key in CASES[0]["keys"])
    return BlockHeader(second, first, as_tokens([5, 6, 7, 8]))


def test_a_block_file_of_version_1_opens() -> None:
    block = (GOLDEN / "block-v1.bin").read_bytes()
    payload = bytes((7 * i) % 256 for i in range(300))
    assert bytes(open_block(memoryview(block), golden_header())) == payload
    assert encode_header(golden_header(), payload) + payload == block


def test_every_flipped_byte_is_found() -> None:
    block = bytearray((GOLDEN / "block-v1.bin").read_bytes())
    fixed_and_tokens = 4 + 2 + 2 + 4 + 32 + 32 + 8 + 16 + 4 * 4
    unused = {6, 7} | set(range(fixed_and_tokens, header_bytes(4)))  # reserved, and padding
    for place in set(range(len(block))) - unused:
        block[place] ^= 0x01
        with pytest.raises(BlockCorruptError):
            open_block(memoryview(block), golden_header())
        block[place] ^= 0x01


@pytest.mark.parametrize("length", [0, 10, 127, 128, 427])
def test_a_cut_block_is_found(length: int) -> None:
    block = (GOLDEN / "block-v1.bin").read_bytes()
    with pytest.raises(BlockCorruptError):
        open_block(memoryview(block)[:length], golden_header())
