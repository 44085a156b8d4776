"""Every Python block of docs/client.md runs as it stands, in order, against a real node."""

import re
from pathlib import Path

import pytest

from tests.store_node import NodeProcesses

GUIDE = Path(__file__).parents[2] / "docs" / "client.md"


@pytest.mark.parametrize("local_socket", [True, False])
def test_the_guide_runs(nodes: NodeProcesses, local_socket: bool) -> None:
    node = nodes.start(**({} if local_socket else {"local_socket": ""})).wait_ready()
    names: dict[str, object] = {"__name__": "client_guide", "ADDRESS": node.address}
    text = GUIDE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) == text.count("```python") >= 6
    for block in blocks:
        padding = "\n" * text.count("\n", 0, block.start(1))  # a traceback then names the guide's own line
        exec(compile(padding + block[1], str(GUIDE), "exec"), names)
