"""The store's client library: `from kvstore.client import StoreClient`."""

from kvstore.client.client import StoreClient
from kvstore.client.filling import Fill
from kvstore.client.reading import Blocks
from kvstore.client.types import FillItem, Match, NamespaceInfo, Path
from kvstore.wire.kvstore_pb2 import Status

__all__ = ["Blocks", "Fill", "FillItem", "Match", "NamespaceInfo", "Path", "Status", "StoreClient"]
