"""Projecting an SNM on n-grams: the rows of contexts, and probabilities of several words after each of them."""

import numpy as np

from snm.kernels.compile import kernel
from snm.kernels.matrix import NO_ROW, first_link, page_start, parts_of, read_words, record_at, target_at, target_of
from snm.kernels.simd import read_u4
from snm.layouts.matrix import LONG


@kernel
def count_targets(keys, matrix, lengths):
    """lengths[i]: number of links in the row of keys[i]; 0 where there is no row."""
    for i in range(len(keys)):
        record = record_at(keys[i], page_start(keys[i], matrix), matrix)
        if record < 0:
            lengths[i] = 0 if record == NO_ROW else 1
            continue
        flags = np.int64(matrix.data[record + 1])
        lengths[i] = np.int64(read_u4(matrix.data, record + 2)) if flags & LONG else parts_of(record, matrix)[1]


@kernel
def read_targets(keys, matrix, targets):
    """Fill `targets` with those of the rows of all keys, one row after another; inside of a long row in no order."""
    at = np.int64(0)
    for i in range(len(keys)):
        record = record_at(keys[i], page_start(keys[i], matrix), matrix)
        if record < 0:
            if record != NO_ROW:
                targets[at] = -1 - record
                at += 1
            continue
        flags = np.int64(matrix.data[record + 1])
        if flags & LONG:
            position = first_link(record, matrix)
            for _ in range(np.int64(read_u4(matrix.data, record + 2))):
                while not matrix.long_links[position]:
                    position += 1
                targets[at] = target_of(matrix.long_links[position], matrix.spread)
                at, position = at + 1, position + 1
        else:
            _, n, first, _ = parts_of(record, matrix)
            for j in range(n):
                targets[at] = target_at(first, j, flags, matrix)
                at += 1


@kernel
def score_words(keys, scales, row_sums, matrix, columns, offsets, words, weights, out):
    """out[i]: P(words[i]) after the context of a column of `keys`, for the words offsets[c]:offsets[c + 1] of each.

    columns[c]: the column of context c. scales, row_sums: as `Found` has them. weights: scratch, as long as `words`.
    """
    for c in range(len(columns)):
        column, part = columns[c], slice(offsets[c], offsets[c + 1])
        here, found, total = words[part], weights[part], 0.0
        probabilities = out[part]
        probabilities[:] = 0.0
        for q in range(len(keys)):
            if row_sums[q, column] <= 0.0:
                continue
            scale = np.float64(scales[q, column])
            total += scale * row_sums[q, column]
            if q == 0:
                for i in range(len(here)):
                    found[i] = matrix.unigrams[here[i]]
            else:
                key = keys[q, column]
                read_words(q, record_at(key, page_start(key, matrix), matrix), here, matrix, found)
            for i in range(len(here)):
                probabilities[i] += scale * found[i]
        for i in range(len(here)):
            probabilities[i] /= total
