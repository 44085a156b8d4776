"""Which prefixes lie where: the hot tier of each worker, and memory and disk of each storage node.

    hot     worker -> block keys                     (small: a worker's KV cache)
    stored  namespace -> block key -> bits           (large: every block of every node)
                                       bit 2n: in node n's memory, bit 2n + 1: on its disk

Fed by what workers and nodes report (`Watch`), asked by the router. It is a hint and never the truth:
a wrong hint costs a slower turn, never a wrong answer. Memory is bounded by `blocks_max`: what comes
beyond is counted and not kept, since what a full index has is as good as what it would get instead.
Plain synchronous code; one task owns it.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvstore.core.keys import BlockKey, NamespaceId


class Tier(enum.IntEnum):
    """Where a node holds a block; the value is the bit within the node's two."""

    MEMORY = 0
    DISK = 1


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The head of a prompt that one node holds, in blocks."""

    blocks: int
    blocks_on_disk: int
    """Those of `blocks` that are not in memory."""


@dataclass(frozen=True, slots=True)
class Match:
    """Who holds how much of a prompt's head, in blocks; only holders of at least one."""

    hot: Mapping[str, int] = field(default_factory=dict)
    """By worker."""
    stored: Mapping[str, StoredRun] = field(default_factory=dict)
    """By node."""


class PrefixIndex:
    """Hints about held blocks; all methods but `match` and `check_invariants` change it."""

    def __init__(self, blocks_max: int) -> None:
        self.blocks_max = blocks_max
        self.blocks_dropped = 0
        """Blocks not kept because the index was full, since start."""
        self._hot: dict[str, set[BlockKey]] = {}
        self._stored: dict[NamespaceId, dict[BlockKey, int]] = {}
        self._nodes: list[str] = []
        self._blocks = 0  # entries in all of `_hot` and `_stored`

    def __len__(self) -> int:
        """Entries kept: hot blocks of every worker, and stored blocks once for all nodes."""
        return self._blocks

    def match(self, namespace: NamespaceId, keys: Sequence[BlockKey]) -> Match:
        """How far each worker and node holds `keys`, a prompt's chain, from its first block on."""
        hot = {worker: run for worker, held in self._hot.items() if (run := _run_length(held, keys))}
        stored: dict[str, StoredRun] = {}
        held_bits = self._stored.get(namespace)
        for node, name in enumerate(self._nodes if held_bits else ()):
            assert held_bits is not None
            blocks = on_disk = 0
            for key in keys:
                bits = held_bits.get(key, 0) >> (2 * node) & 0b11
                if not bits:
                    break
                blocks += 1
                on_disk += bits == 1 << Tier.DISK
            if blocks:
                stored[name] = StoredRun(blocks, on_disk)
        return Match(hot, stored)

    def add_hot(self, worker: str, keys: Iterable[BlockKey]) -> None:
        """`worker` gained `keys` in its own KV cache."""
        held = self._hot.setdefault(worker, set())
        for key in keys:
            if key in held:
                continue
            if self._blocks >= self.blocks_max:
                self.blocks_dropped += 1
                continue
            held.add(key)
            self._blocks += 1

    def remove_hot(self, worker: str, keys: Iterable[BlockKey]) -> None:
        """`worker` lost `keys` from its own KV cache."""
        held = self._hot.get(worker, set())
        for key in keys:
            if key in held:
                held.remove(key)
                self._blocks -= 1

    def reset_worker(self, worker: str) -> None:
        """Forget what `worker` held: it restarted, or is gone."""
        self._blocks -= len(self._hot.pop(worker, ()))

    def add_stored(self, node: str, namespace: NamespaceId, key: BlockKey, tier: Tier) -> None:
        """`node` holds the block `key` in `tier`, and in no other."""
        held = self._stored.get(namespace, {})
        bits = held.get(key, 0)
        if not bits and self._blocks >= self.blocks_max:
            self.blocks_dropped += 1
            return
        shift = 2 * self._node_number(node)
        self._blocks += not bits
        held[key] = bits & ~(0b11 << shift) | 1 << (shift + tier)
        self._stored[namespace] = held

    def remove_stored(self, node: str, namespace: NamespaceId, key: BlockKey) -> None:
        """`node` lost the block `key` from all of its tiers."""
        held = self._stored.get(namespace)
        if held is not None and key in held:
            self._clear_bits(node, namespace, held, [key])

    def reset_node(self, node: str, namespace: NamespaceId | None = None) -> None:
        """Forget what `node` held, of one namespace or (None) of all: walks every block kept."""
        for name in [namespace] if namespace is not None else list(self._stored):
            if (held := self._stored.get(name)) is not None:
                self._clear_bits(node, name, held, list(held))

    def check_invariants(self) -> None:
        """Asserts what the comments above promise; for tests."""
        stored = sum(len(held) for held in self._stored.values())
        assert self._blocks == stored + sum(len(held) for held in self._hot.values())
        assert self._blocks <= self.blocks_max
        assert all(self._stored.values()), "an empty namespace is kept"
        for held in self._stored.values():
            for bits in held.values():
                assert bits, "a block that no node holds is kept"
                assert all(bits >> (2 * node) & 0b11 != 0b11 for node in range(len(self._nodes)))
                assert not bits >> (2 * len(self._nodes))

    def _node_number(self, node: str) -> int:
        """Numbers are given at first sight and kept: a gateway's nodes are those of its settings."""
        if node not in self._nodes:
            self._nodes.append(node)
        return self._nodes.index(node)

    def _clear_bits(
        self, node: str, namespace: NamespaceId, held: dict[BlockKey, int], keys: Iterable[BlockKey]
    ) -> None:
        mask = ~(0b11 << (2 * self._node_number(node)))
        for key in keys:
            held[key] &= mask
            if not held[key]:
                del held[key]
                self._blocks -= 1
        if not held:
            del self._stored[namespace]


def _run_length(held: set[BlockKey], keys: Sequence[BlockKey]) -> int:
    for index, key in enumerate(keys):
        if key not in held:
            return index
    return len(keys)
