"""The prefix index at its bound, and as nodes' events change it."""

from gateway.index import Match, PrefixIndex, StoredRun, Tier
from gateway.nodes import apply_events
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.wire import kvstore_pb2 as pb

NAMESPACE = NamespaceId(b"n" * 32)
OTHER = NamespaceId(b"o" * 32)
KEYS = [BlockKey(bytes([number]) * 32) for number in range(5)]


def stored(key: BlockKey, tier: "pb.Tier" = pb.TIER_MEMORY, namespace: NamespaceId = NAMESPACE) -> pb.BlockEvent:
    return pb.BlockEvent(kind=pb.BlockEvent.KIND_STORED, namespace_id=namespace, key=key, tier=tier)


def test_a_full_index_drops_what_comes_and_says_so() -> None:
    index = PrefixIndex(blocks_max=3)
    index.add_hot("w", KEYS[:2])
    index.add_stored("n", NAMESPACE, KEYS[0], Tier.MEMORY)
    index.add_stored("n", NAMESPACE, KEYS[1], Tier.MEMORY)
    index.add_hot("w", KEYS)
    index.check_invariants()
    assert len(index) == 3 and index.blocks_dropped == 4
    index.add_stored("m", NAMESPACE, KEYS[0], Tier.DISK)  # one more holder of a kept block takes no room
    assert index.match(NAMESPACE, KEYS).stored == {"n": StoredRun(1, 0), "m": StoredRun(1, 1)}
    index.remove_hot("w", [KEYS[0]])
    index.add_stored("n", NAMESPACE, KEYS[1], Tier.MEMORY)
    assert index.match(NAMESPACE, KEYS).stored["n"] == StoredRun(2, 0)


def test_namespaces_are_apart() -> None:
    index = PrefixIndex(100)
    index.add_stored("n", NAMESPACE, KEYS[0], Tier.MEMORY)
    assert index.match(OTHER, KEYS) == Match()


def test_events_of_a_node() -> None:
    index = PrefixIndex(100)
    apply_events(index, "n", pb.WatchResponse(is_reset=True, events=[stored(KEYS[0]), stored(KEYS[1])]))
    apply_events(index, "n", pb.WatchResponse(events=[stored(KEYS[2], namespace=OTHER)]))
    assert index.match(NAMESPACE, KEYS).stored == {"n": StoredRun(2, 0)}
    apply_events(index, "n", pb.WatchResponse(events=[stored(KEYS[1], pb.TIER_DISK)]))
    assert index.match(NAMESPACE, KEYS).stored == {"n": StoredRun(2, 1)}
    removed = pb.BlockEvent(kind=pb.BlockEvent.KIND_REMOVED, namespace_id=NAMESPACE, key=KEYS[1])
    apply_events(index, "n", pb.WatchResponse(events=[removed]))
    assert index.match(NAMESPACE, KEYS).stored == {"n": StoredRun(1, 0)}
    cleared = pb.BlockEvent(kind=pb.BlockEvent.KIND_CLEARED, namespace_id=NAMESPACE)
    apply_events(index, "n", pb.WatchResponse(events=[cleared]))
    assert index.match(NAMESPACE, KEYS) == Match() and len(index) == 1
    apply_events(index, "n", pb.WatchResponse(events=[pb.BlockEvent(kind=pb.BlockEvent.KIND_CLEARED)]))
    assert len(index) == 0


def test_a_new_snapshot_replaces_what_was_heard() -> None:
    index = PrefixIndex(100)
    apply_events(index, "n", pb.WatchResponse(events=[stored(KEYS[0]), stored(KEYS[1])]))
    apply_events(index, "m", pb.WatchResponse(events=[stored(KEYS[0])]))
    apply_events(index, "n", pb.WatchResponse(is_reset=True, events=[stored(KEYS[0])]))
    assert index.match(NAMESPACE, KEYS).stored == {"n": StoredRun(1, 0), "m": StoredRun(1, 0)}
