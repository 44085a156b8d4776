"""`python -m gateway` as a process: settings, ready file, end, and what it writes to its log."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from scripted_engine import Script, ScriptedEngine

from engine.vocab import Vocab

pytest_plugins = ("gateway_fixtures",)

ROOT = Path(__file__).parents[2]
KEY = "canary-key-6b1f"
CANARY = "canary text 93d2"


async def start(*flags: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *flags),
        cwd=ROOT,
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> str:
    """What the process wrote, once it has ended."""
    async with asyncio.timeout(30):
        out, error = await process.communicate()
    return (out + error).decode()


@pytest.fixture
async def engine(vocab: Vocab, smollm2_path: Path) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(vocab, smollm2_path)
    await engine.start()
    yield engine
    await engine.kill()


async def test_it_serves_says_so_and_ends_in_order(engine: ScriptedEngine, smollm2_path: Path, tmp_path: Path) -> None:
    ready_file, config = tmp_path / "ready.json", tmp_path / "gateway.toml"
    config.write_text(f'workers = ["127.0.0.1:1"]\nport = 1\nmodel_path = "{smollm2_path}"\n')
    process = await start(
        *("--config", str(config), "--port", "0", "--ready-file", str(ready_file)),
        STOCKPOT_GATEWAY_WORKERS=engine.address,
        STOCKPOT_GATEWAY_API_KEYS=f"other-key,{KEY}",
    )
    try:
        while not ready_file.exists():
            assert process.returncode is None
            await asyncio.sleep(0.02)
        ready = json.loads(ready_file.read_text())
        assert ready["pid"] == process.pid
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=ready["url"], headers=headers, trust_env=False, timeout=30) as http:
            await _provoke_log_lines(http, engine)
            script = Script(pieces=[CANARY, "end"], hold_at=1)
            engine.scripts.append(script)
            body = {"model": "smollm2", "prompt": CANARY, "stream": True}
            held = asyncio.create_task(http.post("/v1/completions", json=body))
            while held and len(engine.requests) < 4:  # noqa: ASYNC110 seen by the scripted engine
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            script.release.set()
            assert "[DONE]" in (await held).text
        log = await ended(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    assert not ready_file.exists()
    assert log.count("event=turn ") == 4 and "request_refused status=400" in log and "gateway_end" in log
    assert "canary" not in log and "Traceback" not in log


async def _provoke_log_lines(http: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """Turns, refusals and failures, with a canary wherever a client can put text."""
    while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110 asked over HTTP
        await asyncio.sleep(0.02)
    chat = {"model": "smollm2", "messages": [{"role": "user", "content": CANARY}], "cache_salt": CANARY, "stop": CANARY}
    engine.scripts.append(Script(pieces=[CANARY, CANARY]))
    assert (await http.post("/v1/chat/completions", json=chat)).status_code == 200
    engine.scripts.extend([Script(pieces=[CANARY], fail_at=0), Script(pieces=[CANARY, CANARY], fail_at=1)])
    assert (await http.post("/v1/chat/completions", json=chat)).status_code == 503
    await http.post("/v1/chat/completions", json={**chat, "stream": True})
    for body in (
        {**chat, "model": CANARY},
        {**chat, "messages": [{"role": CANARY, "content": CANARY}]},
        {**chat, "messages": [{"role": "user", "content": [{"type": CANARY, "text": CANARY}]}]},
        {**chat, "temperature": CANARY},
        {**chat, "tool_choice": CANARY},
        CANARY,
    ):
        assert (await http.post("/v1/chat/completions", json=body)).status_code >= 400
    assert (await http.get(f"/v1/models/{CANARY}")).status_code == 404
    assert (await http.get(f"/{CANARY}")).status_code == 404
    assert (await http.get("/v1/models", headers={"authorization": f"Bearer wrong {KEY}"})).status_code == 401


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "workers"),
        (["--workers", "127.0.0.1:1", "--model-path", "pyproject.toml"], "no GGUF"),
        (["--workers", "127.0.0.1:1", "--ready-file", "/nowhere/ready.json", "--port", "0"], "ready file"),
        (["--config", "/nowhere/gateway.toml"], "/nowhere/gateway.toml"),
    ],
)
async def test_a_mistake_in_the_settings_is_one_line_and_status_2(flags: list[str], words: str) -> None:
    process = await start(*flags)
    text = await ended(process)
    assert process.returncode == 2
    lines = [line for line in text.splitlines() if "level=INFO" not in line]
    assert len(lines) == 1 and words in lines[0], text
