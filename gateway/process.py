"""One gateway, put together: which parts there are and who knows whom."""

import asyncio
from pathlib import Path

from engine.client import EngineClient
from gateway.app import Api
from gateway.index import PrefixIndex
from gateway.log import log_event
from gateway.metrics import GatewayMetrics
from gateway.model import ModelText
from gateway.nodes import NodeFollower, NodeLink
from gateway.pool import WorkerPool
from gateway.server import listen, serve, url_of
from gateway.settings import GatewaySettings
from kvstore.client import StoreClient


async def run_gateway(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Serve from now until `stop` is set and the streams that run then have ended.

    Raises: ConfigError when it cannot start as told."""
    text = ModelText.load(Path(settings.model_path), settings.tokenise_cache_bytes) if settings.model_path else None
    with listen(settings.host, settings.port) as sock:
        log_event("gateway_start", url=url_of(sock), **settings.for_log())
        index = PrefixIndex(settings.index_blocks_max)
        pool = WorkerPool(
            settings.workers,
            connect=EngineClient.connect,
            index=index,
            text=text,
            cache_bytes_max=settings.tokenise_cache_bytes,
        )
        nodes = NodeFollower(settings.nodes, connect=_connect_node, index=index)
        api = Api(settings, pool, nodes, index, GatewayMetrics())
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(pool.run()), group.create_task(nodes.run())]
            await serve(api.asgi(), sock, settings, stop)
            for task in background:
                task.cancel()
    log_event("gateway_end")


async def _connect_node(address: str) -> NodeLink:
    return await StoreClient.connect(address, prefer_local=False, prefer_bulk=False)
