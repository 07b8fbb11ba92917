"""Rows of M in pages of bytes: writing them, and finding rows and links in them. See docs/format.md.

A page holds the rows of a few consecutive feature keys: their number, of each a mark of 24 bits of its key, of each two
bytes, and what does not fit there. A look-up reads the directory, then one page, which is a cache line or two.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from snm.kernels.extraction import ABSENT
from snm.kernels.hashing import helper
from snm.kernels.memory import as_bits, as_float, prefetch, read_u2, read_u4, read_u8

MARK_BITS = 24
INLINE = 0x8000  # a row seen once, with a target below this, is told in two bytes
SUMMED = 8  # rows of more links have their sum beside them
IN_PAGE = 32  # rows of more links lie outside their page
WIDE, LONG = 0x40, 0x80  # flags beside the number of links
LONG_BYTES = 16  # of a long row in its page: code, flags, number of links, sum, place of the links
MOST_ROWS = 255  # in a page

TOGETHER = 64  # events whose pages are asked for before the first is read

_MARK = np.uint32((1 << MARK_BITS) - 1)
_PLACE = np.uint64((1 << 48) - 1)


@helper
def mark_of(key, shift):
    """The bits of a key below those that name its page."""
    return np.uint32(key >> (shift - np.uint64(MARK_BITS))) & _MARK


@helper
def record_bytes(total, n, last_target, singles, code_bytes):
    """Bytes of a row in its page, beside its mark and its two bytes."""
    if total == 1 and singles:
        return 0 if last_target < INLINE else 6
    if n > IN_PAGE:
        return LONG_BYTES
    return 2 + (4 if n > SUMMED else 0) + n * ((2 if last_target < 0x10000 else 4) + code_bytes)


@njit(nogil=True, cache=True)
def measure_pages(first, last, c, shift, singles, code_bytes, starts):
    """Bytes of the pages of rows [first, last), written to starts[page + 1]; return those and the long rows' links.

    starts[0] belongs to the page of row `first`.
    """
    base = np.int64(c.features[first] >> shift)
    size = long_links = 0
    for row in range(first, last):
        n = c.offsets[row + 1] - c.offsets[row]
        last_target = c.targets[c.offsets[row + 1] - 1]
        page = np.int64(c.features[row] >> shift) - base
        if starts[page + 1] == 0:
            starts[page + 1] = 1
            size += 1
        added = 5 + record_bytes(c.totals[row], n, last_target, singles, code_bytes)
        starts[page + 1] += added
        size += added
        long_links += n if n > IN_PAGE else 0
    return size, long_links


@helper
def put(value, size, at, data):
    for i in range(size):
        data[at + i] = np.uint8((np.uint64(value) >> np.uint64(8 * i)) & np.uint64(255))
    return at + size


@njit(nogil=True, cache=True)
def write_pages(first, last, c, row_codes, link_codes, values, shift, singles, code_bytes, at, data,
                long_at, long_base, long_targets, long_codes):  # fmt: skip
    """Write the pages of rows [first, last) from data[at] on, long rows from long_targets[long_at] on.

    `long_base` is the place of long_targets[0] among all. Returns the most rows and the farthest record that a page
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
            if c.totals[row + i] == 1 and singles and target < INLINE:
                put(target, 2, entries + 2 * i, data)
                continue
            put(INLINE + at - tail, 2, entries + 2 * i, data)
            farthest = max(farthest, at - tail)
            wide = target >= 0x10000 or (c.totals[row + i] == 1 and singles)
            at = put(row_codes[row + i], 1, at, data)
            if n > IN_PAGE:
                total = np.float64(0.0)
                for link in range(start, stop):
                    total += values[link_codes[link]]
                    long_targets[long_at + link - start] = c.targets[link]
                    long_codes[long_at + link - start] = link_codes[link]
                at = put(LONG, 1, at, data)
                at = put(n, 4, at, data)
                at = put(as_bits(np.float32(total)), 4, at, data)
                at = put(long_base + long_at, 6, at, data)
                long_at += n
                continue
            at = put(n | (WIDE if wide else 0), 1, at, data)
            if n > SUMMED:
                total = np.float64(0.0)
                for link in range(start, stop):
                    total += values[link_codes[link]]
                at = put(as_bits(np.float32(total)), 4, at, data)
            for link in range(start, stop):
                at = put(c.targets[link], 4 if wide else 2, at, data)
            if not (c.totals[row + i] == 1 and singles):
                for link in range(start, stop):
                    at = put(link_codes[link], code_bytes, at, data)
        row = end
    return most, farthest, shadowed


class Found(NamedTuple):
    """What the rows of a block of events say of themselves and of the events' words. All (slots, events)"""

    code: np.ndarray  # uint8: of C_i*
    length: np.ndarray  # float32: number of links
    row_sum: np.ndarray  # float32: 0 where there is no row
    weight: np.ndarray  # float32: M of the event's word, 0 where the row has no such link


@njit(nogil=True, cache=True)
def make_found(slots, events):
    return Found(
        np.zeros((slots, events), np.uint8), np.ones((slots, events), np.float32),
        np.zeros((slots, events), np.float32), np.zeros((slots, events), np.float32),
    )  # fmt: skip


@helper
def entry_of(key, at, pages):
    """Where the page at data[at] has the two bytes of the row `key`, or -1."""
    rows = np.int64(pages.data[at])
    mark = mark_of(key, pages.shift)
    for i in range(rows):
        if read_u4(pages.data, at + 1 + 3 * i) & _MARK == mark:
            return at + 1 + 3 * rows + 2 * i
    return -1


@helper
def page_start(key, pages):
    """Where the page of `key` begins, or -1 where it holds nothing."""
    page = key >> pages.shift
    at = np.int64(pages.starts[page])
    return at if key != ABSENT and np.int64(pages.starts[page + np.uint64(1)]) > at else np.int64(-1)


@helper
def record_of(entry, at, pages):
    """Where the record of an entry begins that has one."""
    tail = at + 1 + 5 * np.int64(pages.data[at])
    return tail + np.int64(read_u2(pages.data, entry)) - INLINE


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
def read_short(q, k, word, record, pages, found):
    """A row that lies in its page."""
    flags = np.int64(pages.data[record + 1])
    n = flags & (WIDE - 1)
    code = pages.data[record]
    found.code[q, k] = code
    found.length[q, k] = n
    place = record + 2
    if n > SUMMED:
        found.row_sum[q, k] = as_float(read_u4(pages.data, place))
        place += 4
    single = pages.single_of_slot[q]
    if code == 0 and single >= 0:
        target = target_at(place, 0, flags, pages)
        weight = pages.values[pages.singles[single, target]]
        found.row_sum[q, k] = weight
        found.weight[q, k] = weight if target == word else np.float32(0.0)
        return
    codes = place + n * (4 if flags & WIDE else 2)
    found.weight[q, k] = 0.0
    for i in range(n):
        target = target_at(place, i, flags, pages)
        if target >= word:
            if target == word:
                found.weight[q, k] = pages.values[code_at(codes + i * pages.code_bytes, pages)]
            break
    if n <= SUMMED:
        total = np.float64(0.0)
        for i in range(n):
            total += pages.values[code_at(codes + i * pages.code_bytes, pages)]
        found.row_sum[q, k] = total


@helper
def find_link(word, place, n, targets):
    """The link to `word` among n sorted ones from targets[place] on, or -1.

    No target is 0, so it is among the first `word` of them: what is frequent is found soon.
    """
    n = min(n, np.int64(word))
    first = place
    while n > 1:
        half = n >> 1
        first = first + half if targets[first + half - 1] < word else first
        n -= half
    return first if n == 1 and targets[first] == word else np.int64(-1)


@helper
def look_up(keys, words, start, stop, pages, found, spots, long_slots, long_events):
    """Fill `found` for the events [start, stop), at most TOGETHER of them.

    In stages, so that the fetches from memory of one stage do not wait for each other.
    """
    slots = keys.shape[0]
    for q in range(1, slots):
        for k in range(start, stop):
            prefetch(pages.starts, keys[q, k] >> pages.shift)
    for q in range(1, slots):
        for k in range(start, stop):
            at = page_start(keys[q, k], pages)
            spots[q, k - start] = at
            prefetch(pages.data, max(at, 0))
            prefetch(pages.data, max(at, 0) + 64)
    for k in range(start, stop):
        event = keys[0, k] != ABSENT
        found.code[0, k] = pages.unigram_code
        found.length[0, k] = pages.unigram_links
        found.row_sum[0, k] = pages.unigram_sum if event else np.float32(0.0)
        found.weight[0, k] = pages.unigrams[words[k]] if event else np.float32(0.0)
    n_long = 0
    for q in range(1, slots):
        single = pages.single_of_slot[q]
        for k in range(start, stop):
            found.row_sum[q, k] = 0.0
            found.weight[q, k] = 0.0
            at = spots[q, k - start]
            if at < 0:
                continue
            entry = entry_of(keys[q, k], at, pages)
            if entry < 0:
                continue
            target = read_u2(pages.data, entry)
            if target < INLINE:
                weight = pages.values[pages.singles[single, target]]
                found.code[q, k] = 0
                found.length[q, k] = 1.0
                found.row_sum[q, k] = weight
                found.weight[q, k] = weight if target == words[k] else np.float32(0.0)
                continue
            record = record_of(entry, at, pages)
            if pages.data[record + 1] & LONG:
                prefetch(pages.long_targets, read_u8(pages.data, record + 10) & _PLACE)
                long_slots[n_long], long_events[n_long] = q, k
                spots[q, k - start] = record
                n_long += 1
            else:
                read_short(q, k, words[k], record, pages, found)
    for i in range(n_long):
        q, k = long_slots[i], long_events[i]
        record = spots[q, k - start]
        n = np.int64(read_u4(pages.data, record + 2))
        found.code[q, k] = pages.data[record]
        found.length[q, k] = n
        found.row_sum[q, k] = as_float(read_u4(pages.data, record + 6))
        place = np.int64(read_u8(pages.data, record + 10) & _PLACE)
        link = find_link(words[k], place, n, pages.long_targets)
        if link >= 0:
            found.weight[q, k] = pages.values[pages.long_codes[link]]


@njit(nogil=True, cache=True)
def find(keys, words, pages):
    """What the rows of a block of events say. keys: (slots, events)"""
    slots, n = keys.shape
    found = make_found(slots, n)
    spots = np.empty((slots, TOGETHER), np.int64)
    long_slots, long_events = np.empty(slots * TOGETHER, np.int64), np.empty(slots * TOGETHER, np.int64)
    for start in range(0, n, TOGETHER):
        look_up(keys, words, start, min(start + TOGETHER, n), pages, found, spots, long_slots, long_events)
    return found


@njit(nogil=True, cache=True)
def read_row(q, key, pages):
    """Targets and weights of the row of slot q with this key; empty where there is none."""
    at = page_start(key, pages)
    entry = entry_of(key, at, pages) if at >= 0 else np.int64(-1)
    if entry < 0:
        return np.empty(0, np.uint32), np.empty(0, np.float32)
    single = pages.single_of_slot[q]
    inline = np.uint32(read_u2(pages.data, entry))
    if inline < INLINE:
        return np.full(1, inline, np.uint32), np.full(1, pages.values[pages.singles[single, inline]], np.float32)
    record = record_of(entry, at, pages)
    flags = np.int64(pages.data[record + 1])
    if flags & LONG:
        n, place = np.int64(read_u4(pages.data, record + 2)), np.int64(read_u8(pages.data, record + 10) & _PLACE)
        weights = np.empty(n, np.float32)
        for i in range(n):
            weights[i] = pages.values[pages.long_codes[place + i]]
        return pages.long_targets[place : place + n].copy(), weights
    n = flags & (WIDE - 1)
    place = record + (6 if n > SUMMED else 2)
    codes = place + n * (4 if flags & WIDE else 2)
    targets, weights = np.empty(n, np.uint32), np.empty(n, np.float32)
    for i in range(n):
        targets[i] = target_at(place, i, flags, pages)
        if pages.data[record] == 0 and single >= 0:
            weights[i] = pages.values[pages.singles[single, targets[i]]]
        else:
            weights[i] = pages.values[code_at(codes + i * pages.code_bytes, pages)]
    return targets, weights


@njit(nogil=True, cache=True)
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
        n = np.int64(read_u4(pages.data, record + 2))
        links = np.int64(read_u8(pages.data, record + 10) & _PLACE)
        if links + n > len(pages.long_targets):
            return False
        before = np.int64(0)
        total = np.float64(0.0)
        for i in range(links, links + n):
            if pages.long_targets[i] <= before or pages.long_targets[i] >= words:
                return False
            before = np.int64(pages.long_targets[i])
            total += pages.values[pages.long_codes[i]]
        return close(total, as_float(read_u4(pages.data, record + 6)))
    if n > SUMMED:
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
    return n <= SUMMED or close(total, as_float(read_u4(pages.data, place - 4)))


@helper
def close(total, stored):
    return abs(total - stored) <= 1e-6 * total
