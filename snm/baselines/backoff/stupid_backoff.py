"""Stupid backoff, normalised.

The score of a word is its relative frequency after the longest context that it was seen after, times 0.4 for each
longer context. Scores do not sum to one. Divided by their sum Z over the vocabulary they are a backoff model: the
backoff weight of a context is 0.4 Z' / Z, with Z' the sum for the shorter context. A context that was never seen
multiplies all scores by the same factor, so it changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snm.baselines.backoff.orders import Orders, Rows
from snm.layouts.counts import Counts

FACTOR = 0.4
NUMBERS = np.dtype([("frequency", "<f4"), ("total", "<f4")])


class StupidBackoff:
    """See `snm.baselines.backoff.estimation.Estimator`.

    Events bring along the word's relative frequency after the shorter context, and the sum of scores there.
    """

    def __init__(self) -> None:
        self.details: dict[str, Any] = {"factor": FACTOR}
        self.warnings: list[str] = []

    def prepare(self, orders: Orders, unigrams: Counts) -> None:
        self._vocabulary = len(orders.extractor.vocabulary)

    def estimate_unigrams(self, unigrams: Counts) -> tuple[np.ndarray, float, np.ndarray]:
        found = unigrams.link_counts / unigrams.feature_counts[0]
        of_words = np.zeros(self._vocabulary, NUMBERS)
        of_words["frequency"][unigrams.targets], of_words["total"] = found, 1.0
        return found, 0.0, of_words

    def estimate(self, order: int, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        frequencies = rows.counts / rows.spread(rows.sums(rows.counts.astype(np.float64)))
        brought = rows.brought
        shorter = brought["total"][rows.offsets[:-1]].astype(np.float64)
        totals = 1.0 + FACTOR * (shorter - rows.sums(brought["frequency"].astype(np.float64)))
        numbers = np.empty(len(frequencies), NUMBERS)
        numbers["frequency"], numbers["total"] = frequencies, rows.spread(totals)
        return frequencies / rows.spread(totals), FACTOR * shorter / totals, numbers
