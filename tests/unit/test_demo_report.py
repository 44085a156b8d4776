"""The demo's page: whole, self-contained, and with the figures of the result."""

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stockpot.demo.plot import Axes, Series, line_plot, log_axis_range
from stockpot.demo.report import render_report, write_report
from tests.unit.demo_results import demo_result


class Page(HTMLParser):
    """Tags, attributes and text of a page; checks that each element is closed."""

    void = frozenset({"meta", "line", "polyline"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.void:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_the_page_has_the_figures() -> None:
    page = Page(render_report(demo_result()))
    assert page.tags["svg"] == 2
    # Two plots, two agents, warm and cold; a dot for each of two turns.
    assert page.tags["polyline"] == 8
    assert page.tags["circle"] == 16
    for word in ("61.5%", "1,500 ms", "10,500 ms", "1,540", "4,000", "15.0 s", "45.0 s", "worker-1 (restarted)"):
        assert word in page.words, word
    assert any("80.0% of its sessions' next prompts were cached, 960 tokens restored" in text for text in page.words)
    assert "An <old> one" in page.words


def test_the_page_needs_nothing_from_outside() -> None:
    html = render_report(demo_result())
    assert not {"src", "href", "xlink:href"} & Page(html).attributes
    assert "http" not in html
    assert "@import" not in html
    assert "url(" not in html


def test_failures_are_named_on_the_page(tmp_path: Path) -> None:
    write_report(demo_result(("agent-1, turn 3: <cut>",)), tmp_path / "report.html")
    assert "agent-1, turn 3: <cut>" in Page((tmp_path / "report.html").read_text()).words


def test_a_page_without_turns_is_still_a_page() -> None:
    result = demo_result(("agent-1, turn 1: cut",))
    empty = type(result)((), result.failures, 0, 0, "", result.memory, result.machine)
    assert "No turn was answered." in Page(render_report(empty)).words


def test_plot_places_values() -> None:
    axes = Axes("t", "turn", "ms", 1, 3, 1, 1000, is_log_y=True)
    assert axes.y(1) - axes.y(10) == pytest.approx(axes.y(10) - axes.y(100))
    assert axes.y_ticks() == [1, 10, 100, 1000]
    assert axes.x(2) == pytest.approx((axes.x(1) + axes.x(3)) / 2)
    svg = ElementTree.fromstring(line_plot(axes, [Series("a & b", [(1, 1), (2, 10), (3, 100)], 0)]))
    assert len(svg.findall("circle")) == 3


@pytest.mark.parametrize(("values", "expected"), [([20, 900], (10, 1000)), ([10, 10], (10, 100)), ([0.5], (0.1, 1))])
def test_log_axis_range(values: list[float], expected: tuple[float, float]) -> None:
    assert log_axis_range(values) == pytest.approx(expected)
