"""The store's client library: `StoreClient` for asyncio, `SyncStoreClient` for threads. See docs/client.md."""

from kvstore.client.client import StoreClient
from kvstore.client.filling import Fill
from kvstore.client.reading import Blocks
from kvstore.client.sync import SyncFill, SyncStoreClient
from kvstore.client.types import ClientCounts, FillItem, Match, NamespaceInfo, Path, PinOptions
from kvstore.wire.kvstore_pb2 import Status

__all__ = [
    "Blocks",
    "ClientCounts",
    "Fill",
    "FillItem",
    "Match",
    "NamespaceInfo",
    "Path",
    "PinOptions",
    "Status",
    "StoreClient",
    "SyncFill",
    "SyncStoreClient",
]
