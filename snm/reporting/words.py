"""Which words and sentences are hard: by how frequent a word is, by the length of the sentence, and one by one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.layouts.tokens import END, UNKNOWN
from snm.model import LanguageModel
from snm.reporting.basis import Basis
from snm.reporting.scores import Scored, without_nan
from snm.scoring.mixture import MixtureModel
from snm.scoring.model import SnmModel
from snm.scoring.sources import SourcesModel

LENGTHS = 5, 10, 20, 40, 80  # words of a sentence: the last of each band
MOST_RANKS = 6  # powers of ten
SHOWN, SHOWN_SENTENCES = 15, 8
LEAST_WORDS = 5  # of a sentence that is listed
BEFORE = 8  # words before a word that is listed
MOST_SHOWN = 80  # words of a sentence that is listed


@dataclass(frozen=True)
class Band:
    """A part of a text: how many words, and how hard they are for each model."""

    name: str
    words: int
    bits: list[float | None]
    """Bits a word under each model; None where a model has none that count."""
    share: float
    """Its part of all bits of the first model."""


@dataclass(frozen=True)
class Word:
    """A word that is hard, on average or in a place; `before` are the words before it there."""

    word: str
    bits: list[float | None]
    times: int = 1
    before: str = ""


@dataclass(frozen=True)
class Line:
    """A sentence: its perplexity under each model, and its words with their bits under the first, as models are
    compared; 0 of words that do not count."""

    ppl: list[float | None]
    words: list[tuple[str, float]]


def by_frequency(scored: Sequence[Scored], basis: Basis) -> list[Band]:
    """Bits a word by the rank of the word among all words of the first model, the most frequent first.

    `scored` are models whose targets are those of the first.
    """
    first = scored[0]
    ranks = ranks_of(first.model)[first.words]
    edges = [10**k for k in range(1, MOST_RANKS + 1)]
    band = np.searchsorted(edges, ranks) + 1
    band[first.words == END], band[first.words == UNKNOWN] = 0, len(edges) + 2
    names = ["sentence end"]
    names += [f"{low + 1:,}–{high:,}" for low, high in zip([0, *edges], edges, strict=False)]
    return _bands([*names, "rarer", "unknown"], band, [basis.logs[i] for i in range(len(scored))])


def by_length(basis: Basis, words: np.ndarray) -> list[Band]:
    """Bits a word by the number of words in the sentence; of models that divide text in different ways too.

    words: of each line. (lines,)
    """
    band = np.searchsorted(LENGTHS, words)
    names = [f"{low + 1}–{high}" for low, high in zip((0, *LENGTHS), LENGTHS, strict=False)]
    units = np.bincount(band, basis.units, len(names) + 1)
    sums = [-np.bincount(band, one, len(names) + 1) / math.log(2) for one in basis.sums]
    total = max(float(sums[0].sum()), 1e-300)
    return [
        Band(name, int(units[i]), [float(one[i] / units[i]) for one in sums], float(sums[0][i]) / total)
        for i, name in enumerate([*names, f"{LENGTHS[-1] + 1} and more"])
        if units[i]
    ]


def _bands(names: list[str], band: np.ndarray, logs: list[np.ndarray]) -> list[Band]:
    """The bands that have words. band: the number of each target's"""
    n = len(names)
    counts = [np.bincount(band, ~np.isnan(one), n) for one in logs]
    sums = [-np.bincount(band, without_nan(one), n) / math.log(2) for one in logs]
    total = max(float(sums[0].sum()), 1e-300)
    return [
        Band(
            name, int(counts[0][i]), [float(s[i] / c[i]) if c[i] else None for s, c in zip(sums, counts, strict=True)],
            float(sums[0][i]) / total,
        )
        for i, name in enumerate(names)
        if any(c[i] for c in counts)
    ]  # fmt: skip


def ranks_of(model: LanguageModel) -> np.ndarray:
    """The rank of each word of a model, 1 for the most frequent, by P(word) without context. (words,) int64

    A network has no such probability: there the order of the vocabulary counts, which is by frequency too.
    """
    p = _unigrams(model)
    p = -np.arange(len(model.vocabulary), dtype=np.float64) if p is None else p.astype(np.float64)
    p[: UNKNOWN + 1] = -math.inf
    ranks = np.empty(len(p), np.int64)
    ranks[np.argsort(-p, kind="stable")] = np.arange(1, len(p) + 1)
    return ranks


def _unigrams(model: LanguageModel) -> np.ndarray | None:
    """The weights of words without context, of the first member that has some. (words,)"""
    found: np.ndarray | None = None
    if isinstance(model, SnmModel):
        found = model.matrix.unigrams
    elif isinstance(model, BackoffModel):
        targets, p = model.row(0)  # the key of the empty context is the smallest
        found = np.zeros(len(model.vocabulary))
        found[targets] = p
    elif isinstance(model, SourcesModel):
        first = model.members[0]
        found = first.matrix.unigrams[first.words.ids] * first.words.scale
    elif isinstance(model, MixtureModel):
        for member, words in zip(model.members, model._maps, strict=True):
            own = _unigrams(member)
            if own is not None:
                found = words.scale * own[words.ids]
                break
    return found


# ---------------------------------------------------------------------------------------------
# one by one


def hardest_words(scored: Sequence[Scored], basis: Basis, least: int) -> list[Word]:
    """The known words that take most bits on average under the first model, of those seen `least` times."""
    first = scored[0]
    counted = first.known & ~np.isnan(basis.logs[0]) & (first.words != END)
    ids, n = first.words[counted], len(first.model.vocabulary)
    times = np.bincount(ids, minlength=n)
    sums = [-np.bincount(ids, without_nan(basis.logs[i][counted]), n) / math.log(2) for i in range(len(scored))]
    bits = np.where(times >= least, sums[0] / np.maximum(times, 1), 0)
    best = np.argsort(-bits, kind="stable")[:SHOWN]
    words = first.model.vocabulary.words
    return [Word(words[i], [float(s[i] / times[i]) for s in sums], int(times[i])) for i in best.tolist() if bits[i] > 0]


def hardest_places(scored: Sequence[Scored], basis: Basis) -> list[Word]:
    """The known words that take most bits where they are, under the first model, with the words before them."""
    first = scored[0]
    logs = np.where(first.known & (first.words != END), basis.logs[0], np.nan)
    order = np.argsort(without_nan(logs), kind="stable")[:SHOWN]
    begins = np.searchsorted(first.line, first.line[order])
    found = []
    for at, begin in zip(order.tolist(), begins.tolist(), strict=True):
        words = words_of(first, int(first.line[at]))
        if not math.isnan(logs[at]) and at - begin < len(words):
            bits = [_bits(basis.logs[i][at]) for i in range(len(scored))]
            before = words[max(0, at - begin - BEFORE) : at - begin]
            dots = "… " if at - begin > BEFORE else ""
            found.append(Word(words[at - begin], bits, before=dots + " ".join(before)))
    return found


def unknown_words(first: Scored) -> list[tuple[str, int]]:
    """The unknown words of a text that are most frequent, and how often they occur."""
    counts: Counter[str] = Counter()
    for line in np.unique(first.line[~first.known]).tolist():
        begin, end = np.searchsorted(first.line, [line, line + 1])
        words = words_of(first, line)
        if len(words) == end - begin - 1:
            counts.update(words[i] for i in np.flatnonzero(~first.known[begin : end - 1]).tolist())
    return counts.most_common(2 * SHOWN)


def hardest_sentences(scored: Sequence[Scored], basis: Basis) -> list[Line]:
    """The sentences of the highest perplexity under the first model, of those with some words."""
    long_enough = basis.units > LEAST_WORDS
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.where(long_enough, -basis.sums[0] / basis.units, -math.inf)
    order, different = np.argsort(-cost, kind="stable"), dict[bytes, int]()
    for i in order[: int(long_enough.sum())].tolist():
        different.setdefault(scored[0].divided[i], i)
        if len(different) == SHOWN_SENTENCES:
            break
    return [_line(scored, basis, i) for i in different.values()]


def most_different(scored: Sequence[Scored], basis: Basis, other: int) -> tuple[list[Line], list[Line]]:
    """The sentences that a model predicts better than the first by most bits, and those that it predicts worse."""
    gain = basis.sums[other] - basis.sums[0]
    order = np.argsort(-gain, kind="stable")
    better = [int(i) for i in order[: SHOWN_SENTENCES // 2] if gain[i] > 0]
    worse = [int(i) for i in order[::-1][: SHOWN_SENTENCES // 2] if gain[i] < 0]
    lines = [[_line([scored[0], scored[other]], basis, i, (0, other)) for i in some] for some in (better, worse)]
    return lines[0], lines[1]


def _line(scored: Sequence[Scored], basis: Basis, line: int, models: tuple[int, ...] | None = None) -> Line:
    first = scored[0]
    begin, end = np.searchsorted(first.line, [line, line + 1])
    words = [*words_of(first, line), "↵"]
    bits = [_bits(log) or 0.0 for log in basis.logs[0][begin:end].tolist()]
    if len(bits) != len(words):  # words that the text does not tell
        bits = [0.0] * len(words)
    shown = list(zip(words, bits, strict=True))
    if len(shown) > MOST_SHOWN:
        shown = [*shown[:MOST_SHOWN], ("…", 0.0)]
    numbers = range(len(scored)) if models is None else models
    units = basis.units[line]
    return Line([float(np.exp(min(700.0, -basis.sums[i][line] / units))) for i in numbers], shown)


def words_of(one: Scored, line: int) -> list[str]:
    """The words of a line, as the model divides it."""
    return one.model.vocabulary.split(one.divided[line].decode())[1]


def _bits(log: float) -> float | None:
    return None if math.isnan(log) else float(-log / math.log(2))
