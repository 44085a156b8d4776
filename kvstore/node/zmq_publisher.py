"""Publishes block events over ZeroMQ, in the frames of vLLM's publisher: off unless it is asked for.

    PUB      topic | sequence, 8 bytes big endian | batch (kv_events)
    ROUTER   asked: "" | first sequence wanted     answers, one each: "" | sequence | batch; last "" | -1 | ""

Reads the node's events as any watcher does, so nothing waits for it: what the log no longer knows is
told anew after an AllBlocksCleared. A subscriber that does not keep up misses batches (the sequence
shows it, a metric counts it) and asks for them again; what is too old for that is answered by all that
the node holds. Sequences begin at the time of the start, so a restart looks like a gap and is mended by
the same question. Needs pyzmq (the extra `events`).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress

import zmq
import zmq.asyncio

from kvstore.core.errors import ConfigError, UnavailableError
from kvstore.core.keys import NamespaceId
from kvstore.core.namespace import Fingerprint
from kvstore.node.kv_events import AllBlocksCleared, KvEvent, Wording, batches_of, words_of
from kvstore.node.metrics import KvEventCounts
from kvstore.node.observing import Observer
from kvstore.node.settings import NodeSettings
from kvstore.node.store import BlockStore
from kvstore.wire import kvstore_pb2 as pb

_REPLAY_DEADLINE_S = 60.0
_REPLAY_STALL_S = 5.0
_REPLAY_END = (2**64 - 1).to_bytes(8, "big")  # vLLM's -1
_RECEIVED_BYTES_MAX = 1024  # requests and subscriptions are short

log = logging.getLogger(__name__)


class KvEventPublisher:
    """The two sockets and what can be asked for again. Raises (on creation): ConfigError."""

    def __init__(self, settings: NodeSettings, observer: Observer, store: BlockStore, counts: KvEventCounts) -> None:
        self._observer = observer
        self._store = store
        self._counts = counts
        self._wording = Wording(
            settings.zmq_events, settings.zmq_hashes, settings.zmq_model, settings.data_dir is not None
        )
        self._topic = settings.zmq_topic.encode()
        self._sequence = time.time_ns() // 1000  # a batch takes longer than a microsecond: no run meets the next one
        self._sent: deque[tuple[int, bytes]] = deque()
        """Sequence and payload of the last batches, oldest first."""
        self._sent_bytes = 0
        self._sent_bytes_max = settings.zmq_replay_bytes if settings.zmq_replay is not None else 0
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = zmq.asyncio.Context(self._context).socket(zmq.ROUTER)
        try:
            self.addresses = (self._open_pub(settings), self._open_router(settings.zmq_replay))
            """Of the events and of the replay, with the real ports; empty for what is off."""
        except BaseException:
            self.close()
            raise

    async def publish(self) -> None:
        """Publish what happens, until the node drains."""
        with suppress(UnavailableError):  # how a watch ends then
            await self._publish()

    async def _publish(self) -> None:
        while True:
            async with aclosing(self._observer.watch(pb.WatchRequest())) as responses:
                is_snapshot = False
                async for response in responses:
                    if any(self._clears(event) for event in response.events):
                        break  # and begin again: other namespaces, if any, are told anew after the clearing
                    if response.is_reset:
                        is_snapshot = True
                        self._send([AllBlocksCleared()])
                    await self._send_all(response.events, is_snapshot)
                    is_snapshot = is_snapshot and not response.is_snapshot_end

    async def serve_replays(self) -> None:
        """Answer those who missed something, one after the other, without end."""
        while True:
            request = await self._router.recv_multipart()
            if len(request) != 3 or request[1] or len(request[2]) != 8:
                log.warning("kv_event_replay_refused frames=%d expected='empty, 8 bytes'", len(request) - 1)
                continue
            try:
                async with asyncio.timeout(_REPLAY_DEADLINE_S):
                    await self._replay(request[0], int.from_bytes(request[2], "big"))
            except (TimeoutError, zmq.ZMQError) as error:
                log.warning("kv_event_replay_cut reason=%r", str(error) or "the subscriber does not read")

    def close(self) -> None:
        """Close the sockets; what subscribers have not read yet is dropped."""
        self._router.close(linger=0)
        self._pub.close(linger=0)
        self._context.term()

    def _open_pub(self, settings: NodeSettings) -> str:
        self._pub.set(zmq.SNDHWM, settings.zmq_queue_batches)
        self._pub.set(zmq.MAXMSGSIZE, _RECEIVED_BYTES_MAX)
        self._pub.set(zmq.XPUB_NODROP, 1)  # only to hear of it: see `_send`
        if settings.zmq_connect is not None:
            with _words_for("zmq_connect", settings.zmq_connect):
                self._pub.connect(settings.zmq_connect)
        return _listen(self._pub, "zmq_listen", settings.zmq_listen)

    def _open_router(self, address: str | None) -> str:
        self._router.set(zmq.ROUTER_MANDATORY, 1)  # a subscriber that is gone ends its replay
        self._router.set(zmq.MAXMSGSIZE, _RECEIVED_BYTES_MAX)
        return _listen(self._router, "zmq_replay", address)

    def _clears(self, event: pb.BlockEvent) -> bool:
        fingerprint = self._fingerprint_of(event.namespace_id)
        return event.kind == pb.BlockEvent.KIND_CLEARED and fingerprint is not None and self._wording.tells(fingerprint)

    def _fingerprint_of(self, namespace: bytes) -> Fingerprint | None:
        opened = self._store.namespaces.get(NamespaceId(namespace))
        return opened.fingerprint if opened is not None else None

    async def _send_all(self, events: Iterable[pb.BlockEvent], is_snapshot: bool) -> None:
        words = words_of(events, self._fingerprint_of, self._wording, is_snapshot=is_snapshot)
        for batch in batches_of(words):
            self._send(batch)
            await asyncio.sleep(0)  # calls come between

    def _send(self, events: list[KvEvent]) -> None:
        payload = self._wording.encode(events)
        frames = (self._topic, self._sequence.to_bytes(8, "big"), payload)
        try:
            self._pub.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:  # a subscriber's queue is full: it misses this one, the others do not
            self._counts.batches_dropped.inc()
            self._pub.set(zmq.XPUB_NODROP, 0)
            self._pub.send_multipart(frames, zmq.NOBLOCK)
            self._pub.set(zmq.XPUB_NODROP, 1)
        self._counts.batches.inc()
        self._sent.append((self._sequence, payload))
        self._sent_bytes += len(payload)
        while self._sent_bytes > self._sent_bytes_max:
            self._sent_bytes -= len(self._sent.popleft()[1])
        self._sequence += 1

    async def _replay(self, subscriber: bytes, first: int) -> None:
        is_known = first >= (self._sent[0][0] if self._sent else self._sequence)
        batches = [sent for sent in self._sent if sent[0] >= first] if is_known else self._told_anew()
        for sequence, payload in batches:
            async with asyncio.timeout(_REPLAY_STALL_S):
                await self._router.send_multipart((subscriber, b"", sequence.to_bytes(8, "big"), payload))
            await asyncio.sleep(0)  # a send with room in its queue does not wait
        await self._router.send_multipart((subscriber, b"", _REPLAY_END, b""))

    def _told_anew(self) -> Iterator[tuple[int, bytes]]:
        """All that the node holds, as of the last sequence published; what happens meanwhile follows it."""
        sequence = self._sequence - 1
        yield sequence, self._wording.encode([AllBlocksCleared()])
        for response in self._observer.snapshot(NamespaceId(b""), 0):
            for batch in batches_of(words_of(response.events, self._fingerprint_of, self._wording, is_snapshot=True)):
                yield sequence, self._wording.encode(batch)


@asynccontextmanager
async def publishing(publisher: KvEventPublisher) -> AsyncIterator[tuple[str, str]]:
    """Run `publisher` inside the `async with`; answers its addresses."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(publisher.publish()), tasks.create_task(publisher.serve_replays())]
            try:
                yield publisher.addresses
            finally:
                for task in running:
                    task.cancel()
    finally:
        publisher.close()


def _listen(sock: "zmq.Socket[bytes] | zmq.asyncio.Socket", setting: str, address: str | None) -> str:
    """Bind to `address`, if any; returns it with the real port."""
    if address is None:
        return ""
    with _words_for(setting, address):
        sock.bind(address)
    return sock.get_string(zmq.LAST_ENDPOINT)


@contextmanager
def _words_for(setting: str, address: str) -> Iterator[None]:
    try:
        yield
    except zmq.ZMQError as error:
        raise ConfigError(f"{setting} {address} cannot be used: {zmq.strerror(error.errno or 0)}") from error
