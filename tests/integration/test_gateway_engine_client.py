"""EngineClient: deadlines, cancelling, and gRPC's codes as our errors."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from scripted_engine import Script, ScriptedEngine

from engine.client import EngineClient, EngineDeadlines
from engine.vocab import Vocab
from engine.wire import engine_pb2 as pb
from kvstore.core.errors import CallerError, LimitError, StockpotError, UnavailableError

pytest_plugins = ("gateway_fixtures",)

REQUEST = pb.GenerateRequest(turn_id="t", tokens=[1, 2, 3], tokens_max=5)


@pytest.fixture
async def engine(vocab: Vocab, smollm2_path: Path) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(vocab, smollm2_path)
    await engine.start()
    yield engine
    await engine.kill()


@contextlib.asynccontextmanager
async def connected(address: str, deadlines: EngineDeadlines | None = None) -> AsyncIterator[EngineClient]:
    client = EngineClient.connect(address, deadlines=deadlines)
    try:
        yield client
    finally:
        await client.close()


async def test_a_turn_comes_as_messages(engine: ScriptedEngine) -> None:
    async with connected(engine.address) as client:
        assert (await client.describe()).model_name == "smollm2"
        messages = [message async for message in client.generate(REQUEST)]
    assert [message.WhichOneof("event") for message in messages] == ["prompt_done", *["delta"] * 4, "finished"]


async def test_closing_the_messages_cancels_the_turn(engine: ScriptedEngine) -> None:
    engine.scripts.append(Script(hold_at=2))
    async with connected(engine.address) as client:
        messages = client.generate(REQUEST)
        await anext(messages)
        await messages.aclose()
        async with asyncio.timeout(10):
            assert await engine.cancelled.get() == "t"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, CallerError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, LimitError),
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.INTERNAL, UnavailableError),
        (grpc.StatusCode.CANCELLED, UnavailableError),
    ],
)
async def test_codes_become_errors(
    engine: ScriptedEngine, code: grpc.StatusCode, expected: type[StockpotError]
) -> None:
    engine.scripts.append(Script(fail_at=1, fail_code=code))
    async with connected(engine.address) as client:
        with pytest.raises(expected, match="scripted failure"):
            _ = [message async for message in client.generate(REQUEST)]


async def test_a_silent_worker_is_given_up(engine: ScriptedEngine) -> None:
    deadlines = EngineDeadlines(first_message_s=0.2, next_message_s=0.1, watch_s=0.1)
    async with connected(engine.address, deadlines) as client:
        for held_at in (0, 2):
            engine.scripts.append(Script(hold_at=held_at))
            with pytest.raises(UnavailableError, match="sent nothing"):
                _ = [message async for message in client.generate(REQUEST)]
        with pytest.raises(UnavailableError, match=r"sent nothing for 0\.1 s"):
            _ = [message async for message in client.watch()]


async def test_a_worker_that_is_down_is_unavailable_until_it_is_there(engine: ScriptedEngine) -> None:
    async with connected(engine.address) as client:
        first = await client.describe()
        await engine.kill()
        with pytest.raises(UnavailableError):
            await client.describe()
        await engine.start()
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(UnavailableError):
                    assert (await client.describe()).incarnation != first.incarnation
                    return
                await asyncio.sleep(0.02)
