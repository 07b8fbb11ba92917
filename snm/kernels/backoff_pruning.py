"""Entropy pruning of backoff models: what each n-gram is worth, what has to stay, and the backoff weights afterwards.

A row is a context; `parent` is the row of the longest shorter context that ends it, `child` of a link the row whose
context is the link's n-gram. -1 stands for none. Row 0 is the empty context.
"""

import math

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.row_index import find_link

_LEAST = 1e-9  # of probability mass: less is the rounding of float32


@helper
def lower_probability(target, row, parents, offsets, targets, probabilities, backoffs):
    """P(target) in the context that is one shorter than that of `row`; 0 for a word that no row has."""
    factor, above = 1.0, parents[row]
    while above >= 0:
        link = find_link(target, offsets[above], offsets[above + 1], targets)
        if link >= 0:
            return factor * probabilities[link]
        factor *= backoffs[above]
        above = parents[above]
    return 0.0


@kernel
def measure(first, last, parents, log_contexts, offsets, targets, probabilities, backoffs, worth):
    """worth[link] of rows [first, last): by how much the entropy of the model rises without that link, in nats.

    Stolcke (1998): P(h) times the Kullback-Leibler divergence of P(. | h), with the backoff weight that is right then.
    log_contexts[row]: log P(h). Infinite for unigrams, and for words that no shorter context has.
    """
    for row in range(first, last):
        start, stop = offsets[row], offsets[row + 1]
        left = 1.0
        for link in range(start, stop):
            lower = lower_probability(targets[link], row, parents, offsets, targets, probabilities, backoffs)
            worth[link] = lower
            left -= lower
        left = max(left, _LEAST)
        backoff = max(np.float64(backoffs[row]), _LEAST)
        free, context = backoff * left, math.exp(log_contexts[row])
        for link in range(start, stop):
            p, lower = np.float64(probabilities[link]), np.float64(worth[link])
            if row == 0 or lower <= 0.0:
                worth[link] = np.inf
                continue
            after = math.log((free + p) / (left + lower))
            change = p * (math.log(p) - math.log(lower) - after) + free * (math.log(backoff) - after)
            worth[link] = context * max(change, 0.0)


@kernel
def keep_parents(level, levels, children, offsets, worth, worth_of_row):
    """Raise worth[link] to that of the links of its child; worth_of_row[row]: of its best link. For rows of a level.

    An n-gram can only leave after those that extend it. Levels come from the longest contexts to the shortest.
    """
    for row in range(len(levels)):
        if levels[row] != level:
            continue
        best = np.float32(0.0)
        for link in range(offsets[row], offsets[row + 1]):
            if children[link] >= 0:
                worth[link] = max(worth[link], worth_of_row[children[link]])
            best = max(best, worth[link])
        worth_of_row[row] = best


@kernel
def select(first, last, least, offsets, worth, targets, probabilities, lengths, kept_targets, kept_probabilities):
    """Copy the links of rows [first, last) that are worth at least `least`; return how many there are.

    lengths[row - first]: kept links of the row.
    """
    n = np.int64(0)
    for row in range(first, last):
        begin = n
        for link in range(offsets[row], offsets[row + 1]):
            if worth[link] >= least:
                kept_targets[n], kept_probabilities[n] = targets[link], probabilities[link]
                n += 1
        lengths[row - first] = n - begin
    return n


@kernel
def set_backoffs(level, levels, parents, offsets, targets, probabilities, backoffs):
    """Make the rows of a level sum to one. Levels come from the shortest contexts to the longest."""
    for row in range(1, len(levels)):
        if levels[row] != level:
            continue
        free, left = 1.0, 1.0
        for link in range(offsets[row], offsets[row + 1]):
            free -= probabilities[link]
            left -= lower_probability(targets[link], row, parents, offsets, targets, probabilities, backoffs)
        if free > _LEAST and left > _LEAST:
            backoffs[row] = free / left
