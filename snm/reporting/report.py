"""`report` and `compare`: everything that is measured of models on a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from snm.arguments import MAX_THREADS, file_path, functions, shown, whole_number
from snm.describing import describe
from snm.errors import SettingsError
from snm.loading import load
from snm.model import LanguageModel
from snm.progress import Notify, Progress, ignore, silent
from snm.reporting import page
from snm.reporting import words as word_figures
from snm.reporting.basis import NOTHING, Basis, basis_of
from snm.reporting.bootstrap import difference, interval, perplexity, resample
from snm.reporting.contributions import contributions
from snm.reporting.curves import curves
from snm.reporting.figures import Compared, Detail, Findings, ModelFigures
from snm.reporting.scores import Scored, score, without_nan
from snm.reporting.sizes import model_bytes, sizes
from snm.reporting.texts import Sample, read_sample
from snm.storage import replaced_file
from snm.text.files import Sources

SAMPLE = 16 << 20  # bytes of text
RESAMPLES = 1000
Models = Mapping[str, str | Path | LanguageModel] | Iterable[str | Path | LanguageModel] | str | Path | LanguageModel


class Comparison(Compared):
    """The perplexities of models on a text, and how they differ. `snm compare` prints it."""

    def _repr_html_(self) -> str:
        return page.in_notebook(self)


class Report(Findings):
    """A report on models. `save` writes it as a page."""

    def save(self, path: str | Path) -> None:
        """Write the report as one page of HTML, which needs no other file."""
        with replaced_file(str(file_path("path", path))) as stream:
            stream.write(page.page(self))

    def _repr_html_(self) -> str:
        return page.framed(self)


def report(
    models: Models, text: Sources, *, sample: int = SAMPLE, resamples: int = RESAMPLES, threads: int = 1,
    seed: int = 1, on_error: str = "fail", progress: Progress = silent, notify: Notify = ignore,
) -> Report:  # fmt: skip
    """Measure one or several models on a text: perplexity, what is hard, what brings how much, how they differ.

    `models`: paths or models, or a mapping of names to them. `text`: as in `train`. All of it is read, but only an even
    sample of `sample` bytes is scored, which bounds time and memory; a text up to this size is scored as a whole.
    Intervals are of 95 %, by `resamples` draws of the bootstrap over sentences.
    """
    with ExitStack() as opened:
        scored, basis, found, kept = _measure(
            models, text, sample, resamples, threads, seed, on_error, progress, notify, opened
        )
        return _report(scored, basis, found, kept, progress)


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
) -> tuple[list[Scored], Basis, Comparison, Sample]:  # fmt: skip
    functions(progress=progress, notify=notify)
    threads = whole_number("threads", threads, 1, MAX_THREADS)
    resamples, seed = whole_number("resamples", resamples, 1), whole_number("seed", seed, 0)
    named = _open(models, progress, opened)
    kept = read_sample(text, whole_number("sample", sample, 1), on_error, progress, notify)
    if not kept.whole:
        notify(f"{kept.name}: {kept.kept:,} of {kept.read:,} bytes are scored, evenly spread; see sample (--sample)")
    scored = [score(name, model, kept, threads, progress) for name, model in named.items()]
    basis = basis_of(scored, kept.words)
    return scored, basis, _compare(scored, basis, kept, resamples, seed, progress), kept


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
            made[str(name)] = opened.enter_context(load(model, progress=progress))
    return made


def _named(models: Sequence[str | Path | LanguageModel]) -> dict[str, str | Path | LanguageModel]:
    """Models by the names of their folders, with as many of the folders above as tell them apart."""
    paths = [Path(str(model.path if isinstance(model, LanguageModel) else model)) for model in models]
    for depth in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["/".join(path.parts[-depth:]).removesuffix(".model").removesuffix(".arpa") for path in paths]
        if len(set(names)) == len(names):
            return dict(zip(names, models, strict=True))
    return {f"{name} ({i})": model for i, (name, model) in enumerate(zip(names, models, strict=True), 1)}


def _compare(
    scored: list[Scored], basis: Basis, kept: Sample, resamples: int, seed: int, progress: Progress
) -> Comparison:
    n, lines = len(scored), len(kept.lines)
    sums = [np.bincount(one.line, without_nan(one.logs), lines) for one in scored]
    units = [np.bincount(one.line, ~np.isnan(one.logs), lines) for one in scored]
    with_words = units[0] > 0
    columns = np.array([*sums, *units, *basis.sums, basis.units])[:, with_words]
    with progress("drawing sentences", resamples) as bar:
        drawn = resample(columns, resamples, seed, bar)
    figures = []
    for i, one in enumerate(scored):
        found = None
        if i and basis.kind != NOTHING and basis.units.any():
            pair = drawn[:, 2 * n], drawn[:, 2 * n + i], drawn[:, -1]
            found = difference(columns[2 * n], columns[2 * n + i], columns[-1], pair)
        spread = interval(one.report.ppl, perplexity(drawn[:, i], drawn[:, n + i]))
        speed = one.report.tokens / max(one.report.seconds, 1e-9)
        kind = one.model.manifest["kind"]
        figures.append(ModelFigures(one.name, kind, one.report, spread, model_bytes(one.model), speed, found))
    return Comparison(kept.name, kept.read, kept.kept, resamples, basis.kind, basis.text, figures)


def _report(scored: list[Scored], basis: Basis, found: Comparison, kept: Sample, progress: Progress) -> Report:
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
        found, word_figures.by_length(basis, kept.words), word_figures.by_frequency(aligned, own),
        [one.name for one in aligned], word_figures.hardest_words(aligned, own, least), least,
        word_figures.hardest_places(aligned, own), word_figures.hardest_sentences(scored, basis),
        word_figures.unknown_words(first), better, worse, details,
    )  # fmt: skip
