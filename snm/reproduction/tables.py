"""The rows of the paper's tables: their models, the settings of each, and the paper's perplexities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snm.adjustment.settings import TrainingSettings
from snm.baselines.neural.settings import CELLS, NetworkSettings
from snm.settings import ALL_EVENTS, Settings, paper_settings

PARTS = ("valid", "test")
REFERENCE = "kn5"
ORDERS = (5, 6, 7, 8)


@dataclass(frozen=True)
class Line:
    """A row of a table: a model, or a mixture of several, and the perplexity that the paper has for it."""

    label: str
    members: tuple[str, ...]
    paper: float


def _by_order(label: str, names: Sequence[str], values: Sequence[float]) -> list[Line]:
    return [
        Line(f"{label} {n}-gram", tuple(name.format(n) for name in names), value)
        for n, value in zip(ORDERS, values, strict=True)
    ]


BENCHMARK = ("kn5", "hsme5", "sbo5", "snm5-skip", "snm10-skip", "rnn256", "rnn512", "rnn1024")
"""All models of the paper's table 3."""
TABLES: dict[str, list[Line]] = {
    "table1": [
        *_by_order("KN", ["kn{}"], [67.6, 64.3, 63.2, 62.9]),
        *_by_order("Katz", ["katz{}"], [79.9, 80.5, 82.2, 83.5]),
        *_by_order("SNM", ["snm{}"], [70.8, 67.0, 65.4, 64.8]),
        *_by_order("KN+SNM", ["kn{}", "snm{}"], [66.5, 63.0, 61.7, 61.4]),
    ],
    "table2": [
        Line("SNM5-skip (no n-grams)", ("snm5-skip-only",), 69.8),
        Line("SNM5-skip", ("snm5-skip",), 54.2),
        Line("KN5+SNM5-skip (no n-grams)", ("kn5", "snm5-skip-only"), 56.5),
        Line("KN5+SNM5-skip", ("kn5", "snm5-skip"), 53.6),
    ],
    "table3": [
        Line("KN5", ("kn5",), 67.6),
        Line("HSME", ("hsme5",), 101.3),
        Line("SBO", ("sbo5",), 87.9),
        Line("SNM5-skip", ("snm5-skip",), 54.2),
        Line("SNM10-skip", ("snm10-skip",), 52.9),
        Line("RNN256", ("rnn256",), 58.2),
        Line("RNN512", ("rnn512",), 54.6),
        Line("RNN1024", ("rnn1024",), 51.3),
        Line("LSTM1024", ("lstm1024",), math.nan),
        Line("SNM10-skip, our estimation", ("snm10-skip, ours",), math.nan),
        Line("SNM10-skip+RNN1024", ("snm10-skip", "rnn1024"), 41.3),
        Line("SNM10-skip+LSTM1024", ("snm10-skip", "lstm1024"), math.nan),
        Line("SNM10-skip, ours+RNN1024", ("snm10-skip, ours", "rnn1024"), math.nan),
        Line("SNM10-skip, ours+LSTM1024", ("snm10-skip, ours", "lstm1024"), math.nan),
        Line("Previous best", ("kn5", "hsme5", "sbo5", "rnn256", "rnn512", "rnn1024"), 43.8),
        Line("ALL", BENCHMARK, 41.0),
        Line("ALL+LSTM1024", (*BENCHMARK, "lstm1024"), math.nan),
    ],
    "ablations": [
        Line("No ablation", ("snm5, both counts doubled",), 70.8),
        Line("Feature", ("snm5, both counts doubled, -feature",), 71.9),
        Line("Feature type", ("snm5, both counts doubled, -type",), 71.4),
        Line("Feature count", ("snm5, both counts doubled, -feature-count",), 70.6),
        Line("Feature count: second bucket", ("snm5, link count doubled",), 70.3),
        Line("Link count", ("snm5, both counts doubled, -link-count",), 73.2),
        Line("Link count: second bucket", ("snm5, feature count doubled",), 70.6),
    ],
}


@dataclass(frozen=True)
class Limits:
    """How far the SNMs of the tables depart from the paper, for texts that would not fit; and a given vocabulary."""

    prune: int = 1
    events: int = ALL_EVENTS
    slots: int | None = None
    vocab: Path | None = None

    def __str__(self) -> str:
        parts = [
            (self.vocab is not None, f"vocabulary of {self.vocab and self.vocab.name}"),
            (self.prune > 1, f"features seen fewer than {self.prune} times left out"),
            (self.events < ALL_EVENTS, f"about {self.events:,} events to train on"),
            (self.slots is not None, f"{self.slots or 0:,} slots for metafeature weights"),
        ]
        return "".join(f", {text}" for wanted, text in parts if wanted)


BUCKETS = {
    "both counts doubled": ("double", "double"),
    "link count doubled": ("single", "double"),
    "feature count doubled": ("double", "single"),
}


def settings_of(name: str, limits: Limits | None = None, **more: Any) -> Settings:
    """The settings of a model of the tables: an SNM's are the paper's, except for names that end in "ours"."""
    limits = limits or Limits()
    kind, *how = name.split(", ")
    common = {"vocab": limits.vocab, **more}
    for baseline in ("kn", "katz", "sbo", "hsme"):
        if kind.removeprefix(baseline).isdecimal():
            return Settings(model=baseline, order=int(kind.removeprefix(baseline)), **common)
    for cell in CELLS:
        if kind.removeprefix(cell).isdecimal():
            network = NetworkSettings(cell=cell, hidden=int(kind.removeprefix(cell)))
            return Settings(model="rnn", network=network, **common)
    training: dict[str, Any] = {"events": limits.events, "slots": limits.slots}
    if how == ["ours"]:
        prune = max(limits.prune, Settings.prune)
        return Settings(features=kind, training=TrainingSettings(**training), prune=prune, **common)
    features, links = BUCKETS[how[0] if how else "both counts doubled"]
    return paper_settings(
        kind, metafeatures=", ".join(["all", *how[1:]]), feature_buckets=features, link_buckets=links,
        training=training, prune=limits.prune, **common,
    )  # fmt: skip


def markdown(name: str, corpus: str, rows: list[dict[str, Any]], caption: str) -> str:
    """A table of the paper as Markdown."""
    return f"## {name} on {corpus}\n\n{caption}\n\n{markdown_table(rows)}\n"


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table, the first row's keys as its head."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([_cell(row[column]) for column in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 0.01 else f"{value:.3f}" if abs(value) < 10 else f"{value:,.2f}"
    if isinstance(value, list):
        return " ".join(f"{w:.2f}" for w in value)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
