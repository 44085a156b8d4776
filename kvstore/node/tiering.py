"""Moving blocks between arena and disk: demotion behind the writers, promotion before the readers.

Called on the node's one task; the disk tier's threads touch bytes only, under pins taken here.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from kvstore.core.errors import BlockCorruptError
from kvstore.node.arena import Arena
from kvstore.node.blocks import Block, BlockId, DiskPlace, State
from kvstore.node.disk import DiskTier, ValueToWrite
from kvstore.node.store import BlockStore
from kvstore.wire import kvstore_pb2 as pb

_BATCH_BYTES = 16 << 20  # 10 ms of the device: large enough to be fast, short enough to hold pins
_BATCH_BLOCKS = 256  # below the 1,024 buffers that one pwritev takes

log = logging.getLogger(__name__)


class Demoter:
    """Writes each sealed block to disk soon after its commit, in batches, oldest first."""

    def __init__(self, store: BlockStore, arena: Arena, disk: DiskTier, queue_blocks_max: int) -> None:
        self._store = store
        self._arena = arena
        self._disk = disk
        self._queue: deque[Block] = deque()
        self._queue_blocks_max = queue_blocks_max
        self._filled = asyncio.Event()
        self._in_flight = 0

    def __len__(self) -> int:
        """Blocks that wait for the disk, those being written included."""
        return len(self._queue) + self._in_flight

    def enqueue(self, blocks: Sequence[Block]) -> None:
        """Have `blocks` written. Those for which the queue has no room stay in memory only."""
        if not self._disk.off_reason:
            self._queue.extend(blocks[: self._queue_blocks_max - len(self._queue)])
            self._filled.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._filled.wait()
            await self.flush()
            self._filled.clear()

    async def flush(self) -> None:
        """Write all that is queued."""
        while batch := self._next_batch():
            await self._write(batch)

    def _next_batch(self) -> list[Block]:
        batch: list[Block] = []
        n_bytes = 0
        if self._disk.off_reason:
            self._queue.clear()
        while self._queue and len(batch) < _BATCH_BLOCKS and n_bytes < _BATCH_BYTES:
            block = self._queue.popleft()
            if block.state is State.MEMORY:  # neither evicted nor written meanwhile
                batch.append(block)
                n_bytes += block.size
        return batch

    async def _write(self, batch: Sequence[Block]) -> None:
        index, padded = self._store.index, self._store.allocator.padded
        for block in batch:
            index.pin(block)
        self._in_flight = len(batch)
        places: Sequence[DiskPlace | None] = [None] * len(batch)
        try:
            places = await self._disk.write(
                [
                    ValueToWrite(
                        block.id,
                        block.size,
                        block.checksum,
                        block.parent_key,
                        self._arena.view(block.offset, padded(block.size)),
                    )
                    for block in batch
                ]
            )
        finally:
            self._in_flight = 0
            removed: list[tuple[BlockId, DiskPlace | None]] = []
            for block, place in zip(batch, places, strict=True):
                if place is not None and block.state is State.MEMORY:
                    index.demoted(block, place)
                elif place is not None:
                    removed.append((block.id, place))
                index.unpin(block)
        if removed:
            await self._disk.forget(removed)


class Promoter:
    """Reads blocks from disk into the arena; one read for all who ask at the same time."""

    def __init__(self, store: BlockStore, arena: Arena, disk: DiskTier, tasks: asyncio.TaskGroup) -> None:
        self._store = store
        self._arena = arena
        self._disk = disk
        self._tasks = tasks
        self._running: dict[Block, asyncio.Task[pb.Status]] = {}

    def begin(self, block: Block) -> asyncio.Task[pb.Status] | None:
        """The read of `block` (DISK or PROMOTING), pinned for the caller; None when the arena has no room.

        The task answers OK, CORRUPT or MISS; unless OK, the block is gone. Do not cancel it."""
        task = self._running.get(block)
        if task is None:
            if (offset := self._store.allocate(block.size, block.id.namespace)) is None:
                return None
            assert block.place is not None
            self._disk.hold(block.place)
            self._store.index.begin_promotion(block, offset)
            self._store.index.pin(block)  # its own: the memory is in use even if everybody who asked has left
            task = self._running[block] = self._tasks.create_task(self._read(block))
        self._store.index.pin(block)
        return task

    def begin_all(self, block_ids: Sequence[BlockId]) -> None:
        """Begin to read those of `block_ids` that are on disk, for nobody in particular; ends where room ends."""
        for block_id in block_ids:
            block = self._store.index.find(block_id)
            if block is None or block.state is not State.DISK:
                continue
            if (task := self.begin(block)) is None:
                return
            task.add_done_callback(partial(self._let_go, block))

    async def drain(self) -> None:
        """Return once no read is running."""
        while self._running:
            await asyncio.wait(self._running.values())

    def _let_go(self, block: Block, _: "asyncio.Task[pb.Status]") -> None:
        self._store.index.unpin(block)

    async def _read(self, block: Block) -> pb.Status:
        assert block.place is not None
        try:
            return await self._read_place(block, block.place)
        finally:
            del self._running[block]

    async def _read_place(self, block: Block, place: DiskPlace) -> pb.Status:
        outcome, status = State.GONE, pb.STATUS_MISS
        into = self._arena.view(block.offset, self._store.allocator.padded(block.size))
        try:
            await self._disk.read(place, block.size, block.checksum, into)
            outcome, status = State.BOTH, pb.STATUS_OK
        except BlockCorruptError as error:
            log.error("block_corrupt key=%s size=%d reason=%r", block.id.key.hex(), block.size, str(error))
            self._store.traffic.blocks_corrupt += 1
            status = pb.STATUS_CORRUPT
        except OSError as error:
            self._disk.turn_off(error)
        except asyncio.CancelledError:
            outcome = State.DISK
            raise
        finally:
            self._disk.unhold(place)
            is_removed = block.state is State.DOOMED
            self._store.end_promotion(block, outcome)
            self._store.index.unpin(block)
        if outcome is State.GONE and not is_removed:
            await self._disk.forget([(block.id, place)])
        return status


@dataclass(frozen=True, slots=True)
class DiskParts:
    """The disk tier and who moves blocks to and from it."""

    tier: DiskTier
    demoter: Demoter
    promoter: Promoter

    async def close(self, deadline_s: float) -> None:
        """Write what is queued, within `deadline_s`, and close the files."""
        await self.promoter.drain()
        try:
            async with asyncio.timeout(deadline_s):
                await self.demoter.flush()
        except TimeoutError:
            log.warning("demotion_unfinished blocks=%d", len(self.demoter))
        await self.tier.close()
