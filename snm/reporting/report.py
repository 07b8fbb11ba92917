"""`report` and `compare`: everything that is measured of models on a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from snm.arguments import MAX_THREADS, file_path, functions, shown, whole_number
from snm.describing import describe
from snm.errors import SettingsError
from snm.loading import load
from snm.markup.charts import Lines
from snm.model import LanguageModel, PerplexityReport
from snm.progress import Notify, Progress, ignore, silent
from snm.reporting import words as word_figures
from snm.reporting.basis import NOTHING, Basis, basis_of
from snm.reporting.bootstrap import Difference, Interval, difference, interval, perplexity, resample
from snm.reporting.contributions import Contributions, contributions
from snm.reporting.curves import curves
from snm.reporting.scores import Scored, score
from snm.reporting.sizes import Sizes, model_bytes, sizes
from snm.reporting.texts import Sample, read_sample
from snm.reporting.words import Band, Line, Word
from snm.text.files import Sources

SAMPLE = 16 << 20  # bytes of text
RESAMPLES = 1000
FEW_SENTENCES = 100  # of which an interval says little
Models = Mapping[str, str | Path | LanguageModel] | Iterable[str | Path | LanguageModel] | str | Path | LanguageModel


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
class Comparison:
    """The perplexities of models on a text, and how they differ. `snm compare` prints it."""

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

    def _repr_html_(self) -> str:
        from snm.reporting.page import summary

        return summary(self)


@dataclass(frozen=True)
class Detail:
    """What a report says of how one model came about."""

    name: str
    description: list[tuple[str, str]]
    contributions: list[Contributions]
    curves: list[Lines]
    sizes: list[Sizes]


@dataclass(frozen=True)
class Report:
    """A report on models. `save` writes it as a page."""

    comparison: Comparison
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

    def save(self, path: str | Path) -> None:
        """Write the report as one page of HTML, which needs no other file."""
        from snm.reporting.page import page

        file_path("path", path).write_text(page(self), encoding="utf-8")

    def _repr_html_(self) -> str:
        from snm.reporting.page import framed

        return framed(self)


def report(
    models: Models, text: Sources, *, sample: int = SAMPLE, resamples: int = RESAMPLES, threads: int = 1,
    seed: int = 1, on_error: str = "fail", progress: Progress = silent, notify: Notify = ignore,
) -> Report:  # fmt: skip
    """Measure one or several models on a text: perplexity, what is hard, what brings how much, how they differ.

    `models`: paths or models, or a mapping of names to them. All of `text` is read, but only an even sample of `sample`
    bytes is scored, which bounds time and memory; a text up to this size is scored as a whole. Intervals are of 95 %, by
    `resamples` draws of the bootstrap over sentences.
    """
    with ExitStack() as opened:
        scored, basis, found, lines = _measure(
            models, text, sample, resamples, threads, seed, on_error, progress, notify, opened
        )
        return _report(scored, basis, found, lines, progress)


def compare(
    models: Models, text: Sources, *, sample: int = SAMPLE, resamples: int = RESAMPLES, threads: int = 1,
    seed: int = 1, on_error: str = "fail", progress: Progress = silent, notify: Notify = ignore,
) -> Comparison:  # fmt: skip
    """Compare models on a text, by paired bootstrap over sentences. Arguments: see `report`."""
    with ExitStack() as opened:
        return _measure(models, text, sample, resamples, threads, seed, on_error, progress, notify, opened)[2]


def _measure(
    models: Models, text: Sources, sample: int, resamples: int, threads: int, seed: int, on_error: str,
    progress: Progress, notify: Notify, opened: ExitStack,
) -> tuple[list[Scored], Basis, Comparison, list[bytes]]:  # fmt: skip
    functions(progress=progress, notify=notify)
    threads = whole_number("threads", threads, 1, MAX_THREADS)
    resamples, seed = whole_number("resamples", resamples, 1), whole_number("seed", seed, 0)
    named = _open(models, progress, opened)
    kept = read_sample(text, whole_number("sample", sample, 1), on_error, progress, notify)
    if not kept.whole:
        notify(f"{kept.name}: {kept.kept:,} of {kept.read:,} bytes are scored, evenly spread; see sample (--sample)")
    scored = [score(name, model, kept, threads, progress) for name, model in named.items()]
    basis = basis_of(scored, kept.lines)
    return scored, basis, _compare(scored, basis, kept, resamples, seed, progress), kept.lines


def _open(models: Models, progress: Progress, opened: ExitStack) -> dict[str, LanguageModel]:
    """Models by their names. Those that are opened here are closed in the end."""
    if isinstance(models, str | Path | LanguageModel):
        models = [models]
    if not isinstance(models, Iterable):
        raise SettingsError(f"models is {shown(models)}; expected paths or models, or a mapping of names to them")
    given = dict(models) if isinstance(models, Mapping) else _named(list(models))
    if not given:
        raise SettingsError("no model given; expected one or more")
    made: dict[str, LanguageModel] = {}
    for name, model in given.items():
        if isinstance(model, LanguageModel):
            made[str(name)] = model
        else:
            made[str(name)] = opened.enter_context(load(file_path("model", model), progress=progress))
    return made


def _named(models: Sequence[str | Path | LanguageModel]) -> dict[str, str | Path | LanguageModel]:
    """Models by the names of their folders, with as many of the folders above as tell them apart."""
    paths = [Path(model.path if isinstance(model, LanguageModel) else file_path("model", model)) for model in models]
    for depth in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["/".join(path.parts[-depth:]).removesuffix(".model") for path in paths]
        if len(set(names)) == len(names):
            return dict(zip(names, models, strict=True))
    return {f"{name} ({i})": model for i, (name, model) in enumerate(zip(names, models, strict=True), 1)}


def _compare(
    scored: list[Scored], basis: Basis, kept: Sample, resamples: int, seed: int, progress: Progress
) -> Comparison:
    n, lines = len(scored), len(kept.lines)
    sums = [np.bincount(one.line, np.nan_to_num(one.logs), lines) for one in scored]
    units = [np.bincount(one.line, ~np.isnan(one.logs), lines) for one in scored]
    with_words = units[0] > 0
    columns = np.array([*sums, *units, *basis.sums, basis.units])[:, with_words]
    with progress("drawing sentences", resamples) as bar:
        drawn = resample(columns, resamples, seed, bar)
    figures = []
    for i, one in enumerate(scored):
        found = None
        if i and basis.kind != NOTHING:
            pair = drawn[:, 2 * n], drawn[:, 2 * n + i], drawn[:, -1]
            found = difference(columns[2 * n], columns[2 * n + i], columns[-1], pair)
        spread = interval(one.report.ppl, perplexity(drawn[:, i], drawn[:, n + i]))
        speed = one.report.tokens / max(one.report.seconds, 1e-9)
        kind = one.model.manifest["kind"]
        figures.append(ModelFigures(one.name, kind, one.report, spread, model_bytes(one.model), speed, found))
    return Comparison(kept.name, kept.read, kept.kept, resamples, basis.kind, basis.text, figures)


def _report(
    scored: list[Scored], basis: Basis, found: Comparison, lines: list[bytes], progress: Progress
) -> Report:
    first = scored[0]
    numbers = [i for i, one in enumerate(scored) if one.is_aligned(first)]
    aligned = [scored[i] for i in numbers]
    own = Basis(basis.kind, [basis.logs[i] for i in numbers], basis.sums, basis.units)
    least = 2 if len(first.words) < 20_000 else 5
    better, worse = {}, {}
    for i, one in enumerate(scored):
        if i and basis.kind != NOTHING:
            better[one.name], worse[one.name] = word_figures.most_different(scored, basis, i)
    details = [
        Detail(
            one.name, describe(one.model.manifest, one.model.path),
            contributions(one.model, one.text.tokens, progress), list(curves(one.model)), sizes(one.model),
        )
        for one in scored
    ]  # fmt: skip
    return Report(
        found, word_figures.by_length(scored, basis, lines), word_figures.by_frequency(aligned, own),
        [one.name for one in aligned], word_figures.hardest_words(aligned, own, least), least,
        word_figures.hardest_places(aligned, own), word_figures.hardest_sentences(scored, basis),
        word_figures.unknown_words(first), better, worse, details,
    )  # fmt: skip
