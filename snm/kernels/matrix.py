"""Finding rows and links of M. `snm.layouts.matrix` has the layout, docs/format.md specifies it.

A look-up reads the directory `starts`, then one page, which is a cache line or two. A long row lies outside its page,
as a hash table of packed links: the spread target selects a line, and a link that does not fit into its line is in the
next one. So one memory access finds a link, or shows that there is none.

Arrays may come from a stranger's file, and are too large to be validated when it is opened. So whatever they say is
compared with the length of the array before it is followed: a page, a record or a link outside of it is not there.
Of arrays that a model may have, that a look-up reads outside none follows from: `data` ends with PADDING bytes behind
the last page, and a record takes less; `long_links` has whole lines.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.simd import (
    MARKS,
    MARKS_BYTES,
    as_float,
    equal_links,
    equal_numbers,
    lowest_bit,
    matches,
    prefetch,
    read_u2,
    read_u4,
    read_u8,
)
from snm.layouts.keys import ABSENT
from snm.layouts.matrix import (
    INLINE,
    LINE,
    LINKS_PER_LINE,
    LONG,
    LONG_BYTES,
    MARK_BITS,
    MAX_IN_PAGE,
    MAX_UNSUMMED,
    PADDING,
    WIDE,
)

NO_ROW = -(1 << 40)
_MARK = np.uint32((1 << MARK_BITS) - 1)
_POSITION = np.uint64((1 << 48) - 1)


@helper
def mark_of(key, shift):
    """The mark of a key: the bits below those that select its page."""
    return np.uint32(key >> (shift - np.uint64(MARK_BITS))) & _MARK


@helper
def spread_target(target, spread):
    return np.int64((np.uint64(target) * spread.factor) & spread.mask)


@helper
def target_of(link, spread):
    return np.uint32(((np.uint64(link) >> spread.code_bits) * spread.inverse) & spread.mask)


@helper
def code_of(link, spread):
    return np.int64(np.uint64(link) & ((np.uint64(1) << spread.code_bits) - np.uint64(1)))


@helper
def end_of_pages(matrix):
    """Where the last page ends in `data`, at most. A record that begins before is inside of `data`."""
    return np.int64(len(matrix.data) - PADDING)


@helper
def page_start(key, matrix):
    """Where the page of `key` begins in `data`; below 0 if the page is empty, or not inside of `data`."""
    page = key >> matrix.shift
    at, end = np.int64(matrix.starts[page]), np.int64(matrix.starts[page + np.uint64(1)])
    return at if key != ABSENT and at < end and end <= end_of_pages(matrix) else np.int64(-1)


@helper
def prefetch_page(key, matrix):
    """`page_start`, and prefetch the page as far as its marks may reach."""
    at = page_start(key, matrix)
    prefetch(matrix.data, max(at, 0))
    prefetch(matrix.data, max(at, 0) + MARKS_BYTES)
    return at


@helper
def record_at(key, at, matrix):
    """Where the record of row `key` begins in `data`; its page begins at data[at].

    NO_ROW if there is no row; -1 - target if the entry is the row's only target. Pages of up to MARKS rows take no
    branch: whether there is a row is unpredictable, and a misprediction costs more than the comparison of all marks.
    """
    page, end = max(at, np.int64(0)), end_of_pages(matrix)
    rows, mark = np.int64(matrix.data[page]), mark_of(key, matrix.shift)
    hits = matches(matrix.data, page + 1, mark) & ((np.int64(1) << min(rows, MARKS)) - 1)
    row = lowest_bit(hits) if hits else np.int64(0)
    if rows > MARKS and not hits:
        row = MARKS
        while row < rows and read_u4(matrix.data, min(page + 1 + 3 * row, end)) & _MARK != mark:
            row += 1
        hits = np.int64(row < rows)
    entry = np.int64(read_u2(matrix.data, min(page + 1 + 3 * rows + 2 * row, end)))
    record = -1 - entry if entry < INLINE else page + 1 + 5 * rows + entry - INLINE
    targets = np.int64(matrix.singles.shape[1])
    inside = np.uint64(record + targets) <= np.uint64(end + targets)  # from -targets to end
    return record if hits and at >= 0 and inside else np.int64(NO_ROW)


@helper
def prefetch_record(record, matrix):
    """Prefetch what `read_short` and `read_long` read of most rows."""
    prefetch(matrix.data, max(record, 0))
    prefetch(matrix.data, max(record, 0) + 48)


@helper
def prefetch_rest(record, matrix):
    """Prefetch the rest of a row of more than MAX_UNSUMMED links."""
    prefetch(matrix.data, record + 112)
    prefetch(matrix.data, record + 160)


@helper
def is_long(record, matrix):
    return (record >= 0) & (matrix.data[max(record, np.int64(0)) + 1] & LONG != 0)


@helper
def first_link(record, matrix):
    """The first position of a long row in `long_links`."""
    return np.int64(read_u8(matrix.data, record + 10) & _POSITION)


@helper
def code_at(at, matrix):
    """The weight code at data[at], of one byte or two."""
    if matrix.code_bytes == 1:
        return np.int64(matrix.data[at])
    return np.int64(read_u2(matrix.data, at))


@helper
def target_at(at, i, flags, matrix):
    """Target i of a row whose targets begin at data[at]."""
    if flags & WIDE:
        return read_u4(matrix.data, at + 4 * i)
    return np.uint32(read_u2(matrix.data, at + 2 * i))


@helper
def parts_of(record, matrix):
    """(flags, number of links, where targets begin in `data`, where codes begin) of a row in its page."""
    flags = np.int64(matrix.data[record + 1])
    n = min(flags & (WIDE - 1), MAX_IN_PAGE)
    targets = record + (6 if n > MAX_UNSUMMED else 2)
    return flags, n, targets, targets + n * (4 if flags & WIDE else 2)


@helper
def weight_seen_once(single, target, matrix):
    """The weight of a feature seen once, whose row of `singles` is `single`."""
    return matrix.values[matrix.singles[single, min(np.int64(target), matrix.singles.shape[1] - 1)]]


@helper
def find_target(word, n, at, flags, matrix):
    """A bit mask of the n targets at data[at]: bit i is set if target i is `word`."""
    if flags & WIDE:
        hits = equal_numbers(matrix.data, at, word, MAX_UNSUMMED, 4)
        if n > MAX_UNSUMMED:
            hits = equal_numbers(matrix.data, at, word, MAX_IN_PAGE, 4)
    else:
        hits = equal_numbers(matrix.data, at, word, MAX_UNSUMMED, 2)
        if n > MAX_UNSUMMED:
            hits = equal_numbers(matrix.data, at, word, MAX_IN_PAGE, 2)
        hits = hits if word < 0x10000 else np.int64(0)
    return hits & ((np.int64(1) << n) - 1)


@helper
def read_short(q, record, word, matrix):
    """(count code, number of links, row sum, weight of `word`) of a row of template q that is not long."""
    single = matrix.single_of_template[q]
    if record < 0:
        weight = weight_seen_once(single, -1 - record, matrix)
        return np.uint8(0), np.int64(1), weight, weight if -1 - record == word else np.float32(0.0)
    count_code, (flags, n, targets, codes) = matrix.data[record], parts_of(record, matrix)
    hits = find_target(word, n, targets, flags, matrix)
    if count_code == 0 and single >= 0:
        weight = weight_seen_once(single, target_at(targets, 0, flags, matrix), matrix)
        return count_code, n, weight, weight if hits else np.float32(0.0)
    found = matrix.values[code_at(codes + (lowest_bit(hits) if hits else np.int64(0)) * matrix.code_bytes, matrix)]
    weight = found if hits else np.float32(0.0)
    if n > MAX_UNSUMMED:
        return count_code, n, as_float(read_u4(matrix.data, record + 2)), weight
    total = np.float64(0.0)
    for i in range(MAX_UNSUMMED):  # not n: its end would be an unpredictable branch
        value = np.float64(matrix.values[code_at(codes + i * matrix.code_bytes, matrix)])
        total += value if i < n else 0.0
    return count_code, n, np.float32(total), weight


@helper
def read_long(record, matrix):
    """(count code, number of links, row sum) of a long row."""
    links = np.int64(read_u4(matrix.data, record + 2))
    return matrix.data[record], links, as_float(read_u4(matrix.data, record + 6))


@helper
def lines_of(n):
    """Number of lines that the targets of a long row of n links select from."""
    return (n + LINKS_PER_LINE - 1) // LINKS_PER_LINE


@helper
def position_of_link(wanted, n, spread):
    """A position in the line that a spread target selects, counted from the first of a row of n links."""
    return (wanted * (LINE * lines_of(n))) >> spread.bits


@helper
def prefetch_link(at, links):
    """Prefetch the line of links[at], and the next line, where the link may be."""
    prefetch(links, at)
    prefetch(links, at + LINE // 4)


@helper
def find_link(wanted, at, links, spread):
    """The code of the link to a spread target, or -1; its line is that of links[at]. `links` has whole lines.

    All positions of a line are compared at once: the end of a loop over them would be an unpredictable branch.
    """
    first, end = at & ~np.int64(LINE - 1), np.int64(len(links))
    if np.uint64(first) >= np.uint64(end):
        return np.int64(-1)
    hits = equal_links(links, first, spread.code_bits, np.uint64(wanted))
    last = np.int64(np.uint64(links[first + LINE - 1]) >> spread.code_bits)
    # the line is full and the link may be in the next: rare
    while (hits == 0) & (last != 0) & (last < wanted) & (first + LINE < end):
        first += LINE
        hits = equal_links(links, first, spread.code_bits, np.uint64(wanted))
        last = np.int64(np.uint64(links[first + LINE - 1]) >> spread.code_bits)
    code = code_of(links[first + (lowest_bit(hits) if hits else np.int64(0))], spread)
    return code if hits else np.int64(-1)


@helper
def weight_of_link(wanted, at, matrix):
    """The weight of the link that `find_link` finds, or 0."""
    code = find_link(wanted, at, matrix.long_links, matrix.spread)
    return matrix.values[max(code, np.int64(0))] if code >= 0 else np.float32(0.0)


@helper
def read_words(q, record, words, matrix, weights):
    """weights[i]: M of words[i] in a row of template q."""
    single = matrix.single_of_template[q]
    if record < 0:
        value = weight_seen_once(single, -1 - record, matrix)
        for i in range(len(words)):
            weights[i] = value if np.int64(words[i]) == -1 - record else np.float32(0.0)
        return
    if is_long(record, matrix):
        first, links = first_link(record, matrix), read_long(record, matrix)[1]
        for i in range(len(words)):
            wanted = spread_target(words[i], matrix.spread)
            weights[i] = weight_of_link(wanted, first + position_of_link(wanted, links, matrix.spread), matrix)
        return
    flags, n, targets, codes = parts_of(record, matrix)
    seen_once = matrix.data[record] == 0 and single >= 0
    for i in range(len(words)):
        hits = find_target(words[i], n, targets, flags, matrix)
        weights[i] = 0.0
        if hits:
            j = lowest_bit(hits)
            code = matrix.singles[single, words[i]] if seen_once else code_at(codes + j * matrix.code_bytes, matrix)
            weights[i] = matrix.values[code]


@kernel
def read_row(q, key, matrix):
    """Targets and weights of the row of template q with this key; empty if there is none. (links,) uint32, float32

    Targets may be no words, in a damaged model.
    """
    record = record_at(key, page_start(key, matrix), matrix)
    if record == NO_ROW:
        return np.empty(0, np.uint32), np.empty(0, np.float32)
    single = matrix.single_of_template[q]
    if record < 0:
        weight = weight_seen_once(single, -1 - record, matrix)
        return np.full(1, -1 - record, np.uint32), np.full(1, weight, np.float32)
    flags = np.int64(matrix.data[record + 1])
    if flags & LONG:
        n, position, end = (
            np.int64(read_u4(matrix.data, record + 2)),
            first_link(record, matrix),
            len(matrix.long_links),
        )
        n = min(n, max(end - position, 0))
        targets, weights = np.empty(n, np.uint32), np.empty(n, np.float32)
        for i in range(n):
            while position < end and not matrix.long_links[position]:
                position += 1
            if position == end:
                return targets[:i], weights[:i]
            targets[i] = target_of(matrix.long_links[position], matrix.spread)
            weights[i] = matrix.values[code_of(matrix.long_links[position], matrix.spread)]
            position += 1
        return targets, weights
    _, n, at, codes = parts_of(record, matrix)
    targets, weights = np.empty(n, np.uint32), np.empty(n, np.float32)
    for i in range(n):
        targets[i] = target_at(at, i, flags, matrix)
        if matrix.data[record] == 0 and single >= 0:
            weights[i] = weight_seen_once(single, targets[i], matrix)
        else:
            weights[i] = matrix.values[code_at(codes + i * matrix.code_bytes, matrix)]
    return targets, weights


@kernel
def first_invalid_page(matrix, single_types, words):
    """The first page with a row whose targets are not increasing word ids, or whose stored sum is wrong; -1 for none.

    `single_types`: whether `singles` has the weights of features seen once. Long rows together have no more links than
    there are: so whatever reads all rows takes time and memory in proportion to the arrays.
    """
    long_links = np.int64(0)
    for page in range(len(matrix.starts) - 1):
        at, end = np.int64(matrix.starts[page]), np.int64(matrix.starts[page + 1])
        if at == end:
            continue
        rows = np.int64(matrix.data[at]) if 0 <= at < end <= end_of_pages(matrix) else np.int64(0)
        tail = at + 1 + 5 * rows
        if rows == 0 or tail > end:
            return page
        for i in range(rows):
            entry = np.int64(read_u2(matrix.data, at + 1 + 3 * rows + 2 * i))
            if entry < INLINE:
                if not single_types or entry >= words:
                    return page
                continue
            record = tail + entry - INLINE
            if record + LONG_BYTES <= end and matrix.data[record + 1] & LONG:
                long_links += np.int64(read_u4(matrix.data, record + 2))
                if long_links > len(matrix.long_links):
                    return page
            if not is_valid_record(record, end, matrix, single_types, words):
                return page
    return -1


@helper
def is_valid_record(record, end, matrix, single_types, words):
    if record + 2 > end:
        return False
    flags = np.int64(matrix.data[record + 1])
    n = flags & (WIDE - 1)
    targets = record + 2
    single = matrix.data[record] == 0 and single_types
    if flags & LONG:
        if record + LONG_BYTES > end:
            return False
        return is_valid_long_row(record, matrix, words)
    if n > MAX_UNSUMMED:
        targets += 4
    codes = targets + n * (4 if flags & WIDE else 2)
    if n == 0 or n > MAX_IN_PAGE or codes + (0 if single else n * matrix.code_bytes) > end:
        return False
    before = np.int64(0)
    total = np.float64(0.0)
    for i in range(n):
        target = np.int64(target_at(targets, i, flags, matrix))
        if target <= before or target >= words:
            return False
        before = target
        if not single:
            total += matrix.values[code_at(codes + i * matrix.code_bytes, matrix)]
    return n <= MAX_UNSUMMED or is_close(total, as_float(read_u4(matrix.data, targets - 4)))


@helper
def is_valid_long_row(record, matrix, words):
    """Whether links increase, each in the line that it selects or, if that is full, in a later one."""
    links, spread = matrix.long_links, matrix.spread
    n, begin = np.int64(read_u4(matrix.data, record + 2)), first_link(record, matrix)
    if begin % LINE or begin + LINE * lines_of(n) > len(links) or len(links) % LINE:
        return False
    before, at, total = np.int64(0), begin, np.float64(0.0)
    for _ in range(n):
        while at < len(links) and not links[at]:
            at += 1
        if at == len(links):
            return False
        wanted, target = np.int64(np.uint64(links[at]) >> spread.code_bits), target_of(links[at], spread)
        selected = begin + position_of_link(wanted, n, spread)
        if wanted <= before or target == 0 or target >= words or selected // LINE > at // LINE:
            return False
        for line in range(selected // LINE, at // LINE):
            if not links[line * LINE + LINE - 1]:
                return False
        before, at = wanted, at + 1
        total += matrix.values[code_of(links[at - 1], spread)]
    last = max(at | (LINE - 1), begin + LINE * lines_of(n) - 1)
    if last >= len(links) or links[last]:
        return False
    return is_close(total, as_float(read_u4(matrix.data, record + 6)))


@helper
def is_close(total, stored):
    return abs(total - stored) <= 1e-6 * total
