"""All rows of M as plain arrays: for devices that look rows up by searching a sorted list."""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.matrix import code_at, code_of, first_link, parts_of, read_long, target_at, target_of
from snm.kernels.simd import as_float, read_u2, read_u4
from snm.layouts.matrix import INLINE, LONG, MARK_BITS, MAX_UNSUMMED, WIDE

_MARK = np.uint32((1 << MARK_BITS) - 1)


@helper
def record_of(page_at, row, rows, matrix):
    """Where the record of a row of a page begins in `data`; -1 - target for a row's only target."""
    entry = np.int64(read_u2(matrix.data, page_at + 1 + 3 * rows + 2 * row))
    return -1 - entry if entry < INLINE else page_at + 1 + 5 * rows + entry - INLINE


@helper
def links_of(record, matrix):
    """Number of links of a row."""
    if record < 0:
        return np.int64(1)
    flags = np.int64(matrix.data[record + 1])
    return read_long(record, matrix)[1] if flags & LONG else flags & (WIDE - 1)


@kernel
def count_rows(matrix):
    """(rows, links) of all pages."""
    n_rows, n_links = np.int64(0), np.int64(0)
    for page in range(len(matrix.starts) - 1):
        at = np.int64(matrix.starts[page])
        if np.int64(matrix.starts[page + 1]) == at:
            continue
        rows = np.int64(matrix.data[at])
        n_rows += rows
        for i in range(rows):
            n_links += links_of(record_of(at, i, rows, matrix), matrix)
    return n_rows, n_links


@helper
def copy_links(record, matrix, seen_once, targets, weights):
    """Copy the links of a row; return the sum of their weights. Those of rows seen once stay 0."""
    if record < 0:
        targets[0], weights[0] = -1 - record, 0.0
        return np.float32(0.0)
    flags = np.int64(matrix.data[record + 1])
    if flags & LONG:
        _, n, total = read_long(record, matrix)
        position = first_link(record, matrix)
        for i in range(n):
            while not matrix.long_links[position]:
                position += 1
            targets[i] = target_of(matrix.long_links[position], matrix.spread)
            weights[i] = matrix.values[code_of(matrix.long_links[position], matrix.spread)]
            position += 1
        return total
    _, n, at, codes = parts_of(record, matrix)
    total = np.float64(0.0)
    for i in range(n):
        targets[i] = target_at(at, i, flags, matrix)
        weights[i] = np.float32(0.0) if seen_once else matrix.values[code_at(codes + i * matrix.code_bytes, matrix)]
        total += weights[i]
    return as_float(read_u4(matrix.data, record + 2)) if n > MAX_UNSUMMED else np.float32(total)


@kernel
def copy_rows(matrix, tops, offsets, codes, sums, targets, weights):
    """Fill the arrays of all rows, in the order of their keys.

    tops: page and mark of each row: the key without the bits below. codes: of its feature count. Of rows seen once
    whose weights depend on the type, sum and weight are 0.
    """
    row, link = np.int64(0), np.int64(0)
    singles = len(matrix.singles) > 0
    for page in range(len(matrix.starts) - 1):
        at = np.int64(matrix.starts[page])
        if np.int64(matrix.starts[page + 1]) == at:
            continue
        rows = np.int64(matrix.data[at])
        for i in range(rows):
            record = record_of(at, i, rows, matrix)
            n = links_of(record, matrix)
            mark = read_u4(matrix.data, at + 1 + 3 * i) & _MARK
            tops[row] = np.int64(page) << MARK_BITS | np.int64(mark)
            codes[row] = 0 if record < 0 else matrix.data[record]
            part = slice(link, link + n)
            sums[row] = copy_links(record, matrix, singles and codes[row] == 0, targets[part], weights[part])
            offsets[row] = link
            row, link = row + 1, link + n
    offsets[row] = link
