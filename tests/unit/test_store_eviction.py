"""Who leaves the arena, and who does not."""

from dataclasses import replace

import pytest

from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.blocks import Block, BlockId, DiskPlace, State
from kvstore.node.store import ARENA_ALIGNMENT, BlockStore, PutPlan
from kvstore.wire import kvstore_pb2 as pb
from tests.store_node import FINGERPRINT

NAMESPACE = NamespaceId(b"n" * 32)
PAGE = ARENA_ALIGNMENT


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def new_store(pages: int, clock: Clock | None = None) -> BlockStore:
    store = BlockStore(pages * PAGE, clock or Clock(), 100)
    store.open_namespace(NAMESPACE, FINGERPRINT)
    return store


def block_id(name: str) -> BlockId:
    return BlockId(NAMESPACE, BlockKey(name.encode().ljust(16)), 0)


def put(store: BlockStore, name: str, parent: str = "", pages: int = 1) -> Block:
    parent_key = block_id(parent).key if parent else b""
    reservation = store.reserve([PutPlan(block_id(name), pages * PAGE, parent_key)], 10, None)
    assert reservation.lease is not None, reservation.statuses
    store.commit(reservation.lease, {reservation.lease.blocks[0]: b"s" * 16})
    return reservation.lease.blocks[0]


def names(store: BlockStore) -> set[str]:
    return {block.id.key.decode().strip() for block in store.index.blocks()}


def test_the_least_recently_used_goes_first() -> None:
    store = new_store(3)
    for name in ("a", "b", "c"):
        put(store, name)
    found = store.index.find(block_id("a"))
    assert found is not None
    store.index.touch([found])
    put(store, "d")
    assert names(store) == {"a", "c", "d"}


def test_a_parent_outlives_its_children() -> None:
    store = new_store(4)
    put(store, "root")
    put(store, "child", "root")
    put(store, "leaf", "child")
    put(store, "other")
    put(store, "new")
    assert names(store) == {"root", "child", "other", "new"}
    put(store, "newer")
    assert names(store) == {"root", "other", "new", "newer"}


def test_a_chain_used_together_goes_from_its_end() -> None:
    store = new_store(3)
    chain = [put(store, "one"), put(store, "two", "one"), put(store, "three", "two")]
    store.index.touch(chain)
    assert [block.last_use for block in chain] == sorted((block.last_use for block in chain), reverse=True)


def test_what_is_on_disk_goes_before_what_is_not() -> None:
    store = new_store(2)
    put(store, "only")
    both = put(store, "both")
    store.index.demoted(both, DiskPlace(1, 0))
    put(store, "new")
    assert both.state is State.DISK
    assert names(store) == {"only", "both", "new"}


def test_a_batch_does_not_evict_the_parent_that_it_names() -> None:
    store = new_store(2)
    put(store, "parent")
    put(store, "other")
    plans = [PutPlan(block_id(name), PAGE, b"") for name in ("parent", "child")]
    assert list(store.reserve(plans, 10, None).statuses) == [pb.STATUS_EXISTS, pb.STATUS_WANTED]
    assert names(store) == {"parent"}
    plans = [PutPlan(block_id(name), PAGE, b"") for name in ("parent", "second child")]
    assert list(store.reserve(plans, 10, None).statuses) == [pb.STATUS_EXISTS, pb.STATUS_BUSY]


def test_leased_blocks_stay_and_put_is_busy() -> None:
    store = new_store(2)
    blocks = [put(store, "a"), put(store, "b")]
    for block in blocks:
        store.index.pin(block)
    lease = store.grant_read(blocks, 10, None)
    assert list(store.reserve([PutPlan(block_id("c"), PAGE, b"")], 10, None).statuses) == [pb.STATUS_BUSY]
    assert store.release([lease.id]) == 1
    put(store, "c")


def test_claimed_parents_in_a_ring_cannot_fill_the_arena_for_ever() -> None:
    store = new_store(2)
    put(store, "a", "b")
    put(store, "b", "a")
    put(store, "c")
    put(store, "d")
    assert names(store) == {"c", "d"}


def test_a_value_larger_than_the_arena_is_busy_and_evicts_nothing() -> None:
    store = new_store(2)
    put(store, "a")
    assert list(store.reserve([PutPlan(block_id("c"), 3 * PAGE, b"")], 10, None).statuses) == [pb.STATUS_BUSY]
    assert names(store) == {"a"}


def test_memory_of_an_expired_local_fill_waits_for_the_disconnect() -> None:
    clock = Clock()
    store = new_store(1, clock)
    reservation = store.reserve([PutPlan(block_id("a"), PAGE, b"")], 10, "client")
    clock.now = 11
    store.end_expired()
    assert store.reserve([PutPlan(block_id("b"), PAGE, b"")], 10, None).lease is None
    store.end_owned("client")
    assert store.reserve([PutPlan(block_id("b"), PAGE, b"")], 10, None).lease is not None
    assert reservation.lease is not None


def test_two_writers_of_one_block_the_first_to_commit_wins() -> None:
    store = new_store(2)
    plan = PutPlan(block_id("a"), PAGE, b"")
    first, second = (store.reserve([plan], 10, None).lease for _ in range(2))
    assert first is not None
    assert second is not None
    assert list(store.commit(second, {second.blocks[0]: b"2" * 16}).values()) == [pb.STATUS_STORED]
    assert list(store.commit(first, {first.blocks[0]: b"1" * 16}).values()) == [pb.STATUS_EXISTS]
    assert store.allocator.bytes_used == PAGE
    store.check_invariants()


def test_a_pin_too_many_given_back_is_a_crash() -> None:
    store = new_store(1)
    block = put(store, "a")
    with pytest.raises(AssertionError):
        store.index.unpin(block)


def test_shards_of_a_key_are_told_and_matched_as_one() -> None:
    store = BlockStore(4 * PAGE, Clock(), 100)
    store.open_namespace(NAMESPACE, replace(FINGERPRINT, shard_count=2))
    for shard in (0, 1):
        assert store.index.match(NAMESPACE, [block_id("a").key], 2).blocks == 0
        assert store.events.last_sequence == 0
        plan = PutPlan(block_id("a")._replace(shard=shard), PAGE, b"")
        lease = store.reserve([plan], 10, None).lease
        assert lease is not None
        store.commit(lease, {lease.blocks[0]: b"s" * 16})
    assert store.index.match(NAMESPACE, [block_id("a").key], 2) == (1, 1, 2 * PAGE)
    [event] = store.events.after(0, 10)
    assert (event.kind, event.size) == (pb.BlockEvent.KIND_STORED, 2 * PAGE)
