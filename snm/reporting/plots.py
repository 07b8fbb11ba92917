"""The charts of --plot: of a text, a model, a pruning and a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from snm.errors import InputError
from snm.layouts.tokens import END
from snm.markup.charts import Bars, Chart, Lines
from snm.model import LanguageModel, PerplexityReport
from snm.reporting import charts
from snm.reporting.basis import basis_of
from snm.reporting.curves import curves
from snm.reporting.scores import scored_of
from snm.reporting.sizes import model_bytes, sizes
from snm.reporting.words import by_frequency, by_length
from snm.text.encoding import Text


def of_text(model: LanguageModel, text: Text, threads: int) -> tuple[PerplexityReport, list[Chart]]:
    """The perplexity of a text, and charts of it by the frequency of the word and the length of the sentence."""
    if not text.events:
        raise InputError("no words to score; expected one sentence a line")
    begun = time.perf_counter()
    p = model.probabilities(text.tokens, threads=threads)
    seconds = time.perf_counter() - begun
    ends = text.tokens[text.targets()] == END
    sentence = np.cumsum(ends) - ends
    scored = scored_of("perplexity", model, text, p, sentence, [], seconds)
    words = np.bincount(sentence) - 1
    basis = basis_of([scored], words)
    unit = "word" if model.vocabulary.tokenizer is None else "piece"
    return scored.report, [
        charts.of_bands(f"By frequency of the {unit} (rank)", by_frequency([scored], basis), ["perplexity"]),
        charts.of_bands(f"By {unit}s in the sentence", by_length(basis, words), ["perplexity"]),
    ]


def of_model(model: LanguageModel) -> list[Chart]:
    """Rows, links and bytes by type, and learning curves."""
    return [*(chart for made in sizes(model) for chart in charts.of_sizes(made)), *curves(model)]


def of_pruning(before: LanguageModel, after: LanguageModel) -> list[Chart]:
    """What is left of a model, and the sizes that were tried for a loss."""
    made: list[Chart] = []
    for name, values in {
        "MB": [model_bytes(model) / 1e6 for model in (before, after)],
        "links": [float(model.manifest["links"]) for model in (before, after)],
    }.items():
        made.append(Bars(f"Size, {name}", ["before", "after"], {name: list(values)}))
    return [*made, *(curve for curve in curves(after) if curve.title == "Pruning")]


def of_growth(growth: Sequence[tuple[int, int, int]]) -> list[Chart]:
    """Rows and links by the length of a text. growth: tokens, rows and links, see `snm.planning.plan.Plan`"""
    names = enumerate(("rows", "links"), 1)
    lines = {name: [(point[0] / 1e6, point[k] / 1e6) for point in growth] for k, name in names}
    return [Lines("Growth of rows and links", lines, "million tokens", "million")] if len(growth) > 1 else []
