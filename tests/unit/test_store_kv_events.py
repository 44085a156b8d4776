"""Block events in vLLM's words: runs, tiers, hashes, forms, and what is not told."""

from dataclasses import replace

import msgspec
import pytest

from kvstore.core.keys import BlockKey
from kvstore.core.namespace import Fingerprint
from kvstore.node.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    Wording,
    batches_of,
    words_of,
)
from kvstore.wire import kvstore_pb2 as pb
from tests.store_node import FINGERPRINT, random_keys

WORDING = Wording("maps", "vllm", None, has_disk=True)
STORED, REMOVED, CLEARED = pb.BlockEvent.KIND_STORED, pb.BlockEvent.KIND_REMOVED, pb.BlockEvent.KIND_CLEARED
MEMORY, DISK = pb.TIER_MEMORY, pb.TIER_DISK
TOKENS = list(range(FINGERPRINT.block_tokens))
NAMESPACE = FINGERPRINT.namespace_id()


def event(
    kind: pb.BlockEvent.Kind, key: bytes, parent: bytes = b"", tier: pb.Tier = MEMORY, tokens: list[int] | None = None
) -> pb.BlockEvent:
    return pb.BlockEvent(
        kind=kind, namespace_id=NAMESPACE, key=key, parent_key=parent, tier=tier, token_ids=tokens or []
    )


def told(
    events: list[pb.BlockEvent], wording: Wording = WORDING, fingerprint: Fingerprint = FINGERPRINT
) -> list[KvEvent]:
    return list(words_of(events, lambda _: fingerprint, wording))


def low64(key: BlockKey) -> int:
    return int.from_bytes(key[24:32], "big")


def stored(keys: list[BlockKey], parent: int | None, tokens: list[int], medium: str = "CPU") -> BlockStored:
    return BlockStored([low64(key) for key in keys], parent, tokens, FINGERPRINT.block_tokens, None, medium, None)


def test_a_chain_is_one_event() -> None:
    a, b, c, other = random_keys(4)
    events = [event(STORED, a, other), event(STORED, b, a), event(STORED, c, b), event(STORED, other)]
    assert told(events) == [stored([a, b, c], low64(other), []), stored([other], None, [])]


def test_blocks_with_and_without_tokens_are_apart() -> None:
    a, b, c = random_keys(3)
    events = [event(STORED, a, tokens=TOKENS), event(STORED, b, a, tokens=TOKENS), event(STORED, c, b)]
    assert told(events) == [stored([a, b], None, TOKENS * 2), stored([c], low64(b), [])]


def test_a_move_to_disk_and_a_removal() -> None:
    a, b = random_keys(2)
    hashes = [low64(a), low64(b)]
    assert told([event(STORED, a, tier=DISK)]) == [stored([a], None, [], "DISK"), BlockRemoved([low64(a)], "CPU")]
    assert told([event(REMOVED, a), event(REMOVED, b, a)]) == [
        BlockRemoved(hashes, "CPU"),
        BlockRemoved(hashes, "DISK"),
    ]
    assert told([event(REMOVED, a)], replace(WORDING, has_disk=False)) == [BlockRemoved([low64(a)], "CPU")]
    snapshot = words_of([event(STORED, a, tier=DISK)], lambda _: FINGERPRINT, WORDING, is_snapshot=True)
    assert list(snapshot) == [stored([a], None, [], "DISK")]


def test_tokens_of_a_salted_namespace_are_not_told() -> None:
    [a] = random_keys(1)
    assert told([event(STORED, a, tokens=TOKENS)], fingerprint=FINGERPRINT.with_salt(b"s")) == [stored([a], None, [])]


def test_only_the_namespaces_of_the_model_are_told() -> None:
    [a] = random_keys(1)
    wording = replace(WORDING, model="llama")
    assert told([event(STORED, a)], wording) == []
    assert told([event(STORED, a)], wording, replace(FINGERPRINT, properties={"model": "llama"})) != []
    assert list(words_of([event(STORED, a)], lambda _: None, WORDING)) == []


@pytest.mark.parametrize(
    ("key", "vllm", "sglang"),
    [
        (b"\xff" * 8 + bytes(16) + b"\x80" + bytes(7), 1 << 63, -1),
        (b"\x01" + bytes(30) + b"\x02" + b"\0\0\0\7", 2, 1 << 56),  # a SHA-256 and vLLM's group number
        (b"\0" * 15 + b"\x03", 3, 0),
    ],
)
def test_hashes_are_those_of_the_engine(key: bytes, vllm: int, sglang: int) -> None:
    assert WORDING.hash_of(key) == vllm
    assert replace(WORDING, hashes="sglang").hash_of(key) == sglang


def test_both_forms() -> None:
    [a] = random_keys(1)
    events = told([event(STORED, a, tokens=TOKENS)])
    ts, [as_map], rank = msgspec.msgpack.decode(WORDING.encode([*events]))
    assert isinstance(ts, float) and rank == 0
    assert list(as_map) == [
        "type",
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
    ]
    positional = replace(WORDING, events="positional").encode([*events, BlockRemoved([1], "CPU"), AllBlocksCleared()])
    assert msgspec.msgpack.decode(positional)[1] == [
        ["BlockStored", [low64(a)], None, TOKENS, 32, None, "CPU", None],
        ["BlockRemoved", [1], "CPU"],
        ["AllBlocksCleared"],
    ]


def test_runs_and_batches_are_bounded() -> None:
    keys = random_keys(1000)
    chain = [event(STORED, key, parent) for key, parent in zip(keys, [b"", *keys], strict=False)]
    assert [len(run.block_hashes) for run in told(chain) if isinstance(run, BlockStored)] == [64] * 15 + [40]
    large = replace(FINGERPRINT, block_tokens=4096)
    told_large = told([event(STORED, key, tokens=[2**32 - 1] * 4096) for key in keys], fingerprint=large)
    batches = [WORDING.encode(batch) for batch in batches_of(told_large)]
    assert max(map(len, batches)) < 200_000
    assert sum(len(msgspec.msgpack.decode(batch)[1]) for batch in batches) == 1000
