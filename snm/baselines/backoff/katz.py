"""Katz backoff with Good-Turing discounts.

Counts up to 5 are discounted by the order's Katz ratios; larger counts are not. The probability mass that discounting
frees goes to the words not seen after the context, in proportion to their probabilities after the shorter context.
Where all counts of a context are large and nothing is freed, one is added to the count of the context, as other
toolkits do. Unigrams are relative frequencies; a word that was not seen counts once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snm.baselines.backoff.estimation import HIGHEST_COUNT
from snm.baselines.backoff.orders import Orders, Rows
from snm.layouts.counts import Counts

MAX_DISCOUNTED = 5  # larger counts are not discounted
MIN_UNSEEN = 1e-12  # mass of unseen words, below which rounding decides
FALLBACK = 0.5
"""Taken off each count up to MAX_DISCOUNTED in an order whose ratios are undefined or out of range."""


class Katz:
    """See `snm.baselines.backoff.estimation.Estimator`. Events bring along the probability of the shorter n-gram."""

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}
        self.warnings: list[str] = []

    def prepare(self, orders: Orders, unigrams: Counts) -> None:
        """Estimate the ratios."""
        self._vocabulary = len(orders.extractor.vocabulary)
        statistics = [orders.mark(order, HIGHEST_COUNT).tolist() for order in range(2, orders.highest + 1)]
        self.ratios, fallen_back = _ratios(statistics)
        self.details = {"ratios": self.ratios[:, 1 : MAX_DISCOUNTED + 1].tolist(), "fallen_back": fallen_back}
        self.warnings = [
            f"order {order}: too few n-grams to estimate discounts from; "
            f"{FALLBACK} is taken off counts up to {MAX_DISCOUNTED}"
            for order in fallen_back
        ]

    def estimate_unigrams(self, unigrams: Counts) -> tuple[np.ndarray, float, np.ndarray]:
        found = unigrams.link_counts / unigrams.feature_counts[0]
        self._words = len(found)
        of_words = np.zeros(self._vocabulary, np.float64)
        of_words[unigrams.targets] = found
        return found, 0.0, of_words

    def estimate(self, order: int, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        kept = rows.counts * self.ratios[order - 1, np.minimum(rows.counts, MAX_DISCOUNTED + 1)]
        totals = rows.sums(rows.counts.astype(np.float64))
        totals += rows.sums(kept) >= totals - 1e-9  # nothing is freed
        found = kept / rows.spread(totals)
        sums = rows.sums(found)
        full = rows.lengths == self._words  # every word was seen: the freed mass stays in the row
        found /= rows.spread(np.where(full, sums, 1.0))
        unseen = 1.0 - rows.sums(rows.brought)  # what the shorter context gives to words not seen after this one
        return found, np.where(full, 0.0, (1.0 - sums) / np.maximum(unseen, MIN_UNSEEN)), found


def _ratios(statistics: list[list[int]]) -> tuple[np.ndarray, list[int]]:
    """ratios[order - 1, r], the part that is kept of a count of r; and the orders that use the fallback.

    statistics: of the orders from 2 on, how many n-grams have each count.
    """
    ratios, fallen_back = np.ones((len(statistics) + 1, MAX_DISCOUNTED + 2), np.float64), []
    for order, n in enumerate(statistics, 2):
        made = katz_ratios(n)
        if made is None:
            made = [(r - FALLBACK) / r for r in range(1, MAX_DISCOUNTED + 1)]
            fallen_back.append(order)
        ratios[order - 1, 1 : MAX_DISCOUNTED + 1] = made
    return ratios, fallen_back


def katz_ratios(n: list[int]) -> list[float] | None:
    """Katz's ratios of the counts 1 to MAX_DISCOUNTED; None if undefined. n[r]: how many n-grams were seen r times."""
    if not all(n[1 : MAX_DISCOUNTED + 1]):
        return None
    common = (MAX_DISCOUNTED + 1) * n[MAX_DISCOUNTED + 1] / n[1]
    if common >= 1:
        return None
    ratios = [((r + 1) * n[r + 1] / (r * n[r]) - common) / (1 - common) for r in range(1, MAX_DISCOUNTED + 1)]
    return ratios if all(0 < ratio <= 1 for ratio in ratios) else None
