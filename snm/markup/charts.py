"""Charts as values: bars, lines, intervals. `svg`, `characters` and `files` draw them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bars:
    """Horizontal bars: one of each series for each label. A value of None has no bar."""

    title: str
    labels: list[str]
    series: dict[str, list[float | None]]
    texts: dict[str, list[str]] = field(default_factory=dict)
    """What is written beside the bars of a series, where it is not the value."""
    unit: str = ""

    @property
    def largest(self) -> float:
        return max((v for values in self.series.values() for v in values if v is not None), default=0.0) or 1.0

    def text(self, name: str, i: int) -> str:
        """What is written beside a bar."""
        if name in self.texts:
            return self.texts[name][i]
        value = self.series[name][i]
        return "–" if value is None else short(value)


@dataclass(frozen=True)
class Lines:
    """Lines through points (x, y), x from left to right."""

    title: str
    series: dict[str, list[tuple[float, float]]]
    x: str = ""
    y: str = ""

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Least and largest x, least and largest y."""
        xs = [x for points in self.series.values() for x, _ in points]
        ys = [y for points in self.series.values() for _, y in points]
        return min(xs), max(xs), min(ys), max(ys)


@dataclass(frozen=True)
class Intervals:
    """A value and its interval for each label: (low, value, high); `reference` is a line across."""

    title: str
    rows: dict[str, tuple[float, float, float]]
    unit: str = ""
    reference: float | None = None
    first: int = 0
    """The number of the colour of the first row."""

    @property
    def edges(self) -> tuple[float, float]:
        values = [value for row in self.rows.values() for value in row]
        values += [] if self.reference is None else [self.reference]
        low, high = min(values), max(values)
        margin = (high - low) / 20 or abs(high) / 20 or 1.0
        return low - margin, high + margin


Chart = Bars | Lines | Intervals


def short(value: float) -> str:
    """A number in a few characters: 1,234; 12.3; 0.0123; 1.2 M."""
    size = abs(value)
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.0f} {unit}" if abs(scaled) >= 100 else f"{scaled:.1f} {unit}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two numbers, at most this many and one more."""
    if not high > low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / most))
    step = next(step * k for k in (1, 2, 5, 10, 20) if (high - low) / (step * k) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]
