"""Interpolated Kneser-Ney, modified (three discounts an order) or with the original single discount.

Estimated as KenLM's `lmplz` does:

- The highest order has plain counts. Lower orders have continuation counts, the number of distinct words that precede
  an n-gram; n-grams that begin with `<S>` keep plain counts.
- Discounts are Chen and Goodman's, one set for each order. Their statistics count one n-gram by its plain count, see
  `_last_by_plain_count`.
- Unigrams are interpolated with the uniform distribution over all words but `<S>`. A word that was not seen has the
  uniform part alone.
"""

from __future__ import annotations

import numpy as np

from snm import parallel
from snm.baselines.backoff.estimation import Estimate, Training
from snm.kernels import backoff as backoff_kernels
from snm.layouts.tokens import BEGIN, END, UNKNOWN

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of an order whose own are undefined or out of range; the same as `lmplz --discount_fallback`."""


def estimate(t: Training, modified: bool = True) -> Estimate:
    """Estimate a Kneser-Ney model."""
    counts, orders = t.counts, t.orders
    rows, links = len(counts.features), len(counts.targets)
    adjusted = _adjusted_counts(t, orders)
    discounts, fallen_back = _discounts(t, orders, adjusted, modified)
    shares, backoffs = np.empty(links, np.float32), np.empty(rows, np.float32)

    def discount(part: tuple[int, int]) -> None:
        backoff_kernels.discount_rows(*part, counts.offsets, orders, adjusted, discounts, shares, backoffs)

    parallel.run(discount, parallel.shares(0, rows, 8 * t.threads), t.threads)
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
    tokens = t.text.tokens

    def work(block: tuple[int, int]) -> None:
        keys, words = t.extractor.keys(tokens, *block), tokens[slice(*block)]
        backoff_kernels.interpolate(
            keys, words, t.index, t.counts.offsets, t.counts.targets, shares, backoffs, probabilities
        )  # fmt: skip
        bar(len(words))

    with t.progress("interpolating", len(tokens)) as bar:
        parallel.run(work, t.extractor.blocks(0, len(tokens)), t.threads)


def _adjusted_counts(t: Training, orders: np.ndarray) -> np.ndarray:
    """Plain counts of the highest order, continuation counts of the others. (links,) uint32"""
    tokens, counts, highest = t.text.tokens, t.counts, t.extractor.n_templates - 1
    if highest == 0:  # the empty feature's row gives a count of 1 to words that were not seen
        seen = np.bincount(tokens, minlength=len(t.extractor.vocabulary))
        unigrams: np.ndarray = seen[counts.targets].astype(np.uint32)
        return unigrams
    adjusted = np.zeros(len(counts.targets), np.float64)

    def work(q: int) -> None:
        for start, stop in t.extractor.blocks(0, len(tokens)):
            keys = t.extractor.keys(tokens, start, stop)
            backoff_kernels.count_continuations(q, keys, tokens[start:stop], t.index, counts, adjusted)
            bar(stop - start)

    with t.progress("continuing", len(tokens) * highest) as bar:
        parallel.run(work, range(highest), t.threads)  # one thread a template: no two write to the same link
    plain = np.repeat(orders == highest, np.diff(counts.offsets))
    found: np.ndarray = np.where(plain, counts.link_counts, np.rint(adjusted)).astype(np.uint32)
    return found


def _discounts(t: Training, orders: np.ndarray, adjusted: np.ndarray, modified: bool) -> tuple[np.ndarray, list[int]]:
    """discounts[order, n] of counts n = 0, 1, 2 and more; and the orders that use the fallback. (orders, 4)"""
    n_orders = t.extractor.n_templates
    statistics = np.zeros((n_orders, 5), np.int64)
    backoff_kernels.count_of_counts(0, len(orders), t.counts.offsets, orders, adjusted, statistics)
    for order, (continued, plain) in enumerate(_last_by_plain_count(t.text.tokens, n_orders)):
        if continued < 5:
            statistics[order, continued] -= 1
        if plain < 5:
            statistics[order, plain] += 1
    discounts, fallen_back = np.zeros((n_orders, 4), np.float64), []
    for order, (_, n1, n2, n3, n4) in enumerate(statistics.tolist()):
        made = _chen_goodman(n1, n2, n3, n4) if modified else _single(n1, n2)
        if made is None:
            made = FALLBACK if modified else (FALLBACK[0],) * 3
            fallen_back.append(order + 1)
        discounts[order, 1:] = made
    return discounts, fallen_back


def _last_by_plain_count(tokens: np.ndarray, n_orders: int) -> list[tuple[int, int]]:
    """(continuation count, plain count) of the n-gram that `lmplz` sorts last, for each order below the highest.

    `lmplz` numbers words in the order of the text and sorts n-grams by their last word, then by the one before it, and
    so on. Its statistics count the suffixes of the last n-gram by their plain counts, all other n-grams by their
    continuation counts. On WikiText-2 this changes a discount of the unigrams by 0.0007 and probabilities by up to
    8e-5. We do the same, so that our probabilities agree with `lmplz` to the last digit.
    """
    words, first = np.unique(tokens, return_index=True)
    rank = np.zeros(int(words[-1]) + 1, np.int64)  # lmplz's number of each word
    rank[words[np.argsort(first)]] = np.arange(3, 3 + len(words))
    for number, special in enumerate((UNKNOWN, BEGIN, END)):
        if special < len(rank):
            rank[special] = number
    ends = np.flatnonzero(tokens == words[np.argmax(rank[words])])  # positions of the word with the last number
    last = np.ones(len(ends), bool)  # whether the n-gram that ends there is the last one
    pairs = []
    for order in range(1, n_orders):
        before = tokens[ends - order]
        pairs.append((len(np.unique(before[last])), int(last.sum())))
        last &= rank[before] == rank[before[last]].max()
        if tokens[ends[last][0] - order] == BEGIN:
            break
    return pairs


def _chen_goodman(n1: int, n2: int, n3: int, n4: int) -> tuple[float, float, float] | None:
    if not (n1 and n2 and n3):
        return None
    y = n1 / (n1 + 2 * n2)
    made = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    return made if all(0 <= d <= n for n, d in enumerate(made, 1)) else None


def _single(n1: int, n2: int) -> tuple[float, float, float] | None:
    return (n1 / (n1 + 2 * n2),) * 3 if n1 and n2 else None
