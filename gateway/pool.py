"""All workers: one connection each, kept up in the background; the index is told what is hot where.

    down -- describe, same model --> described -- first Watch message --> ready -- stream lost --> down

A worker may be down at start, die and come back. Whenever its stream is lost its hot keys are
forgotten: it tells them again in the snapshot that begins the next stream.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.wire import engine_pb2 as pb
from gateway.index import PrefixIndex
from gateway.log import log_event
from gateway.model import ModelText, ServedModel, check_vocabulary
from gateway.worker import EngineLink, Worker
from kvstore.core.errors import ConfigError, StockpotError, UnavailableError
from kvstore.core.keys import BlockKey

_RETRY_S_MIN = 0.1
_RETRY_S_MAX = 2.0


class WorkerPool:
    """Keeps every worker connected and the index told; `model` is what the first one to answer serves."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        connect: Callable[[str], EngineLink],
        index: PrefixIndex,
        text: ModelText | None,
        cache_bytes_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workers = [Worker(address, connect(address), clock) for address in addresses]
        self.model: ServedModel | None = None
        self._text = text
        self._cache_bytes_max = cache_bytes_max
        self._index = index
        self._model_lock = asyncio.Lock()

    def ready(self) -> list[Worker]:
        """Workers that take turns now."""
        return [worker for worker in self.workers if worker.is_ready]

    def context_tokens(self) -> int:
        """Prompt plus answer that every ready worker can take, in tokens.

        Raises: UnavailableError when none is ready."""
        if not (ready := self.ready()):
            raise UnavailableError("no worker is ready; try again in a moment", retry_after_s=2.0)
        return min(worker.described.context_tokens for worker in ready)

    async def run(self) -> None:
        """Follow all workers until cancelled, then close the connections."""
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self.workers:
                    group.create_task(self._keep(worker))
        finally:
            for worker in self.workers:
                await worker.link.close()

    async def _keep(self, worker: Worker) -> None:
        wait_s, told = _RETRY_S_MIN, ""
        while True:
            try:
                await self._follow(worker)
            except StockpotError as error:
                if worker.is_connected:
                    wait_s, told = _RETRY_S_MIN, ""
                level = logging.ERROR if isinstance(error, ConfigError) else logging.WARNING
                if told != type(error).__name__:  # one line for each change, not for each attempt
                    log_event("worker_lost", level=level, worker=worker.worker_id, reason=error)
                    told = type(error).__name__
            finally:
                worker.is_connected = False
                self._index.reset_worker(worker.address)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)

    async def _follow(self, worker: Worker) -> None:
        """Describe, then apply Watch messages; returns only by an error."""
        described = await worker.link.describe()
        await self._check_model(described)
        worker.described_as(described)
        async with contextlib.aclosing(worker.link.watch()) as messages:
            async for message in messages:
                if message.incarnation != described.incarnation:
                    raise UnavailableError("the worker restarted between Describe and Watch")
                if message.is_reset:
                    self._index.reset_worker(worker.address)
                self._index.remove_hot(worker.address, map(BlockKey, message.hot_removed))
                self._index.add_hot(worker.address, map(BlockKey, message.hot_added))
                if message.HasField("load"):
                    worker.reported(message.load)
                if not worker.is_connected:
                    worker.is_connected = True
                    log_event("worker_ready", worker=worker.worker_id, address=worker.address, slots=described.slots)
        raise UnavailableError("the worker ended its stream")

    async def _check_model(self, described: pb.DescribeResponse) -> None:
        """The first worker's model becomes the gateway's; later ones must have the same.

        Raises: ConfigError for another model, or one whose vocabulary cannot be loaded."""
        async with self._model_lock:
            if self.model is not None:
                self.model.check_same(described)
                return
            text = self._text
            if text is None:
                path = Path(described.model_path)
                text = await asyncio.to_thread(ModelText.load, path, self._cache_bytes_max)
            check_vocabulary(text, described)
            self.model = ServedModel(described.model_name, described.model_digest, text, int(time.time()))
            is_segmented = text.tokeniser.splitter is not None
            log_event("model_served", model=described.model_name, is_tokenised_in_segments=is_segmented)
