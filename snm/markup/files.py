"""Charts as files: SVG of our own, PNG with Matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snm.errors import MissingExtra, SettingsError
from snm.markup import svg
from snm.markup.charts import Bars, Chart, Intervals, Lines

COLOURS = ("#1f5fae", "#b3530f", "#14775c", "#7a3fa8", "#8d6a00", "#5d5a54")


def check(path: str | Path) -> Path:
    """The path of a picture, if its ending says which kind of file it is and it can be drawn."""
    path = Path(path)
    if path.suffix.lower() not in (".svg", ".png"):
        raise SettingsError(f"{path} is no name of a picture; expected one that ends in .svg or .png")
    if path.suffix.lower() == ".png":
        _matplotlib()
    return path


def write(charts: list[Chart], path: str | Path) -> None:
    """Draw charts into a file, one below the other."""
    path = check(path)
    if path.suffix.lower() == ".svg":
        path.write_text(svg.picture(charts), encoding="utf-8")
        return
    figure_class = _matplotlib()
    heights = [svg.height_of(chart) / 100 for chart in charts]
    figure = figure_class(figsize=(7, 0.6 + 1.3 * sum(heights)), layout="constrained")
    all_axes = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, chart in zip(all_axes, charts, strict=True):
        axes.set_title(_plain(chart.title), loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        {Bars: _bars, Lines: _lines, Intervals: _intervals}[type(chart)](axes, chart)  # type: ignore[operator]
    figure.savefig(path, dpi=160)


def _matplotlib() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot", "drawing a PNG (an SVG needs nothing)") from None
    return Figure


def _plain(text: str) -> str:
    """A text without what Matplotlib would take as mathematics, or its font lacks."""
    return text.replace("$", r"\$")


def _bars(axes: Any, chart: Bars) -> None:
    names = list(chart.series)
    for s, name in enumerate(names):
        places = [-(i * (len(names) + 0.6) + s) for i in range(len(chart.labels))]
        values = [0.0 if value is None else value for value in chart.series[name]]
        axes.barh(places, values, 0.9, label=_plain(name), color=COLOURS[s % len(COLOURS)])
        for i, place in enumerate(places):
            axes.text(values[i] + chart.largest / 100, place, _plain(chart.text(name, i)), va="center", fontsize=8)
    middles = [-(i * (len(names) + 0.6) + (len(names) - 1) / 2) for i in range(len(chart.labels))]
    axes.set_yticks(middles, [_plain(label) for label in chart.labels])
    axes.set_xlim(0, 1.15 * chart.largest)
    axes.set_xlabel(chart.unit)
    if len(names) > 1:
        axes.legend(frameon=False, fontsize=8)


def _lines(axes: Any, chart: Lines) -> None:
    for s, (name, points) in enumerate(chart.series.items()):
        axes.plot(*zip(*points, strict=True), marker="o", label=_plain(name), color=COLOURS[s % len(COLOURS)])
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    if len(chart.series) > 1:
        axes.legend(frameon=False, fontsize=8)


def _intervals(axes: Any, chart: Intervals) -> None:
    for i, (low, value, high) in enumerate(chart.rows.values()):
        colour = COLOURS[(i + chart.first) % len(COLOURS)]
        axes.plot([low, high], [-i, -i], linewidth=3, color=colour)
        axes.plot([value], [-i], marker="o", color=colour)
    if chart.reference is not None:
        axes.axvline(chart.reference, color="#888888", linewidth=0.8)
    axes.set_yticks([-i for i in range(len(chart.rows))], [_plain(label) for label in chart.rows])
    axes.set_ylim(-len(chart.rows) + 0.4, 0.6)
    axes.set_xlabel(chart.unit)
