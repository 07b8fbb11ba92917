"""Katz backoff with Good and Turing's discounts.

Counts up to 5 are discounted by Katz's ratios of the order; larger ones are trusted. What a context sets
free goes to the words it does not know, in proportion to their probabilities one word shorter. Where a context
sets nothing free (all its counts are large), one is added to its total, as other toolkits do. Unigrams are
relative frequencies, words that were not seen counted once.
"""

from __future__ import annotations

import numpy as np

from snm.baselines.backoff.estimation import Estimate, Training

LARGEST = 5  # the largest count that is discounted
FALLBACK = 0.5
"""Taken off every count up to LARGEST in an order whose ratios are undefined or out of range."""


def estimate(t: Training) -> Estimate:
    """Katz for the counts of a text."""
    c, orders = t.counts, t.orders
    lengths = np.diff(c.offsets)
    order_of_link = np.repeat(orders, lengths)
    ratios, fallen_back = _ratios(c.link_counts, order_of_link, t.extractor.n_templates)
    kept = c.link_counts * ratios[order_of_link, np.minimum(c.link_counts, LARGEST + 1)]
    totals = c.feature_counts.astype(np.float64)
    whole = np.add.reduceat(kept, c.offsets[:-1]) >= totals - 1e-9
    totals += whole & (orders > 0)
    probabilities = kept / np.repeat(totals, lengths)
    freed = 1.0 - np.add.reduceat(probabilities, c.offsets[:-1])
    unknown = 1.0 - t.sum_shorter(probabilities)
    backoffs = np.where(unknown > 1e-9, freed / np.maximum(unknown, 1e-9), 0.0)
    backoffs[0] = 0.0
    full = (unknown <= 1e-9) & (orders > 0)  # it knows every word: nobody is left to have what is free
    probabilities /= np.repeat(np.where(full, 1.0 - freed, 1.0), lengths)
    warnings = [
        f"order {order}: too few n-grams to estimate discounts from; {FALLBACK} is taken off counts up to {LARGEST}"
        for order in fallen_back
    ]
    details = {"ratios": ratios[:, 1 : LARGEST + 1].tolist(), "fallen_back": fallen_back}
    return Estimate(probabilities.astype(np.float32), backoffs.astype(np.float32), details, warnings)


def _ratios(counts: np.ndarray, orders: np.ndarray, n_orders: int) -> tuple[np.ndarray, list[int]]:
    """ratios[order, r]: what is left of a count of r, 1 for all above LARGEST; and the orders that fell back."""
    ratios, fallen_back = np.ones((n_orders, LARGEST + 2), np.float64), []
    for order in range(1, n_orders):
        n = np.bincount(np.minimum(counts[orders == order], LARGEST + 2), minlength=LARGEST + 3)
        made = katz_ratios(n.tolist())
        if made is None:
            made = [(r - FALLBACK) / r for r in range(1, LARGEST + 1)]
            fallen_back.append(order + 1)
        ratios[order, 1 : LARGEST + 1] = made
    return ratios, fallen_back


def katz_ratios(n: list[int]) -> list[float] | None:
    """Katz's ratios of the counts 1 to LARGEST, from the number n[r] of n-grams seen r times; None if undefined."""
    if not all(n[1 : LARGEST + 1]):
        return None
    common = (LARGEST + 1) * n[LARGEST + 1] / n[1]
    if common >= 1:
        return None
    ratios = [((r + 1) * n[r + 1] / (r * n[r]) - common) / (1 - common) for r in range(1, LARGEST + 1)]
    return ratios if all(0 < ratio <= 1 for ratio in ratios) else None
