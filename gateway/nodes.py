"""The storage nodes: follows the block events of each and tells the prefix index.

A node that cannot be reached holds nothing as far as routing goes; it is looked for again and again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from gateway.index import PrefixIndex, Tier
from gateway.log import log_event
from kvstore.core.errors import StockpotError, UnavailableError
from kvstore.core.keys import BlockKey, NamespaceId
from kvstore.wire import kvstore_pb2 as pb

_RETRY_S_MIN = 0.1
_RETRY_S_MAX = 2.0
_TIERS = {pb.TIER_MEMORY: Tier.MEMORY, pb.TIER_DISK: Tier.DISK}


class NodeLink(Protocol):
    """What is needed of `kvstore.client.StoreClient`."""

    def watch(self) -> AsyncIterator[pb.WatchResponse]: ...

    async def close(self) -> None: ...


class NodeFollower:
    """Keeps the index told of what every node in `addresses` holds."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        connect: Callable[[str], Awaitable[NodeLink]],
        index: PrefixIndex,
    ) -> None:
        self._addresses = addresses
        self._connect = connect
        self._index = index
        self.watched: set[str] = set()
        """The nodes in reach."""

    async def run(self) -> None:
        """Follow all nodes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for address in self._addresses:
                group.create_task(self._keep(address))

    async def _keep(self, node: str) -> None:
        wait_s, is_told = _RETRY_S_MIN, False
        while True:
            try:
                await self._follow(node)
            except StockpotError as error:
                if node in self.watched:
                    wait_s, is_told = _RETRY_S_MIN, False
                if not is_told:  # one line for each loss, not for each attempt
                    log_event("node_lost", level=logging.WARNING, node=node, reason=error)
                    is_told = True
            finally:
                self.watched.discard(node)
                self._index.reset_node(node)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _RETRY_S_MAX)

    async def _follow(self, node: str) -> None:
        """Apply events; returns only by an error."""
        client = await self._connect(node)
        try:
            async for message in client.watch():
                apply_events(self._index, node, message)
                if node not in self.watched:
                    self.watched.add(node)
                    log_event("node_watched", node=node)
        finally:
            with contextlib.suppress(StockpotError):
                await client.close()
        raise UnavailableError("the node ended its stream")


def apply_events(index: PrefixIndex, node: str, message: pb.WatchResponse) -> None:
    """Change `index` by one message of `node`."""
    if message.is_reset:
        index.reset_node(node)
    for event in message.events:
        namespace, key = NamespaceId(event.namespace_id), BlockKey(event.key)
        if event.kind == pb.BlockEvent.KIND_STORED and event.tier in _TIERS:
            index.add_stored(node, namespace, key, _TIERS[event.tier])
        elif event.kind == pb.BlockEvent.KIND_REMOVED:
            index.remove_stored(node, namespace, key)
        elif event.kind == pb.BlockEvent.KIND_CLEARED:
            index.reset_node(node, namespace or None)
