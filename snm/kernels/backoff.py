"""Backoff models: continuation counts, discounts, interpolation, and scoring.

Template q is the context of q words, so keys[q] is the row of keys of that order. (orders, events)
"""

import numpy as np

from snm.kernels.compile import kernel
from snm.kernels.row_index import find_column
from snm.layouts.keys import ABSENT


@kernel
def count_continuations(q, keys, words, index, c, adjusted):
    """Add a block of events to the adjusted counts of the links of template q.

    The adjusted count of a link is the number of distinct words before it. Each event adds 1 / C of the link that is
    one word longer, so all events of that link add 1. Where no word precedes, because the context begins with <S>, each
    event adds 1: the adjusted count is the count.
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
    """Add to found[order, n] the number of links of rows [first, last) with adjusted count n, up to 4."""
    for row in range(first, last):
        for link in range(offsets[row], offsets[row + 1]):
            if adjusted[link] <= 4:
                found[orders[row], adjusted[link]] += 1


@kernel
def discount_rows(first, last, offsets, orders, adjusted, discounts, shares, backoffs):
    """Fill shares[link], the discounted share of the row, and backoffs[row], the share of the discounts.

    discounts[order, n] is subtracted from an adjusted count of n, discounts[order, 3] from 3 and more.
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
    """Fill the probabilities of the links of a block of events: share + backoff * probability one word shorter.

    Those of the unigrams are given.
    """
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
    """Add to sums[row], for the rows of template q, the probabilities of their words one context word shorter.

    Each event of a link adds the probability divided by the link count, so each link adds it once.
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
    """Fill totals[row], the sum of the scores of all words after a context, and the normalised backoffs[row].

    The words of a row have their relative frequencies, which sum to 1; all others have `factor` times their score one
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
    """Fill out[event]: the probability in the longest context that has the word, times the backoffs of longer ones."""
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
