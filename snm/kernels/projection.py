"""Projecting an SNM on n-grams: the rows of contexts, sums over listed words, probabilities of n-grams, sampling.

N-grams are rows of links as backoff models have them: `offsets` and `targets`, sorted inside a row. A continuation row
of such a row has weights for its links (`snm.projection.continuations`).
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.matrix import (
    NO_ROW,
    code_at,
    code_of,
    first_link,
    page_start,
    parts_of,
    read_words,
    record_at,
    target_at,
    target_of,
)
from snm.kernels.row_index import find_link
from snm.kernels.simd import read_u4
from snm.layouts.keys import ABSENT
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
def count_continuations(parents, offsets, targets, counts):
    """counts[link]: rows whose parent is the link's row, and which have its word too."""
    for row in range(len(parents)):
        above = parents[row]
        if above < 0:
            continue
        for link in range(offsets[row], offsets[row + 1]):
            at = find_link(targets[link], offsets[above], offsets[above + 1], targets)
            if at >= 0:
                counts[at] += np.float32(1.0)


@helper
def weights_of(q, key, words, matrix, weights):
    """weights[i]: M of words[i] in the row `key` of template q, 0 where there is no such row; whether there is one."""
    if q == 0:
        for i in range(len(words)):
            weights[i] = matrix.unigrams[words[i]]
        return True
    record = record_at(key, page_start(key, matrix), matrix) if key != ABSENT else np.int64(NO_ROW)
    if record == NO_ROW:
        return False
    read_words(q, record, words, matrix, weights)
    return True


@kernel
def sum_listed(keys, chosen, rows, above, offsets, targets, continuations, matrix, weights, sums):
    """sums[i]: of the weights of the words of rows[i], in rows of event i.

    These are the rows of the templates `chosen`, whose keys are keys[q, i], and then the continuation rows of the
    n-grams' rows above[i]. weights: scratch, as long as the longest row. sums: (events, chosen + above)
    """
    for i in range(len(rows)):
        words = targets[offsets[rows[i]] : offsets[rows[i] + 1]]
        for j in range(len(chosen)):
            total, found = 0.0, weights[: len(words)]
            if weights_of(chosen[j], keys[chosen[j], i], words, matrix, found):
                for weight in found:
                    total += np.float64(weight)
            sums[i, j] = total
        for j in range(above.shape[1]):
            total, row = 0.0, above[i, j]
            if row >= 0:
                for word in words:
                    link = find_link(word, offsets[row], offsets[row + 1], targets)
                    total += np.float64(continuations[link]) if link >= 0 else 0.0
            sums[i, len(chosen) + j] = total


@kernel
def score_rows(keys, rows, above, scales, row_sums, offsets, targets, continuations, matrix, weights, probabilities):
    """probabilities[link] of the links of rows[i]: the gated weights in the rows of context i, over all row sums.

    keys: of the templates' rows, (templates, n). above: rows of n-grams whose continuation rows take part, (n, k).
    scales, row_sums: of both, (templates + k, n), as `Found` has them. weights: scratch, as long as the longest row.
    """
    for i in range(len(rows)):
        links = slice(offsets[rows[i]], offsets[rows[i] + 1])
        words, made, total = targets[links], probabilities[links], 0.0
        found = weights[: len(words)]
        made[:] = 0.0
        for q in range(len(row_sums)):
            if row_sums[q, i] <= 0.0:
                continue
            scale = np.float64(scales[q, i])
            total += scale * row_sums[q, i]
            if q < len(keys):
                weights_of(q, keys[q, i], words, matrix, found)
            else:
                continued(words, above[i, q - len(keys)], offsets, targets, continuations, found)
            for j in range(len(words)):
                made[j] += scale * found[j]
        for j in range(len(words)):
            made[j] /= total


@helper
def continued(words, row, offsets, targets, continuations, weights):
    """weights[i]: of words[i] in the continuation row of a row of n-grams."""
    for j in range(len(words)):
        link = find_link(words[j], offsets[row], offsets[row + 1], targets)
        weights[j] = continuations[link] if link >= 0 else np.float32(0.0)


@kernel
def sample_words(keys, scales, row_sums, matrix, cumulative, chances, words):
    """words[i]: drawn from P after the context of column i. chances: (2, n) numbers below 1, at random.

    cumulative: of the unigrams. scales, row_sums: (templates, n), as `Found` has them.
    """
    for i in range(len(words)):
        total = 0.0
        for q in range(len(keys)):
            total += np.float64(scales[q, i]) * row_sums[q, i]
        left, chosen = chances[0, i] * total, 0
        for q in range(len(keys)):
            share = np.float64(scales[q, i]) * row_sums[q, i]
            if share > 0.0:
                chosen = q
                left -= share
                if left < 0.0:
                    break
        if chosen == 0:
            wanted = chances[1, i] * cumulative[-1]
            words[i] = min(np.searchsorted(cumulative, wanted, "right"), len(cumulative) - 1)
        else:
            words[i] = draw_link(chosen, keys[chosen, i], chances[1, i] * row_sums[chosen, i], matrix)


@helper
def draw_link(q, key, wanted, matrix):
    """The target of the link of a row up to which weights sum to more than `wanted`; else the last."""
    record, single = record_at(key, page_start(key, matrix), matrix), matrix.single_of_template[q]
    if record < 0:
        return np.uint32(-1 - record)
    flags, target = np.int64(matrix.data[record + 1]), np.uint32(0)
    if flags & LONG:
        position = first_link(record, matrix)
        for _ in range(np.int64(read_u4(matrix.data, record + 2))):
            while not matrix.long_links[position]:
                position += 1
            target = target_of(matrix.long_links[position], matrix.spread)
            wanted -= matrix.values[code_of(matrix.long_links[position], matrix.spread)]
            if wanted < 0.0:
                break
            position += 1
        return target
    _, n, at, codes = parts_of(record, matrix)
    for j in range(n):
        target = target_at(at, j, flags, matrix)
        if matrix.data[record] == 0 and single >= 0:
            break
        wanted -= matrix.values[code_at(codes + j * matrix.code_bytes, matrix)]
        if wanted < 0.0:
            break
    return target
