"""Rows of M in pages of bytes: finding rows and links in them. See docs/format.md.

A page holds the rows of a few consecutive feature keys: their number, of each a mark of 24 bits of its key, of each two
bytes, and what does not fit there. A look-up reads the directory, then one page, which is a cache line or two.

A long row lies outside its page, one number a link: the target, spread evenly by a multiplication, above the code of
its weight. The spread target names the line of memory that the link lies in, or that after it where there is no room:
one fetch finds a link, or tells that there is none.
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
    WIDE,
)

NO_ROW = -(1 << 40)
_MARK = np.uint32((1 << MARK_BITS) - 1)
_PLACE = np.uint64((1 << 48) - 1)


@helper
def mark_of(key, shift):
    """The bits of a key below those that name its page."""
    return np.uint32(key >> (shift - np.uint64(MARK_BITS))) & _MARK


@helper
def spread_target(target, spread):
    """A bijection of the targets that puts neighbours far apart."""
    return np.int64((np.uint64(target) * spread.factor) & spread.mask)


@helper
def target_of(link, spread):
    return np.uint32(((np.uint64(link) >> spread.code_bits) * spread.inverse) & spread.mask)


@helper
def code_of(link, spread):
    return np.int64(np.uint64(link) & ((np.uint64(1) << spread.code_bits) - np.uint64(1)))


@helper
def page_start(key, pages):
    """Where the page of `key` begins, or -1 where it holds nothing."""
    page = key >> pages.shift
    at = np.int64(pages.starts[page])
    return at if key != ABSENT and np.int64(pages.starts[page + np.uint64(1)]) > at else np.int64(-1)


@helper
def prefetch_page(key, pages):
    """The same, and the page is asked for, as far as its marks may go."""
    at = page_start(key, pages)
    prefetch(pages.data, max(at, 0))
    prefetch(pages.data, max(at, 0) + MARKS_BYTES)
    return at


@helper
def record_at(key, at, pages):
    """Where the record of the row `key` is, whose page begins at data[at].

    NO_ROW where there is none, -1 - target where the row is told in its two bytes. Without branches, where a page has
    no more than MARKS rows: whether there is a row cannot be foretold, and to be wrong about it costs more than this.
    """
    page = max(at, np.int64(0))
    rows, mark = np.int64(pages.data[page]), mark_of(key, pages.shift)
    here = matches(pages.data, page + 1, mark) & ((np.int64(1) << min(rows, MARKS)) - 1)
    number = lowest_bit(here) if here else np.int64(0)
    if rows > MARKS and not here:
        number = MARKS
        while number < rows and read_u4(pages.data, page + 1 + 3 * number) & _MARK != mark:
            number += 1
        here = np.int64(number < rows)
    told = np.int64(read_u2(pages.data, page + 1 + 3 * rows + 2 * number))
    record = -1 - told if told < INLINE else page + 1 + 5 * rows + told - INLINE
    return record if here and at >= 0 else np.int64(NO_ROW)


@helper
def prefetch_record(record, pages):
    """Ask for what `read_short` and `read_long` read, most of the time."""
    prefetch(pages.data, max(record, 0))
    prefetch(pages.data, max(record, 0) + 48)


@helper
def prefetch_rest(record, pages):
    """Ask for what `prefetch_record` leaves out of a row of more than MAX_UNSUMMED links."""
    prefetch(pages.data, record + 112)
    prefetch(pages.data, record + 160)


@helper
def is_long(record, pages):
    return (record >= 0) & (pages.data[max(record, np.int64(0)) + 1] & LONG != 0)


@helper
def first_link(record, pages):
    """Where the links of a long row begin in `long_links`."""
    return np.int64(read_u8(pages.data, record + 10) & _PLACE)


@helper
def code_at(place, pages):
    """A link's code, from one byte or two."""
    if pages.code_bytes == 1:
        return np.int64(pages.data[place])
    return np.int64(read_u2(pages.data, place))


@helper
def target_at(place, i, flags, pages):
    """Target i of a row whose targets begin at data[place]."""
    if flags & WIDE:
        return read_u4(pages.data, place + 4 * i)
    return np.uint32(read_u2(pages.data, place + 2 * i))


@helper
def parts_of(record, pages):
    """Flags of a row in its page, number of links, and where its targets begin, and their codes."""
    flags = np.int64(pages.data[record + 1])
    n = flags & (WIDE - 1)
    place = record + (6 if n > MAX_UNSUMMED else 2)
    return flags, n, place, place + n * (4 if flags & WIDE else 2)


@helper
def find_target(word, n, place, flags, pages):
    """Bit i says whether target i of the n at data[place] is `word`."""
    if flags & WIDE:
        here = equal_numbers(pages.data, place, word, MAX_UNSUMMED, 4)
        if n > MAX_UNSUMMED:
            here = equal_numbers(pages.data, place, word, MAX_IN_PAGE, 4)
    else:
        here = equal_numbers(pages.data, place, word, MAX_UNSUMMED, 2)
        if n > MAX_UNSUMMED:
            here = equal_numbers(pages.data, place, word, MAX_IN_PAGE, 2)
        here = here if word < 0x10000 else np.int64(0)
    return here & ((np.int64(1) << n) - 1)


@helper
def read_short(q, record, word, pages):
    """Code of C_i*, number of links, their sum, and the weight of `word`: of a row of slot q that is not long."""
    single = pages.single_of_template[q]
    if record < 0:
        weight = pages.values[pages.singles[single, -1 - record]]
        return np.uint8(0), np.int64(1), weight, weight if -1 - record == word else np.float32(0.0)
    code, (flags, n, place, codes) = pages.data[record], parts_of(record, pages)
    here = find_target(word, n, place, flags, pages)
    if code == 0 and single >= 0:
        weight = pages.values[pages.singles[single, target_at(place, 0, flags, pages)]]
        return code, n, weight, weight if here else np.float32(0.0)
    found = pages.values[code_at(codes + (lowest_bit(here) if here else np.int64(0)) * pages.code_bytes, pages)]
    weight = found if here else np.float32(0.0)
    if n > MAX_UNSUMMED:
        return code, n, as_float(read_u4(pages.data, record + 2)), weight
    total = np.float64(0.0)
    for i in range(MAX_UNSUMMED):  # all of them, since how many there are cannot be foretold
        value = np.float64(pages.values[code_at(codes + i * pages.code_bytes, pages)])
        total += value if i < n else 0.0
    return code, n, np.float32(total), weight


@helper
def read_long(record, pages):
    """Code of C_i*, number of links and their sum, of a long row."""
    links = np.int64(read_u4(pages.data, record + 2))
    return pages.data[record], links, as_float(read_u4(pages.data, record + 6))


@helper
def lines_of(n):
    """How many lines a long row of n links names."""
    return (n + LINKS_PER_LINE - 1) // LINKS_PER_LINE


@helper
def position_of_link(wanted, n, spread):
    """About where a spread target is among the slots of a row of n links: in the line that it names."""
    return (wanted * (LINE * lines_of(n))) >> spread.bits


@helper
def prefetch_link(at, links):
    """Ask for the line of the link that is about there, and for the next, where it may have been pushed to."""
    prefetch(links, at)
    prefetch(links, at + LINE // 4)


@helper
def find_link(wanted, at, links, spread):
    """The code of the link to a spread target that is about at links[at], or -1.

    All links of a line are looked at together: where a loop over them would end cannot be foretold.
    """
    first = at & ~np.int64(LINE - 1)
    here = equal_links(links, first, spread.code_bits, np.uint64(wanted))
    last = np.int64(np.uint64(links[first + LINE - 1]) >> spread.code_bits)
    while (here == 0) & (last != 0) & (last < wanted):  # it was pushed on, or is not there: rare
        first += LINE
        here = equal_links(links, first, spread.code_bits, np.uint64(wanted))
        last = np.int64(np.uint64(links[first + LINE - 1]) >> spread.code_bits)
    code = code_of(links[first + (lowest_bit(here) if here else np.int64(0))], spread)
    return code if here else np.int64(-1)


@helper
def weight_of_link(wanted, at, pages):
    """The weight of that link, or 0."""
    code = find_link(wanted, at, pages.long_links, pages.spread)
    return pages.values[max(code, np.int64(0))] if code >= 0 else np.float32(0.0)


@helper
def read_words(q, record, words, pages, weights):
    """weights[i]: what a row of slot q has for words[i]."""
    single = pages.single_of_template[q]
    if record < 0:
        value = pages.values[pages.singles[single, -1 - record]]
        for i in range(len(words)):
            weights[i] = value if np.int64(words[i]) == -1 - record else np.float32(0.0)
        return
    if is_long(record, pages):
        first, links = first_link(record, pages), read_long(record, pages)[1]
        for i in range(len(words)):
            wanted = spread_target(words[i], pages.spread)
            weights[i] = weight_of_link(wanted, first + position_of_link(wanted, links, pages.spread), pages)
        return
    flags, n, place, codes = parts_of(record, pages)
    alike = pages.data[record] == 0 and single >= 0
    for i in range(len(words)):
        here = find_target(words[i], n, place, flags, pages)
        weights[i] = 0.0
        if here:
            j = lowest_bit(here)
            code = pages.singles[single, words[i]] if alike else code_at(codes + j * pages.code_bytes, pages)
            weights[i] = pages.values[code]


@kernel
def read_row(q, key, pages):
    """Targets and weights of the row of slot q with this key; empty where there is none."""
    record = record_at(key, page_start(key, pages), pages)
    if record == NO_ROW:
        return np.empty(0, np.uint32), np.empty(0, np.float32)
    single = pages.single_of_template[q]
    if record < 0:
        weight = pages.values[pages.singles[single, -1 - record]]
        return np.full(1, -1 - record, np.uint32), np.full(1, weight, np.float32)
    flags = np.int64(pages.data[record + 1])
    if flags & LONG:
        n, place = np.int64(read_u4(pages.data, record + 2)), first_link(record, pages)
        targets, weights = np.empty(n, np.uint32), np.empty(n, np.float32)
        for i in range(n):
            while not pages.long_links[place]:
                place += 1
            targets[i] = target_of(pages.long_links[place], pages.spread)
            weights[i] = pages.values[code_of(pages.long_links[place], pages.spread)]
            place += 1
        return targets, weights
    _, n, place, codes = parts_of(record, pages)
    targets, weights = np.empty(n, np.uint32), np.empty(n, np.float32)
    for i in range(n):
        targets[i] = target_at(place, i, flags, pages)
        if pages.data[record] == 0 and single >= 0:
            weights[i] = pages.values[pages.singles[single, targets[i]]]
        else:
            weights[i] = pages.values[code_at(codes + i * pages.code_bytes, pages)]
    return targets, weights


@kernel
def first_fault(pages, single_types, words):
    """The first page that is not as it should be, or -1.

    The targets of every row rise and are words, and its sum is that of its weights.
    """
    for page in range(len(pages.starts) - 1):
        at, end = np.int64(pages.starts[page]), np.int64(pages.starts[page + 1])
        if at == end:
            continue
        rows = np.int64(pages.data[at]) if 0 <= at < end <= len(pages.data) else np.int64(0)
        tail = at + 1 + 5 * rows
        if rows == 0 or tail > end:
            return page
        for i in range(rows):
            entry = at + 1 + 3 * rows + 2 * i
            inline = np.int64(read_u2(pages.data, entry))
            if inline < INLINE:
                if not single_types or inline >= words:
                    return page
                continue
            record = tail + inline - INLINE
            if not good_record(record, end, pages, single_types, words):
                return page
    return -1


@helper
def good_record(record, end, pages, single_types, words):
    if record + 2 > end:
        return False
    flags = np.int64(pages.data[record + 1])
    n = flags & (WIDE - 1)
    place = record + 2
    single = pages.data[record] == 0 and single_types
    if flags & LONG:
        if record + LONG_BYTES > end:
            return False
        return good_long_row(record, pages, words)
    if n > MAX_UNSUMMED:
        place += 4
    codes = place + n * (4 if flags & WIDE else 2)
    if n == 0 or codes + (0 if single else n * pages.code_bytes) > end:
        return False
    before = np.int64(0)
    total = np.float64(0.0)
    for i in range(n):
        target = np.int64(target_at(place, i, flags, pages))
        if target <= before or target >= words:
            return False
        before = target
        if not single:
            total += pages.values[code_at(codes + i * pages.code_bytes, pages)]
    return n <= MAX_UNSUMMED or close(total, as_float(read_u4(pages.data, place - 4)))


@helper
def good_long_row(record, pages, words):
    """Whether links rise, each in the line that it names or, where that is full, in one that follows it."""
    links, spread = pages.long_links, pages.spread
    n, begin = np.int64(read_u4(pages.data, record + 2)), first_link(record, pages)
    if begin % LINE or begin + LINE * lines_of(n) > len(links) or len(links) % LINE:
        return False
    before, at, total = np.int64(0), begin, np.float64(0.0)
    for _ in range(n):
        while at < len(links) and not links[at]:
            at += 1
        if at == len(links):
            return False
        here, target = np.int64(np.uint64(links[at]) >> spread.code_bits), target_of(links[at], spread)
        named = begin + position_of_link(here, n, spread)
        if here <= before or target == 0 or target >= words or named // LINE > at // LINE:
            return False
        for line in range(named // LINE, at // LINE):
            if not links[line * LINE + LINE - 1]:
                return False
        before, at = here, at + 1
        total += pages.values[code_of(links[at - 1], spread)]
    last = max(at | (LINE - 1), begin + LINE * lines_of(n) - 1)
    if last >= len(links) or links[last]:
        return False
    return close(total, as_float(read_u4(pages.data, record + 6)))


@helper
def close(total, stored):
    return abs(total - stored) <= 1e-6 * total
