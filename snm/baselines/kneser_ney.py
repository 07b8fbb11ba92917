"""Interpolated Kneser-Ney, modified (three discounts an order) or with the original single discount.

As KenLM's `lmplz` estimates it: the highest order has plain counts, lower orders the number of distinct
words that precede an n-gram, but plain counts for those that begin with `<S>`; discounts are
Chen and Goodman's, of each order; unigrams are interpolated with the uniform distribution over all words
but `<S>`, and a word that was not seen has that part alone.
"""

from __future__ import annotations

import numpy as np

from snm import parallel
from snm.baselines.backoff import Estimate, Training

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of an order whose own are undefined or out of range; `lmplz --discount_fallback` has the same."""


def estimate(t: Training, modified: bool = True) -> Estimate:
    """Kneser-Ney for the counts of a text."""
    from snm.kernels import backoff

    counts, orders = t.counts, t.orders
    rows, links = len(counts.features), len(counts.targets)
    adjusted = _adjusted_counts(t, orders)
    discounts, fallen_back = _discounts(counts.offsets, orders, adjusted, t.extractor.n_slots, modified)
    shares, backoffs = np.empty(links, np.float32), np.empty(rows, np.float32)
    parallel.run(
        lambda part: backoff.discount_rows(*part, counts.offsets, orders, adjusted, discounts, shares, backoffs),
        parallel.shares(0, rows, 8 * t.threads), t.threads,
    )  # fmt: skip
    probabilities = np.zeros(links, np.float32)
    words = int(counts.offsets[1])
    probabilities[:words] = shares[:words] + backoffs[0] / words
    _interpolate(t, shares, backoffs, probabilities)
    kind, values = "modified" if modified else "single", discounts[:, 1:].tolist()
    details = {"discounts": kind, "values": values, "fallen_back": fallen_back}
    warnings = [
        f"order {order}: too few n-grams to estimate discounts from; "
        f"{', '.join(f'{d:g}' for d in discounts[order - 1, 1:])} are taken instead"
        for order in fallen_back
    ]
    return Estimate(probabilities, backoffs, details, warnings)


def _interpolate(t: Training, shares: np.ndarray, backoffs: np.ndarray, probabilities: np.ndarray) -> None:
    from snm.kernels import backoff

    tokens = t.text.tokens

    def work(block: tuple[int, int]) -> None:
        keys, words = t.extractor.keys(tokens, *block), tokens[slice(*block)]
        backoff.interpolate(
            keys, words, t.index, t.counts.offsets, t.counts.targets, shares, backoffs, probabilities
        )  # fmt: skip
        bar(len(words))

    with t.progress("interpolating", len(tokens)) as bar:
        parallel.run(work, t.extractor.blocks(0, len(tokens)), t.threads)


def _adjusted_counts(t: Training, orders: np.ndarray) -> np.ndarray:
    """Plain counts of the highest order, continuation counts of the others. (links,) uint32"""
    from snm.kernels import backoff

    tokens, counts, highest = t.text.tokens, t.counts, t.extractor.n_slots - 1
    if highest == 0:  # the row of the unigrams has words that were not seen
        seen = np.bincount(tokens, minlength=len(t.extractor.vocabulary))
        unigrams: np.ndarray = seen[counts.targets].astype(np.uint32)
        return unigrams
    adjusted = np.zeros(len(counts.targets), np.float64)

    def work(q: int) -> None:
        for start, stop in t.extractor.blocks(0, len(tokens)):
            keys = t.extractor.keys(tokens, start, stop)
            backoff.count_continuations(q, keys, tokens[start:stop], t.index, counts, adjusted)
            bar(stop - start)

    with t.progress("continuing", len(tokens) * highest) as bar:
        parallel.run(work, range(highest), t.threads)  # one thread a column: no two write to the same link
    plain = np.repeat(orders == highest, np.diff(counts.offsets))
    found: np.ndarray = np.where(plain, counts.counts, np.rint(adjusted)).astype(np.uint32)
    return found


def _discounts(
    offsets: np.ndarray, orders: np.ndarray, adjusted: np.ndarray, n_orders: int, modified: bool
) -> tuple[np.ndarray, list[int]]:
    """Of every order what is taken off a count of 0, 1, 2 and more; and the orders that fell back."""
    from snm.kernels import backoff

    found = np.zeros((n_orders, 5), np.int64)
    backoff.count_of_counts(0, len(orders), offsets, orders, adjusted, found)
    discounts, fallen_back = np.zeros((n_orders, 4), np.float64), []
    for order, (_, n1, n2, n3, n4) in enumerate(found.tolist()):
        made = _chen_goodman(n1, n2, n3, n4) if modified else _single(n1, n2)
        if made is None:
            made = FALLBACK if modified else (FALLBACK[0],) * 3
            fallen_back.append(order + 1)
        discounts[order, 1:] = made
    return discounts, fallen_back


def _chen_goodman(n1: int, n2: int, n3: int, n4: int) -> tuple[float, float, float] | None:
    if not (n1 and n2 and n3):
        return None
    y = n1 / (n1 + 2 * n2)
    made = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    return made if all(0 <= d <= n for n, d in enumerate(made, 1)) else None


def _single(n1: int, n2: int) -> tuple[float, float, float] | None:
    return (n1 / (n1 + 2 * n2),) * 3 if n1 and n2 else None
