"""What a person sees: lines in a log, a table on a terminal, the summary at the end."""

from dataclasses import replace
from io import StringIO

from rich.console import Console

from stockpot.demo.display import LineProgress, TableProgress, print_summary
from tests.unit.demo_results import demo_result


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_one_line_for_each_turn_that_is_done() -> None:
    console = Console(file=StringIO(), width=80)
    progress = LineProgress(console)
    first, restored = demo_result().records[:2]
    progress.note("starting node")
    progress.turn_started("agent-1", 1, is_cold=False)
    progress.turn_done(replace(first, cold=None))
    progress.turn_done(restored)
    assert shown(console).splitlines() == [
        "[demo] starting node",
        "[demo] agent-1 turn 1 warm: 0 of 1000 tokens cached (0 restored), first token after 10,000 ms, worker-1",
        "[demo] agent-1 turn 2 cold: 0 of 1200 tokens cached (0 restored), first token after 13,000 ms, worker-1",
    ]


def test_the_table_shows_turns_as_they_start_and_end() -> None:
    console = Console(file=StringIO(), width=100, height=40, force_terminal=True)
    with TableProgress(console) as progress:
        progress.turn_started("agent-9", 1, is_cold=False)
        for record in demo_result().records:
            progress.turn_done(record)
    text = shown(console)
    for word in ("agent-9", "1,200", "960", "13,000", "worker-1 (restarted)"):
        assert word in text, word


def test_the_table_fits_a_low_terminal() -> None:
    console = Console(file=StringIO(), width=100, height=12, force_terminal=True)
    with TableProgress(console) as progress:
        for turn in range(1, 31):
            progress.turn_started(f"agent-{turn}", turn, is_cold=False)
    # What is drawn last, and stays, is the newest rows.
    last_drawing = shown(console).rpartition("Turns")[2]
    assert "agent-30" in last_drawing
    assert "agent-20" not in last_drawing


def test_summary() -> None:
    console = Console(file=StringIO(), width=120)
    print_summary(console, demo_result())
    text = shown(console)
    for word in ("61.5%", "1,500 ms", "10,500 ms", "7.0 x less", "80.0% of its sessions' next prompts", "45.0 s"):
        assert word in text, word
