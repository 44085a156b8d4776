"""The paths that `stockpot bench store` compares. Each puts and gets one value, timed as a whole.

`get` ends with the value in the reader's own buffer; `put` begins with it there. All use buffers that
were touched before and are aligned to 64 bytes, so that no path is charged for another's page faults.
"""

import itertools
import os
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.client import FillItem, StoreClient
from kvstore.core.keys import BlockKey, NamespaceId
from stockpot.bench_tcp import TcpClient

Buffer = npt.NDArray[np.uint8]

WORKING_SET_BYTES = 64 << 20
"""Values are taken in turn from this much memory, more than the caches hold."""


class ValuePath(Protocol):
    """One way for a value to go between a client and its store."""

    name: str

    async def prepare(self, size: int) -> None:
        """Store values of `size` bytes for `get`."""

    async def put(self, value: Buffer) -> None:
        """Store `value`."""

    async def get(self, into: Buffer) -> None:
        """Copy the next stored value to `into`."""


class MemcpyPath:
    """numpy's copy within this process: what no path can beat."""

    name = "memcpy"

    def __init__(self) -> None:
        self._values: list[Buffer] = []
        self._next = itertools.count()

    async def prepare(self, size: int) -> None:
        self._values = [aligned_buffer(size) for _ in range(working_set(size))]

    async def put(self, value: Buffer) -> None:
        np.copyto(self._take(), value)

    async def get(self, into: Buffer) -> None:
        np.copyto(into, self._take())

    def _take(self) -> Buffer:
        return self._values[next(self._next) % len(self._values)]


class TcpPath:
    """A plain TCP socket to another process."""

    name = "tcp"

    def __init__(self, client: TcpClient) -> None:
        self._client = client

    async def prepare(self, size: int) -> None:
        pass

    async def put(self, value: Buffer) -> None:
        self._client.put(value.data)

    async def get(self, into: Buffer) -> None:
        self._client.get(into.data)


class StorePath:
    """A storage node, by shared memory or by gRPC, as the client was made."""

    def __init__(self, client: StoreClient, namespace: NamespaceId) -> None:
        self.name: str = client.path
        self._client = client
        self._namespace = namespace
        self._keys: list[BlockKey] = []
        self._next = itertools.count()

    async def prepare(self, size: int) -> None:
        self._keys = []
        for _ in range(working_set(size)):
            await self.put(aligned_buffer(size))

    async def put(self, value: Buffer) -> None:
        key = BlockKey(os.urandom(32))
        async with self._client.fill(self._namespace, [FillItem(key, value.nbytes)]) as fill:
            [view] = fill.views
            assert view is not None, "the arena is full"
            np.copyto(np.frombuffer(view, np.uint8), value)
            await fill.commit()
        self._keys = [*self._keys[1 - working_set(value.nbytes) :], key]  # older ones may be evicted

    async def get(self, into: Buffer) -> None:
        key = self._keys[next(self._next) % len(self._keys)]
        async with self._client.read(self._namespace, [key]) as blocks:
            [value] = blocks.values
            assert value is not None, "the value was evicted while it was measured"
            np.copyto(into, np.frombuffer(value, np.uint8))


def working_set(size: int) -> int:
    """How many values of `size` make the working set."""
    return max(4, min(64, WORKING_SET_BYTES // size))


def aligned_buffer(size: int) -> Buffer:
    """Memory of `size` bytes, touched, at a multiple of 64."""
    raw = np.ones(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
