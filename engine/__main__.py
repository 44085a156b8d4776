"""`python -m engine`: one llama.cpp worker. Settings by --config FILE, STOCKPOT_WORKER_*, and flags."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from engine.worker.process import load_engine, serve
from engine.worker.settings import WorkerSettings
from kvstore.core.config import load_settings
from kvstore.core.errors import StockpotError


def main(
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.")] = None,
    model: Annotated[str | None, typer.Option(help="GGUF file to serve.")] = None,
    listen: Annotated[str | None, typer.Option(help="Address to serve on; port 0 takes a free one.")] = None,
    store: Annotated[str | None, typer.Option(help="Address of the storage node; none stores nothing.")] = None,
    worker_id: Annotated[str | None, typer.Option(help="Name of this worker in logs and answers.")] = None,
    model_name: Annotated[str | None, typer.Option(help="Name that clients ask for.")] = None,
    context_tokens: Annotated[int | None, typer.Option(help="Largest prompt plus answer.")] = None,
    cells: Annotated[int | None, typer.Option(help="Tokens of KV that all turns share.")] = None,
    idle_cells_max: Annotated[int | None, typer.Option(help="Cells that finished turns may keep hot.")] = None,
    slots: Annotated[int | None, typer.Option(help="Turns that run at once or stay hot.")] = None,
    queue_max: Annotated[int | None, typer.Option(help="Turns that may wait for a slot.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads that compute; at most the cores.")] = None,
    kv_type: Annotated[str | None, typer.Option(help="q8_0, bf16 or f16.")] = None,
    block_tokens: Annotated[int | None, typer.Option(help="Tokens of one block.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens of one batch at most.")] = None,
    chunk_beside_decodes: Annotated[int | None, typer.Option(help="Prompt tokens a batch while answers run.")] = None,
    ready_file: Annotated[str | None, typer.Option(help="Written as JSON once the worker serves.")] = None,
) -> None:
    """Serve one GGUF model with its KV kept in a Stockpot store."""
    flags = {name: value for name, value in locals().items() if name != "config"}
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = load_settings(WorkerSettings, file=config, env_prefix="STOCKPOT_WORKER_", flags=flags)
        logging.info("settings %s", settings)
        engine = load_engine(settings)
        uvloop.run(serve(settings, engine))
    except StockpotError as error:
        print(f"stockpot worker: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from None
    engine.close()


if __name__ == "__main__":
    typer.run(main)
