"""Block events in the words that routers of other engines read: vLLM's KV events. Pure, no sockets.

    batch  [ts, [event, ...], data_parallel_rank]                          msgpack; always these three
    event  {"type": "BlockStored", "block_hashes": [...], ...}             a map, tagged `type`
           ["BlockStored", block_hashes, parent_block_hash, ...]           or positional, as older vLLM

Field names, their order and what is required are vLLM's (vllm/distributed/kv_events.py); what llm-d and
Dynamo make of them is in docs/events.md. A hash is 64 bits of the key, chosen so that a key which is an
engine's own block hash gives the number that this engine publishes for it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from kvstore.core.namespace import Fingerprint
from kvstore.wire import kvstore_pb2 as pb

HashForm = Literal["vllm", "sglang"]
EventForm = Literal["maps", "positional"]

MODEL_PROPERTY = "model"
"""Name of the fingerprint's property that `zmq_model` is compared with."""
_MEDIUM = {pb.TIER_MEMORY: "CPU", pb.TIER_DISK: "DISK"}
_HASHED_KEY_BYTES = 32  # what may follow a SHA-256 in a key (vLLM's group number) is not part of the hash
_EVENTS_PER_BATCH = 64
_TOKENS_PER_BATCH = 16_384  # about 80 KB as msgpack


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    """Blocks of one chain, in order, that can be read from `medium`."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    """Of all the blocks, or empty where the writer did not tell."""
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    """Blocks that can no longer be read from `medium`."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """Nothing of what was told before holds."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class Wording:
    """How events are told."""

    events: EventForm
    hashes: HashForm
    model: str | None
    """Only namespaces whose fingerprint names this model; None: all."""
    has_disk: bool
    """A block that is gone may have been told of on disk, too."""

    def tells(self, fingerprint: Fingerprint) -> bool:
        """Whether a namespace is published."""
        return self.model is None or fingerprint.properties.get(MODEL_PROPERTY) == self.model

    def hash_of(self, key: bytes) -> int:
        """The 64 bits of `key` that name its block."""
        if self.hashes == "sglang":
            return int.from_bytes(key[:8], "big", signed=True)
        return int.from_bytes(key[:_HASHED_KEY_BYTES][-8:], "big")

    def encode(self, events: Sequence[KvEvent]) -> bytes:
        """One batch; the rank is a node's only one, 0."""
        told = events if self.events == "maps" else [_positional(event) for event in events]
        return _ENCODER.encode((time.time(), told, 0))


_ENCODER = msgspec.msgpack.Encoder()


def words_of(
    events: Iterable[pb.BlockEvent],
    fingerprint_of: Callable[[bytes], Fingerprint | None],
    wording: Wording,
    *,
    is_snapshot: bool = False,
) -> Iterator[KvEvent]:
    """`events`, in order, without those of unpublished namespaces. Runs of one chain become one event.

    A block that moves to the disk is stored there and removed from memory; one that is read back stays
    told of on disk, where it is. CLEARED must be handled before (see the publisher)."""
    run = _Run(wording, is_snapshot)
    for event in events:
        fingerprint = fingerprint_of(event.namespace_id)
        if fingerprint is None or not wording.tells(fingerprint):
            continue
        if not run.takes(event):
            yield from run.told()
            run = _Run(wording, is_snapshot)
        run.add(event, fingerprint)
    yield from run.told()


def batches_of(events: Iterable[KvEvent]) -> Iterator[list[KvEvent]]:
    """`events` in batches of bounded size."""
    batch: list[KvEvent] = []
    n_tokens = 0
    for event in events:
        batch.append(event)
        n_tokens += len(event.token_ids) if isinstance(event, BlockStored) else 0
        if len(batch) == _EVENTS_PER_BATCH or n_tokens >= _TOKENS_PER_BATCH:
            yield batch
            batch, n_tokens = [], 0
    if batch:
        yield batch


class _Run:
    """Events that follow one another, of one kind, namespace and tier; stored ones form a chain."""

    def __init__(self, wording: Wording, is_snapshot: bool) -> None:
        self._wording = wording
        self._is_snapshot = is_snapshot
        self._first: pb.BlockEvent | None = None
        self._last: pb.BlockEvent | None = None
        self._hashes: list[int] = []
        self._token_ids: list[int] = []
        self._block_size = 0

    def takes(self, event: pb.BlockEvent) -> bool:
        """Whether `event` goes on where the run ends."""
        last = self._last
        if last is None:
            return True
        if (event.kind, event.namespace_id, event.tier) != (last.kind, last.namespace_id, last.tier):
            return False
        if len(self._hashes) == _EVENTS_PER_BATCH or len(self._token_ids) >= _TOKENS_PER_BATCH:
            return False
        if event.kind == pb.BlockEvent.KIND_REMOVED:
            return True
        return event.parent_key == last.key and bool(event.token_ids) == bool(last.token_ids)

    def add(self, event: pb.BlockEvent, fingerprint: Fingerprint) -> None:
        """Take `event` into the run."""
        self._first = self._first or event
        self._last = event
        self._hashes.append(self._wording.hash_of(event.key))
        self._block_size = fingerprint.block_tokens
        if not fingerprint.salt:  # whoever reads the tokens would take a tenant's blocks for everybody's
            self._token_ids.extend(event.token_ids)

    def told(self) -> Iterator[KvEvent]:
        """The run in vLLM's words."""
        first = self._first
        if first is None:
            return
        if first.kind == pb.BlockEvent.KIND_REMOVED:
            for medium in _MEDIUM.values() if self._wording.has_disk else [_MEDIUM[pb.TIER_MEMORY]]:
                yield BlockRemoved(self._hashes, medium)
            return
        yield BlockStored(
            block_hashes=self._hashes,
            parent_block_hash=self._wording.hash_of(first.parent_key) if first.parent_key else None,
            token_ids=self._token_ids,
            block_size=self._block_size,
            lora_id=None,
            medium=_MEDIUM[first.tier],
            lora_name=None,
        )
        if first.tier == pb.TIER_DISK and not self._is_snapshot:
            yield BlockRemoved(self._hashes, _MEDIUM[pb.TIER_MEMORY])


def _positional(event: KvEvent) -> list[object]:
    return [type(event).__name__, *msgspec.structs.astuple(event)]
