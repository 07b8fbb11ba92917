"""Rows of M in pages of bytes: writing them. See docs/format.md, and `snm.kernels.pages` for what reads them."""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.matrix import lines_of, mark_of, position_of_link, spread_target
from snm.kernels.simd import as_bits
from snm.layouts.matrix import INLINE, LINE, LONG, LONG_BYTES, MAX_IN_PAGE, MAX_UNSUMMED, WIDE


@helper
def record_bytes(total, n, last_target, singles, code_bytes):
    """Bytes of a row in its page, beside its mark and its two bytes."""
    if total == 1 and singles:
        return 0 if last_target < INLINE else 6
    if n > MAX_IN_PAGE:
        return LONG_BYTES
    return 2 + (4 if n > MAX_UNSUMMED else 0) + n * ((2 if last_target < 0x10000 else 4) + code_bytes)


@kernel
def code_links(first, last, c, weights, middles, singles, codes):
    """The code of every link of rows [first, last) that needs one: the number of `middles` below its weight.

    weights[0] belongs to the first link of row `first`.
    """
    base = c.offsets[first]
    for row in range(first, last):
        if c.feature_counts[row] == 1 and singles:
            continue
        for link in range(c.offsets[row], c.offsets[row + 1]):
            weight = weights[link - base]
            low, size = 0, len(middles)
            while size > 0:
                half = (size + 1) >> 1
                low = low + half if middles[low + half - 1] < weight else low
                size -= half
            codes[link] = low


@helper
def pack_link(target, code, spread):
    return (np.uint64(spread_target(target, spread)) << spread.code_bits) | np.uint64(code)


@helper
def long_positions(end, n):
    """Slots of a long row of n links whose last one lies before `end`: in the last line the last slot is empty."""
    return max(LINE * lines_of(n), (end // LINE + 1) * LINE)


@kernel
def measure_long_row(start, stop, targets, spread):
    """Slots of the long row of these links."""
    n, end = stop - start, np.int64(0)
    links = np.zeros(lines_of(n), np.int64)
    for link in range(start, stop):
        links[position_of_link(spread_target(targets[link], spread), n, spread) // LINE] += 1
    for line in range(len(links)):
        end = max(end, line * LINE) + links[line]
    return long_positions(end, n)


@kernel
def write_long_row(start, stop, targets, codes, spread, at, long_links):
    """Write the links, each to the line that its target names or the first free slot after; return their slots."""
    n, end = stop - start, np.int64(0)
    links = np.empty(n, np.uint64)
    for link in range(start, stop):
        links[link - start] = pack_link(targets[link], codes[link], spread)
    links.sort()
    for link in links:
        line = position_of_link(np.int64(link >> spread.code_bits), n, spread) // LINE
        end = max(end, line * LINE) + 1
        long_links[at + end - 1] = link
    return long_positions(end, n)


@kernel
def measure_pages(first, last, c, shift, singles, code_bytes, spread, sizes):
    """Bytes of the pages of rows [first, last), written to `sizes`; return their sum and the long rows' slots.

    sizes[0], zero as all of them, is of the page of row `first`.
    """
    base = np.int64(c.features[first] >> shift)
    size = long_links = 0
    for row in range(first, last):
        n = c.offsets[row + 1] - c.offsets[row]
        last_target = c.targets[c.offsets[row + 1] - 1]
        page = np.int64(c.features[row] >> shift) - base
        if sizes[page] == 0:
            sizes[page] = 1
            size += 1
        added = 5 + record_bytes(c.feature_counts[row], n, last_target, singles, code_bytes)
        sizes[page] += added
        size += added
        if n > MAX_IN_PAGE:
            long_links += measure_long_row(c.offsets[row], c.offsets[row + 1], c.targets, spread)
    return size, long_links


@helper
def put(value, size, at, data):
    for i in range(size):
        data[at + i] = np.uint8((np.uint64(value) >> np.uint64(8 * i)) & np.uint64(255))
    return at + size


@kernel
def write_pages(first, last, c, row_codes, link_codes, values, shift, singles, code_bytes, at, data,
                spread, long_at, long_base, long_links):  # fmt: skip
    """Write the pages of rows [first, last) from data[at] on, long rows from long_links[long_at] on (zeros).

    `long_base` is the place of long_links[0] among all. Returns the most rows and the farthest record that a page
    had, and how many rows have a page and a mark that another has: a look-up finds the first of those.
    """
    most = farthest = shadowed = 0
    row = first
    while row < last:
        page = c.features[row] >> shift
        end = row
        while end < last and c.features[end] >> shift == page:
            end += 1
        rows = end - row
        most = max(most, rows)
        data[at] = np.uint8(rows)
        marks = at + 1
        entries = marks + 3 * rows
        tail = entries + 2 * rows
        at = tail
        for i in range(rows):
            mark = mark_of(c.features[row + i], shift)
            if i > 0 and mark == mark_of(c.features[row + i - 1], shift):
                shadowed += 1
            put(mark, 3, marks + 3 * i, data)
            start, stop = c.offsets[row + i], c.offsets[row + i + 1]
            n = stop - start
            target = c.targets[stop - 1]
            if c.feature_counts[row + i] == 1 and singles and target < INLINE:
                put(target, 2, entries + 2 * i, data)
                continue
            put(INLINE + at - tail, 2, entries + 2 * i, data)
            farthest = max(farthest, at - tail)
            wide = target >= 0x10000 or (c.feature_counts[row + i] == 1 and singles)
            at = put(row_codes[row + i], 1, at, data)
            if n > MAX_IN_PAGE:
                total = np.float64(0.0)
                for link in range(start, stop):
                    total += values[link_codes[link]]
                at = put(LONG, 1, at, data)
                at = put(n, 4, at, data)
                at = put(as_bits(np.float32(total)), 4, at, data)
                at = put(long_base + long_at, 6, at, data)
                long_at += write_long_row(start, stop, c.targets, link_codes, spread, long_at, long_links)
                continue
            at = put(n | (WIDE if wide else 0), 1, at, data)
            if n > MAX_UNSUMMED:
                total = np.float64(0.0)
                for link in range(start, stop):
                    total += values[link_codes[link]]
                at = put(as_bits(np.float32(total)), 4, at, data)
            for link in range(start, stop):
                at = put(c.targets[link], 4 if wide else 2, at, data)
            if not (c.feature_counts[row + i] == 1 and singles):
                for link in range(start, stop):
                    at = put(link_codes[link], code_bytes, at, data)
        row = end
    return most, farthest, shadowed
