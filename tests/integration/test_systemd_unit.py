"""The unit file in docs/packaging, and the config file beside it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore.node.settings import check_settings, read_command_line

PACKAGING = Path(__file__).parents[2] / "docs" / "packaging"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "stockpot-node.service"
    installed = "/opt/stockpot/bin/stockpot"
    text = (PACKAGING / "stockpot-node.service").read_text()
    assert f"ExecStart={installed} node\n" in text
    unit.write_text(text.replace(installed, sys.executable))
    run = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    said = [line for line in run.stderr.splitlines() if unit.name in line]
    assert run.returncode == 0, run.stderr
    assert said == []


def test_the_config_file_holds_settings_that_can_work() -> None:
    reading = read_command_line([f"--config={PACKAGING / 'node.toml'}"], {})
    check_settings(reading.settings)
    assert reading.settings.arena_bytes == 64 << 30
    assert reading.settings.require_hugepages
