"""Filtering text by perplexity: of each record of a file a score, and those with a low one are written.

Records are lines, lines of JSON, or rows of Parquet (`snm.text.records`). A score is the record's perplexity, or the
ratio of its perplexities under two models (Moore and Lewis 2010). Scores are 32-bit floats, in memory and on disk, so a
record is kept or not whichever way the file is walked:

- once, where the limit is known: scores are compared and records written as they come;
- twice, for a share of the records (`keep`) and where the run can be resumed: scores go to a file first.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from snm import parallel
from snm.arguments import MAX_THREADS, choice, file_path, flag, functions, real_number, shown, whole_number
from snm.errors import InputError, MissingExtra, SettingsError
from snm.loading import load
from snm.model import LanguageModel
from snm.progress import Advance, Notify, Progress, ignore, silent
from snm.remote import Folder
from snm.scoring.lines import LineScores, score_block
from snm.scratch import scratch_folder
from snm.storage import replaced_file, turn
from snm.text.files import STDIN, BadLines, find_files, is_read_once, open_text, plain_size
from snm.text.records import (
    FORMATS,
    Batch,
    RecordWriter,
    block_of,
    check_formats,
    format_of,
    read_records,
    record_writer,
)
from snm.version import __version__

SCORE = np.dtype([("score", "<f4"), ("tokens", "<u4"), ("oov", "<u4")])
"""What is known of a record; the score of a record without words is NaN."""
BINS_PER_DECADE, DECADES = 100, (-4, 12)  # of the histogram: log10 of the scores
SCORES, DESCRIPTION = "scores", "filter.json"
QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class FilterReport:
    """What was read and kept. `blank` records have no words; they are not kept.

    `limit`: the largest score kept. `quantiles` of the scores: below the value is that share of the records, within
    1.2 %. `seconds`: of reading, scoring and writing.
    """

    records: int
    kept: int
    blank: int
    tokens: int
    oov: int
    limit: float | None
    quantiles: dict[str, float]
    seconds: float
    bad_lines: int


class TextPerplexity:
    """The perplexity of each of some texts: for filters of other programs.

    A text has one sentence a line. `spelled`: see `LanguageModel.score_sentences`. With `against`, another model, it is
    the ratio of the perplexity under the first model to that under the other. Pickled and copied by the models' paths.
    """

    def __init__(
        self, model: LanguageModel | str | Path, *, against: LanguageModel | str | Path | None = None,
        spelled: bool = True, threads: int = 1,
    ) -> None:  # fmt: skip
        self.model, self.against = _opened(model), None if against is None else _opened(against)
        self.spelled, self.threads = flag("spelled", spelled), whole_number("threads", threads, 1, MAX_THREADS)
        for one in (self.model, self.against):
            if one is not None:
                one._spelling_for(self.spelled)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """The perplexity of each text; NaN for one without words. (texts,) float32"""
        listed = list(texts)
        for text in listed:
            if not isinstance(text, str):
                raise InputError(f"{shown(text)} is no text; expected strings")
        if not listed:
            return np.empty(0, np.float32)
        block, lines = block_of(listed)
        found: np.ndarray = self.score(Batch(block, lines, lambda mask: mask), self.threads)["score"]
        return found

    def score(self, batch: Batch, threads: int = 1) -> np.ndarray:
        """Score, tokens and OOVs of each record of a batch. (records,) SCORE"""
        scores = self._of_records(self.model, batch, threads)
        logs = -scores.logprob10 / np.maximum(scores.scored, 1)
        if self.against is not None:
            other = self._of_records(self.against, batch, threads)
            logs += other.logprob10 / np.maximum(other.scored, 1)
        made = np.empty(len(logs), SCORE)
        with np.errstate(over="ignore"):
            made["score"] = 10.0**logs
        made["tokens"], made["oov"] = scores.tokens, scores.oov
        return made

    def _of_records(self, model: LanguageModel, batch: Batch, threads: int) -> LineScores:
        scores = score_block(model, batch.block, spelled=self.spelled, threads=threads)
        return scores if batch.lines is None else scores.of_records(batch.lines)

    @property
    def parallel(self) -> bool:
        """Whether several threads can score at the same time."""
        return all(model.scores_in_parallel for model in (self.model, self.against) if model is not None)


def _opened(model: LanguageModel | str | Path) -> LanguageModel:
    return model if isinstance(model, LanguageModel) else load(model)


@dataclass
class _Totals:
    """What is added up over the records."""

    records: int = 0
    kept: int = 0
    blank: int = 0
    tokens: int = 0
    oov: int = 0
    limit: float | None = None
    bins: np.ndarray = field(default_factory=lambda: np.zeros((DECADES[1] - DECADES[0]) * BINS_PER_DECADE, np.int64))

    def add(self, scores: np.ndarray, kept: np.ndarray) -> None:
        found = scores["score"][~np.isnan(scores["score"])]
        self.records += len(scores)
        self.blank += len(scores) - len(found)
        self.tokens += int(scores["tokens"].sum(dtype=np.int64))
        self.oov += int(scores["oov"].sum(dtype=np.int64))
        if kept.any():
            self.kept += int(kept.sum())
            self.limit = max(self.limit or 0.0, float(scores["score"][kept].max()))
        with np.errstate(divide="ignore"):
            bins = (np.log10(found) - DECADES[0]) * BINS_PER_DECADE
        self.bins += np.bincount(np.clip(bins, 0, len(self.bins) - 1).astype(np.int64), minlength=len(self.bins))

    def quantiles(self) -> dict[str, float]:
        below = np.cumsum(self.bins)
        if not below[-1]:
            return {}
        at = np.searchsorted(below, np.array(QUANTILES) * below[-1])
        values = 10.0 ** ((at + 0.5) / BINS_PER_DECADE + DECADES[0])
        return {f"{share:.0%}": float(f"{value:.4g}") for share, value in zip(QUANTILES, values, strict=True)}


@dataclass(frozen=True)
class _Limits:
    """Which records are kept: those with a score in a range, or a share of them, the lowest scores."""

    low: float
    high: float
    keep: float | None

    def mask(self, scores: np.ndarray) -> np.ndarray:
        """Of all records, if a share is kept. NaN is never kept."""
        if self.keep is None:
            inside: np.ndarray = (scores >= np.float32(self.low)) & (scores <= np.float32(self.high))
            return inside
        wanted = round(self.keep * int(np.count_nonzero(~np.isnan(scores))))
        if not wanted:
            return np.zeros(len(scores), bool)
        last = np.partition(scores, wanted - 1)[wanted - 1]  # NaNs are sorted to the end
        kept: np.ndarray = scores < last
        ties = np.flatnonzero(scores == last)
        kept[ties[: wanted - np.count_nonzero(kept)]] = True  # of equal ones, the first in the file
        return kept


@dataclass(frozen=True)
class _Job:
    """A run of `filter_text`."""

    scorer: TextPerplexity
    limits: _Limits
    source: str
    form: str
    text_field: str
    threads: int
    bad: BadLines
    totals: _Totals

    def batches(self) -> Iterator[Batch]:
        return read_records(self.source, self.form, self.text_field, self.bad)

    def scored(self, batches: Iterator[Batch], work: Callable[[Batch, np.ndarray], Any]) -> Iterator[Any]:
        """What `work` makes of each batch and its scores, in order, by all threads."""
        at_once = self.threads if self.scorer.parallel else 1

        def make(batch: Batch) -> Any:
            return work(batch, self.scorer.score(batch, self.threads // at_once))

        return parallel.ordered(make, batches, at_once)


def filter_text(
    model: LanguageModel | str | Path, source: str | Path, output: str | Path | None, *,
    max_ppl: float | None = None, min_ppl: float | None = None, keep: float | None = None,
    against: LanguageModel | str | Path | None = None, max_ratio: float | None = None, field: str = "text",
    format: str | None = None, spelled: bool = True, histogram: str | Path | None = None, threads: int = 1,
    on_error: str = "fail", resume: bool = False, progress: Progress = silent, notify: Notify = ignore,
) -> FilterReport:  # fmt: skip
    """Write the records of a file that a model finds probable, as they are and in their order, to the file `output`.

    - `max_ppl`, `min_ppl`: of the perplexity of a record.
    - `keep`: the share of the records with words, from 0 to 1, that is kept: those with the lowest scores, and of equal
      ones the first.
    - `against`: another model; the score is then the ratio of the perplexities under `model` and under `against`, and
      `max_ratio` its limit.
    - `source` and `output` may be `-`. Without `output`, text is only scored, for the report and the histogram.
    - `format`: `text`, `jsonl` or `parquet`, by default what the name of the file says; `field` has the text of the
      last two.
    - `histogram`: a picture of the scores is written to this file (PNG).
    - `resume`: scores are kept in the folder `output`.work while the run lasts, and used if it is killed and started
      again.
    - `spelled`: see `LanguageModel.score_sentences`. `on_error`: see `Settings`.
    """
    functions(progress=progress, notify=notify)
    limits = _limits(max_ppl, min_ppl, keep, max_ratio, against is not None, output is not None)
    threads = whole_number("threads", threads, 1, MAX_THREADS)
    source, output = _checked_paths(source, output)
    form = choice("format", format_of(source) if format is None else format, FORMATS)
    check_formats(source, output, form)
    if flag("resume", resume) and (is_read_once(source) or output in (None, STDIN)):
        raise SettingsError("resume needs a file to read and a file to write; name both")
    if histogram is not None:
        _require_matplotlib()
    scorer = TextPerplexity(model, against=against, spelled=spelled)
    begun, bad = time.perf_counter(), BadLines(on_error)
    with ExitStack() as resources:
        if limits.keep is not None and (source == STDIN or Path(source).is_fifo()):
            source = resources.enter_context(_spooled(source, notify))
        job = _Job(scorer, limits, source, form, field, threads, bad, _Totals())
        if limits.keep is None and not resume:
            _one_pass(job, output, progress, notify)
        else:
            place = resources.enter_context(_place(job, output, resume, notify))
            _two_passes(job, output, place, progress, notify)
    bad.report("standard input" if source == STDIN else source, notify)
    if histogram is not None:
        _draw(job, str(file_path("histogram", histogram)))
    t = job.totals
    return FilterReport(
        t.records, t.kept, t.blank, t.tokens, t.oov, t.limit, t.quantiles(), time.perf_counter() - begun, bad.count
    )


def _limits(
    max_ppl: float | None, min_ppl: float | None, keep: float | None, max_ratio: float | None, ratio: bool, writes: bool
) -> _Limits:
    if (max_ratio is not None or ratio) and (max_ppl, min_ppl) != (None, None):
        raise SettingsError("with another model the score is a ratio; give max_ratio or keep, not max_ppl and min_ppl")
    if max_ratio is not None and not ratio:
        raise SettingsError("max_ratio is that of the perplexities under two models; name the other one with against")
    if keep is not None and (max_ppl, min_ppl, max_ratio) != (None, None, None):
        raise SettingsError("keep excludes limits of the perplexity or the ratio; give one of them")
    if writes and (max_ppl, min_ppl, max_ratio, keep) == (None, None, None, None):
        raise SettingsError("nothing says which text is kept; give max_ppl, min_ppl, keep, or max_ratio with against")
    given = {"max_ppl": max_ppl, "min_ppl": min_ppl, "max_ratio": max_ratio, "keep": keep}
    numbers = {name: real_number(name, value) for name, value in given.items() if value is not None}
    for name, number in numbers.items():
        if not 0 < number < math.inf or (name == "keep" and number > 1):
            wanted = "a share above 0 and up to 1 (30% is 0.3)" if name == "keep" else "a number above 0"
            raise SettingsError(f"{name} is {number:g}; expected {wanted}")
    high = numbers.get("max_ppl", numbers.get("max_ratio", math.inf))
    return _Limits(numbers.get("min_ppl", 0.0), high, numbers.get("keep"))


def _checked_paths(source: str | Path, output: str | Path | None) -> tuple[str, str | None]:
    files = find_files([str(file_path("source", source))])
    if len(files) != 1:
        raise SettingsError(f"{shown(str(source))} are {len(files):,} files; filter one at a time, or join them")
    named = None if output is None else str(output) if str(output) == STDIN else str(file_path("output", output))
    if named not in (None, STDIN) and os.path.realpath(str(named)) == os.path.realpath(files[0]):
        raise SettingsError(f"{named} is the text itself; write to another file")
    return files[0], named


@contextmanager
def _spooled(source: str, notify: Notify) -> Iterator[str]:
    """Standard input, or a pipe, in a file of the system's temporary folder (TMPDIR)."""
    with scratch_folder(notify) as folder:
        path = folder / "input"
        with open_text(source) as stream, open(path, "wb") as file:
            shutil.copyfileobj(stream, file)
        yield str(path)


# ---------------------------------------------------------------------------------------------
# one pass, or two


def _one_pass(job: _Job, output: str | None, progress: Progress, notify: Notify) -> None:
    """Score and write at once."""
    with _writing(job, output, notify) as writer, progress("filtering", plain_size(job.source)) as bar:

        def work(batch: Batch, scores: np.ndarray) -> tuple[int, np.ndarray, np.ndarray, Any]:
            kept = job.limits.mask(scores["score"])
            packed = writer.pack(batch.select(kept)) if writer is not None else None
            return len(batch.block), scores, kept, packed

        for size, scores, kept, packed in job.scored(job.batches(), work):
            job.totals.add(scores, kept)
            if writer is not None:
                writer.write(packed)
            bar(size)


def _two_passes(job: _Job, output: str | None, place: Path, progress: Progress, notify: Notify) -> None:
    """Write all scores to a file, then the records that are kept."""
    with progress("scoring", plain_size(job.source)) as bar:
        _score_all(job, place / SCORES, bar)
    empty = not (place / SCORES).stat().st_size
    scores = np.zeros(0, SCORE) if empty else np.memmap(place / SCORES, SCORE, "r")
    kept = job.limits.mask(np.array(scores["score"]))
    job.totals.add(scores, kept)
    with _writing(job, output, notify) as writer, progress("writing", plain_size(job.source)) as bar:
        if writer is None:
            return
        packed = parallel.ordered(lambda one: (len(one[0].block), writer.pack(one[0].select(one[1]))),
                                  _with_masks(job.batches(), kept), job.threads)  # fmt: skip
        for size, part in packed:
            writer.write(part)
            bar(size)


def _with_masks(batches: Iterator[Batch], kept: np.ndarray) -> Iterator[tuple[Batch, np.ndarray]]:
    first = 0
    for batch in batches:
        n = _records_in(batch)
        yield batch, kept[first : first + n]
        first += n
    if first != len(kept):
        raise InputError(f"the text has {first:,} records now, and had {len(kept):,}; leave it alone while it is read")


def _records_in(batch: Batch) -> int:
    return batch.block.count(b"\n") if batch.lines is None else len(batch.lines)


def _score_all(job: _Job, path: Path, bar: Advance) -> None:
    """Append the scores of all batches to a file that may have those of the first ones."""
    with open(path, "ab") as file:
        done = file.tell() // SCORE.itemsize
        file.truncate(done * SCORE.itemsize)
        for size, scores in job.scored(_after(job.batches(), done, file, bar), lambda batch, s: (len(batch.block), s)):
            file.write(scores.tobytes())
            file.flush()
            bar(size)


def _after(batches: Iterator[Batch], done: int, file: IO[bytes], bar: Advance) -> Iterator[Batch]:
    """The batches after the first `done` records; what the file has of a batch in part is cut off."""
    first = 0
    for batch in batches:
        after = first + _records_in(batch)
        if after <= done:
            bar(len(batch.block))
            first = after
            continue
        if first < done:
            file.truncate(first * SCORE.itemsize)
            done = first
        yield batch


@contextmanager
def _writing(job: _Job, output: str | None, notify: Notify) -> Iterator[RecordWriter | None]:
    """What writes records; the file has its name when it is complete."""
    if output is None:
        yield None
        return
    with replaced_file(output, notify) as stream:
        writer = record_writer(stream.buffer, output, job.form, job.source)  # type: ignore[attr-defined]
        try:
            yield writer
        except BaseException:
            writer.drop()
            raise
        writer.finish()
        stream.flush()


# ---------------------------------------------------------------------------------------------
# resuming


@contextmanager
def _place(job: _Job, output: str | None, resume: bool, notify: Notify) -> Iterator[Path]:
    """The folder of the scores: a temporary one, or one that a run that is killed leaves behind."""
    if not resume:
        with scratch_folder(notify) as folder:
            yield folder
        return
    place = Path(os.path.realpath(str(output)) + ".work")
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise SettingsError(f"cannot write to {place}: {error.strerror}") from error
    with turn(place, wait=False) as ours:
        if not ours:
            raise SettingsError(f"{place} is in use by another run; wait for it, or choose another name")
        _check_same(place, _description(job), notify)
        try:
            yield place
        except BaseException:
            notify(f"the scores so far are kept in {place}; the same command goes on from there")
            raise
        shutil.rmtree(place)


def _description(job: _Job) -> dict[str, Any]:
    """All that scores depend on."""
    status, scorer = Path(job.source).stat(), job.scorer
    models = [model for model in (scorer.model, scorer.against) if model is not None]
    return {
        "version": __version__,
        "text": [os.path.realpath(job.source), status.st_size, status.st_mtime_ns],
        "format": [job.form, job.text_field, job.bad.on_error],
        "models": [json.dumps(model.manifest["files"], sort_keys=True) for model in models],
        "spelled": scorer.spelled,
    }


def _check_same(place: Path, described: dict[str, Any], notify: Notify) -> None:
    """Raise an error if a folder has the scores of another run, or something else."""
    file = place / DESCRIPTION
    if not file.exists():
        if any(not path.name.startswith(".") for path in place.iterdir()):  # what was being written is hidden
            raise SettingsError(f"{place} exists and is not the work of a filter; choose another name")
        Folder(place).write(DESCRIPTION, json.dumps(described).encode())
        return
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = {}
    different = next((name for name in described if found.get(name) != described[name]), None)
    if different is not None:
        raise SettingsError(
            f"{place} has the scores of another run: its {different} was different; remove the folder, or choose "
            f"another name"
        )
    notify(f"going on with the scores in {place}")


# ---------------------------------------------------------------------------------------------
# the histogram


def _require_matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError:
        raise MissingExtra("matplotlib", "plot", "drawing a histogram") from None
    return matplotlib.figure


def _draw(job: _Job, path: str) -> None:
    """A histogram of the scores, with the largest that was kept."""
    totals, ratio = job.totals, job.scorer.against is not None
    figure = _require_matplotlib().Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    filled = np.flatnonzero(totals.bins)
    first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 1)
    edges = 10.0 ** (np.arange(first, last + 1) / BINS_PER_DECADE + DECADES[0])
    axes.stairs(totals.bins[first:last], edges, fill=True, color="#4477aa")
    axes.set_xscale("log")
    axes.set_xlabel("ratio of perplexities" if ratio else "perplexity")
    axes.set_ylabel("records")
    if totals.limit is not None:
        axes.axvline(totals.limit, color="#cc3311", label=f"{totals.kept:,} of {totals.records:,} kept")
        axes.legend()
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise SettingsError(f"cannot write the file {path}: {error.strerror}; choose another name") from error
