"""Probabilities of words within their classes (a two-level softmax). See `snm.baselines.neural.classes`."""

import math

import numpy as np

from snm.kernels.compile import kernel, sum_helper
from snm.kernels.fastmath import exp_float32

_LEAST = np.float32(-80.0)  # that `exp_float32` takes


@sum_helper
def dot(a, b):
    total = np.float32(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@sum_helper
def sum_of_exponentials(scores, n, largest):
    total = np.float32(0)
    for i in range(n):
        total += exp_float32(max(scores[i] - largest, _LEAST))
    return total


@kernel
def log_sum(z, start, stop, vectors, biases, scores):
    """log of the summed exponentials of the scores of rows [start, stop) after the state z. scores: scratch memory"""
    largest = np.float32(-np.inf)
    for row in range(start, stop):
        scores[row - start] = dot(vectors[row], z) + biases[row]
        largest = max(largest, scores[row - start])
    return largest + math.log(np.float64(sum_of_exponentials(scores, stop - start, largest)))


@kernel
def score_rows(z, rows, classes, starts, vectors, biases, scores, out):
    """Add to out[k]: log P of row rows[k] within its class, after the state z[k]."""
    for k in range(len(rows)):
        start, stop = starts[classes[k]], starts[classes[k] + 1]
        if stop - start > 1:
            total = log_sum(z[k], start, stop, vectors, biases, scores)
            out[k] += np.float64(dot(vectors[rows[k]], z[k]) + biases[rows[k]]) - total


@kernel
def score_candidates(z, rows, class_of_row, class_logs, starts, vectors, biases, scores, out):
    """out[k, j]: log P of row rows[k, j] after the state z[k], or of rows[0, j] if there is one row of them.

    class_logs: log P of each class after each state. (states, classes)
    """
    known, sums = np.full(len(starts), -1, np.int64), np.empty(len(starts), np.float64)
    for k in range(len(z)):
        words = rows[0 if len(rows) == 1 else k]
        for j in range(len(words)):
            row = words[j]
            c = class_of_row[row]
            out[k, j] = class_logs[k, c]
            start, stop = starts[c], starts[c + 1]
            if stop - start == 1:
                continue
            if known[c] != k:
                known[c], sums[c] = k, log_sum(z[k], start, stop, vectors, biases, scores)
            out[k, j] += np.float64(dot(vectors[row], z[k]) + biases[row]) - sums[c]
