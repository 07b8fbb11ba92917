"""Measuring speed, and verifying models: checksums, consistency, and that probabilities sum to one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from snm import storage
from snm.arguments import file_path, functions, whole_number
from snm.errors import FormatError, InputError
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.loading import is_arpa, load
from snm.model import LanguageModel
from snm.progress import Advance, Notify, Progress, ignore, silent
from snm.text.encoding import Text, are_targets, encode_files
from snm.text.files import Sources, are_given

SUM_TOLERANCE = 1e-5
MAX_GENERATED = 10_000  # sentences
SPEED_SECONDS = 1.0  # least duration of a measurement of speed, if the text is long enough


def speed(path: str | Path, sources: Sources) -> float:
    """Words and sentence ends scored a second, with one thread, measured for SPEED_SECONDS or the whole text."""
    model = load(path)
    tokens = encode_files(sources, model.vocabulary).tokens
    ends = np.flatnonzero(tokens == END) + 1
    model.probabilities(tokens[: ends[0]])  # compiles kernels and maps arrays
    n = 256  # sentences: some models score many at once
    while True:
        text = tokens[: ends[min(n, len(ends)) - 1]]
        begun = time.perf_counter()
        model.probabilities(text)
        seconds = time.perf_counter() - begun
        if seconds > SPEED_SECONDS or n >= len(ends):
            return float(np.count_nonzero(are_targets(text, model.vocabulary.first_field)) / seconds)
        n *= 4


@dataclass(frozen=True)
class SumReport:
    """Sums of the probabilities of all words, over a number of contexts."""

    contexts: int
    with_unknown: int  # contexts that contain an out-of-vocabulary word
    at_start: int  # contexts at the start of a sentence
    worst: float  # largest distance of a sum from one, or of a probability from the score of the text


def check_sums(
    model: LanguageModel, text: Text, contexts: int = 1000, seed: int = 1, advance: Advance = ignore
) -> SumReport:
    """Sum P(w | h) over the whole vocabulary, for contexts h sampled from a text.

    Up to a tenth of the contexts are sentence starts, and up to a tenth end in an out-of-vocabulary word. The
    probability of the text's own word is compared with its score.
    """
    if not text.events:
        raise InputError("no words to take contexts from; expected one sentence a line")
    starts, chosen = _choose_contexts(text, contexts, seed)
    scored = model.probabilities(text.tokens)
    worst, with_unknown, at_start = 0.0, 0, 0
    for k in chosen:
        context = text.tokens[starts[k] : k]
        p = model.distribution(context)
        worst = max(worst, abs(float(p.sum()) - 1.0), abs(float(p[text.tokens[k]] - scored[k])))
        worst = max(worst, 0.0 if (p >= 0).all() else math.inf)
        with_unknown += bool((context == UNKNOWN).any())
        at_start += len(context) == 1
        advance(1)
    return SumReport(len(chosen), with_unknown, at_start, worst)


def _choose_contexts(text: Text, contexts: int, seed: int) -> tuple[np.ndarray, list[int]]:
    """Where the segment of each token begins (tokens,), and the positions of the sampled targets."""
    tokens = text.tokens
    begins = np.flatnonzero(tokens == BEGIN)
    starts = np.repeat(begins, np.diff(np.append(begins, len(tokens))))
    random = np.random.default_rng(seed)
    targets = np.flatnonzero(text.targets())
    pools = [targets[tokens[targets - 1] == BEGIN], targets[tokens[targets - 1] == UNKNOWN]]
    chosen = [random.choice(pool, min(len(pool), contexts // 10), replace=False) for pool in pools]
    rest = max(0, contexts - sum(map(len, chosen)))
    chosen.append(random.choice(targets, min(rest, len(targets)), replace=False))
    return starts, np.concatenate(chosen).tolist()


def generated_text(model: LanguageModel, sentences: int, seed: int = 1) -> Text:
    """Sentences sampled from the model itself."""
    drawn = [model.sample(seed=seed + i, max_words=40, unknown=True) for i in range(sentences)]
    tokens = [np.append(model.context(sentence), np.uint32(END)) for sentence in drawn]
    return Text(np.concatenate(tokens), len(tokens))


def _spelling_faults(model: LanguageModel) -> Iterator[tuple[bool, str]]:
    """Check that the probabilities of all strings outside the vocabulary sum to one."""
    if model.spelling is not None:
        yield from model.spelling.faults()
        known = model.spelling.outside(model.vocabulary).known
        yield abs(known - model.spelling.known) > SUM_TOLERANCE, "the spelling model is not that of this vocabulary"


def verify(
    path: str | Path, sources: Sources | None = None, *, contexts: int = 1000, on_error: str = "fail",
    progress: Progress = silent, notify: Notify = ignore,
) -> SumReport:  # fmt: skip
    """Check a model's checksums, every row and link, the row sums, and that probabilities sum to one.

    Contexts are sampled from `sources` or, without any, from sentences that the model generates. A fault raises
    `FormatError`. `on_error`: see `snm.Settings`.
    """
    functions(progress=progress, notify=notify)
    path, contexts = file_path("path", path), whole_number("contexts", contexts, 1)
    if not is_arpa(path):
        storage.check_files(path)
    model = load(path, progress=progress)
    for wrong, what in chain(model.faults(), _spelling_faults(model)):
        if wrong:
            raise FormatError(f"{model.path}: {what}; rebuild the model")
    if are_given(sources):
        text = encode_files(sources, model.vocabulary, on_error=on_error, notify=notify)
    else:
        text = generated_text(model, min(max(1, contexts // 20), MAX_GENERATED))
    with progress("adding up", min(contexts, text.events)) as advance:
        report = check_sums(model, text, contexts, advance=advance)
    if not report.worst <= SUM_TOLERANCE:
        raise FormatError(
            f"{model.path}: probabilities sum to 1 only within {report.worst:.2g}; expected {SUM_TOLERANCE}; rebuild it"
        )
    return report
