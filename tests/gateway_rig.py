"""A gateway for tests, in this process: the real one, on a free port, with scripted workers behind it.

The fixtures that come with it are in `gateway_fixtures`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
from scripted_engine import ScriptedEngine

from gateway.process import run_gateway
from gateway.settings import GatewaySettings

API_KEY = "test-key"


@dataclass(frozen=True)
class Rig:
    url: str
    engines: Sequence[ScriptedEngine]
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient
    """With the API key, for requests that the `openai` package would not send."""

    async def workers_ready(self, count: int) -> None:
        """Wait until so many workers take turns."""
        while (await self.http.get("/ready")).json()["workers"] != count:  # noqa: ASYNC110 asked over HTTP
            await asyncio.sleep(0.01)

    def key(self, api_key: str) -> openai.AsyncOpenAI:
        """The same client with another key."""
        return self.openai.with_options(api_key=api_key)


@contextlib.asynccontextmanager
async def running_gateway(workers: Sequence[str], folder: Path, **settings: Any) -> AsyncIterator[str]:
    """The base URL of a gateway that listens; its workers may not be ready yet."""
    ready_file, stop = folder / "gateway-ready.json", asyncio.Event()
    fields = {"port": 0, "ready_file": str(ready_file), "api_keys": [API_KEY], "drain_deadline_s": 5.0, **settings}
    async with asyncio.TaskGroup() as group:
        group.create_task(run_gateway(GatewaySettings(workers=list(workers), **fields), stop))
        try:
            while not ready_file.exists():  # noqa: ASYNC110 a file has no event
                await asyncio.sleep(0.01)
            yield json.loads(ready_file.read_text())["url"]
        finally:
            stop.set()


@contextlib.asynccontextmanager
async def running_rig(engines: Sequence[ScriptedEngine], folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """A gateway in front of `engines`, which are started here, all ready."""
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.kill)
        url = await stack.enter_async_context(
            running_gateway([engine.address for engine in engines], folder, **settings)
        )
        http = httpx.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {API_KEY}"}, trust_env=False, timeout=30
        )
        await stack.enter_async_context(http)
        client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key=API_KEY, max_retries=0, http_client=httpx.AsyncClient(trust_env=False)
        )
        await stack.enter_async_context(client)
        rig = Rig(url, engines, client, http)
        await rig.workers_ready(len(engines))
        yield rig
