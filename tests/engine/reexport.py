"""Run by test_exactness in a fresh process: restore the blocks in a folder, export them again.

reexport.py MODEL FOLDER: for each N.json (tokens) and N.bin (values, joined) writes N.again.
"""

import json
import sys
from pathlib import Path

import numpy as np

from engine.worker.process import load_engine
from engine.worker.settings import WorkerSettings
from tests.engine.conftest import RunningTurn
from tests.engine.test_exactness import export, restore_into


def main(model: str, folder: Path) -> None:
    engine = load_engine(WorkerSettings(model=model, context_tokens=2048, cells=4096, slots=3, threads=1))
    engine.loop.start()
    for file in sorted(folder.glob("*.bin")):
        tokens = np.array(json.loads(file.with_suffix(".json").read_text()), np.uint32)
        joined, size = file.read_bytes(), engine.facts.value_bytes
        values = [joined[at : at + size] for at in range(0, len(joined), size)]
        running = RunningTurn(engine, tokens, 1, on_admitted=restore_into(engine, values))
        outcome = running.wait()
        assert outcome.prompt_done is not None and outcome.prompt_done.tokens_restored == 32 * len(values)
        file.with_suffix(".again").write_bytes(b"".join(export(engine, running.turn)))
    engine.loop.stop()
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
