"""What each process of the stack may take by its settings, to hold what it took against."""

import resource
from contextlib import aclosing
from dataclasses import dataclass

from engine.client import EngineClient
from gateway.settings import GatewaySettings
from kvstore.client import StoreClient
from stockpot.stack import MIB, Stack

# Python with gRPC, protobuf and numpy, and what a process holds beside its configured parts (measured: 60 to 95 MiB).
_PROCESS_BYTES = 192 * MIB
# llama.cpp's compute buffers, by batch and context (measured: 60 MiB for SmolLM2-135M), and numpy's.
_COMPUTE_BYTES = 192 * MIB
# Of the prefix index, keys included (measured: 145 MB for a million blocks).
_INDEX_BYTES_PER_BLOCK = 150


@dataclass(frozen=True, slots=True)
class Memory:
    """What the processes were allowed and what they took, in bytes."""

    peak_rss_bytes: dict[str, int]
    """VmHWM by process, the demo itself too. Hugetlb pages are not in it: the node's has its arena only
    where the machine has no huge pages to give, a worker's as far as it has touched the arena."""
    bound_bytes: dict[str, int]
    """By process, without the demo: what its settings add up to."""
    arena_bytes: int
    """The node's arena, allotted in full at its start."""
    disk_bytes_max: int

    @property
    def is_within_bounds(self) -> bool:
        return all(self.peak_rss_bytes[name] <= bound for name, bound in self.bound_bytes.items())


async def measure_memory(stack: Stack) -> Memory:
    """Peaks up to now. Raises: UnavailableError when a process does not answer."""
    bounds = await _bounds(stack)
    peaks = stack.supervisor.peak_rss_bytes()
    peaks["demo"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Memory(peaks, bounds, stack.settings.arena_bytes, stack.settings.disk_bytes_max)


async def _bounds(stack: Stack) -> dict[str, int]:
    store = await StoreClient.connect(stack.node_address, prefer_local=False, prefer_bulk=False)
    try:
        is_hugetlb = (await store.stats()).arena_pages.startswith("hugetlb")
    finally:
        await store.close()
    # In small pages the arena counts as resident memory of every process that maps and touches it.
    arena_bytes = 0 if is_hugetlb else stack.settings.arena_bytes
    gateway = GatewaySettings(workers=[])
    index_bytes = _INDEX_BYTES_PER_BLOCK * gateway.index_blocks_max
    bounds = {
        "node": arena_bytes + _PROCESS_BYTES,
        "gateway": gateway.tokenise_cache_bytes + index_bytes + _PROCESS_BYTES,
    }
    for address in stack.worker_addresses:
        name, kv_bytes = await _kv_bytes(address)
        # The weights twice: mapped from the file, and repacked for the processor.
        weights_bytes = 2 * stack.settings.model.stat().st_size
        bounds[name] = weights_bytes + kv_bytes + arena_bytes + _COMPUTE_BYTES + _PROCESS_BYTES
    return bounds


async def _kv_bytes(address: str) -> tuple[str, int]:
    """A worker's name, and the bytes of its KV cache with the buffer for reseating one sequence."""
    client = EngineClient.connect(address)
    try:
        facts = await client.describe()
        async with aclosing(client.watch()) as messages:
            cells = (await anext(messages)).load.cells
    finally:
        await client.close()
    return facts.worker_id, facts.kv_bytes_per_token * (cells + facts.context_tokens)
