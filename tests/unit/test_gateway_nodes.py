"""Following the storage nodes, over links that a test controls."""

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.index import Match, PrefixIndex, StoredRun
from gateway.nodes import NodeFollower, NodeLink
from kvstore.core.errors import UnavailableError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.wire import kvstore_pb2 as pb

NAMESPACE = NamespaceId(b"n" * 32)
KEY = BlockKey(b"k" * 32)
STORED = pb.BlockEvent(kind=pb.BlockEvent.KIND_STORED, namespace_id=NAMESPACE, key=KEY, tier=pb.TIER_MEMORY)


class ScriptedNode:
    """Answers connection attempts from a script; a queued None breaks the stream."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.connections = 0
        self.closed = 0
        self.messages: asyncio.Queue[pb.WatchResponse | None] = asyncio.Queue()

    async def connect(self, address: str) -> NodeLink:
        assert address == "n:1"
        if self.failures:
            self.failures -= 1
            raise UnavailableError("down")
        self.connections += 1
        return self

    async def watch(self) -> AsyncIterator[pb.WatchResponse]:
        while (message := await self.messages.get()) is not None:
            yield message
        raise UnavailableError("broken")

    async def close(self) -> None:
        self.closed += 1


async def test_a_node_counts_while_it_is_in_reach() -> None:
    index, node = PrefixIndex(100), ScriptedNode(failures=2)
    follower = NodeFollower(["n:1"], connect=node.connect, index=index)
    task = asyncio.create_task(follower.run())
    for _ in range(2):  # it comes, and comes back
        node.messages.put_nowait(pb.WatchResponse(is_reset=True, events=[STORED]))
        await _until(lambda: len(index) == 1)
        assert index.match(NAMESPACE, [KEY]).stored == {"n:1": StoredRun(1, 0)}
        node.messages.put_nowait(None)
        await _until(lambda: len(index) == 0)
        assert index.match(NAMESPACE, [KEY]) == Match()
    task.cancel()
    await asyncio.wait([task])
    assert node.connections == node.closed == 2


async def _until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
