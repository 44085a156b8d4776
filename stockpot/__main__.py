"""The command line: `stockpot` or `python -m stockpot`.

Exit codes: 0 done; 1 something failed, with words on stderr; 2 the command was wrong, one line on
stderr; 128 + N ended by signal N.
"""

import importlib.metadata
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvstore.core.errors import CallerError, StockpotError
from stockpot.model import resolve_model
from stockpot.run_async import run_until_signalled
from stockpot.stack import StackSettings
from stockpot.up import stay_up

app = typer.Typer(
    help="A distributed KV-cache store and serving tier for coding agents on CPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure one part and print the figures.", no_args_is_help=True)
app.add_typer(bench, name="bench")

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
ModelOption = Annotated[
    Path | None, typer.Option("--model", help="A GGUF file; by default the small one of the extra `demo`.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")]


@app.command()
def demo(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Six turns, cold only for each session's last one.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Four agents, contexts to 6k tokens.")] = False,
    model: ModelOption = None,
    as_json: JsonOption = False,
    report: Annotated[Path, typer.Option(help="Where to write the report.")] = Path("demo-report.html"),
) -> None:
    """Run coding agents on a real model: turns whose prefix is stored beside the same turns without."""
    # Imported here: only this command needs the `demo` extra, and it takes a second to import.
    from stockpot.demo.command import DemoOptions, run_command

    if quick and full:
        raise CallerError("--quick and --full exclude each other")
    options = DemoOptions(resolve_model(model), "quick" if quick else "full" if full else "default", as_json, report)
    raise typer.Exit(run_command(options))


@app.command()
def up(
    *,
    model: ModelOption = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Workers; the cores are shared out.")] = 2,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The gateway's port; 0 takes a free one.")] = 0,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep blocks on disk here, over restarts; by default in a temporary folder.")
    ] = None,
) -> None:
    """Start node, workers and gateway on this machine and stay until Ctrl-C."""
    settings = StackSettings(resolve_model(model), workers=workers, port=port, data_dir=data_dir)
    console = Console(stderr=True)
    run_until_signalled(stay_up(settings, lambda line: console.print(f"[dim]{line}[/]", soft_wrap=True), typer.echo))


@bench.command()
def store(*, as_json: JsonOption = False) -> None:
    """Put and get blocks by each path, beside memcpy and a plain TCP socket."""
    from stockpot.bench_store import run

    run(as_json=as_json)


@bench.command()
def match(*, as_json: JsonOption = False) -> None:
    """Match a 128k-token prompt against a node with ten thousand to a million blocks."""
    from stockpot.bench_match import run

    run(as_json=as_json)


@bench.command()
def engine(*, model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Time to first token of a 4k-token prompt: prefilled beside restored from stored blocks."""
    from stockpot.bench_engine import run

    run(model=resolve_model(model), as_json=as_json)


@app.command(context_settings=_PASS_THROUGH)
def node(context: typer.Context) -> None:
    """Run a storage node (as `python -m kvstore.node`; --help lists its flags)."""
    _run_process("kvstore.node", context.args)


@app.command(context_settings=_PASS_THROUGH)
def worker(context: typer.Context) -> None:
    """Run a llama.cpp worker (as `python -m engine`; --help lists its flags)."""
    _run_process("engine", context.args)


@app.command(context_settings=_PASS_THROUGH)
def gateway(context: typer.Context) -> None:
    """Run a gateway (as `python -m gateway`; --help lists its flags)."""
    _run_process("gateway", context.args)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(importlib.metadata.version("stockpot"))


def _run_process(module: str, arguments: list[str]) -> None:
    """Become the process that `module` is, here, with `arguments` as its flags."""
    sys.argv = [f"stockpot {module}", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """The console script. Raises: SystemExit, always."""
    try:
        code = app(prog_name="stockpot", standalone_mode=False)
    except (typer.TyperException, CallerError) as error:
        # Without arguments typer has shown the help already: its message is empty then.
        if message := error.format_message() if isinstance(error, typer.TyperException) else str(error):
            typer.echo(f"stockpot: {message}", err=True)
        raise SystemExit(2) from None
    except StockpotError as error:
        typer.echo(f"stockpot: {error}", err=True)
        raise SystemExit(1) from None
    except typer.Abort:
        raise SystemExit(130) from None
    raise SystemExit(code or 0)


if __name__ == "__main__":
    main()
