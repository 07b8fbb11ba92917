"""What a report says, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from snm.markup.charts import Lines
from snm.model import PerplexityReport
from snm.reporting.bootstrap import Difference, Interval
from snm.reporting.contributions import Contributions
from snm.reporting.sizes import Sizes
from snm.reporting.words import Band, Line, Word

FEW_SENTENCES = 100  # of which an interval says little


@dataclass(frozen=True)
class ModelFigures:
    """What a report says of one model."""

    name: str
    kind: str
    perplexity: PerplexityReport
    interval: Interval
    """Of the perplexity."""
    bytes: int
    words_per_second: float
    difference: Difference | None = None
    """From the first model, on what all models can be compared by; None of the first, and where they cannot be."""


@dataclass(frozen=True)
class Compared:
    """The perplexities of models on a text, and how they differ."""

    text: str
    text_bytes: int
    sample_bytes: int
    resamples: int
    basis: str
    """What the models are compared by: `unk`, `spelled`, `known` or `none`, see `basis_text`."""
    basis_text: str
    models: list[ModelFigures]

    @property
    def few(self) -> bool:
        """Whether the text has so few sentences that its intervals say little."""
        return self.models[0].perplexity.sentences < FEW_SENTENCES

    @property
    def whole(self) -> bool:
        return self.sample_bytes == self.text_bytes


@dataclass(frozen=True)
class Detail:
    """What a report says of how one model came about."""

    name: str
    description: list[tuple[str, str]]
    contributions: list[Contributions]
    curves: list[Lines]
    sizes: list[Sizes]


@dataclass(frozen=True)
class Findings:
    """What a report says."""

    comparison: Compared
    by_length: list[Band]
    by_frequency: list[Band]
    aligned: list[str]
    """The models that divide the text in the same words as the first: those of `by_frequency` and of hard words."""
    hardest_words: list[Word]
    least_times: int
    hardest_places: list[Word]
    hardest_sentences: list[Line]
    unknown_words: list[tuple[str, int]]
    better: dict[str, list[Line]] = field(default_factory=dict)
    """Of each model but the first: sentences that it predicts better than the first by most bits; and worse."""
    worse: dict[str, list[Line]] = field(default_factory=dict)
    details: list[Detail] = field(default_factory=list)
