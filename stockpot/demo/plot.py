"""Line plots as inline SVG: the two that the report needs and no more.

Colours are CSS variables of the page (`--series-0`, ...), so a plot follows its light and dark themes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 680, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 16, 44


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    points: Sequence[tuple[float, float]]
    """x and y; y > 0 on a logarithmic axis."""
    colour: int
    """Number of the page's colour."""
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """What the numbers mean, and where they lie. x goes in whole numbers."""

    title: str
    x_label: str
    y_label: str
    x_min: int
    x_max: int
    y_min: float
    y_max: float
    is_log_y: bool = False
    y_unit: str = ""

    def x(self, value: float) -> float:
        """Place of `value` in SVG units."""
        share = (value - self.x_min) / max(1, self.x_max - self.x_min)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Place of `value` in SVG units, which grow downwards."""
        low, high, at = self.y_min, self.y_max, value
        if self.is_log_y:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return _HEIGHT - _BOTTOM - (at - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def y_ticks(self) -> list[float]:
        """Powers of ten on a logarithmic axis, else fifths of the range."""
        if self.is_log_y:
            first, last = math.ceil(math.log10(self.y_min)), math.floor(math.log10(self.y_max))
            return [10.0**power for power in range(first, last + 1)]
        return [self.y_min + i * (self.y_max - self.y_min) / 5 for i in range(6)]


def log_axis_range(values: Sequence[float]) -> tuple[float, float]:
    """Powers of ten around `values`, all above 0; at least one decade."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def line_plot(axes: Axes, series: Sequence[Series]) -> str:
    """A whole `<svg>` element, with a title for readers who do not see it."""
    label = escape(f"{axes.title}: {axes.y_label} by {axes.x_label}", quote=True)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">', *_frame(axes)]
    for line in series:
        parts.extend(_line(axes, line))
    return "\n".join([*parts, "</svg>"])


def _frame(axes: Axes) -> list[str]:
    """Grid, tick labels and the names of both axes."""
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value in axes.y_ticks():
        y = axes.y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = f"{value:,.0f}{axes.y_unit}"
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    parts.extend(
        f'<text x="{axes.x(x):.1f}" y="{bottom + 18}" text-anchor="middle">{x}</text>'
        for x in range(axes.x_min, axes.x_max + 1)
    )
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(axes.x_label)}</text>'
    )
    parts.append(
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(axes.y_label)}</text>'
    )
    return parts


def _line(axes: Axes, series: Series) -> list[str]:
    """The line and a dot with a tool tip at each point; dashed with hollow dots, or solid."""
    style = f'style="--colour: var(--series-{series.colour})"'
    kind, dot = ("line dashed", "dot hollow") if series.is_dashed else ("line", "dot")
    places = [(axes.x(x), axes.y(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline class="{kind}" {style} points="{path}"/>']
    for (x, y), (turn, value) in zip(places, series.points, strict=True):
        tip = escape(f"{series.name}, {axes.x_label} {turn:.0f}: {value:,.1f}{axes.y_unit}")
        parts.append(f'<circle class="{dot}" {style} cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{tip}</title></circle>')
    return parts
