"""The worker as a process: turns over gRPC, refusals in words, and whatever a store can do to it."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.client import EngineClient
from engine.wire import engine_pb2 as pb
from kvstore.core.errors import CallerError, UnavailableError
from tests.store_node import NodeProcess, NodeProcesses

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

START_DEADLINE_S = 60.0
MIB = 1 << 20


class WorkerProcess:
    """One `python -m engine` on a free port."""

    def __init__(self, folder: Path, **flags: object) -> None:
        folder.mkdir(exist_ok=True)
        self.ready_file = folder / "ready.json"
        self.log = folder / "worker.log"
        flags = {"context_tokens": 1024, "cells": 2048, "threads": 1, "ready_file": self.ready_file} | flags
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "engine", *arguments], stderr=log, stdout=log)

    def wait_ready(self) -> str:
        """Its address, once it serves."""
        deadline = time.monotonic() + START_DEADLINE_S
        while not self.ready_file.exists():
            assert self.process.poll() is None, f"worker ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"worker did not start: {self.log.read_text()}"
            time.sleep(0.02)
        return str(json.loads(self.ready_file.read_text())["address"])

    def wait_exit(self) -> tuple[int, str]:
        """Exit code, and what it printed."""
        return self.process.wait(START_DEADLINE_S), self.log.read_text()


@pytest.fixture
def start_worker(tmp_path: Path, model_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    running: list[WorkerProcess] = []

    def start(name: str = "worker", **flags: object) -> WorkerProcess:
        running.append(WorkerProcess(tmp_path / name, **({"model": model_path} | flags)))
        return running[-1]

    yield start
    for worker in running:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.wait()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], EngineClient]]:
    clients: list[EngineClient] = []

    def make(address: str) -> EngineClient:
        clients.append(EngineClient.connect(address))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def node(nodes: NodeProcesses, tmp_path: Path) -> NodeProcess:
    return nodes.start(data_dir=tmp_path / "data", arena_bytes=64 * MIB, segment_bytes=32 * MIB).wait_ready()


async def run_turn(
    client: EngineClient, tokens: np.ndarray, tokens_max: int = 8, **fields: object
) -> tuple[pb.PromptDone, list[int], pb.Finished]:
    request = pb.GenerateRequest(
        turn_id="t", tokens=tokens.tolist(), tokens_max=tokens_max, ignore_end_of_generation=True, **fields
    )
    done, answer, finished = pb.PromptDone(), [], pb.Finished()
    async for response in client.generate(request):
        match response.WhichOneof("event"):
            case "prompt_done":
                done = response.prompt_done
            case "delta":
                answer += response.delta.tokens
            case "finished":
                finished = response.finished
    return done, answer, finished


def read_metrics(worker: WorkerProcess) -> str:
    address = json.loads(worker.ready_file.read_text())["metrics_address"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        return str(response.read().decode())


async def test_another_worker_restores_what_the_first_one_computed(
    start_worker: Callable[..., WorkerProcess],
    connect: Callable[[str], EngineClient],
    node: NodeProcess,
    source_tokens: np.ndarray,
) -> None:
    prompt = source_tokens[:300]
    first = start_worker("first", store=node.address, metrics_port=0)
    cold, cold_answer, finished = await run_turn(connect(first.wait_ready()), prompt, 40)
    assert (cold.tokens, cold.tokens_computed) == (300, 300)
    assert (finished.reason, finished.tokens) == (pb.Finished.REASON_LENGTH, 40)
    metrics = read_metrics(first)
    assert 'stockpot_worker_prompt_tokens_total{source="computed"} 300.0' in metrics
    assert "stockpot_worker_answer_tokens_total 40.0" in metrics
    first.process.send_signal(signal.SIGTERM)  # draining exports what is queued
    assert first.wait_exit()[0] == 0
    second = start_worker("second", store=node.address)
    client = connect(second.wait_ready())
    warm, warm_answer, _ = await run_turn(client, prompt, 40)
    assert (warm.tokens_restored, warm.tokens_computed) == (288, 12)
    assert warm_answer == cold_answer
    # The answer's blocks were stored as well: the next turn of the session finds them.
    third = connect(start_worker("third", store=node.address).wait_ready())
    follow_up = np.concatenate([prompt, np.array(cold_answer, np.uint32), source_tokens[900:910]])
    again, _, _ = await run_turn(third, follow_up)
    assert again.tokens_restored == 320  # of 338 tokens whose KV the first worker had


async def test_another_salt_finds_nothing(
    start_worker: Callable[..., WorkerProcess],
    connect: Callable[[str], EngineClient],
    node: NodeProcess,
    source_tokens: np.ndarray,
) -> None:
    client = connect(start_worker(store=node.address).wait_ready())
    await run_turn(client, source_tokens[:200], salt=b"a")
    done, _, _ = await run_turn(client, source_tokens[:200], salt=b"b")
    assert (done.tokens_hot, done.tokens_restored) == (0, 0)
    done, _, _ = await run_turn(client, source_tokens[:200], salt=b"a")
    assert done.tokens_hot == 199


async def test_a_dead_a_stopped_and_a_restarted_store_fail_no_turn(
    start_worker: Callable[..., WorkerProcess],
    connect: Callable[[str], EngineClient],
    nodes: NodeProcesses,
    node: NodeProcess,
    tmp_path: Path,
    source_tokens: np.ndarray,
) -> None:
    client = connect(start_worker(store=node.address).wait_ready())
    expected = (await run_turn(client, source_tokens[:200], salt=b"0"))[1]
    node.signal(signal.SIGSTOP)
    assert (await run_turn(client, source_tokens[:200], salt=b"1"))[1] == expected
    node.signal(signal.SIGCONT)
    node.kill()
    assert (await run_turn(client, source_tokens[:200], salt=b"2"))[1] == expected
    back = nodes.start(
        listen=node.address, data_dir=tmp_path / "data", arena_bytes=64 * MIB, segment_bytes=32 * MIB
    ).wait_ready()
    assert back.address == node.address
    # The worker finds it again by itself: a prompt becomes restorable for another worker.
    await run_turn(client, source_tokens[:200], salt=b"3")
    other = connect(start_worker("other", store=node.address).wait_ready())
    deadline = time.monotonic() + 60
    while (await run_turn(other, source_tokens[:200], salt=b"0"))[0].tokens_restored == 0:
        assert time.monotonic() < deadline
        await run_turn(client, source_tokens[:200], salt=b"0")  # offers the hot blocks again
        other = connect(start_worker(f"other{time.monotonic()}", store=node.address).wait_ready())


async def test_a_worker_starts_before_its_store(
    start_worker: Callable[..., WorkerProcess], connect: Callable[[str], EngineClient], source_tokens: np.ndarray
) -> None:
    client = connect(start_worker(store="127.0.0.1:1").wait_ready())
    done, answer, _ = await run_turn(client, source_tokens[:50])
    assert done.tokens_computed == 50
    assert len(answer) == 8


async def test_a_client_that_leaves_frees_its_slot(
    start_worker: Callable[..., WorkerProcess], connect: Callable[[str], EngineClient], source_tokens: np.ndarray
) -> None:
    client = connect(start_worker(slots=1).wait_ready())
    stream = client.generate(
        pb.GenerateRequest(tokens=source_tokens[:64].tolist(), tokens_max=900, ignore_end_of_generation=True)
    )
    async for response in stream:
        if response.WhichOneof("event") == "delta":
            break
    await stream.aclose()
    # The only slot is free again, long before 900 tokens are done.
    _, answer, finished = await run_turn(client, source_tokens[100:164], 4)
    assert (len(answer), finished.tokens) == (4, 4)
    async for message in client.watch():
        if message.load.running == 0 and message.load.queued == 0:
            break


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tokens": []}, "at least one prompt token"),
        ({"tokens": [1, 2], "tokens_max": 0}, "tokens_max"),
        ({"tokens": [1] * 1024}, "the prompt has 1024 tokens, the context 1024"),
        ({"tokens": [1 << 30]}, "out of range"),
        ({"tokens": [1], "sampling": pb.Sampling(temperature=-1)}, "temperature is -1.0, expected"),
        ({"tokens": [1], "stop": [""]}, "stop string"),
        ({"tokens": [1], "salt": b"x" * 65}, "salt has 65 bytes"),
    ],
)
async def test_bad_requests_are_refused_in_words(
    running_worker: str, connect: Callable[[str], EngineClient], fields: dict[str, object], words: str
) -> None:
    client = connect(running_worker)
    request = pb.GenerateRequest(**({"tokens_max": 4} | fields))  # type: ignore[arg-type]
    with pytest.raises(CallerError, match=words):
        async for _ in client.generate(request):
            pass


@pytest.fixture(scope="module")
def running_worker(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[str]:
    worker = WorkerProcess(tmp_path_factory.mktemp("worker"), model=model_path)
    yield worker.wait_ready()
    worker.process.kill()
    worker.process.wait()


async def test_watch_tells_hot_keys_and_load(
    running_worker: str, connect: Callable[[str], EngineClient], source_tokens: np.ndarray
) -> None:
    client = connect(running_worker)
    await run_turn(client, source_tokens[:100])
    async for message in client.watch():
        assert message.is_reset
        assert len(message.hot_added) >= 3
        assert message.load.cells == 2048
        break


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"model": "/nowhere.gguf"}, "cannot read the model /nowhere.gguf"),
        ({"model": "{garbage}"}, "is no GGUF file"),
        ({"model": "{cut}"}, "cannot load"),
        ({"threads": 4096}, "cores"),
        ({"kv_type": "q3"}, "kv_type is 'q3', expected one of"),
        ({"context_tokens": 1 << 20}, "the model was trained for 8192"),
        ({"cells": 100}, "below the context"),
        ({"listen": "127.0.0.1:99999"}, "expected HOST:PORT"),
        ({"listen": "192.0.2.1:0"}, "cannot listen"),
        ({"slots": "many"}, "slots"),
    ],
)
def test_a_wrong_setting_is_one_clear_line_and_exit_code_2(
    start_worker: Callable[..., WorkerProcess], tmp_path: Path, model_path: Path, flags: dict[str, str], words: str
) -> None:
    (tmp_path / "garbage").write_bytes(b"not a model" * 100)
    (tmp_path / "cut.gguf").write_bytes(model_path.read_bytes()[:100_000])
    named = {"garbage": tmp_path / "garbage", "cut": tmp_path / "cut.gguf"}
    code, printed = start_worker(**{k: str(v).format(**named) for k, v in flags.items()}).wait_exit()
    assert code == 2
    assert words in printed
    assert "Traceback" not in printed


async def test_two_workers_cannot_share_a_port(start_worker: Callable[..., WorkerProcess], running_worker: str) -> None:
    code, printed = start_worker(listen=running_worker).wait_exit()
    assert code == 2
    assert "cannot listen" in printed


async def test_a_draining_worker_finishes_what_runs_and_refuses_more(
    start_worker: Callable[..., WorkerProcess], connect: Callable[[str], EngineClient], source_tokens: np.ndarray
) -> None:
    worker = start_worker()
    client = connect(worker.wait_ready())
    running = asyncio.ensure_future(run_turn(client, source_tokens[:64], 100))
    async for message in client.watch():
        if message.load.running:
            break
    draining = asyncio.ensure_future(client.drain())
    async for message in client.watch():
        if message.load.is_draining:
            break
    with pytest.raises(UnavailableError, match="draining"):
        await run_turn(client, source_tokens[:64])
    assert (await draining).turns_cut == 0
    assert len((await running)[1]) == 100
