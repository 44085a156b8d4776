"""The prefix index against plain sets, whatever the order of events."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.index import PrefixIndex, StoredRun, Tier
from kvstore.core.keys import BlockKey, NamespaceId

KEYS = [BlockKey(bytes([number]) * 32) for number in range(6)]
NAMESPACES = [NamespaceId(b"p" * 32), NamespaceId(b"q" * 32)]
workers = st.sampled_from(["w1", "w2"])
nodes = st.sampled_from(["n1", "n2", "n3"])
keys = st.sampled_from(KEYS)
namespaces = st.sampled_from(NAMESPACES)
tiers = st.sampled_from(Tier)


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(blocks_max=1000)
        self.hot: dict[str, set[BlockKey]] = {"w1": set(), "w2": set()}
        self.stored: dict[tuple[str, NamespaceId, BlockKey], Tier] = {}

    @rule(worker=workers, added=st.lists(keys))
    def add_hot(self, worker: str, added: list[BlockKey]) -> None:
        self.index.add_hot(worker, added)
        self.hot[worker].update(added)

    @rule(worker=workers, removed=st.lists(keys))
    def remove_hot(self, worker: str, removed: list[BlockKey]) -> None:
        self.index.remove_hot(worker, removed)
        self.hot[worker].difference_update(removed)

    @rule(worker=workers)
    def reset_worker(self, worker: str) -> None:
        self.index.reset_worker(worker)
        self.hot[worker].clear()

    @rule(node=nodes, namespace=namespaces, key=keys, tier=tiers)
    def add_stored(self, node: str, namespace: NamespaceId, key: BlockKey, tier: Tier) -> None:
        self.index.add_stored(node, namespace, key, tier)
        self.stored[node, namespace, key] = tier

    @rule(node=nodes, namespace=namespaces, key=keys)
    def remove_stored(self, node: str, namespace: NamespaceId, key: BlockKey) -> None:
        self.index.remove_stored(node, namespace, key)
        self.stored.pop((node, namespace, key), None)

    @rule(node=nodes, namespace=st.none() | namespaces)
    def reset_node(self, node: str, namespace: NamespaceId | None) -> None:
        self.index.reset_node(node, namespace)
        for entry in [entry for entry in self.stored if entry[0] == node and namespace in (None, entry[1])]:
            del self.stored[entry]

    @rule(namespace=namespaces, chain=st.lists(keys, unique=True))
    def match(self, namespace: NamespaceId, chain: list[BlockKey]) -> None:
        found = self.index.match(namespace, chain)
        for worker, held in self.hot.items():
            run = next((place for place, key in enumerate(chain) if key not in held), len(chain))
            assert found.hot.get(worker, 0) == run
        for node in ("n1", "n2", "n3"):
            tiers_of_run = []
            for key in chain:
                if (tier := self.stored.get((node, namespace, key))) is None:
                    break
                tiers_of_run.append(tier)
            expected = StoredRun(len(tiers_of_run), tiers_of_run.count(Tier.DISK)) if tiers_of_run else None
            assert found.stored.get(node) == expected

    @invariant()
    def holds(self) -> None:
        self.index.check_invariants()
        blocks = len({entry[1:] for entry in self.stored}) + sum(map(len, self.hot.values()))
        assert len(self.index) == blocks


TestIndex = IndexMachine.TestCase
