"""The charts of a report: for its page, for terminals and for files."""

from __future__ import annotations

from collections.abc import Sequence

from snm.markup.charts import Bars, Intervals, short
from snm.reporting.contributions import Contributions
from snm.reporting.figures import Compared
from snm.reporting.sizes import Sizes
from snm.reporting.words import Band

MOST_BARS = 24  # of a chart; the rest is added up


def perplexity(bits: float | None) -> str:
    """The perplexity of so many bits a word, as text."""
    return "–" if bits is None else short(2.0 ** min(bits, 1000.0))


def of_bands(title: str, bands: Sequence[Band], models: Sequence[str]) -> Bars:
    """How hard the words of each band are, under each model."""
    return Bars(
        title,
        [band.name for band in bands],
        {name: [band.bits[i] for band in bands] for i, name in enumerate(models)},
        {name: [perplexity(band.bits[i]) for band in bands] for i, name in enumerate(models)},
        "bar: bits a word; figure: perplexity",
    )


def of_perplexities(comparison: Compared) -> Intervals:
    rows = {m.name: (m.interval.low, m.interval.value, m.interval.high) for m in comparison.models}
    return Intervals("Perplexity, with intervals of 95 %", rows, "perplexity; lower is better")


def of_ratios(comparison: Compared) -> Intervals | None:
    """How models differ from the first; None where there is nothing to compare."""
    rows = {m.name: m.difference.ratio for m in comparison.models if m.difference is not None}
    if not rows:
        return None
    percents = {
        name: (100 * (ratio.low - 1), 100 * (ratio.value - 1), 100 * (ratio.high - 1)) for name, ratio in rows.items()
    }
    first = comparison.models[0].name
    return Intervals(f"Perplexity compared with {first}", percents, "% more perplexity; below 0 is better", 0.0, 1)


def of_contributions(made: Contributions) -> Bars:
    parts = made.parts[:MOST_BARS]
    shares: list[float | None] = [100 * part.share for part in parts]
    texts = [f"{100 * part.share:.1f} %" for part in parts]
    return Bars(made.title, [part.name for part in parts], {"share": shares}, {"share": texts}, f"% of {made.of}")


def of_sizes(made: Sizes) -> list[Bars]:
    """Rows, links and bytes, as far as they are known."""
    charts = []
    for what in ("rows", "links", "bytes"):
        parts = [(part.name, getattr(part, what)) for part in made.parts]
        known = [(name, float(n)) for name, n in parts if n is not None]
        if known:
            shown = known if len(known) <= MOST_BARS else known[: MOST_BARS - 1]
            if shown is not known:
                shown = [*shown, ("the rest", sum(n for _, n in known[MOST_BARS - 1 :]))]
            values: list[float | None] = [n for _, n in shown]
            charts.append(Bars(f"{made.title}: {what}", [name for name, _ in shown], {what: values}))
    return charts
