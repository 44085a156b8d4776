"""The demo from start to end.

1. Start node, workers and gateway.
2. Warm: all agents run the first half of their sessions.
3. Kill the worker that served the first agent last, by SIGKILL, and start it again.
4. Warm: the second half. The first turns after the kill find their KV in the store.
5. Cold: the same prompts again, each in a namespace that holds nothing.
"""

import importlib.metadata
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import openai

from stockpot.demo.memory import measure_memory
from stockpot.demo.result import DemoResult
from stockpot.demo.sessions import Agent, Endpoint, Progress, run_all_cold, run_all_warm
from stockpot.demo.turns import TURN_DEADLINE_S
from stockpot.demo.workload import WorkloadSize, make_sessions
from stockpot.stack import MIB, Stack, StackSettings, running_stack

# Prompts grow to about 2,700 tokens in the default size, 1,700 in the quick one, 6,000 in the full one.
DEFAULT_SIZE = WorkloadSize(agents=2, turns=10, source_tokens_first=400, source_tokens_later=60, answer_tokens_max=64)
QUICK_SIZE = WorkloadSize(agents=2, turns=6, source_tokens_first=260, source_tokens_later=60, answer_tokens_max=24)
FULL_SIZE = WorkloadSize(agents=4, turns=12, source_tokens_first=900, source_tokens_later=310, answer_tokens_max=64)


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What to run, on what."""

    size: WorkloadSize
    stack: StackSettings
    is_cold_last_turn_only: bool = False


def stack_for(model: Path, size: WorkloadSize) -> StackSettings:
    """Enough arena for all warm blocks: cold ones may push each other out."""
    return StackSettings(model=model, arena_bytes=256 * MIB * size.agents)


async def run_demo(settings: DemoSettings, progress: Progress) -> DemoResult:
    """Run it all; turns that fail are in the result, not raised.

    Raises: ProcessDiedError, UnavailableError when the stack does not stay up."""
    agents = [Agent(session) for session in make_sessions(settings.size)]
    async with running_stack(settings.stack, progress.note) as stack:
        async with _client(stack) as client:
            model = await stack.gateway.first_model()
            endpoint = Endpoint(client, model, settings.size.answer_tokens_max, progress)
            wall_s_warm, killed = await _run_warm(agents, endpoint, stack, settings.size.turns)
            progress.note("cold: the same prompts, each in a namespace that holds nothing")
            start = time.perf_counter()
            await run_all_cold(agents, endpoint, is_last_turn_only=settings.is_cold_last_turn_only)
            wall_s_cold = time.perf_counter() - start
        memory = await measure_memory(stack)
    return DemoResult(
        records=tuple(record for agent in agents for record in agent.records),
        failures=tuple(failure for agent in agents for failure in agent.failures),
        wall_s_warm=wall_s_warm,
        wall_s_cold=wall_s_cold,
        worker_killed=killed,
        memory=memory,
        machine=_machine(settings.stack, model),
    )


async def _run_warm(agents: list[Agent], endpoint: Endpoint, stack: Stack, turns: int) -> tuple[float, str]:
    """Steps 2 to 4: seconds of the turns alone, and the worker that was killed."""
    endpoint.progress.note("warm: all agents at once")
    start = time.perf_counter()
    await run_all_warm(agents, endpoint, last_turn=turns // 2)
    wall_s = time.perf_counter() - start
    victim = next((agent.worker for agent in agents if agent.worker), "")
    if victim:
        await stack.kill_and_restart(victim)
    start = time.perf_counter()
    await run_all_warm(agents, endpoint, last_turn=turns, restarted_worker=victim)
    return wall_s + time.perf_counter() - start, victim


def _client(stack: Stack) -> openai.AsyncOpenAI:
    """No retries: a turn that the stack loses must show."""
    return openai.AsyncOpenAI(
        base_url=stack.base_url,
        api_key=stack.settings.api_key,
        max_retries=0,
        timeout=TURN_DEADLINE_S,
        # No proxy of the environment between us and the loopback interface.
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


def _machine(settings: StackSettings, model: str) -> dict[str, str | int]:
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "model": model,
        "workers": settings.workers,
        "threads_per_worker": settings.threads,
    }


def _processor() -> str:
    """Its name as the kernel knows it; the architecture's where it knows none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
