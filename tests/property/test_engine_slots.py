"""The hot tier's table under any order of turns: cells are counted once, hot keys are exact."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.worker.slots import SlotState, SlotTable, shared_prefix
from kvstore.core.keys import NamespaceId, chain_keys

BLOCK_TOKENS = 4
NAMESPACES = [NamespaceId(bytes([n]) * 32) for n in range(2)]


class SlotTableMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(slots=4, cells=96, context_tokens=64, block_tokens=BLOCK_TOKENS)
        self.turns: dict[int, tuple[NamespaceId, np.ndarray]] = {}
        self.seen: set[bytes] = set()

    @rule(
        namespace=st.sampled_from(NAMESPACES), system=st.integers(0, 2), tail=st.lists(st.integers(0, 3), max_size=20)
    )
    def claim(self, namespace: NamespaceId, system: int, tail: list[int]) -> None:
        tokens = np.array([system + 10] * 9 + tail, np.uint32)
        held = [s for s in self.table._slots if s.namespace == namespace and s.length]
        longest = max((shared_prefix(s.tokens[: s.length], tokens[:-1]) for s in held), default=0)
        claim = self.table.claim(namespace, tokens)
        if claim is None:
            assert len(self.turns) == 4
            return
        assert claim.slot not in self.turns
        assert claim.hot_tokens == longest
        slot = self.table.slot(claim.slot)
        assert slot.state is SlotState.BUSY
        assert (slot.tokens[: slot.length] == tokens[: claim.hot_tokens]).all()
        self.turns[claim.slot] = (namespace, tokens)

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), count=st.integers(1, 12))
    def compute(self, data: st.DataObject, count: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.turns)))
        namespace, tokens = self.turns[number]
        length = self.table.slot(number).length
        part = tokens[length : length + count]
        while len(part) and self.table.cells.free < len(part):
            idle = self.table.coldest_idle()
            if not idle:
                return
            self.table.empty(idle)
        if len(part):
            self.table.append(number, part, chain_keys(namespace, tokens, BLOCK_TOKENS))

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.turns)))
        del self.turns[number]
        self.table.release(number)

    @rule(data=st.data())
    def reseat(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, 4))
        if self.table.can_reseat(number, reserve=0):
            self.table.reseat(number)
            slot = self.table.slot(number)
            alone = self.table.cells.references[slot.cells[: slot.length]] == 1
            if alone.all():
                assert (np.diff(slot.cells[: slot.length]) > 0).all()

    @rule()
    def watch(self) -> None:
        added, removed = self.table.take_hot_changes()
        assert not self.seen & set(added)
        assert self.seen >= set(removed)
        self.seen = (self.seen - set(removed)) | set(added)
        assert self.seen == set(self.table._hot)

    @invariant()
    def consistent(self) -> None:
        self.table.check_invariants()


SlotTableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlotTable = SlotTableMachine.TestCase
