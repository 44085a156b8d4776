"""Where turns go, as the gateway's parts play together: hot keys, load in flight, blocks on a node."""

import asyncio
from pathlib import Path
from typing import Any

from gateway_rig import Rig, running_rig
from scripted_engine import Script, ScriptedEngine
from store_node import NodeProcesses, put_chain

from engine.vocab import Vocab
from engine.wire import engine_pb2 as pb
from kvstore.client import StoreClient
from kvstore.core.keys import BlockKey, as_tokens, chain_keys
from kvstore.core.namespace import Fingerprint

pytest_plugins = ("gateway_fixtures",)

MESSAGES: Any = [{"role": "user", "content": "A long question. " * 60}]


def fingerprint_of(engine: ScriptedEngine, request: pb.GenerateRequest) -> Fingerprint:
    described = engine.described
    return Fingerprint(described["model_digest"], 32, described["kv_properties"], salt=request.salt)  # type: ignore[arg-type]


def keys_of(engine: ScriptedEngine, request: pb.GenerateRequest) -> list[BlockKey]:
    """Block keys of a turn's prompt, as its worker computes them."""
    return chain_keys(fingerprint_of(engine, request).namespace_id(), as_tokens(list(request.tokens)), 32)


async def index_holds(rig: Rig, blocks: int) -> None:
    async with asyncio.timeout(10):
        while f"stockpot_gateway_index_blocks {blocks}.0" not in (await rig.http.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ask(rig: Rig) -> str:
    """The worker that answered."""
    answer = await rig.openai.chat.completions.create(model="smollm2", messages=MESSAGES)
    assert answer.model_extra is not None
    worker = answer.model_extra["stockpot"]["worker"]
    assert isinstance(worker, str)
    return worker


async def test_a_turn_goes_where_its_prefix_is_hot_while_that_worker_lives(rig: Rig) -> None:
    await ask(rig)
    [(_, request)] = [(engine, request) for engine in rig.engines for request in engine.requests]
    for there, other in (rig.engines, reversed(rig.engines)):
        keys = keys_of(there, request)
        there.change(added=keys)
        await index_holds(rig, len(keys))
        assert [await ask(rig) for _ in range(3)] == [there.described["worker_id"]] * 3
        await there.kill()
        await index_holds(rig, 0)
        assert await ask(rig) == other.described["worker_id"]
        await there.start()
        await rig.workers_ready(2)


async def test_keys_that_a_worker_lost_draw_no_turns(rig: Rig) -> None:
    await ask(rig)
    [request] = [request for engine in rig.engines for request in engine.requests]
    keys = keys_of(rig.engines[0], request)
    rig.engines[0].change(added=keys)
    rig.engines[1].change(added=keys[:5])
    await index_holds(rig, len(keys) + 5)
    assert await ask(rig) == "worker-1"
    rig.engines[0].change(removed=keys[2:])
    await index_holds(rig, 2 + 5)
    assert await ask(rig) == "worker-2"


async def test_turns_in_flight_count_before_workers_report_them(rig: Rig) -> None:
    scripts = [Script(hold_at=0), Script(hold_at=0)]
    for engine, script in zip(rig.engines, scripts, strict=True):
        engine.scripts.append(script)
    # Sent one right after the other: the second must not follow the first.
    turns = [asyncio.create_task(ask(rig)) for _ in range(2)]
    async with asyncio.timeout(10):
        for engine in rig.engines:
            await engine.begun.get()
    for script in scripts:
        script.release.set()
    assert {await turn for turn in turns} == {"worker-1", "worker-2"}


async def test_what_a_node_stores_is_known(
    nodes: NodeProcesses, vocab: Vocab, smollm2_path: Path, tmp_path: Path
) -> None:
    node = nodes.start().wait_ready()
    engine = ScriptedEngine(vocab, smollm2_path)
    async with running_rig([engine], tmp_path, nodes=[node.address]) as rig:
        await ask(rig)
        [request] = engine.requests
        keys = keys_of(engine, request)
        async with await StoreClient.connect(node.address) as store:
            info = await store.open_namespace(fingerprint_of(engine, request))
            await put_chain(store, info.namespace_id, keys, 1000)
        await index_holds(rig, len(keys))
        await ask(rig)
        metrics = (await rig.http.get("/metrics")).text
    predicted = len(keys) * 32
    assert f"stockpot_gateway_predicted_tokens_total {predicted}.0" in metrics
