"""The allocator against a model that marks every unit of the arena."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvstore.node.allocator import ExtentAllocator

UNIT = 64
UNITS = 64


class AllocatorMachine(RuleBasedStateMachine):
    """`owners[i]` is the extent that has unit i, or None."""

    extents = Bundle("extents")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = ExtentAllocator(UNITS * UNIT, UNIT)
        self.owners: list[int | None] = [None] * UNITS

    def longest_free_run(self) -> int:
        longest = run = 0
        for owner in self.owners:
            run = run + 1 if owner is None else 0
            longest = max(longest, run)
        return longest

    @rule(target=extents, size=st.integers(1, UNITS * UNIT))
    def allocate(self, size: int) -> int:
        fits = -(-size // UNIT) <= self.longest_free_run()
        offset = self.allocator.allocate(size)
        assert (offset is not None) == fits
        if offset is None:
            return -1
        for unit in range(offset // UNIT, offset // UNIT + -(-size // UNIT)):
            assert self.owners[unit] is None
            self.owners[unit] = offset
        return offset

    @rule(offset=consumes(extents))
    def free(self, offset: int) -> None:
        if offset >= 0:
            self.allocator.free(offset)
            self.owners = [None if owner == offset else owner for owner in self.owners]

    @invariant()
    def agrees(self) -> None:
        self.allocator.check_invariants()
        assert self.allocator.bytes_free_largest == self.longest_free_run() * UNIT
        assert self.allocator.bytes_used == sum(owner is not None for owner in self.owners) * UNIT
        assert 0 <= self.allocator.fragmentation.external < 1


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_best_fit_keeps_the_large_extent_whole() -> None:
    allocator = ExtentAllocator(16 * UNIT, UNIT)
    small, _, _ = (allocator.allocate(units * UNIT) for units in (2, 1, 4))
    assert small is not None
    allocator.free(small)
    assert allocator.allocate(2 * UNIT) == small
    assert allocator.bytes_free_largest == 9 * UNIT
