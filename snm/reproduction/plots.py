"""Plots of the reproduced tables. They need Matplotlib (the extra `plot`)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from snm.errors import MissingExtra


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtra("matplotlib", "plot", "drawing a plot") from None
    return plt


def plot(name: str, corpus: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Plot our perplexities relative to Kneser-Ney beside the paper's."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.32 * len(rows)), layout="constrained")
    places = np.arange(len(rows))[::-1]
    axes.axvline(1.0, color="#888888", linewidth=0.8, zorder=0)
    axes.hlines(places, 0, 1, transform=axes.get_yaxis_transform(), color="#eeeeee", linewidth=0.8, zorder=0)
    for column, label, style in (
        ("paper / KN5", "paper, on 0.8 G words", {"facecolors": "white", "edgecolors": "#777777"}),
        ("test / KN5", f"here, on {corpus}", {"color": "#1b6ca8"}),
    ):
        axes.scatter([row[column] or np.nan for row in rows], places, 42, label=label, zorder=3, **style)
    for row, place in zip(rows, places, strict=True):
        ours, paper = row["test / KN5"], row["paper / KN5"]
        texts = f"{ours:.3f}", "" if paper is None else f"{paper:.3f}"
        for x, (text, colour) in zip((1.02, 1.10), zip(texts, ("#1b6ca8", "#777777"), strict=True), strict=True):
            axes.text(x, place, text, color=colour, va="center", fontsize=9, transform=axes.get_yaxis_transform())
    axes.set_yticks(places, [row["model"] for row in rows])
    axes.set_xlabel("perplexity relative to 5-gram Kneser-Ney (lower is better)")
    axes.set_title(name, loc="left", fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def plot_frontier(corpus: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Plot perplexity against words scored a second on one core, for the rows whose speed is known."""
    plt = _pyplot()
    known = [row for row in rows if row["words/s"]]
    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    best = [row for row in known if not any(o["words/s"] > row["words/s"] and o["test"] <= row["test"] for o in known)]
    best.sort(key=lambda row: row["words/s"])
    axes.plot([row["words/s"] for row in best], [row["test"] for row in best], color="#cccccc", linewidth=1, zorder=1)
    axes.scatter([row["words/s"] for row in known], [row["test"] for row in known], 42, color="#1b6ca8", zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(plt.MaxNLocator(8))
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_locator(plt.NullLocator())
    axes.set_xlabel("words scored a second on one core")
    axes.set_ylabel("test perplexity")
    axes.set_title(f"perplexity against cost, {corpus}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.2, y=0.12)
    figure.draw_without_rendering()
    _label(axes, [(row["words/s"], row["test"]) for row in known], [row["model"] for row in known])
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _label(axes: Any, points: list[tuple[float, float]], labels: list[str]) -> None:
    """Write each label as close to its point as possible without overlapping another label or a point."""
    from matplotlib.transforms import Bbox

    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in axes.transData.transform(points)]
    rows = [y for far in range(12) for y in (3 + 11 * far, -11 * (far + 1))]
    for point, label in zip(points, labels, strict=True):
        for y, (x, side) in itertools.product(rows, ((8, "left"), (-8, "right"))):
            line = {"arrowstyle": "-", "color": "#bbbbbb", "shrinkB": 3} if abs(y) > 11 else None
            note = axes.annotate(label, point, (x, y), textcoords="offset points", ha=side, fontsize=8, arrowprops=line)
            box = note.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.figure.bbox.x1 and axes.bbox.y0 <= box.y0
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()
