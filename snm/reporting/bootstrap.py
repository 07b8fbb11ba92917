"""The bootstrap over sentences (Efron; Koehn 2004 for paired tests): how far figures would vary with another text.

Sentences are drawn with replacement, as many as the text has; all models are measured on the same drawn sentences. Of a
long text, neighbouring sentences are drawn together, so memory and time have a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snm.progress import Advance, ignore

GROUPS = 1 << 14  # of neighbouring sentences, at most
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A figure, and between which values it is with a confidence of LEVEL."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A model's perplexity divided by another's: the ratio, and how probable one as far from 1 is by chance."""

    ratio: Interval
    p_value: float
    better: float  # the share of sentences that the model predicts better


def resample(columns: np.ndarray, resamples: int, seed: int, advance: Advance = ignore) -> np.ndarray:
    """The sums of columns over drawn sentences. (columns, sentences) to (resamples, columns)"""
    n = columns.shape[1]
    if n > GROUPS:
        columns = np.add.reduceat(columns, np.linspace(0, n, GROUPS, endpoint=False).astype(np.int64), axis=1)
        n = GROUPS
    random, sums = np.random.default_rng(seed), np.empty((resamples, len(columns)))
    for i in range(resamples):
        times = np.bincount(random.integers(0, n, n), minlength=n)
        sums[i] = columns @ times
        advance(1)
    return sums


def perplexity(logs: np.ndarray | float, units: np.ndarray | float) -> np.ndarray:
    """Of sums of ln P and numbers of words."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found: np.ndarray = np.exp(-np.asarray(logs) / np.asarray(units))
    return found


def interval(value: float, drawn: np.ndarray) -> Interval:
    """The interval of a figure, from its values on drawn sentences."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return Interval(value, value, value)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def difference(
    first: np.ndarray, second: np.ndarray, units: np.ndarray, drawn: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> Difference:
    """How the second of two models compares with the first.

    ln P and numbers of words of each sentence (sentences,), and the sums of the three over drawn ones (resamples,). The
    p-value is two-sided: the share of draws in which the difference of ln P a word is as far from that of the text as
    that is from 0, with one draw more on either side. n sentences cannot show less than 2^(1 - n), however alike their
    draws are: as probable is it that all of them favour the same model by chance.
    """
    total = float((first.sum() - second.sum()) / units.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = (drawn[0] - drawn[1]) / drawn[2]
    differences = differences[np.isfinite(differences)]
    as_far = int((np.abs(differences - total) >= abs(total) * (1 - 1e-12)).sum())
    counted = units > 0
    better = float((second > first)[counted].mean() + (second == first)[counted].mean() / 2)
    ratio = interval(float(np.exp(total)), np.exp(differences))
    least = 2.0 ** (1 - min(int(counted.sum()), 1000))
    return Difference(ratio, max(least, (1 + as_far) / (1 + len(differences))), better)
