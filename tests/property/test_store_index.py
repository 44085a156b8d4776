"""The store's state against a dict: whatever is asked in whatever order, leases and chains hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.node.blocks import IN_MEMORY, RESIDENT, Block, BlockId, DiskPlace, State
from kvstore.node.leases import Lease, LeaseKind
from kvstore.node.store import ARENA_ALIGNMENT, BlockStore, PutPlan
from kvstore.wire import kvstore_pb2 as pb
from tests.store_node import FINGERPRINT

NAMESPACE = NamespaceId(b"n" * 32)
ARENA_PAGES = 12
KEYS = [bytes([number]) * 16 for number in range(16)]
TTL_S = 10.0


class StoreMachine(RuleBasedStateMachine):
    """`sealed` holds what was committed, by name; eviction may take from it, nothing may change it."""

    fills = Bundle("fills")
    reads = Bundle("reads")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = BlockStore(ARENA_PAGES * ARENA_ALIGNMENT, lambda: self.now, 64)
        self.store.open_namespace(NAMESPACE, FINGERPRINT)
        self.sealed: dict[BlockId, tuple[int, bytes]] = {}
        self.running: set[Lease] = set()
        self.promoting: list[Block] = []
        self.places = 0

    @rule(
        target=fills,
        numbers=st.lists(st.sampled_from(range(len(KEYS))), min_size=1, max_size=4),
        pages=st.integers(1, ARENA_PAGES + 1),
        owner=st.sampled_from([None, "client"]),
    )
    def begin(self, numbers: list[int], pages: int, owner: str | None) -> Lease | None:
        plans = [
            PutPlan(BlockId(NAMESPACE, BlockKey(KEYS[n]), 0), pages * ARENA_ALIGNMENT, KEYS[n - 1] if n % 4 else b"")
            for n in numbers
        ]
        reservation = self.store.reserve(plans, TTL_S, owner)
        for plan, status in zip(plans, reservation.statuses, strict=True):
            if status == pb.STATUS_EXISTS:
                assert self.store.index.find(plan.id) is not None
            elif status == pb.STATUS_BUSY:
                is_used = self.running or self.promoting or self.store.quarantined
                is_in_batch = {pb.STATUS_WANTED, pb.STATUS_EXISTS} & set(reservation.statuses)
                assert pages > ARENA_PAGES or is_used or is_in_batch
        if reservation.lease is not None:
            self.running.add(reservation.lease)
        return reservation.lease

    @rule(lease=consumes(fills), kept=st.integers(0, 15))
    def commit(self, lease: Lease | None, kept: int) -> None:
        if lease not in self.running or self.store.leases.find(lease.id, LeaseKind.FILL) is None:
            return
        self.running.discard(lease)
        sums = {block: bytes([block.size % 251]) * 16 for n, block in enumerate(lease.blocks) if kept >> n & 1}
        for block, status in self.store.commit(lease, sums).items():
            if status == pb.STATUS_STORED:
                self.sealed[block.id] = (block.size, sums[block])

    @rule(target=reads, numbers=st.lists(st.sampled_from(range(len(KEYS))), min_size=1, max_size=4))
    def acquire(self, numbers: list[int]) -> Lease | None:
        found = [self.store.index.find(BlockId(NAMESPACE, BlockKey(KEYS[n]), 0)) for n in numbers]
        blocks = [block for block in found if block is not None and block.state in IN_MEMORY]
        for block in blocks:
            self.store.index.pin(block)
        if not blocks:
            return None
        lease = self.store.grant_read(blocks, TTL_S, None)
        self.running.add(lease)
        return lease

    @rule(lease=consumes(reads))
    def release(self, lease: Lease | None) -> None:
        if lease is not None:
            assert self.store.release([lease.id]) == (lease in self.running)
            self.running.discard(lease)

    @rule(seconds=st.sampled_from([1.0, TTL_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.store.end_expired()
        self.running = {lease for lease in self.running if lease.expires_at_s > self.now}

    @rule()
    def disconnect(self) -> None:
        self.store.end_owned("client")
        self.running = {lease for lease in self.running if lease.owner is None}
        assert not self.store.quarantined

    @rule(number=st.sampled_from(range(len(KEYS))))
    def demote(self, number: int) -> None:
        block = self.store.index.find(BlockId(NAMESPACE, BlockKey(KEYS[number]), 0))
        if block is not None and block.state is State.MEMORY:
            self.places += 1
            self.store.index.demoted(block, DiskPlace(self.places // 4, 0))

    @rule(number=st.sampled_from(range(len(KEYS))))
    def promote(self, number: int) -> None:
        block = self.store.index.find(BlockId(NAMESPACE, BlockKey(KEYS[number]), 0))
        if block is not None and block.state is State.DISK and (offset := self.store.allocate(block.size)) is not None:
            self.store.index.begin_promotion(block, offset)
            self.promoting.append(block)

    @rule(outcome=st.sampled_from([State.BOTH, State.DISK, State.GONE]))
    def end_promotion(self, outcome: State) -> None:
        if self.promoting:
            self.store.end_promotion(self.promoting.pop(), outcome)

    @rule(segment=st.integers(0, 5))
    def reclaim(self, segment: int) -> None:
        blocks = list(self.store.index.blocks())
        in_segment = [block for block in blocks if block.place is not None and block.place.segment == segment]
        if not any(block.state is State.PROMOTING for block in in_segment):  # such a segment is held
            self.store.forget_disk([block.id for block in in_segment], segment)

    @invariant()
    def holds(self) -> None:
        self.store.check_invariants()
        for block in self.store.index.blocks():
            assert self.sealed[block.id] == (block.size, block.checksum)
            if block.parent is not None and block.parent.state is not State.GONE:
                assert block.parent.state in RESIDENT, "a child outlived its parent"
        for lease in self.running:
            for block in lease.blocks:
                assert block.state in (IN_MEMORY if lease.kind is LeaseKind.READ else {State.RESERVED})

    @invariant()
    def matches_like_a_dict(self) -> None:
        expected = 0
        while expected < len(KEYS) and self.store.index.find(BlockId(NAMESPACE, BlockKey(KEYS[expected]), 0)):
            expected += 1
        assert self.store.index.match(NAMESPACE, KEYS, 1).blocks == expected


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
