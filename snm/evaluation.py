"""The perplexity report, and the proof that probabilities sum to one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from snm import storage
from snm.corpus import Text
from snm.errors import FormatError, InputError
from snm.model import LanguageModel, SnmModel
from snm.vocabulary import BEGIN, END, UNKNOWN

SUM_TOLERANCE = 1e-5


@dataclass(frozen=True)
class PerplexityReport:
    """Perplexity of a text. Targets are all words and every `</S>`.

    In an open vocabulary `ppl` counts out-of-vocabulary words as `<UNK>`; in a closed one they are
    not predicted and not counted. `ppl_no_oov` leaves them out in both.
    """

    sentences: int
    tokens: int
    oov: int
    oov_rate: float
    logprob10: float
    ppl: float
    ppl_no_oov: float
    seconds: float


def perplexity(model: LanguageModel, text: Text, threads: int = 1) -> PerplexityReport:
    """Score a text."""
    if not text.events:
        raise InputError("no words to score; expected one sentence a line")
    begun = time.perf_counter()
    p = model.probabilities(text.tokens, threads)
    seconds = time.perf_counter() - begun
    target = text.tokens != BEGIN
    unknown = text.tokens == UNKNOWN
    scored = target & ~unknown if model.vocabulary.closed else target
    with np.errstate(divide="ignore"):
        logs = np.log(p[scored])
        known = np.log(p[target & ~unknown])
    oov = int(unknown.sum())
    return PerplexityReport(
        text.sentences, text.events, oov, oov / text.events, float(logs.sum()) / math.log(10),
        float(np.exp(-logs.mean())), float(np.exp(-known.mean())), seconds,
    )  # fmt: skip


@dataclass(frozen=True)
class SumReport:
    """How far the probabilities of all words are from one, over a number of contexts."""

    contexts: int
    with_unknown: int
    at_start: int
    worst: float


def check_sums(
    model: LanguageModel,
    text: Text,
    contexts: int = 1000,
    seed: int = 1,
    advance: Callable[[int], None] = lambda n: None,
) -> SumReport:
    """Add up P(w | h) over the whole vocabulary after contexts h of the text drawn at random.

    Where the text has them, a tenth of the contexts are sentence starts and a tenth end in an
    out-of-vocabulary word.
    """
    if not text.events:
        raise InputError("no words to take contexts from; expected one sentence a line")
    starts, chosen = _choose_contexts(text, contexts, seed)
    worst, with_unknown, at_start = 0.0, 0, 0
    for k in chosen:
        context = text.tokens[starts[k] : k]
        p = model.distribution(context)
        worst = max(worst, abs(float(p.sum()) - 1.0), 0.0 if (p >= 0).all() else math.inf)
        with_unknown += bool((context == UNKNOWN).any())
        at_start += len(context) == 1
        advance(1)
    return SumReport(len(chosen), with_unknown, at_start, worst)


def _choose_contexts(text: Text, contexts: int, seed: int) -> tuple[np.ndarray, list[int]]:
    """For every token where its sentence begins, and the targets whose contexts are looked at."""
    tokens = text.tokens
    begins = np.flatnonzero(tokens == BEGIN)
    starts = np.repeat(begins, np.diff(np.append(begins, len(tokens))))
    random = np.random.default_rng(seed)
    targets = np.flatnonzero(tokens != BEGIN)
    pools = [targets[tokens[targets - 1] == BEGIN], targets[tokens[targets - 1] == UNKNOWN]]
    chosen = [random.choice(pool, min(len(pool), contexts // 10), replace=False) for pool in pools]
    rest = max(0, contexts - sum(map(len, chosen)))
    chosen.append(random.choice(targets, min(rest, len(targets)), replace=False))
    return starts, np.concatenate(chosen).tolist()


def generated_text(model: LanguageModel, sentences: int, seed: int = 1) -> Text:
    """Sentences drawn from the model itself, for want of a text."""
    drawn = [model.generate(seed + i, max_words=40, unknown=True) for i in range(sentences)]
    tokens = [np.append(model.context(sentence), np.uint32(END)) for sentence in drawn]
    return Text(np.concatenate(tokens), len(tokens))


def verify(
    model: SnmModel, text: Text, contexts: int = 1000, advance: Callable[[int], None] = lambda n: None
) -> SumReport:
    """Check the checksums, the order of the rows and links, the row sums, and that probabilities sum to one."""
    storage.check_files(model.path, model.manifest)
    features, offsets = model.index.features, model.offsets
    if not (features[1:] > features[:-1]).all():
        raise FormatError(f"{model.path}: feature keys are not in order; rebuild the model")
    if offsets[0] != 0 or offsets[-1] != len(model.targets) or not (offsets[1:] > offsets[:-1]).all():
        raise FormatError(f"{model.path}: the rows' offsets are not in order; rebuild the model")
    added = np.add.reduceat(model.weights, offsets[:-1], dtype=np.float64)
    if not np.allclose(added, model.sums, rtol=1e-6, atol=0):
        raise FormatError(f"{model.path}: stored row sums are not the sums of the rows; rebuild the model")
    report = check_sums(model, text, contexts, advance=advance)
    if not report.worst <= SUM_TOLERANCE:
        raise FormatError(
            f"{model.path}: probabilities sum to 1 within {report.worst:.2g} only; expected {SUM_TOLERANCE}; rebuild it"
        )
    return report
