"""Pruning M: reading its pages as rows, and choosing the links that stay. `snm.layouts.matrix` has the layout."""

from typing import NamedTuple

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.matrix import (
    code_at,
    code_of,
    first_link,
    parts_of,
    target_at,
    target_of,
)
from snm.kernels.simd import read_u2, read_u4
from snm.layouts.matrix import (
    CODES_PER_OCTAVE,
    INLINE,
    LINE,
    LINKS_PER_LINE,
    LONG,
    LONG_BYTES,
    MARK_BITS,
    MAX_IN_PAGE,
    MAX_UNSUMMED,
    WIDE,
)

_MARK = np.uint32((1 << MARK_BITS) - 1)
_MARK_BITS = np.uint64(MARK_BITS)


class Rows(NamedTuple):
    """Rows of M out of a range of pages. Row i has the links offsets[i]:offsets[i + 1]."""

    keys: np.ndarray  # (rows,) uint64: the bits of each key that select its page and are its mark, then zeros
    count_codes: np.ndarray  # (rows,) uint8
    offsets: np.ndarray  # (rows + 1,) int64
    targets: np.ndarray  # (links,) uint32, sorted inside a row
    codes: np.ndarray  # (links,): of weights; 0 where `singles` has them


@kernel
def count_links(first, last, matrix):
    """(rows, links) of the pages [first, last)."""
    rows = links = np.int64(0)
    for page in range(first, last):
        at = np.int64(matrix.starts[page])
        if at == np.int64(matrix.starts[page + 1]):
            continue
        n = np.int64(matrix.data[at])
        rows += n
        for i in range(n):
            entry = np.int64(read_u2(matrix.data, at + 1 + 3 * n + 2 * i))
            record = at + 1 + 5 * n + max(entry - INLINE, 0)
            flags = np.int64(matrix.data[record + 1])
            if entry < INLINE:
                links += 1
            else:
                links += np.int64(read_u4(matrix.data, record + 2)) if flags & LONG else flags & (WIDE - 1)
    return rows, links


@helper
def sort_links(first, last, rows):
    """Sort the links of a long row by their targets: a heap sort, which compiles fast and takes no memory."""
    n = last - first
    for start in range(n // 2 - 1, -1, -1):
        sift(first, start, n, rows)
    for end in range(n - 1, 0, -1):
        swap(first, first + end, rows)
        sift(first, np.int64(0), end, rows)


@helper
def swap(a, b, rows):
    rows.targets[a], rows.targets[b] = rows.targets[b], rows.targets[a]
    rows.codes[a], rows.codes[b] = rows.codes[b], rows.codes[a]


@helper
def sift(first, root, n, rows):
    while 2 * root + 1 < n:
        child = 2 * root + 1
        if child + 1 < n and rows.targets[first + child] < rows.targets[first + child + 1]:
            child += 1
        if rows.targets[first + root] >= rows.targets[first + child]:
            return
        swap(first + root, first + child, rows)
        root = child


@kernel
def read_pages(first, last, matrix, single_types, rows):
    """Fill `rows` with those of the pages [first, last). single_types: whether `singles` has weights."""
    row = link = np.int64(0)
    for page in range(first, last):
        at = np.int64(matrix.starts[page])
        if at == np.int64(matrix.starts[page + 1]):
            continue
        n = np.int64(matrix.data[at])
        for i in range(n):
            mark = np.uint64(read_u4(matrix.data, at + 1 + 3 * i) & _MARK)
            rows.keys[row] = (np.uint64(page) << matrix.shift) | (mark << (matrix.shift - _MARK_BITS))
            rows.offsets[row] = link
            entry = np.int64(read_u2(matrix.data, at + 1 + 3 * n + 2 * i))
            if entry < INLINE:
                rows.count_codes[row], rows.targets[link] = np.uint8(0), np.uint32(entry)
                rows.codes[link] = 0
                link += 1
            else:
                record = at + 1 + 5 * n + entry - INLINE
                rows.count_codes[row] = matrix.data[record]
                link = read_record(record, link, matrix, single_types, rows)
            row += 1
    rows.offsets[row] = link


@helper
def read_record(record, link, matrix, single_types, rows):
    """Copy the links of a record to rows[link:]; return where they end."""
    if np.int64(matrix.data[record + 1]) & LONG:
        n, position = np.int64(read_u4(matrix.data, record + 2)), first_link(record, matrix)
        for i in range(link, link + n):
            while not matrix.long_links[position]:
                position += 1
            rows.targets[i] = target_of(matrix.long_links[position], matrix.spread)
            rows.codes[i] = code_of(matrix.long_links[position], matrix.spread)
            position += 1
        sort_links(link, link + n, rows)
        return link + n
    flags, n, targets, codes = parts_of(record, matrix)
    without_codes = matrix.data[record] == 0 and single_types
    for i in range(n):
        rows.targets[link + i] = target_at(targets, i, flags, matrix)
        rows.codes[link + i] = 0 if without_codes else code_at(codes + i * matrix.code_bytes, matrix)
    return link + n


@kernel
def weigh(rows, matrix, single_weights, worth):
    """worth[link]: how much is lost without a link, see `snm.pruning.matrix`.

    single_weights: (words,) weights of features seen once, of no known type; empty if they have codes.
    """
    for i in range(len(rows.keys)):
        count = 2.0 ** (np.float64(rows.count_codes[i]) / CODES_PER_OCTAVE)
        without_codes = rows.count_codes[i] == 0 and len(single_weights) > 0
        for link in range(rows.offsets[i], rows.offsets[i + 1]):
            target = rows.targets[link]
            weight = single_weights[target] if without_codes else matrix.values[rows.codes[link]]
            worth[link] = count * weight


@helper
def row_bytes(n, last_target, count_code, single_types, link_bytes, code_bytes):
    """Bytes of a row of n links; an upper limit for a long row."""
    if count_code == 0 and single_types:
        return np.int64(5) if last_target < INLINE else np.int64(11)
    if n > MAX_IN_PAGE:
        return 5 + LONG_BYTES + link_bytes * LINE * ((n + LINKS_PER_LINE - 1) // LINKS_PER_LINE + 1)
    return 7 + (4 if n > MAX_UNSUMMED else 0) + n * ((2 if last_target < 0x10000 else 4) + code_bytes)


@helper
def least_of_link(n, last_target, count_code, single_types, link_bytes, code_bytes):
    """Bytes that a link of such a row adds to it."""
    if count_code == 0 and single_types:
        return 0.0
    if n > MAX_IN_PAGE:
        return link_bytes * LINE / LINKS_PER_LINE
    return (2.0 if last_target < 0x10000 else 4.0) + code_bytes


@helper
def choose(i, limit, rows, worth, single_types, link_bytes, code_bytes, row_overhead):
    """(kept links, bytes, what the others are worth) of row i, if each byte has to be worth `limit`.

    Links stay that are worth their own bytes; and the row stays if they are worth those that it adds.
    """
    start, stop = rows.offsets[i], rows.offsets[i + 1]
    last_target, code = rows.targets[stop - 1], rows.count_codes[i]
    least = limit * least_of_link(stop - start, last_target, code, single_types, link_bytes, code_bytes)
    n, kept, total, last = np.int64(0), 0.0, 0.0, np.uint32(0)
    for link in range(start, stop):
        total += worth[link]
        if worth[link] > least:
            n, kept, last = n + 1, kept + worth[link], rows.targets[link]
    size = row_bytes(n, last, code, single_types, link_bytes, code_bytes) + row_overhead
    if n == 0 or kept < limit * size:
        return np.int64(0), 0.0, total
    return n, np.float64(size), total - kept


@kernel
def measure(rows, worth, limits, single_types, link_bytes, code_bytes, row_overhead, sums):
    """Add to sums[limit]: (rows, links, bytes, worth of what leaves) with each of the limits."""
    for i in range(len(rows.keys)):
        for j in range(len(limits)):
            n, size, lost = choose(i, limits[j], rows, worth, single_types, link_bytes, code_bytes, row_overhead)
            sums[j, 0] += np.float64(n > 0)
            sums[j, 1] += n
            sums[j, 2] += size
            sums[j, 3] += lost


@kernel
def keep(rows, worth, limit, single_types, link_bytes, code_bytes, row_overhead):
    """Move the links that stay to the front of `rows`; return the numbers of rows and links that are left."""
    row = end = np.int64(0)
    for i in range(len(rows.keys)):
        n, _, _ = choose(i, limit, rows, worth, single_types, link_bytes, code_bytes, row_overhead)
        if n == 0:
            continue
        start, stop = rows.offsets[i], rows.offsets[i + 1]
        code = rows.count_codes[i]
        least = limit * least_of_link(stop - start, rows.targets[stop - 1], code, single_types, link_bytes, code_bytes)
        first = end
        for link in range(start, stop):
            if worth[link] > least:
                rows.targets[end], rows.codes[end] = rows.targets[link], rows.codes[link]
                end += 1
        rows.keys[row], rows.count_codes[row] = rows.keys[i], code
        rows.offsets[row] = first
        row += 1
    rows.offsets[row] = end
    return row, end
