"""Fixtures shared by several kinds of tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store_node import NodeProcesses


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    """Starts storage nodes as processes of their own; none outlives the test."""
    processes = NodeProcesses(tmp_path)
    yield processes
    processes.kill_all()
