"""Probabilities of classes and of words within their classes, a two-level softmax. See `snm.baselines.neural.classes`.

The words of a class are whole tiles of weights, padded by outputs whose bias is minus infinity; a class of one word
has none.
"""

import math

import numpy as np

from snm.kernels.compile import helper, kernel, max_helper, sum_helper
from snm.kernels.fastmath import exp_float32
from snm.kernels.products import BLOCK, OUTPUTS, ROWS, as_float, multiply_all, multiply_rows, number_rows

_LEAST = np.float32(-80.0)  # that `exp_float32` takes


@max_helper
def largest_of(scores):
    largest = np.float32(-np.inf)
    for i in range(len(scores)):
        largest = max(largest, scores[i])
    return largest


@sum_helper
def sum_of_exponentials(scores, largest):
    total = np.float32(0)
    for i in range(len(scores)):
        total += exp_float32(max(scores[i] - largest, _LEAST))
    return total


@helper
def log_sum(scores):
    """log of the summed exponentials."""
    largest = largest_of(scores)
    return largest + math.log(np.float64(sum_of_exponentials(scores, largest)))


@kernel
def score_classes(rows, scales, weights, weight_scales, biases, classes, out):
    """out[k, j] = log P of class classes[k, j] after the state of row k; classes[0, j] if there is one row of them."""
    which, sums = np.empty(BLOCK + ROWS, np.int64), np.empty((ROWS, OUTPUTS), np.int32)
    scores = np.empty((BLOCK, len(biases)), np.float32)
    for first in range(0, len(rows), BLOCK):
        n = min(BLOCK, len(rows) - first)
        here = slice(first, first + n)
        number_rows(which, n)
        multiply_all(rows[here], scales[here], weights, weight_scales, biases, which, sums, scores)
        for k in range(n):
            total, wanted = log_sum(scores[k]), classes[0 if len(classes) == 1 else first + k]
            for j in range(len(wanted)):
                out[first + k, j] = np.float64(scores[k, wanted[j]]) - total


@kernel
def score_words(rows, scales, states, classes, within, tiles, weights, weight_scales, biases, out):
    """Add to out[e]: log P of a word within its class classes[e], after the state of row states[e].

    Events are sorted by class, and those of a class by state. within[e]: the word's number in its class. Class c has
    the tiles [tiles[c], tiles[c + 1]).
    """
    which, sums = np.empty(ROWS, np.int64), np.empty((ROWS, OUTPUTS), np.int32)
    scores = np.empty((ROWS, np.diff(tiles).max() * OUTPUTS), np.float32)
    e = 0
    while e < len(states):
        c = classes[e]
        first, last = tiles[c], tiles[c + 1]
        if first == last:
            e += 1
            continue
        end, n = e, 0
        while end < len(states) and classes[end] == c:
            if n == 0 or states[end] != which[n - 1]:
                if n == ROWS:
                    break
                which[n] = states[end]
                n += 1
            end += 1
        which[n:] = which[n - 1]
        for tile in range(first, last):
            multiply_rows(rows, which, 0, n, weights, tile, sums)
            begin = tile * OUTPUTS
            outputs, here = (
                slice(begin, begin + OUTPUTS),
                slice(begin - first * OUTPUTS, begin + OUTPUTS - first * OUTPUTS),
            )
            for i in range(n):
                as_float(sums[i], scales[which[i]], weight_scales[outputs], biases[outputs], scores[i, here])
        used, i, total = (last - first) * OUTPUTS, -1, 0.0
        for k in range(e, end):
            if i < 0 or states[k] != which[i]:
                i += 1
                total = log_sum(scores[i, :used])
            out[k] += np.float64(scores[i, within[k]]) - total
        e = end
