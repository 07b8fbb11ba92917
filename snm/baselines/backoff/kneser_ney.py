"""Interpolated Kneser-Ney, modified (three discounts an order) or with the original single discount.

Estimated as KenLM's `lmplz` does:

- The highest order has plain counts. Lower orders have continuation counts, the number of distinct words that precede
  an n-gram; n-grams that begin with `<S>` keep plain counts.
- Discounts are Chen and Goodman's, one set for each order. Their statistics count one n-gram by its plain count, see
  `last_by_plain_count`.
- Unigrams are interpolated with the uniform distribution over all words but `<S>`. A word that was not seen has the
  uniform part alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snm.baselines.backoff.estimation import HIGHEST_COUNT
from snm.baselines.backoff.orders import Orders, Rows
from snm.layouts.counts import Counts
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.text.encoding import Text

PIECE = 1 << 20  # tokens that are looked at together
FALLBACK = (0.5, 1.0, 1.5)
"""Discounts of an order whose own are undefined or out of range; the same as `lmplz --discount_fallback`."""


class KneserNey:
    """See `snm.baselines.backoff.estimation.Estimator`. Events bring along the probability of the shorter n-gram."""

    def __init__(self, modified: bool = True) -> None:
        self.modified = modified
        self.details: dict[str, Any] = {}
        self.warnings: list[str] = []

    def prepare(self, orders: Orders, unigrams: Counts) -> None:
        """Estimate the discounts, from the highest order down: an order says which events the next lower one counts."""
        orders.count_first_events()
        statistics = np.zeros((orders.highest, HIGHEST_COUNT + 1), np.int64)
        for order in range(orders.highest, 1, -1):
            statistics[order - 1] = orders.mark(order, HIGHEST_COUNT)
        self.unigrams = orders.unigrams()
        of_targets = np.minimum(self.unigrams[unigrams.targets], HIGHEST_COUNT)
        statistics[0] = np.bincount(of_targets, minlength=HIGHEST_COUNT + 1)
        words = len(self.unigrams)
        for order, (continued, plain) in enumerate(last_by_plain_count(orders.text, words, orders.highest)):
            statistics[order, min(continued, HIGHEST_COUNT)] -= 1
            statistics[order, min(plain, HIGHEST_COUNT)] += 1
        self.discounts, fallen_back = self._discounts(statistics)
        kind = "modified" if self.modified else "single"
        self.details = {"discounts": kind, "values": self.discounts[:, 1:].tolist(), "fallen_back": fallen_back}
        self.warnings = [
            f"order {order}: too few n-grams to estimate discounts from; "
            f"{', '.join(f'{d:g}' for d in self.discounts[order - 1, 1:])} are taken instead"
            for order in fallen_back
        ]

    def _discounts(self, statistics: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """discounts[order, n] of counts n = 0, 1, 2 and more; and the orders that use the fallback. (orders, 4)"""
        discounts, fallen_back = np.zeros((len(statistics), 4), np.float64), []
        for order, (_, n1, n2, n3, n4, *_) in enumerate(statistics.tolist()):
            made = _chen_goodman(n1, n2, n3, n4) if self.modified else _single(n1, n2)
            if made is None:
                made = FALLBACK if self.modified else (FALLBACK[0],) * 3
                fallen_back.append(order + 1)
            discounts[order, 1:] = made
        return discounts, fallen_back

    def estimate_unigrams(self, unigrams: Counts) -> tuple[np.ndarray, float, np.ndarray]:
        counts = self.unigrams[unigrams.targets]
        discounts = self.discounts[0, np.minimum(counts, 3)]
        total = counts.sum()
        backoff = discounts.sum() / total
        found = (counts - discounts) / total + backoff / len(counts)
        of_words = np.zeros(len(self.unigrams), np.float64)
        of_words[unigrams.targets] = found
        return found, backoff, of_words

    def estimate(self, order: int, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        discounts = self.discounts[order - 1, np.minimum(rows.counts, 3)]
        totals = rows.sums(rows.counts.astype(np.int64))
        backoffs = rows.sums(discounts) / totals
        found = (rows.counts - discounts) / rows.spread(totals) + rows.spread(backoffs) * rows.brought
        return found, backoffs, found


def last_by_plain_count(text: Text, words: int, n_orders: int) -> list[tuple[int, int]]:
    """(continuation count, plain count) of the n-gram that `lmplz` sorts last, for each order below the highest.

    `lmplz` numbers words in the order of the text and sorts n-grams by their last word, then by the one before it, and
    so on. Its statistics count the suffixes of the last n-gram by their plain counts, all other n-grams by their
    continuation counts. On WikiText-2 this changes a discount of the unigrams by 0.0007 and probabilities by up to
    8e-5. We do the same, so that our probabilities agree with `lmplz` to the last digit.
    """
    rank = _ranks(text, words)
    suffix, pairs = [int(np.argmax(rank))], []  # of the last n-gram, its last word first
    for order in range(1, n_orders):
        before, plain = np.zeros(words, bool), 0
        for start in range(0, len(text.tokens), PIECE):
            found = _words_before(text.tokens[max(0, start - order) : start + PIECE], suffix)
            before[found] = True
            plain += len(found)
        pairs.append((int(before.sum()), plain))
        suffix.append(int(np.argmax(np.where(before, rank, -1))))
        if suffix[-1] == BEGIN:
            break
    return pairs


def _ranks(text: Text, words: int) -> np.ndarray:
    """The number that `lmplz` gives to each word, by the place where the word is first seen; -1 if it is not."""
    first = np.full(words, -1, np.int64)
    for start in range(0, len(text.tokens), PIECE):
        piece = text.tokens[start : start + PIECE]
        here = np.full(words, -1, np.int64)
        here[piece[::-1]] = np.arange(len(piece))[::-1]  # the last assignment counts
        first = np.where((first < 0) & (here >= 0), start + here, first)
    rank = np.where(first < 0, -1, first + 3)
    for number, special in enumerate((UNKNOWN, BEGIN, END)):
        if rank[special] >= 0:
            rank[special] = number
    return rank


def _words_before(tokens: np.ndarray, suffix: list[int]) -> np.ndarray:
    """The word before each place where a suffix, given from its last word on, ends in `tokens`."""
    n = len(tokens) - len(suffix)  # such places are len(suffix) and later
    match = np.ones(max(0, n), bool)
    for distance, word in enumerate(suffix):
        match &= tokens[len(suffix) - distance : len(suffix) - distance + n] == word
    found: np.ndarray = tokens[: len(match)][match]
    return found


def _chen_goodman(n1: int, n2: int, n3: int, n4: int) -> tuple[float, float, float] | None:
    if not (n1 and n2 and n3):
        return None
    y = n1 / (n1 + 2 * n2)
    made = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    return made if all(0 <= d <= n for n, d in enumerate(made, 1)) else None


def _single(n1: int, n2: int) -> tuple[float, float, float] | None:
    return (n1 / (n1 + 2 * n2),) * 3 if n1 and n2 else None
