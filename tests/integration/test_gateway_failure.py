"""What a client sees when workers fail, leave or come back, and what a worker sees when clients leave."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_rig import Rig, running_rig
from scripted_engine import Script, ScriptedEngine

from engine.vocab import Vocab
from engine.wire import engine_pb2 as pb

pytest_plugins = ("gateway_fixtures",)

MESSAGES: Any = [{"role": "user", "content": "Say hello."}]
CHAT = {"model": "smollm2", "messages": MESSAGES}


def turn_counts(rig: Rig) -> list[int]:
    return [len(engine.requests) for engine in rig.engines]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_cancels_its_turn(rig: Rig, is_streamed: bool) -> None:
    scripts = [Script(hold_at=2), Script(hold_at=2)]
    for engine, script in zip(rig.engines, scripts, strict=True):
        engine.scripts.append(script)
    begun = [asyncio.create_task(engine.begun.get()) for engine in rig.engines]
    cancelled = [asyncio.create_task(engine.cancelled.get()) for engine in rig.engines]
    request = asyncio.create_task(rig.http.post("/v1/chat/completions", json={**CHAT, "stream": is_streamed}))
    await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
    request.cancel()
    async with asyncio.timeout(10):
        done, _ = await asyncio.wait(cancelled, return_when=asyncio.FIRST_COMPLETED)
    assert done
    for task in [*begun, *cancelled]:
        task.cancel()
    async with asyncio.timeout(10):
        while 'outcome="cancelled"} 1.0' not in (await rig.http.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_worker_that_fails_before_the_answer_is_replaced(rig: Rig, is_streamed: bool) -> None:
    for engine in rig.engines:
        engine.scripts.append(Script(fail_at=0))
    first_fails = await rig.http.post("/v1/chat/completions", json={**CHAT, "stream": is_streamed})
    assert first_fails.status_code == 503 and turn_counts(rig) == [1, 1]  # both were tried
    rig.engines[0].scripts.append(Script(fail_at=0))
    rig.engines[1].scripts.append(Script())
    # Whichever is asked first, the client gets the answer of the one that works.
    for _ in range(2):
        answer = await rig.http.post("/v1/chat/completions", json={**CHAT, "stream": is_streamed})
        assert answer.status_code == 200 and "world" in answer.text


async def test_a_whole_answer_is_begun_again_elsewhere(rig: Rig) -> None:
    rig.engines[0].scripts.append(Script(pieces=["lost", "lost"], fail_at=1))
    rig.engines[1].scripts.append(Script(pieces=["lost", "lost"], fail_at=1))
    answer = await rig.http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 503
    rig.engines[0].scripts.append(Script(pieces=["lost", "lost"], fail_at=1))
    texts = set()
    for _ in range(2):
        whole = await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
        texts.add(whole.choices[0].message.content)
    assert texts == {"Hello, world!"}


@pytest.mark.parametrize("script", [Script(fail_at=2), Script(is_silent_end=True)])
async def test_a_stream_that_breaks_ends_with_an_error_event(rig: Rig, script: Script) -> None:
    for engine in rig.engines:
        engine.scripts.append(script)
    answer = await rig.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert answer.status_code == 200
    events = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n") if event]
    assert set(events[-1]) == {"error"} and events[-1]["error"]["type"] == "server_error"
    assert sum(turn_counts(rig)) == 1  # what has begun is not tried again
    for engine in rig.engines:
        engine.scripts.clear()
        engine.scripts.append(script)
    with pytest.raises(openai.APIError, match="worker"):
        stream = await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES, stream=True)
        _ = [chunk async for chunk in stream]


async def test_a_killed_worker_is_left_and_taken_back(rig: Rig) -> None:
    victim, other = rig.engines
    await victim.kill()
    await rig.workers_ready(1)
    for _ in range(3):
        await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert turn_counts(rig) == [0, 3]
    await victim.start()
    await rig.workers_ready(2)
    await other.kill()
    await rig.workers_ready(1)
    await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert turn_counts(rig) == [1, 3]


async def test_a_worker_killed_before_its_first_token_loses_no_turn(rig: Rig) -> None:
    for engine in rig.engines:
        engine.scripts.append(Script(hold_at=0))
    request = asyncio.create_task(rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES))
    begun = [asyncio.create_task(engine.begun.get()) for engine in rig.engines]
    done, pending = await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    victim = rig.engines[begun.index(done.pop())]
    for engine in rig.engines:
        engine.scripts.clear()
    await victim.kill()
    assert (await request).choices[0].message.content == "Hello, world!"


async def test_a_draining_worker_gets_no_turns(rig: Rig) -> None:
    rig.engines[0].change(load=pb.Load(is_draining=True))
    await rig.workers_ready(1)
    for _ in range(2):
        await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert turn_counts(rig) == [0, 2]


async def test_a_turn_beyond_its_deadline_ends(vocab: Vocab, smollm2_path: Path, tmp_path: Path) -> None:
    engine = ScriptedEngine(vocab, smollm2_path)
    engine.scripts.extend([Script(hold_at=0), Script(hold_at=2)])
    async with running_rig([engine], tmp_path, turn_deadline_s=0.2) as rig:
        answer = await rig.http.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 503 and "longer than 0.2 s" in answer.text
        answer = await rig.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert answer.status_code == 200 and "longer than 0.2 s" in answer.text and "[DONE]" not in answer.text
        async with asyncio.timeout(10):
            assert {await engine.cancelled.get(), await engine.cancelled.get()} == {
                request.turn_id for request in engine.requests
            }


async def test_a_worker_that_comes_back_with_another_model_is_not_used(rig: Rig) -> None:
    changed = rig.engines[1]
    await changed.kill()
    await rig.workers_ready(1)
    changed.described["model_digest"] = b"another model's."
    changed.describes = 0
    await changed.start()
    async with asyncio.timeout(10):
        while changed.describes < 2:  # noqa: ASYNC110 looked at, refused, and looked at again
            await asyncio.sleep(0.01)
    await rig.workers_ready(1)
    await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert turn_counts(rig) == [1, 0]


async def test_streams_end_before_the_gateway_does(vocab: Vocab, smollm2_path: Path, tmp_path: Path) -> None:
    engine, script = ScriptedEngine(vocab, smollm2_path), Script(hold_at=2)
    engine.scripts.append(script)
    async with running_rig([engine], tmp_path) as rig:
        text = asyncio.create_task(_read_stream(rig))
        await engine.begun.get()
        asyncio.get_running_loop().call_later(0.3, script.release.set)
        # Leaving the rig stops the gateway, with the stream still held.
    assert "[DONE]" in await text


async def _read_stream(rig: Rig) -> str:
    async with httpx.AsyncClient(base_url=rig.url, headers=rig.http.headers, trust_env=False, timeout=30) as http:
        return (await http.post("/v1/chat/completions", json={**CHAT, "stream": True})).text
