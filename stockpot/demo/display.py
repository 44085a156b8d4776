"""What a person sees while the demo runs: a live table on a terminal, single lines elsewhere. On stderr."""

from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from stockpot.demo.result import DemoResult, TurnRecord

_FRAME_LINES = 8
"""Lines of the terminal that are not rows of the table: its head, borders, the status."""


class LineProgress:
    """One line for each thing that is done: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, line: str) -> None:
        """As `Progress.note`."""
        self._console.print(f"[demo] {line}", markup=False, highlight=False, soft_wrap=True)

    def turn_started(self, agent: str, turn: int, *, is_cold: bool) -> None:
        """Nothing: a line for each finished turn is enough."""

    def turn_done(self, record: TurnRecord) -> None:
        """One line about the run that has just ended."""
        answer = record.cold or record.warm
        kind = "cold" if record.cold else "warm"
        self.note(
            f"{record.agent} turn {record.turn} {kind}: {answer.cached_tokens} of {answer.prompt_tokens} tokens cached "
            f"({answer.extension.tokens_restored} restored), first token after {answer.ttft_ms:,.0f} ms, "
            f"{answer.extension.worker}"
        )


@dataclass(slots=True)
class TableProgress:
    """A table that fills as turns come in. Use as a context manager: it draws in between, and leaves nothing."""

    console: Console
    _rows: dict[tuple[str, int], TurnRecord | None] = field(default_factory=dict)
    """By agent and turn; None while the first run is under way."""
    _status: str = "starting"
    _live: Live = field(init=False)

    def __post_init__(self) -> None:
        self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "TableProgress":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def note(self, line: str) -> None:
        """As `Progress.note`."""
        self._status = line

    def turn_started(self, agent: str, turn: int, *, is_cold: bool) -> None:
        """As `Progress.turn_started`."""
        self._rows.setdefault((agent, turn), None)
        if is_cold:
            self._status = f"cold: {agent} prefills turn {turn}"

    def turn_done(self, record: TurnRecord) -> None:
        """As `Progress.turn_done`."""
        self._rows[record.agent, record.turn] = record

    def _render(self) -> Group:
        rows = list(self._rows.items())[-max(1, self.console.height - _FRAME_LINES) :]
        table = _turn_table()
        for (agent, turn), record in rows:
            _add_turn(table, agent, turn, record)
        return Group(table, Spinner("dots", self._status))


def _turn_table() -> Table:
    table = Table(title="Turns")
    table.add_column("agent")
    for name in ("turn", "prompt", "cached", "restored", "TTFT ms", "cold TTFT ms"):
        table.add_column(name, justify="right")
    table.add_column("worker")
    return table


def _add_turn(table: Table, agent: str, turn: int, record: TurnRecord | None) -> None:
    if record is None:
        table.add_row(agent, str(turn), "...")
        return
    warm = record.warm
    table.add_row(
        agent,
        str(turn),
        f"{warm.prompt_tokens:,}",
        f"{warm.cached_tokens:,}",
        f"{warm.extension.tokens_restored:,}",
        f"{warm.ttft_ms:,.0f}",
        f"{record.cold.ttft_ms:,.0f}" if record.cold else "",
        warm.extension.worker + (" (restarted)" if record.is_after_restart else ""),
    )


def print_summary(console: Console, result: DemoResult) -> None:
    """All turns, then warm beside cold."""
    turns = _turn_table()
    for record in result.records:
        _add_turn(turns, record.agent, record.turn, record)
    table = Table(title="Warm beside cold")
    for name in ("", "warm", "cold"):
        table.add_column(name, justify="right" if name else "left")
    for row in summary_rows(result):
        table.add_row(*row)
    console.print(turns, table)
    console.print(headline(result), highlight=False)


def headline(result: DemoResult) -> str:
    """The outcome in two sentences."""
    figures = result.summary()
    hit_rate, restored = figures["hit_rate_after_worker_restart"], figures["tokens_restored_after_worker_restart"]
    return (
        f"{figures['ttft_speedup_p50']:.1f} x less time to first token, {figures['token_hit_rate']:.1%} of all prompt "
        f"tokens cached. {figures['worker_killed'] or 'No worker'} was killed by SIGKILL and restarted between turns: "
        f"{hit_rate:.1%} of its sessions' next prompts were cached, {restored:,} tokens restored from the store."
    )


def summary_rows(result: DemoResult) -> list[tuple[str, str, str]]:
    """Name, warm, cold: the summary as people read it, on the terminal and in the report."""
    figures = result.summary()
    return [
        ("token hit rate", f"{figures['token_hit_rate']:.1%}", f"{figures['token_hit_rate_cold']:.1%}"),
        ("TTFT, median", f"{figures['ttft_ms_warm_p50']:,.0f} ms", f"{figures['ttft_ms_cold_p50']:,.0f} ms"),
        ("prefill tokens computed", f"{figures['prefill_tokens_warm']:,}", f"{figures['prefill_tokens_cold']:,}"),
        ("wall time", f"{figures['wall_s_warm']:,.1f} s", f"{figures['wall_s_cold']:,.1f} s"),
        ("turns", f"{figures['turns']}", f"{figures['turns_cold']}"),
        ("answers that differ from the warm ones", "", f"{len(figures['answers_differing'])}"),
    ]
