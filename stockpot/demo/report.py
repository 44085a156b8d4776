"""demo-report.html: the demo's result as one page that needs nothing from outside."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from stockpot.demo.display import headline, summary_rows
from stockpot.demo.plot import Axes, Series, line_plot, log_axis_range
from stockpot.demo.result import DemoResult, TurnRecord
from stockpot.demo.turns import Answer
from stockpot.stack import MIB

_STYLE = Path(__file__).with_name("report.css")


def write_report(result: DemoResult, path: Path) -> None:
    """Write the page to `path`.

    Raises: OSError."""
    path.write_text(render_report(result), encoding="utf-8")


def render_report(result: DemoResult) -> str:
    """The page as HTML."""
    sessions = {agent: list(records) for agent, records in groupby(result.records, key=lambda record: record.agent)}
    figures = result.summary()
    sections = [
        "<h1>Stockpot demo</h1>",
        f"<p>{len(sessions)} coding agents at once, {figures['turns']} turns, {figures['errors']} failed. "
        f"{figures['turns_cold']} of them ran both warm (with what is stored) and cold (in a namespace that holds "
        "nothing): times and prefill below are over these.</p>",
        f"<p>{escape(headline(result))}</p>",
        _table(("", "warm", "cold"), summary_rows(result)),
        "<h2>Time to first token by turn</h2>",
        _plot_ttft(sessions),
        "<h2>Token hit rate by turn</h2>",
        _plot_hit_rate(sessions),
        _legend(sessions),
        "<h2>Turns</h2>",
        _turn_table(result.records),
        "<h2>Memory</h2>",
        _memory_table(result),
        "<h2>Machine</h2>",
        _table((), [(name.replace("_", " "), str(value)) for name, value in result.machine.items()]),
        *[f'<p class="failure">{escape(failure)}</p>' for failure in result.failures],
    ]
    return _page("\n".join(sections))


def _page(body: str) -> str:
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    style = f"<style>\n{_STYLE.read_text(encoding='utf-8')}</style>"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<title>Stockpot demo</title>\n{style}</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _plot_ttft(sessions: dict[str, list[TurnRecord]]) -> str:
    series = _warm_and_cold(sessions, lambda answer: max(answer.ttft_ms, 1.0))
    values = [y for line in series for _, y in line.points]
    if not values:
        return "<p>No turn was answered.</p>"
    low, high = log_axis_range(values)
    axes = Axes("Time to first token", "turn", "ms (log scale)", 1, _last_turn(sessions), low, high, is_log_y=True)
    return line_plot(axes, series)


def _plot_hit_rate(sessions: dict[str, list[TurnRecord]]) -> str:
    series = _warm_and_cold(sessions, lambda answer: 100 * answer.cached_tokens / max(1, answer.prompt_tokens))
    axes = Axes("Token hit rate", "turn", "cached prompt tokens", 1, _last_turn(sessions), 0, 100, y_unit=" %")
    return line_plot(axes, series)


def _warm_and_cold(sessions: dict[str, list[TurnRecord]], value: Callable[[Answer], float]) -> list[Series]:
    """For each agent a solid line for its warm turns and a dashed one for its cold turns, in one colour."""
    series: list[Series] = []
    for colour, (agent, records) in enumerate(sessions.items()):
        series.append(Series(f"{agent} warm", [(record.turn, value(record.warm)) for record in records], colour))
        cold = [(float(record.turn), value(record.cold)) for record in records if record.cold is not None]
        if cold:
            series.append(Series(f"{agent} cold", cold, colour, is_dashed=True))
    return series


def _last_turn(sessions: dict[str, list[TurnRecord]]) -> int:
    return max((record.turn for records in sessions.values() for record in records), default=1)


def _legend(sessions: dict[str, list[TurnRecord]]) -> str:
    entries = [
        f'<span><i style="--colour: var(--series-{colour})"></i>{escape(agent)}</span>'
        for colour, agent in enumerate(sessions)
    ]
    return f'<p class="legend">{"".join(entries)} <span>solid: warm</span> <span>dashed: cold</span></p>'


def _turn_table(records: Sequence[TurnRecord]) -> str:
    head = ("agent", "turn", "prompt", "hot", "restored", "computed", "TTFT ms", "cold TTFT ms", "worker")
    return _table(head, [_turn_row(record) for record in records])


def _turn_row(record: TurnRecord) -> tuple[str, ...]:
    warm, origin = record.warm, record.warm.extension
    return (
        record.agent,
        str(record.turn),
        f"{warm.prompt_tokens:,}",
        f"{origin.tokens_hot:,}",
        f"{origin.tokens_restored:,}",
        f"{origin.tokens_computed:,}",
        f"{warm.ttft_ms:,.0f}",
        f"{record.cold.ttft_ms:,.0f}" if record.cold else "",
        origin.worker + (" (restarted)" if record.is_after_restart else ""),
    )


def _memory_table(result: DemoResult) -> str:
    memory = result.memory
    rows = [
        (name, _mib(peak), _mib(memory.bound_bytes[name]) if name in memory.bound_bytes else "")
        for name, peak in memory.peak_rss_bytes.items()
    ]
    rows.append(("node's arena", _mib(memory.arena_bytes), _mib(memory.arena_bytes)))
    rows.append(("node's disk", "", _mib(memory.disk_bytes_max)))
    return _table(("", "peak", "at most, by its settings"), rows)


def _mib(count: int) -> str:
    return f"{count / MIB:,.0f} MiB"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; numbers are set right by the style sheet, which spares the first column."""
    parts = ["<table>"]
    if head:
        parts.append(f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr></thead>")
    parts.append("<tbody>")
    parts.extend(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return "\n".join([*parts, "</tbody></table>"])
