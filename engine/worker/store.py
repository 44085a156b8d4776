"""Between the store and the model thread: restores a turn's prefix, exports its full blocks.

A cache fault never fails a turn: whatever goes wrong here ends in fewer restored tokens or a block less
in the store, a log line and a counter. Restoring has a budget of time, exporting a bounded queue that drops.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from engine.worker.loop import ModelLoop
from engine.worker.turn import Admitted, Turn
from kvstore.client import Blocks, FillItem, StoreClient
from kvstore.core.errors import BlockCorruptError, LeaseExpiredError, NamespaceUnknownError, StockpotError
from kvstore.core.keys import NamespaceId
from kvstore.core.namespace import Fingerprint

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Blocks per job on the model thread: some 3 ms of memcpy for 400 KB blocks, during which answers wait.
_BLOCKS_PER_JOB = 16
_EXPORTS_QUEUED_MAX = 256
_EXPORT_DEADLINE_S = 10.0
_CONNECT_RETRY_S = 1.0
# A restore is given up after this share of what prefilling the same tokens would take.
_RESTORE_SHARE_OF_PREFILL = 0.5
_RESTORE_DEADLINE_S_MIN = 0.2
_PREFILL_TOKENS_PER_S_GUESS = 100.0
_NAMESPACES_KNOWN_MAX = 4096


@dataclass(slots=True)
class StoreCounters:
    """Since start."""

    blocks_restored: int = 0
    blocks_exported: int = 0
    blocks_gone: int = 0
    """Blocks whose KV was emptied before it was exported."""
    blocks_corrupt: int = 0
    restores_failed: int = 0
    exports_failed: int = 0
    exports_dropped: int = 0
    restore_bytes_per_s: float = 0.0
    """Smoothed over restores; 0 until measured."""


@dataclass(frozen=True, slots=True)
class _Export:
    """Blocks `[first, last)` of a turn, to be stored."""

    turn: Turn
    salt: bytes
    first: int
    last: int


class _Budget:
    """Time that a restore may wait for the store; waiting for the model thread does not count."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds

    @asynccontextmanager
    async def spending(self) -> AsyncIterator[None]:
        """Raises: TimeoutError when the budget runs out inside."""
        started = time.monotonic()
        async with asyncio.timeout(self._left_s):
            yield
        self._left_s -= time.monotonic() - started


class StoreBridge:
    """Used on the event loop; `run()` is its background work."""

    def __init__(self, address: str, loop: ModelLoop, fingerprint: Fingerprint, value_bytes: int) -> None:
        self.counters = StoreCounters()
        self.has_tried = asyncio.Event()
        """Set once the first attempt to connect is over: a worker is ready with its store, if there is one."""
        self._address = address
        self._loop = loop
        self._fingerprint = fingerprint
        self._value_bytes = value_bytes
        self._client: StoreClient | None = None
        self._known: OrderedDict[bytes, NamespaceId] = OrderedDict()
        self._exports: asyncio.Queue[_Export] = asyncio.Queue(_EXPORTS_QUEUED_MAX)

    async def run(self) -> None:
        """Connect, whenever the store comes up, then export until cancelled."""
        client = await self._connect()
        self._client = client
        try:
            while True:
                export = await self._exports.get()
                try:
                    await self._export(client, export)
                except (StockpotError, TimeoutError) as error:
                    self.counters.exports_failed += 1
                    log.warning("export_failed turn_id=%s error=%r", export.turn.turn_id, str(error) or "deadline")
                finally:
                    self._exports.task_done()
        finally:
            self._client = None
            await client.close()

    async def flush(self) -> None:
        """Wait until the queued exports are done."""
        await self._exports.join()

    async def restore(self, turn: Turn, salt: bytes, admitted: Admitted) -> None:
        """Append stored blocks to the slot of this admission, as long a run as there is."""
        size = self._fingerprint.block_tokens
        first = done = admitted.tokens_hot // size
        if self._client is None or first >= admitted.blocks:
            return
        started = time.monotonic()
        budget = _Budget(self._restore_deadline_s((admitted.blocks - first) * size))
        try:
            async with budget.spending():
                namespace = await self._open(self._client, salt)
            while done < admitted.blocks:
                count = min(_BLOCKS_PER_JOB, admitted.blocks - done)
                restored = await self._restore_some(
                    self._client, namespace, turn, admitted, range(done, done + count), budget
                )
                done += restored
                if restored < count:
                    break
        except (StockpotError, TimeoutError) as error:
            self._note_failed_restore(turn, salt, error)
        self._measure((done - first) * self._value_bytes, time.monotonic() - started)
        self.counters.blocks_restored += done - first

    def export_later(self, turn: Turn, salt: bytes, first: int, last: int) -> None:
        """Queue blocks `[first, last)` of the turn; dropped, and counted, when the queue is full."""
        if self._client is None or first >= last:
            return
        try:
            self._exports.put_nowait(_Export(turn, salt, first, last))
        except asyncio.QueueFull:
            self.counters.exports_dropped += 1

    async def _connect(self) -> StoreClient:
        try:
            while True:
                try:
                    client = await StoreClient.connect(self._address)
                except StockpotError as error:
                    log.warning("store_unavailable address=%s error=%r", self._address, str(error))
                    self.has_tried.set()
                    await asyncio.sleep(_CONNECT_RETRY_S)
                else:
                    log.info("store_connected address=%s path=%s", self._address, client.path)
                    return client
        finally:
            self.has_tried.set()

    def _restore_deadline_s(self, tokens: int) -> float:
        speed = self._loop.load.prefill_tokens_per_s or _PREFILL_TOKENS_PER_S_GUESS
        return max(_RESTORE_DEADLINE_S_MIN, _RESTORE_SHARE_OF_PREFILL * tokens / speed)

    async def _restore_some(
        self,
        client: StoreClient,
        namespace: NamespaceId,
        turn: Turn,
        admitted: Admitted,
        indices: range,
        budget: _Budget,
    ) -> int:
        """Restore the blocks `indices` of the turn up to the first that is missing; answers how many came."""
        async with AsyncExitStack() as stack:
            async with budget.spending():
                keys = turn.keys[indices.start : indices.stop]
                blocks = await stack.enter_async_context(client.read(namespace, keys))
            return await self._run(lambda: self._restore_job(turn, admitted.admission, indices.start, blocks))

    def _restore_job(self, turn: Turn, admission: int, first: int, blocks: Blocks) -> int:
        """On the model thread. KV that was copied while the lease ran out is forgotten before anyone can use it."""
        done = first
        try:
            for value in blocks.values:
                if value is None or not self._loop.restore_block(turn, admission, done, value):
                    break
                done += 1
        finally:
            if not blocks.is_valid():
                self._loop.discard_blocks(turn, admission, first)
                done = first
        return done - first

    def _note_failed_restore(self, turn: Turn, salt: bytes, error: Exception) -> None:
        if isinstance(error, BlockCorruptError) and not isinstance(error, LeaseExpiredError):
            self.counters.blocks_corrupt += 1
        if isinstance(error, NamespaceUnknownError):
            self._known.pop(salt, None)
        self.counters.restores_failed += 1
        log.warning("restore_failed turn_id=%s error=%r", turn.turn_id, str(error) or "deadline")

    async def _export(self, client: StoreClient, export: _Export) -> None:
        try:
            for start in range(export.first, export.last, _BLOCKS_PER_JOB):
                async with asyncio.timeout(_EXPORT_DEADLINE_S):
                    namespace = await self._open(client, export.salt)
                    indices = range(start, min(export.last, start + _BLOCKS_PER_JOB))
                    await self._export_some(client, namespace, export.turn, indices)
        except NamespaceUnknownError:
            self._known.pop(export.salt, None)
            raise

    async def _export_some(self, client: StoreClient, namespace: NamespaceId, turn: Turn, indices: range) -> None:
        items = [FillItem(turn.keys[i], self._value_bytes, parent=turn.keys[i - 1] if i else None) for i in indices]
        async with client.fill(namespace, items) as fill:
            wanted = [(i, view) for i, view in enumerate(fill.views) if view is not None]
            if not wanted:
                return

            def job() -> list[int]:
                return [i for i, view in wanted if self._loop.export_block(turn, indices[i], view)]

            written = await self._run(job)
            await fill.commit(written)
            self.counters.blocks_exported += len(written)
            self.counters.blocks_gone += len(wanted) - len(written)

    async def _open(self, client: StoreClient, salt: bytes) -> NamespaceId:
        """The namespace of `salt`, opened on the node the first time it is used."""
        if salt in self._known:
            self._known.move_to_end(salt)
            return self._known[salt]
        info = await client.open_namespace(self._fingerprint.with_salt(salt))
        self._known[salt] = info.namespace_id
        if len(self._known) > _NAMESPACES_KNOWN_MAX:
            self._known.popitem(last=False)
        return info.namespace_id

    async def _run(self, job: Callable[[], Result]) -> Result:
        """Run `job` on the model thread; when cancelled before it has begun, it does not run.

        A job that has begun is waited for, however often we are cancelled: it must not outlive its buffers."""
        future = self._loop.run(job)
        waiter: asyncio.Future[Result] = asyncio.wrap_future(future)
        cancelled: asyncio.CancelledError | None = None
        while not waiter.done():
            try:
                await asyncio.wait([waiter])
            except asyncio.CancelledError as error:
                if future.cancel():
                    raise
                cancelled = error
        if cancelled is not None:
            raise cancelled
        return waiter.result()

    def _measure(self, size: int, seconds: float) -> None:
        if size and seconds > 0:
            old = self.counters.restore_bytes_per_s
            self.counters.restore_bytes_per_s = size / seconds if not old else 0.8 * old + 0.2 * size / seconds
