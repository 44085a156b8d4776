"""The main job on the real model, small: both runs, a worker killed in between, everything ended after."""

from pathlib import Path

import psutil
import pytest
from rich.console import Console

from stockpot.demo.display import LineProgress
from stockpot.demo.run import DemoSettings, run_demo
from stockpot.demo.workload import WorkloadSize
from stockpot.model import bundled_model
from stockpot.stack import MIB, StackSettings

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

# Prompts of some 700 tokens, nearly all of it the shared system prompt: a quarter minute of prefill on two cores.
SMALL = WorkloadSize(agents=2, turns=2, source_tokens_first=20, source_tokens_later=10, answer_tokens_max=8)


async def test_the_main_job(tmp_path: Path) -> None:
    stack = StackSettings(bundled_model(), arena_bytes=64 * MIB, disk_bytes_max=1024 * MIB, run_dir=tmp_path)
    result = await run_demo(DemoSettings(SMALL, stack), LineProgress(Console(stderr=True)))

    figures = result.summary()
    assert result.failures == ()
    assert (figures["turns"], figures["turns_cold"]) == (4, 4)
    # The second turns repeat all but their last lines; what no worker holds any more was restored (the system
    # prompt may be hot in the other worker).
    assert figures["hit_rate_after_worker_restart"] >= 0.8
    assert figures["tokens_restored_after_worker_restart"] > 0
    assert figures["token_hit_rate_cold"] == 0
    assert figures["prefill_tokens_warm"] < figures["prefill_tokens_cold"]
    # With q8_0 KV a restored prefix gives the same text as a computed one.
    assert figures["answers_differing"] == []
    assert figures["memory_within_bounds"], figures
    assert set(figures["peak_rss_bytes"]) == {"node", "worker-1", "worker-2", "gateway", "demo"}
    # The run folder was named, so logs stay; the blocks do not.
    assert (tmp_path / "worker-1.log").stat().st_size > 0
    assert not (tmp_path / "blocks").exists()
    assert not [process for process in psutil.process_iter(["cmdline"]) if _names(process, tmp_path)]


def _names(process: psutil.Process, folder: Path) -> bool:
    return any(str(folder) in word for word in process.info["cmdline"] or ())
