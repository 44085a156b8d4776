"""What a node may answer, kept beside it by the tests, and random work that never leaves that.

A block is a cache's: it may be missing at any time. But what is served is a value that was put and neither removed
nor invalidated since, as far as the answers that came allow to say. As a key names one content, its value
changes with a removal only: then the key gets a new generation, and an old value that comes back is recognised.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvstore.client import FillItem, PinOptions, StoreClient
from kvstore.core.errors import LeaseExpiredError, StockpotError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.wire import kvstore_pb2 as pb

VALUE_BYTES_MAX = 256 << 10
_CHAINS = 4
_CHAIN_KEYS = 12


def generated_value(key: BlockKey, generation: int) -> bytes:
    """The value of `key` after `generation` removals."""
    rng = np.random.default_rng([int.from_bytes(key[:8], "little"), generation])
    size = int(rng.integers(1, VALUE_BYTES_MAX))
    return rng.bytes(size)


@dataclass(slots=True)
class _Expected:
    """What is known of one key."""

    generation: int = 0
    may_exist: bool = False
    """A put of this generation was begun, and no removal has ended since."""


class NamespaceModel:
    """Chains of keys of one namespace, and which value of each may be served. One task uses it."""

    def __init__(self, namespace: NamespaceId, rng: random.Random) -> None:
        self.namespace = namespace
        self.chains = [[BlockKey(rng.randbytes(32)) for _ in range(_CHAIN_KEYS)] for _ in range(_CHAINS)]
        self._expected = {key: _Expected() for chain in self.chains for key in chain}

    @property
    def keys(self) -> list[BlockKey]:
        """All keys, chain by chain."""
        return list(self._expected)

    def value(self, key: BlockKey) -> bytes:
        """The one value that may be put and served now."""
        return generated_value(key, self._expected[key].generation)

    def put_begun(self, key: BlockKey) -> None:
        """From now on the key may be there."""
        self._expected[key].may_exist = True

    def may_exist(self, key: BlockKey) -> bool:
        """Whether the key may be there."""
        return self._expected[key].may_exist

    def removed(self, keys: Sequence[BlockKey]) -> None:
        """The node has said that `keys` are removed."""
        for key in keys:
            self._expected[key] = _Expected(self._expected[key].generation + 1)

    def missing(self, key: BlockKey) -> None:
        """A node at rest does not have the key, so it may not come back."""
        self._expected[key].may_exist = False

    def check(self, key: BlockKey, value: bytes | None) -> None:
        """A value is the right one, and may be there."""
        if value is None:
            return
        generation = self._expected[key].generation
        found = next((old for old in range(generation, -1, -1) if value == generated_value(key, old)), None)
        assert found == generation, f"served generation {found} of a key that has had {generation} removals"
        assert self.may_exist(key), "a block came back that was gone or removed"


class RandomWork:
    """Random calls of one client on one namespace, each answer checked against the model."""

    def __init__(self, client: StoreClient, model: NamespaceModel, rng: random.Random) -> None:
        self._client = client
        self._model = model
        self._rng = rng

    async def run(self, n_calls: int = 1 << 62) -> None:
        """Make `n_calls`. Raises: StockpotError when the node is gone."""
        calls = (self._put, self._read, self._hint, self._give_up_fill, self._remove, self._remove_all)
        for _ in range(n_calls):
            [call] = self._rng.choices(calls, weights=(40, 30, 8, 4, 8, 2))
            await call()

    def _run_of_keys(self) -> list[BlockKey]:
        chain = self._rng.choice(self._model.chains)
        start = self._rng.randrange(len(chain))
        return chain[start : start + self._rng.randint(1, 6)]

    async def _put(self) -> None:
        model, keys = self._model, self._run_of_keys()
        values = [model.value(key) for key in keys]
        parents = [self._parent(keys[0]), *keys[:-1]]
        items = [FillItem(key, len(value), up) for key, value, up in zip(keys, values, parents, strict=True)]
        async with self._client.fill(model.namespace, items) as fill:
            for key, value, view in zip(keys, values, fill.views, strict=True):
                if view is not None:
                    view[:] = value
                    model.put_begun(key)
            statuses = await fill.commit()
        for key, status in zip(keys, statuses, strict=True):
            assert status != pb.STATUS_EXISTS or model.may_exist(key), "a block that was removed is there again"

    def _parent(self, key: BlockKey) -> BlockKey | None:
        [chain] = [chain for chain in self._model.chains if key in chain]
        place = chain.index(key)
        return chain[place - 1] if place else None

    async def _read(self) -> None:
        keys = self._run_of_keys()
        try:
            async with self._client.read(self._model.namespace, keys, prefix_only=False) as blocks:
                await asyncio.sleep(self._rng.choice((0, 0, 0.002)))
                values = [None if value is None else bytes(value) for value in blocks.values]
        except LeaseExpiredError:
            return
        for key, value in zip(keys, values, strict=True):
            self._model.check(key, value)

    async def _hint(self) -> None:
        keys = self._run_of_keys()
        if self._rng.random() < 0.5:
            await self._client.match(self._model.namespace, keys, promote=True)
        else:
            await self._client.pin(self._model.namespace, keys[:2], PinOptions(ttl_ms=50, is_soft=True))

    async def _give_up_fill(self) -> None:
        items = [FillItem(key, VALUE_BYTES_MAX) for key in self._run_of_keys()]
        async with self._client.fill(self._model.namespace, items):
            await asyncio.sleep(0)

    async def _remove(self) -> None:
        keys = self._run_of_keys()
        await self._client.remove(self._model.namespace, keys)
        self._model.removed(keys)

    async def _remove_all(self) -> None:
        if self._rng.random() < 0.5:
            await self._client.remove_all(self._model.namespace)
        else:
            await self._client.bump_epoch(self._model.namespace)
        self._model.removed(self._model.keys)


async def run_until_gone(work: RandomWork) -> None:
    """Work until the node no longer answers."""
    try:
        await work.run()
    except StockpotError:
        return


async def check_everything(client: StoreClient, model: NamespaceModel) -> int:
    """Read all keys of a node that nobody else uses, and check them; returns how many it has.

    What is missing is gone for good: it may not come back later."""
    n_served = 0
    keys = model.keys
    for start in range(0, len(keys), 4):
        part = keys[start : start + 4]
        async with client.read(model.namespace, part, prefix_only=False) as blocks:
            values = [None if value is None else bytes(value) for value in blocks.values]
        for key, value in zip(part, values, strict=True):
            model.check(key, value)
            if value is None:
                model.missing(key)
            n_served += value is not None
    return n_served
