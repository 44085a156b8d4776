"""What the hot tier keeps, shares and gives up."""

import numpy as np

from engine.worker.slots import SlotState, SlotTable
from kvstore.core.keys import NamespaceId, chain_keys

NAMESPACE = NamespaceId(b"n" * 32)
SYSTEM = list(range(100, 140))


def table(slots: int = 3, cells: int = 400) -> SlotTable:
    return SlotTable(slots=slots, cells=cells, context_tokens=200, block_tokens=8)


def indivisible_table() -> SlotTable:
    return SlotTable(slots=6, cells=400, context_tokens=200, block_tokens=8, is_divisible=False)


def run(slots: SlotTable, tokens: list[int]) -> tuple[int, int]:
    """One whole turn; answers its slot and how many tokens were hot."""
    array = np.array(tokens, np.uint32)
    claim = slots.claim(NAMESPACE, array)
    assert claim is not None
    slots.append(claim.slot, array[claim.hot_tokens :], chain_keys(NAMESPACE, array, 8))
    slots.release(claim.slot)
    slots.check_invariants()
    return claim.slot, claim.hot_tokens


def test_the_next_turn_of_a_session_reuses_its_slot_in_place() -> None:
    slots = table()
    first, _ = run(slots, [*SYSTEM, 1, 2, 3])
    assert run(slots, [*SYSTEM, 1, 2, 3, 4, 5]) == (first, 43)
    assert slots.cells.used == 45


def test_the_last_token_is_always_computed() -> None:
    slots = table()
    run(slots, [*SYSTEM, 1])
    assert run(slots, [*SYSTEM, 1])[1] == 40


def test_a_sibling_shares_the_system_prompt_and_costs_only_its_own_cells() -> None:
    slots = table()
    first, _ = run(slots, [*SYSTEM, *range(50)])
    second, hot = run(slots, [*SYSTEM, *range(60, 70)])
    assert (second != first, hot) == (True, 40)
    assert slots.cells.used == 40 + 50 + 10


def test_sixteen_agents_hold_one_system_prompt() -> None:
    slots = table(slots=16)
    for agent in range(16):
        run(slots, [*SYSTEM, *[200 + agent] * 10])
    assert slots.cells.used == len(SYSTEM) + 16 * 10


def test_the_coldest_idle_slot_goes_first_and_another_namespace_never_matches() -> None:
    slots = table(slots=2)
    first, _ = run(slots, [1] * 20)
    second, _ = run(slots, [2] * 20)
    run(slots, [1] * 21)
    assert slots.coldest_idle() == second
    claim = slots.claim(NamespaceId(b"o" * 32), np.array([1] * 22, np.uint32))
    assert claim is not None
    assert (claim.slot, claim.hot_tokens) == (second, 0)
    assert slots.slot(first).state is SlotState.IDLE


def test_no_slot_when_all_are_busy() -> None:
    slots = table(slots=1)
    assert slots.claim(NAMESPACE, np.array([1, 2], np.uint32)) is not None
    assert slots.claim(NAMESPACE, np.array([1, 2], np.uint32)) is None


def test_idle_cells_are_those_that_no_running_turn_shares() -> None:
    slots = table()
    run(slots, [*SYSTEM, *range(50)])
    assert slots.idle_cells() == 90
    claim = slots.claim(NAMESPACE, np.array([*SYSTEM, 7, 8], np.uint32))
    assert claim is not None
    assert slots.idle_cells() == 50
    assert slots.newest_idle() == slots.coldest_idle() != claim.slot


def test_kv_that_cannot_be_cut_is_reused_only_as_a_whole() -> None:
    slots = indivisible_table()
    first, _ = run(slots, [*SYSTEM, 1, 2, 3])
    assert run(slots, [*SYSTEM, 1, 2, 3, 4]) == (first, 43)
    # A sibling, a shorter prompt and the very same one would need a cut or a copy.
    for other in ([*SYSTEM, 9, 9], [*SYSTEM, 1, 2, 3, 4], SYSTEM):
        slot, hot = run(slots, other)
        assert (slot != first, hot) == (True, 0)
