"""The whole model loop, cycle by cycle, on a fake llama.cpp: random turns, every answer as if it were alone.

Turns share system prompts, extend one another, are cancelled, preempted, restored late or in part from what
others exported."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.worker.blocks import BlockMover
from engine.worker.cache import KvCache
from engine.worker.loop import LoopSettings, ModelLoop
from engine.worker.sampling import Sampler, SamplingParams
from engine.worker.slots import SlotTable
from engine.worker.text import TextStream
from engine.worker.turn import Admitted, Delta, Finished, FinishReason, PromptDone, Turn, TurnEvent
from kvstore.core.block import header_bytes
from kvstore.core.errors import UnavailableError
from kvstore.core.keys import BlockKey, NamespaceId, chain_keys
from tests.fake_llama import VOCAB, FakeContext, greedy_answer

NAMESPACE = NamespaceId(b"s" * 32)
BLOCK = 4
CONTEXT = 64
SEEDS = 60
CYCLES_MAX = 5000


@dataclass
class Running:
    """A turn and what it has said so far."""

    turn: Turn
    events: list[TurnEvent]
    expected: list[int]
    exported: int = 0
    admissions: int = 0
    restores: list[Admitted] = field(default_factory=list)
    is_cancelled: bool = False

    @property
    def finished(self) -> Finished | None:
        return next((event for event in self.events if isinstance(event, Finished)), None)


class World:
    """A loop on a small cache, a store that is a dict, and agents that the seed drives."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        slots, cells = self.random.choice([1, 2, 4, 6]), self.random.choice([72, 96, 200])
        self.context = FakeContext(cells, slots, batch_tokens=self.random.choice([8, 32]))
        self.table = SlotTable(slots=slots, cells=cells, context_tokens=CONTEXT, block_tokens=BLOCK)
        mover = BlockMover(self.context, self.table, BLOCK)  # type: ignore[arg-type]
        idle_cells_max = self.random.choice([0, cells // 2, cells])
        cache = KvCache(self.context, self.table, mover, idle_cells_max)  # type: ignore[arg-type]
        settings = LoopSettings(BLOCK, CONTEXT, self.context.batch_tokens, chunk_beside_decodes=4)
        self.loop = ModelLoop(self.context, cache, lambda token: b"x", settings)  # type: ignore[arg-type]
        self.store: dict[BlockKey, bytes] = {}
        self.turns: list[Running] = []
        self.histories = [[self.random.randrange(VOCAB)] * self.random.randrange(1, 20) for _ in range(3)]

    def submit(self) -> None:
        """A new turn: a session goes on, or begins behind one of three system prompts."""
        history = self.random.choice(self.histories)
        prompt = [*history, *self._some_tokens(1, 12)][-50:]
        count = self.random.randrange(1, CONTEXT - len(prompt))
        tokens, events = np.array(prompt, np.uint32), []
        turn = Turn(
            turn_id=str(len(self.turns)),
            namespace=NAMESPACE,
            prompt=tokens,
            tokens_max=count,
            sampler=Sampler(SamplingParams()),
            text=TextStream(),
            end_tokens=frozenset(),
            emit=events.append,
            keys=chain_keys(NAMESPACE, tokens, BLOCK),
            arrived_s=float(len(self.turns)),
        )
        self.turns.append(Running(turn, events, greedy_answer(prompt, count)))
        self.loop.submit(turn)
        if self.random.random() < 0.6:
            self.histories.append([*prompt, *self.turns[-1].expected])

    def act(self) -> None:
        """What the event loop would do between two cycles: restore, export, cancel."""
        for running in self.turns:
            self._hear(running)
            if running.restores and self.random.random() < 0.7:
                self._restore(running, running.restores.pop(0))
            if running.finished is None and self.random.random() < 0.01:
                running.is_cancelled = True
                self.loop.cancel(running.turn)

    def check(self) -> None:
        self.table.check_invariants()
        for slot in self.table._slots:
            mirrored = slot.cells[: slot.length].tolist()
            assert mirrored == self.context.cells_by_position(slot.number), "the mirror differs from the cache"

    def _hear(self, running: Running) -> None:
        blocks = [event.blocks for event in running.events if isinstance(event, PromptDone | Delta)]
        for index in range(running.exported, max(blocks, default=0)):
            value = bytearray(header_bytes(BLOCK) + 8 * BLOCK)
            if self.random.random() < 0.8 and self.loop.export_block(running.turn, index, memoryview(value)):
                stored = self.store.setdefault(running.turn.keys[index], bytes(value))
                assert stored == value, "equal blocks are equal bytes"
        running.exported = max(blocks, default=0)
        admissions = [event for event in running.events if isinstance(event, Admitted)]
        running.restores += admissions[running.admissions :]
        running.admissions = len(admissions)

    def _restore(self, running: Running, admitted: Admitted) -> None:
        """As the bridge does: in order, up to the first block that is not there; sometimes it is not trusted."""
        turn, first = running.turn, admitted.tokens_hot // BLOCK
        for index in range(first, admitted.blocks):
            value = self.store.get(turn.keys[index])
            if value is None or self.random.random() < 0.05:
                break
            if not self.loop.restore_block(turn, admitted.admission, index, memoryview(value)):
                break
        if self.random.random() < 0.1:
            self.loop.discard_blocks(turn, admitted.admission, first)
        self.loop.start_prefill(turn, admitted.admission)

    def _some_tokens(self, low: int, high: int) -> list[int]:
        return [self.random.randrange(VOCAB) for _ in range(self.random.randrange(low, high))]


def run_world(seed: int) -> World:
    world = World(seed)
    for _ in range(CYCLES_MAX):
        if len(world.turns) < 40 and world.random.random() < 0.3:
            world.submit()
        world.act()
        world.loop._run_jobs(wait=False)
        world.loop._cycle()
        world.check()
        if len(world.turns) == 40 and all(running.finished for running in world.turns):
            return world
    raise AssertionError("turns hang")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_answer_is_as_if_its_turn_were_alone(seed: int) -> None:
    world = run_world(seed)
    for running in world.turns:
        tokens = [token for event in running.events if isinstance(event, Delta) for token in event.tokens]
        assert sum(isinstance(event, Finished) for event in running.events) == 1
        assert running.finished is not None
        if running.is_cancelled and running.finished.reason is FinishReason.CANCELLED:
            assert tokens == running.expected[: len(tokens)]
        else:
            assert tokens == running.expected
        for done in (event for event in running.events if isinstance(event, PromptDone)):
            assert 0 <= done.tokens_hot + done.tokens_restored < running.turn.length
            assert done.tokens_restored >= 0


def test_the_seeds_reach_preemption_reseating_and_restores() -> None:
    worlds = [run_world(seed) for seed in range(20)]
    assert sum(world.loop.load.preemptions for world in worlds) > 0
    assert sum(world.loop.load.reseats for world in worlds) > 0
    done = [event for world in worlds for r in world.turns for event in r.events if isinstance(event, PromptDone)]
    assert sum(event.tokens_restored for event in done) > 0
    assert sum(event.tokens_hot for event in done) > 0


def test_a_bug_on_the_model_thread_fails_every_turn_and_refuses_more() -> None:
    world = World(0)
    deaths: list[BaseException] = []
    world.loop.on_death = deaths.append
    world.context.decode = None  # type: ignore[assignment]
    world.submit()
    world.submit()
    world.loop.run(lambda: None)
    for running in world.turns:
        events = running.events
        running.turn.emit = lambda event, turn=running.turn, events=events: (
            events.append(event),
            isinstance(event, Admitted) and world.loop.start_prefill(turn, event.admission),
        )
    world.loop.start()
    world.loop._thread.join(timeout=30)
    assert len(deaths) == 1
    assert [running.finished.reason for running in world.turns if running.finished] == [FinishReason.FAILED] * 2
    with pytest.raises(UnavailableError):
        world.loop.run(lambda: None)


def test_logits_that_are_no_numbers_fail_the_turn_only() -> None:
    world = World(0)
    good = world.context.logits
    world.context.logits = lambda index: np.full(VOCAB, np.nan, np.float32)  # type: ignore[method-assign]
    world.submit()
    broken = world.turns[0]
    for _ in range(50):
        world.act()
        world.loop._run_jobs(wait=False)
        world.loop._cycle()
    assert broken.finished is not None and broken.finished.reason is FinishReason.FAILED
    world.context.logits = good  # type: ignore[method-assign]
    world.check()
