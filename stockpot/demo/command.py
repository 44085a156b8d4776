"""`stockpot demo`: options in, summary or JSON and report out, exit code back."""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console

from kvstore.core.errors import ConfigError
from stockpot.demo.display import LineProgress, TableProgress, print_summary
from stockpot.demo.report import write_report
from stockpot.demo.result import DemoResult
from stockpot.demo.run import DEFAULT_SIZE, FULL_SIZE, QUICK_SIZE, DemoSettings, run_demo, stack_for
from stockpot.run_async import run_until_signalled

Extent = Literal["quick", "default", "full"]
_SIZES = {"quick": QUICK_SIZE, "default": DEFAULT_SIZE, "full": FULL_SIZE}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for."""

    model: Path
    extent: Extent
    as_json: bool
    report: Path


def run_command(options: DemoOptions) -> int:
    """Run the demo, write the report, print the outcome; the exit code.

    Raises: ConfigError before anything runs, when the report cannot be written there."""
    if not options.report.absolute().parent.is_dir():
        raise ConfigError(f"cannot write {options.report}: there is no folder {options.report.absolute().parent}")
    size = _SIZES[options.extent]
    settings = DemoSettings(size, stack_for(options.model, size), is_cold_last_turn_only=options.extent == "quick")
    messages = Console(stderr=True)
    is_quiet = options.as_json or not messages.is_terminal
    with nullcontext(LineProgress(messages)) if is_quiet else TableProgress(messages) as progress:
        result = run_until_signalled(run_demo(settings, progress))
    write_report(result, options.report)
    if options.as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(result.summary())).decode() + "\n")
    else:
        print_summary(Console(), result)
    messages.print(f"report: {options.report}", highlight=False, soft_wrap=True)
    return _exit_code(result, messages)


def _exit_code(result: DemoResult, messages: Console) -> int:
    """1, with words, when a turn failed."""
    for failure in result.failures:
        messages.print(f"failed: {failure}", style="red", markup=False, highlight=False, soft_wrap=True)
    return 1 if result.failures else 0
