"""Writing the rows of M into pages and long rows. See `snm.layouts.matrix`."""

import numpy as np

from snm.kernels.compile import array_helper, helper, kernel
from snm.kernels.matrix import lines_of, mark_of, position_of_link, spread_target
from snm.kernels.simd import as_bits
from snm.layouts.matrix import INLINE, LINE, LONG, LONG_BYTES, MAX_IN_PAGE, MAX_UNSUMMED, WIDE


@helper
def record_bytes(feature_count, n, last_target, singles, code_bytes):
    """Size of the record of a row of n links. `singles`: features seen once have no codes."""
    if feature_count == 1 and singles:
        return 0 if last_target < INLINE else 6
    if n > MAX_IN_PAGE:
        return LONG_BYTES
    return 2 + (4 if n > MAX_UNSUMMED else 0) + n * ((2 if last_target < 0x10000 else 4) + code_bytes)


@kernel
def code_links(first, last, counts, weights, middles, singles, codes):
    """codes[link]: the weight code of every link of rows [first, last) that has one.

    A code is the number of `middles` below the weight: they lie between successive values. weights[0] is the weight of
    the first link of row `first`.
    """
    base = counts.offsets[first]
    for row in range(first, last):
        if counts.feature_counts[row] == 1 and singles:
            continue
        for link in range(counts.offsets[row], counts.offsets[row + 1]):
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
    """Positions of a long row of n links, the last of them before `end`. The last position of the row is empty."""
    return max(LINE * lines_of(n), (end // LINE + 1) * LINE)


@array_helper
def measure_long_row(start, stop, targets, spread):
    """Positions of the long row that links [start, stop) make."""
    n, end = stop - start, np.int64(0)
    links_of_line = np.zeros(lines_of(n), np.int64)
    for link in range(start, stop):
        links_of_line[position_of_link(spread_target(targets[link], spread), n, spread) // LINE] += 1
    for line in range(len(links_of_line)):
        end = max(end, line * LINE) + links_of_line[line]
    return long_positions(end, n)


@array_helper
def write_long_row(start, stop, targets, codes, spread, at, long_links):
    """Write links [start, stop) as a long row to long_links[at:], which are zeros; return its number of positions.

    A link goes to the line that its target selects, or to the first free position after it.
    """
    n, end = stop - start, np.int64(0)
    links, next_of_line = np.empty(n, np.uint64), np.zeros(lines_of(n) + 1, np.int64)
    for link in range(start, stop):
        next_of_line[position_of_link(spread_target(targets[link], spread), n, spread) // LINE + 1] += 1
    for line in range(lines_of(n)):
        next_of_line[line + 1] += next_of_line[line]
    for link in range(start, stop):  # sorted by line, and then inside of a line: Numba's sort takes long to compile
        line = position_of_link(spread_target(targets[link], spread), n, spread) // LINE
        links[next_of_line[line]] = pack_link(targets[link], codes[link], spread)
        next_of_line[line] += 1
    for i in range(1, n):
        link, k = links[i], i
        while k > 0 and links[k - 1] > link:
            links[k] = links[k - 1]
            k -= 1
        links[k] = link
    for link in links:
        line = position_of_link(np.int64(link >> spread.code_bits), n, spread) // LINE
        end = max(end, line * LINE) + 1
        long_links[at + end - 1] = link
    return long_positions(end, n)


@kernel
def measure_pages(first, last, counts, shift, singles, code_bytes, spread, sizes):
    """Add the bytes of the pages of rows [first, last) to `sizes`; return their sum, and the positions of long rows.

    sizes[0] is for the page of row `first`. `sizes` are zeros before.
    """
    base = np.int64(counts.features[first] >> shift)
    size = positions = 0
    for row in range(first, last):
        n = counts.offsets[row + 1] - counts.offsets[row]
        last_target = counts.targets[counts.offsets[row + 1] - 1]
        page = np.int64(counts.features[row] >> shift) - base
        if sizes[page] == 0:
            sizes[page] = 1
            size += 1
        added = 5 + record_bytes(counts.feature_counts[row], n, last_target, singles, code_bytes)
        sizes[page] += added
        size += added
        if n > MAX_IN_PAGE:
            positions += measure_long_row(counts.offsets[row], counts.offsets[row + 1], counts.targets, spread)
    return size, positions


@helper
def put(value, size, at, data):
    """Write `size` bytes of a uint64, little-endian, to data[at:]; return where they end."""
    for i in range(size):
        data[at + i] = np.uint8((value >> np.uint64(8 * i)) & np.uint64(255))
    return at + size


@kernel
def move_long_rows(data, sizes, added):
    """Add `added` to the position of every long row in the pages of `data`, which have these sizes."""
    at = 0
    for page in range(len(sizes)):
        rows = np.int64(data[at]) if sizes[page] else 0
        entries = at + 1 + 3 * rows
        for i in range(rows):
            entry = np.int64(data[entries + 2 * i]) | np.int64(data[entries + 2 * i + 1]) << 8
            record = entries + 2 * rows + entry - INLINE
            if entry >= INLINE and data[record + 1] == LONG:
                position = np.uint64(added)
                for k in range(6):
                    position += np.uint64(data[record + 10 + k]) << np.uint64(8 * k)
                put(position, 6, record + 10, data)
        at += sizes[page]


@kernel
def write_pages(first, last, counts, count_codes, link_codes, values, shift, singles, code_bytes, at, data,
                spread, long_at, long_base, long_links):  # fmt: skip
    """Write the pages of rows [first, last) to data[at:], and long rows to long_links[long_at:], which are zeros.

    `long_base`: position of long_links[0] in the whole array. Returns the largest number of rows and the largest record
    offset of a page, and the number of shadowed rows: they have the mark of the row before, which is found instead.
    """
    most_rows = max_offset = shadowed = 0
    row = first
    while row < last:
        page = counts.features[row] >> shift
        end = row
        while end < last and counts.features[end] >> shift == page:
            end += 1
        rows = end - row
        most_rows = max(most_rows, rows)
        data[at] = np.uint8(rows)
        marks = at + 1
        entries = marks + 3 * rows
        tail = entries + 2 * rows
        at = tail
        for i in range(rows):
            mark = mark_of(counts.features[row + i], shift)
            if i > 0 and mark == mark_of(counts.features[row + i - 1], shift):
                shadowed += 1
            put(np.uint64(mark), 3, marks + 3 * i, data)
            start, stop = counts.offsets[row + i], counts.offsets[row + i + 1]
            n = stop - start
            target = counts.targets[stop - 1]
            if counts.feature_counts[row + i] == 1 and singles and target < INLINE:
                put(np.uint64(target), 2, entries + 2 * i, data)
                continue
            put(np.uint64(INLINE + at - tail), 2, entries + 2 * i, data)
            max_offset = max(max_offset, at - tail)
            wide = target >= 0x10000 or (counts.feature_counts[row + i] == 1 and singles)
            at = put(np.uint64(count_codes[row + i]), 1, at, data)
            if n > MAX_IN_PAGE:
                total = np.float64(0.0)
                for link in range(start, stop):
                    total += values[link_codes[link]]
                at = put(np.uint64(LONG), 1, at, data)
                at = put(np.uint64(n), 4, at, data)
                at = put(np.uint64(as_bits(np.float32(total))), 4, at, data)
                at = put(np.uint64(long_base + long_at), 6, at, data)
                long_at += write_long_row(start, stop, counts.targets, link_codes, spread, long_at, long_links)
                continue
            at = put(np.uint64(n | (WIDE if wide else 0)), 1, at, data)
            if n > MAX_UNSUMMED:
                total = np.float64(0.0)
                for link in range(start, stop):
                    total += values[link_codes[link]]
                at = put(np.uint64(as_bits(np.float32(total))), 4, at, data)
            for link in range(start, stop):
                at = put(np.uint64(counts.targets[link]), 4 if wide else 2, at, data)
            if not (counts.feature_counts[row + i] == 1 and singles):
                for link in range(start, stop):
                    at = put(np.uint64(link_codes[link]), code_bytes, at, data)
        row = end
    return most_rows, max_offset, shadowed
