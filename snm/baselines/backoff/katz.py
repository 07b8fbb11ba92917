"""Katz backoff with Good-Turing discounts.

Counts up to 5 are discounted by the order's Katz ratios; larger counts are not. The probability mass that discounting
frees goes to the words not seen after the context, in proportion to their probabilities after the shorter context.
Where all counts of a context are large and nothing is freed, one is added to the count of the context, as other
toolkits do. Unigrams are relative frequencies; a word that was not seen counts once.
"""

from __future__ import annotations

import numpy as np

from snm.baselines.backoff.estimation import Estimate, Training

MAX_DISCOUNTED = 5  # larger counts are not discounted
MIN_UNSEEN = 1e-12  # mass of unseen words, below which rounding decides
FALLBACK = 0.5
"""Taken off each count up to MAX_DISCOUNTED in an order whose ratios are undefined or out of range."""


def estimate(t: Training) -> Estimate:
    """Estimate a Katz model."""
    c, orders = t.counts, t.orders
    lengths = np.diff(c.offsets)
    order_of_link = np.repeat(orders, lengths)
    ratios, fallen_back = _ratios(c.link_counts, order_of_link, t.extractor.n_templates)
    kept = c.link_counts * ratios[order_of_link, np.minimum(c.link_counts, MAX_DISCOUNTED + 1)]
    feature_counts = c.feature_counts.astype(np.float64)
    nothing_freed = np.add.reduceat(kept, c.offsets[:-1]) >= feature_counts - 1e-9
    feature_counts += nothing_freed & (orders > 0)
    probabilities = kept / np.repeat(feature_counts, lengths)
    sums = np.add.reduceat(probabilities, c.offsets[:-1])
    full = lengths == lengths[0]  # every word was seen: the freed mass stays in the row
    probabilities /= np.repeat(np.where(full, sums, 1.0), lengths)
    unseen = 1.0 - t.sum_shorter(probabilities)  # what the shorter context gives to words not seen after this one
    backoffs = np.where(full, 0.0, (1.0 - sums) / np.maximum(unseen, MIN_UNSEEN))
    warnings = [
        f"order {order}: too few n-grams to estimate discounts from; "
        f"{FALLBACK} is taken off counts up to {MAX_DISCOUNTED}"
        for order in fallen_back
    ]
    details = {"ratios": ratios[:, 1 : MAX_DISCOUNTED + 1].tolist(), "fallen_back": fallen_back}
    return Estimate(probabilities.astype(np.float32), backoffs.astype(np.float32), details, warnings)


def _ratios(counts: np.ndarray, orders: np.ndarray, n_orders: int) -> tuple[np.ndarray, list[int]]:
    """ratios[order, r], the part that is kept of a count of r; and the orders that use the fallback."""
    ratios, fallen_back = np.ones((n_orders, MAX_DISCOUNTED + 2), np.float64), []
    for order in range(1, n_orders):
        n = np.bincount(np.minimum(counts[orders == order], MAX_DISCOUNTED + 2), minlength=MAX_DISCOUNTED + 3)
        made = katz_ratios(n.tolist())
        if made is None:
            made = [(r - FALLBACK) / r for r in range(1, MAX_DISCOUNTED + 1)]
            fallen_back.append(order + 1)
        ratios[order, 1 : MAX_DISCOUNTED + 1] = made
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
