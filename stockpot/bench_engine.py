"""`stockpot bench engine`: time to first token of a long prompt, prefilled beside restored.

One storage node and two workers, as processes. In each round the first worker computes a prompt that
nothing is stored of and exports its blocks; the second one, which has never seen it, restores them. Both
times are taken here, from sending the request to the first token.
"""

import asyncio
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from engine.client import EngineClient
from engine.vocab import Vocab
from engine.wire import engine_pb2 as pb
from kvstore.client import StoreClient
from kvstore.core.errors import StockpotError, UnavailableError
from kvstore.core.keys import chain_keys
from kvstore.core.namespace import Fingerprint
from stockpot.ports import free_ports
from stockpot.run_async import run_until_signalled
from stockpot.stack import StackSettings, node_command, worker_command
from stockpot.supervisor import Supervisor, supervised

PROMPT_TOKENS = 4096
ROUNDS = 3
_EXPORT_DEADLINE_S = 30.0
_EXPORT_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt; times in milliseconds."""

    prefill_ttft_ms: float
    restored_ttft_ms: float
    restore_ms: float
    tokens_restored: int
    is_same_answer: bool


class BenchError(StockpotError):
    """A round did not measure what it is about."""


def run(*, model: Path, as_json: bool) -> None:
    """Measure and print; one JSON object on stdout with `as_json`.

    Raises: StockpotError when a process fails or a round restored less than the whole prompt."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{ROUNDS} prompts of {PROMPT_TOKENS} tokens", total=2 * ROUNDS + 1)
        result = run_until_signalled(measure(model, lambda: progress.advance(task)))
    if as_json:
        print(json.dumps(result))  # noqa: T201
    else:
        Console().print(_table(result))


async def measure(model: Path, advance: Callable[[], None]) -> dict[str, object]:
    """The bench's JSON object; `advance` is called after each step of `2 * ROUNDS + 1`."""
    # Both workers have all cores: they never compute at the same time.
    settings = replace(StackSettings(model, workers=1), cells=PROMPT_TOKENS + 1024, context_tokens=PROMPT_TOKENS + 1024)
    with tempfile.TemporaryDirectory(prefix="stockpot-") as name:
        async with supervised(Path(name), lambda line: None) as supervisor:
            node, workers = await _start(settings, Path(name), supervisor)
            advance()
            store = await StoreClient.connect(node)
            clients = [EngineClient.connect(address) for address in workers]
            try:
                facts = await clients[0].describe()
                rounds = [await _measure_round(store, clients, facts, tokens, advance) for tokens in _prompts(model)]
            finally:
                for client in clients:
                    await client.close()
                await store.close()
    return _summary(rounds, facts, settings.threads)


async def _start(settings: StackSettings, folder: Path, supervisor: Supervisor) -> tuple[str, list[str]]:
    node_port, *worker_ports = free_ports(3)
    [node] = await supervisor.start([node_command(settings, folder, node_port)])
    address = str(node["address"])
    commands = [worker_command(settings, i, port, address) for i, port in enumerate(worker_ports, 1)]
    return address, [str(worker["address"]) for worker in await supervisor.start(commands)]


async def _measure_round(
    store: StoreClient,
    clients: list[EngineClient],
    facts: pb.DescribeResponse,
    tokens: list[int],
    advance: Callable[[], None],
) -> Round:
    cold_ttft_ms, cold, cold_answer = await _turn(clients[0], tokens)
    advance()
    if cold.tokens_computed != len(tokens):
        raise BenchError(f"the cold prompt was not cold: {cold.tokens_computed} of {len(tokens)} tokens computed")
    await _wait_stored(store, facts, tokens)
    warm_ttft_ms, warm, warm_answer = await _turn(clients[1], tokens)
    advance()
    if warm.tokens_computed != 1:
        raise BenchError(f"{warm.tokens_computed} tokens were computed, expected all but one from the store")
    return Round(cold_ttft_ms, warm_ttft_ms, warm.restore_ms, warm.tokens_restored, cold_answer == warm_answer)


async def _turn(client: EngineClient, tokens: list[int]) -> tuple[float, pb.PromptDone, list[int]]:
    """TTFT in milliseconds as a client sees it, where the prompt came from, and the answer's tokens."""
    request = pb.GenerateRequest(turn_id="bench", tokens=tokens, tokens_max=16, ignore_end_of_generation=True)
    started, ttft_ms = time.monotonic(), 0.0
    answer: list[int] = []
    done = pb.PromptDone()
    async for response in client.generate(request):
        match response.WhichOneof("event"):
            case "prompt_done":
                done = response.prompt_done
            case "delta":
                ttft_ms = ttft_ms or 1e3 * (time.monotonic() - started)
                answer += response.delta.tokens
    return ttft_ms, done, answer


async def _wait_stored(store: StoreClient, facts: pb.DescribeResponse, tokens: list[int]) -> None:
    """Until every block of the prompt can be read: exporting goes on behind the answer."""
    fingerprint = Fingerprint(facts.model_digest, facts.block_tokens, dict(facts.kv_properties))
    keys = chain_keys(fingerprint.namespace_id(), np.array(tokens, np.uint32), facts.block_tokens)
    deadline = time.monotonic() + _EXPORT_DEADLINE_S
    while (await store.match(fingerprint.namespace_id(), keys)).blocks < len(keys):
        if time.monotonic() > deadline:
            raise UnavailableError(f"the prompt's blocks were not stored within {_EXPORT_DEADLINE_S:.0f} s")
        await asyncio.sleep(_EXPORT_POLL_S)


def _prompts(model: Path) -> list[list[int]]:
    """ROUNDS prompts of real source text that share no first block."""
    spec = importlib.util.find_spec("argparse")
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text()
    tokens = Vocab.load(model).tokenize(text, parse_special=False)
    return [tokens[i * 1000 : i * 1000 + PROMPT_TOKENS] for i in range(ROUNDS)]


def _summary(rounds: list[Round], facts: pb.DescribeResponse, threads: int) -> dict[str, object]:
    restored_bytes = [r.tokens_restored * facts.kv_bytes_per_token for r in rounds]
    speeds = [size / r.restore_ms / 1e6 for size, r in zip(restored_bytes, rounds, strict=True)]
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "rounds": len(rounds),
        "threads": threads,
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "prefill_ttft_ms": round(statistics.median(r.prefill_ttft_ms for r in rounds), 2),
        "restored_ttft_ms": round(statistics.median(r.restored_ttft_ms for r in rounds), 2),
        "ratio": round(statistics.median(r.prefill_ttft_ms / r.restored_ttft_ms for r in rounds), 1),
        "restore_gb_per_s": round(statistics.median(speeds), 2),
        "same_answers": all(r.is_same_answer for r in rounds),
    }


def _table(result: dict[str, object]) -> Table:
    table = Table(title=f"{result['prompt_tokens']} tokens, {result['threads']} threads, {result['rounds']} rounds")
    table.add_column("")
    table.add_column("median", justify="right")
    table.add_row("TTFT, prefilled", f"{result['prefill_ttft_ms']} ms")
    table.add_row("TTFT, restored from the store", f"{result['restored_ttft_ms']} ms")
    table.add_row("ratio", f"{result['ratio']} x")
    table.add_row("restore", f"{result['restore_gb_per_s']} GB/s")
    table.add_row("same answers", "yes" if result["same_answers"] else "NO")
    return table
