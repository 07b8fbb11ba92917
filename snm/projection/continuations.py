"""Rows of continuations: how many longer contexts a word follows, as Kneser-Ney's lower orders count.

A short context is used where a longer one lacks the word. There, a word that follows many contexts is more probable
than one that follows the same context often. The rows stand beside those of an SNM, and the gate weighs them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snm.kernels import projection as kernels
from snm.layouts.matrix import count_codes
from snm.projection.ngrams import Ngrams

DISCOUNT = 0.75  # of every count: what is left of a row's sum is for other words


@dataclass(frozen=True)
class Continuations:
    """For each row, its continuation row: the same words, each with its share of the longer contexts."""

    weights: np.ndarray  # (links,) float32
    codes: np.ndarray  # (rows,) float32: count code of the number of contexts, with words counted each
    lengths: np.ndarray  # (rows,) float32: words that follow a longer context
    sums: np.ndarray  # (rows,) float32: of the weights; 0 where there is no row

    @classmethod
    def none(cls, ngrams: Ngrams) -> Continuations:
        """No continuation rows at all."""
        links, rows = len(ngrams.targets), len(ngrams.features)
        return cls(np.zeros(links, np.float32), *np.zeros((3, rows), np.float32))

    def found(self, rows: np.ndarray, links: np.ndarray) -> np.ndarray:
        """What the gate sees of the rows of events, and the weight of their targets. (n, k) to (4, k, n) float32"""
        made = np.zeros((4, rows.shape[1], len(rows)), np.float32)
        here = rows >= 0
        for part, values in zip(made, (self.codes, self.lengths, self.sums), strict=False):
            part[:] = np.where(here, values[rows], 0).T
        made[3] = np.where(links >= 0, self.weights[links], 0).T
        return made


def count_continuations(ngrams: Ngrams, parents: np.ndarray) -> Continuations:
    counts = np.zeros(len(ngrams.targets), np.float32)
    kernels.count_continuations(parents, ngrams.offsets, ngrams.targets, counts)
    starts = ngrams.offsets[:-1]
    totals = np.add.reduceat(counts.astype(np.float64), starts)
    lengths = np.add.reduceat((counts > 0).astype(np.int64), starts)
    per_link = np.repeat(np.maximum(totals, 1), np.diff(ngrams.offsets))
    weights = (np.maximum(counts - DISCOUNT, 0) / per_link).astype(np.float32)
    sums = np.add.reduceat(weights.astype(np.float64), starts)
    codes = count_codes(np.maximum(totals, 1)).astype(np.float32)
    return Continuations(weights, codes, np.maximum(lengths, 1).astype(np.float32), sums.astype(np.float32))
