"""Backoff models: continuation counts, discounts, interpolation, and scoring.

Column q of the keys is the context of q words, so the columns go from the unigram to the longest context.
"""

import numpy as np

from snm.kernels.compile import kernel
from snm.kernels.row_index import find_column
from snm.layouts.keys import ABSENT


@kernel
def count_continuations(q, keys, words, index, c, adjusted):
    """Add what a block of events brings to the adjusted counts of the links of column q.

    The adjusted count of a link is the number of distinct words that precede it: every event brings one
    over the count of the link one word longer, and those of one such link add up to one. Where no
    word precedes (the context begins with <S>), every event brings one: the plain count.
    """
    rows, links = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    longer = np.empty(len(words), np.int64)
    loaded = find_column(keys[q], words, index, c.offsets, c.targets, rows, links)
    loaded += find_column(keys[q + 1], words, index, c.offsets, c.targets, rows, longer)
    for k in range(len(words)):
        if links[k] >= 0:
            adjusted[links[k]] += 1.0 / c.link_counts[longer[k]] if keys[q + 1, k] != ABSENT else 1.0
    return loaded


@kernel
def count_of_counts(first, last, offsets, orders, adjusted, found):
    """found[order, n]: how many links of rows [first, last) have the adjusted count n, up to 4."""
    for row in range(first, last):
        for link in range(offsets[row], offsets[row + 1]):
            if adjusted[link] <= 4:
                found[orders[row], adjusted[link]] += 1


@kernel
def discount_rows(first, last, offsets, orders, adjusted, discounts, shares, backoffs):
    """Of every link its discounted share of the row, and of every row what the discounts set free.

    discounts[order, n] is taken off an adjusted count of n, the last column's off all that are larger.
    """
    for row in range(first, last):
        total = freed = 0.0
        for link in range(offsets[row], offsets[row + 1]):
            total += adjusted[link]
            freed += discounts[orders[row], min(adjusted[link], 3)]
        for link in range(offsets[row], offsets[row + 1]):
            shares[link] = (adjusted[link] - discounts[orders[row], min(adjusted[link], 3)]) / total
        backoffs[row] = freed / total


@kernel
def interpolate(keys, words, index, offsets, targets, shares, backoffs, probabilities):
    """Fill the probabilities of all links that a block of events has: its share, and the backoff's part of
    the probability one word shorter. The unigrams' are filled already."""
    rows, links = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    p = np.zeros(len(words), np.float64)
    loaded = np.uint64(0)
    for q in range(keys.shape[0]):
        loaded += find_column(keys[q], words, index, offsets, targets, rows, links)
        for k in range(len(words)):
            if links[k] < 0:
                continue
            if q == 0:
                p[k] = probabilities[links[k]]
            else:
                p[k] = shares[links[k]] + backoffs[rows[k]] * p[k]
                probabilities[links[k]] = p[k]
    return loaded


@kernel
def sum_shorter(q, keys, words, index, c, probabilities, sums):
    """Add to sums[row], for the rows of column q, the probabilities of their words one context word shorter.

    Every event of a link brings one over its count, so that a link brings its probability once.
    """
    rows, links = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    shorter, scratch = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    loaded = find_column(keys[q], words, index, c.offsets, c.targets, rows, links)
    loaded += find_column(keys[q - 1], words, index, c.offsets, c.targets, scratch, shorter)
    for k in range(len(words)):
        if links[k] >= 0:
            sums[rows[k]] += probabilities[shorter[k]] / c.link_counts[links[k]]
    return loaded


@kernel
def normalise_stupid(keys, words, index, c, factor, sums, totals, backoffs):
    """totals[row]: the sum of the scores of all words after a context; and the backoff weights that follow from it.

    A row's words have relative frequencies, which sum to one, and all others `factor` times their score one
    word shorter.
    """
    rows, links = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    shorter = np.ones(len(words), np.float64)
    loaded = np.uint64(0)
    for q in range(1, keys.shape[0]):
        loaded += find_column(keys[q], words, index, c.offsets, c.targets, rows, links)
        for k in range(len(words)):
            if links[k] >= 0:
                total = 1.0 + factor * (shorter[k] - sums[rows[k]])
                totals[rows[k]] = total
                backoffs[rows[k]] = factor * shorter[k] / total
                shorter[k] = total
    return loaded


@kernel
def score(keys, words, index, offsets, targets, probabilities, backoffs, out):
    """out[event]: the probability in the longest context that knows the word, times the backoffs of longer ones."""
    rows, links = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    out[:] = 0.0
    loaded = np.uint64(0)
    for q in range(keys.shape[0]):
        loaded += find_column(keys[q], words, index, offsets, targets, rows, links)
        for k in range(len(words)):
            if links[k] >= 0:
                out[k] = probabilities[links[k]]
            elif rows[k] >= 0:
                out[k] *= backoffs[rows[k]]
    return loaded
