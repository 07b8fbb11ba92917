"""Rows of M in pages of bytes: finding rows and links in them. See docs/format.md.

A page holds the rows of a few consecutive feature keys: their number, of each a mark of 24 bits of its key, of each two
bytes, and what does not fit there. A look-up reads the directory, then one page, which is a cache line or two.

A long row lies outside its page, one number a link: the target, spread evenly by a multiplication, above the code of
its weight. They are sorted, so that a link lies near the place that its spread target names.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from snm.kernels.extraction import ABSENT
from snm.kernels.hashing import helper
from snm.kernels.memory import (
    MARKS,
    MARKS_BYTES,
    as_float,
    lowest_bit,
    matches,
    prefetch,
    read_u2,
    read_u4,
    read_u8,
)

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
def spread_target(target, spread):
    """A bijection of the targets that puts neighbours far apart."""
    return np.int64((np.uint64(target) * spread.factor) & spread.mask)


@helper
def target_of(link, spread):
    return np.uint32(((np.uint64(link) >> spread.code_bits) * spread.inverse) & spread.mask)


@helper
def code_of(link, spread):
    return np.int64(np.uint64(link) & ((np.uint64(1) << spread.code_bits) - np.uint64(1)))


class Found(NamedTuple):
    """What the rows of a block of events say of themselves and of the events' words. All (slots, events)"""

    code: np.ndarray  # uint8: of C_i*
    length: np.ndarray  # float32: number of links
    row_sum: np.ndarray  # float32: 0 where there is no row
    weight: np.ndarray  # float32: M of the event's word, 0 where the row has no such link
    record: np.ndarray  # int64: where the row's record is, or -1 - target for a row without


@njit(nogil=True, cache=True)
def make_found(slots, events):
    return Found(
        np.zeros((slots, events), np.uint8), np.ones((slots, events), np.float32),
        np.zeros((slots, events), np.float32), np.zeros((slots, events), np.float32),
        np.zeros((slots, events), np.int64),
    )  # fmt: skip


@helper
def entry_of(key, at, pages):
    """Where the page at data[at] has the two bytes of the row `key`, or -1."""
    rows = np.int64(pages.data[at])
    mark = mark_of(key, pages.shift)
    first = np.int64(0)
    if at + MARKS_BYTES <= len(pages.data):
        here = matches(pages.data, at + 1, mark) & ((np.int64(1) << min(rows, MARKS)) - 1)
        if here:
            return at + 1 + 3 * rows + 2 * lowest_bit(here)
        first = MARKS
    for i in range(first, rows):
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
def ask_for_page(key, pages):
    """The same, and the page is asked for, up to three lines of it."""
    at = page_start(key, pages)
    prefetch(pages.data, max(at, 0))
    prefetch(pages.data, max(at, 0) + 64)
    if np.int64(pages.starts[(key >> pages.shift) + np.uint64(1)]) > (at | 63) + 64:
        prefetch(pages.data, at + 128)
    return at


@helper
def record_of(entry, at, pages):
    """Where the record of an entry begins that has one."""
    tail = at + 1 + 5 * np.int64(pages.data[at])
    return tail + np.int64(read_u2(pages.data, entry)) - INLINE


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
def guess_link(wanted, place, n, spread):
    """About where the link to a spread target is among n from links[place] on: off by about the root of n."""
    return place + ((n * wanted) >> spread.bits)


@helper
def better_guess(wanted, place, n, at, links, spread):
    """From what is found there, closer."""
    found = np.int64(np.uint64(links[at]) >> spread.code_bits)
    step = (n * (wanted - found)) >> spread.bits
    return min(max(at + step, place), place + n - 1)


@helper
def find_link(wanted, place, n, at, links, spread):
    """The code of the link to a spread target among n sorted ones from links[place] on, or -1. `at` is a guess."""
    low, high = place, place + n - 1
    for _ in range(8):
        step = (n * (wanted - np.int64(np.uint64(links[at]) >> spread.code_bits))) >> spread.bits
        if -8 <= step <= 8:
            break
        at = min(max(at + step, low), high)
    while at < high and np.int64(np.uint64(links[at]) >> spread.code_bits) < wanted:
        at += 1
    while at > low and np.int64(np.uint64(links[at]) >> spread.code_bits) > wanted:
        at -= 1
    found = links[at]
    return code_of(found, spread) if np.int64(np.uint64(found) >> spread.code_bits) == wanted else np.int64(-1)


class Work(NamedTuple):
    """Working memory of `look_up` for a number of events."""

    alive: np.ndarray  # (events, 2)
    long_rows: np.ndarray  # (slots * events, 4)


@njit(nogil=True, cache=True)
def make_work(slots, events):
    return Work(np.empty((events, 2), np.int64), np.empty((slots * events, 4), np.int64))


@helper
def take_row(q, k, base, record, word, pages, found, long_rows, n_long):
    """Fill `found` for slot q of event k from its record, but for the link of a long row: return how many there are."""
    c = k - base
    found.record[q, c] = record
    if record < 0:
        weight = pages.values[pages.singles[pages.single_of_slot[q], -1 - record]]
        found.code[q, c] = 0
        found.length[q, c] = 1.0
        found.row_sum[q, c] = weight
        found.weight[q, c] = weight if -1 - record == word else np.float32(0.0)
    elif pages.data[record + 1] & LONG:
        links = np.int64(read_u4(pages.data, record + 2))
        place = first_link(record, pages)
        found.code[q, c] = pages.data[record]
        found.length[q, c] = links
        found.row_sum[q, c] = as_float(read_u4(pages.data, record + 6))
        long_rows[n_long, 0], long_rows[n_long, 1] = q, k
        long_rows[n_long, 2] = guess_link(spread_target(word, pages.spread), place, links, pages.spread)
        long_rows[n_long, 3] = place
        n_long += 1
    else:
        read_short(q, c, word, record, pages, found)
    return n_long


@helper
def look_up(keys, words, start, stop, base, pages, found, work):
    """Fill `found` for the events [start, stop), at most TOGETHER of them, from column start - base on.

    In stages, so that the fetches from memory of one stage do not wait for each other. A feature is looked for only
    where the shorter one that it contains has been found: what was seen was seen in part.
    """
    alive, long_rows = work.alive, work.long_rows
    for k in range(start, stop):
        event = keys[0, k] != ABSENT
        c = k - base
        found.code[0, c] = pages.unigram_code
        found.length[0, c] = pages.unigram_links
        found.row_sum[0, c] = pages.unigram_sum if event else np.float32(0.0)
        found.weight[0, c] = pages.unigrams[words[k]] if event else np.float32(0.0)
    n_long = 0
    for q in range(1, keys.shape[0]):
        parent = pages.parent_of_slot[q]
        n = 0
        for k in range(start, stop):
            found.row_sum[q, k - base] = 0.0
            found.weight[q, k - base] = 0.0
            if keys[q, k] == ABSENT:
                continue
            if k > start and keys[q, k] == keys[q - 1, k - 1] and found.row_sum[q - 1, k - base - 1] > 0.0:
                # of a tied type, one word further back: it was found for the word before
                record = found.record[q - 1, k - base - 1]
                n_long = take_row(q, k, base, record, words[k], pages, found, long_rows, n_long)
            elif found.row_sum[parent, k - base] > 0.0 or keys[parent, k] == ABSENT:
                alive[n, 0] = k
                n += 1
                prefetch(pages.starts, keys[q, k] >> pages.shift)
        for i in range(n):
            alive[i, 1] = ask_for_page(keys[q, alive[i, 0]], pages)
        for i in range(n):
            k, at = alive[i, 0], alive[i, 1]
            entry = entry_of(keys[q, k], at, pages) if at >= 0 else np.int64(-1)
            if entry < 0:
                continue
            target = read_u2(pages.data, entry)
            record = -1 - np.int64(target) if target < INLINE else record_of(entry, at, pages)
            n_long = take_row(q, k, base, record, words[k], pages, found, long_rows, n_long)
    for i in range(n_long):
        prefetch(pages.long_links, long_rows[i, 2])
    for i in range(n_long):
        q, k, at, place = long_rows[i, 0], long_rows[i, 1], long_rows[i, 2], long_rows[i, 3]
        n = np.int64(found.length[q, k - base])
        at = better_guess(spread_target(words[k], pages.spread), place, n, at, pages.long_links, pages.spread)
        prefetch(pages.long_links, at)
        long_rows[i, 2] = at
    for i in range(n_long):
        q, k, at, place = long_rows[i, 0], long_rows[i, 1], long_rows[i, 2], long_rows[i, 3]
        c = k - base
        n = np.int64(found.length[q, c])
        code = find_link(spread_target(words[k], pages.spread), place, n, at, pages.long_links, pages.spread)
        if code >= 0:
            found.weight[q, c] = pages.values[code]


@helper
def add_short(q, c, words, scale, pages, found, weights):
    """Add to the weights of words what the row of slot q of event c, one that is not long, has for them."""
    record = found.record[q, c]
    if record < 0:
        for i in range(len(words)):
            if np.int64(words[i]) == -1 - record:
                weights[i] += scale * found.row_sum[q, c]
        return
    flags = np.int64(pages.data[record + 1])
    n = flags & (WIDE - 1)
    place = record + (6 if n > SUMMED else 2)
    codes = place + n * (4 if flags & WIDE else 2)
    single = pages.data[record] == 0 and pages.single_of_slot[q] >= 0
    for j in range(n):
        target = target_at(place, j, flags, pages)
        for i in range(len(words)):
            if words[i] == target:
                weight = found.row_sum[q, c] if single else pages.values[code_at(codes + j * pages.code_bytes, pages)]
                weights[i] += scale * weight


@njit(nogil=True, cache=True)
def add_rows(words, scale, pages, found, weights):
    """Add to weights[c, i] what the rows of event c have for the word words[c, i], times scale[slot, c].

    Where `words` has one row, it is of all events. Long rows in stages, see `look_up`.
    """
    events, m = weights.shape
    wanted = np.empty(words.shape, np.int64)
    for c in range(len(words)):
        for i in range(m):
            wanted[c, i] = spread_target(words[c, i], pages.spread)
    long_rows, n_long = np.empty((events * len(scale), 3), np.int64), 0
    for c in range(events):
        for q in range(1, len(scale)):
            record = found.record[q, c]
            if found.row_sum[q, c] == 0.0:
                continue
            if record >= 0 and pages.data[record + 1] & LONG:
                long_rows[n_long, 0], long_rows[n_long, 1] = q, c
                long_rows[n_long, 2] = first_link(record, pages)
                n_long += 1
            else:
                add_short(q, c, words[min(c, len(words) - 1)], np.float64(scale[q, c]), pages, found, weights[c])
    at = np.empty((n_long, m), np.int64)
    for r in range(n_long):
        q, c, place = long_rows[r, 0], long_rows[r, 1], long_rows[r, 2]
        n, of_event = np.int64(found.length[q, c]), wanted[min(c, len(words) - 1)]
        for i in range(m):
            at[r, i] = guess_link(of_event[i], place, n, pages.spread)
            prefetch(pages.long_links, at[r, i])
    for r in range(n_long):
        q, c, place = long_rows[r, 0], long_rows[r, 1], long_rows[r, 2]
        n, of_event = np.int64(found.length[q, c]), wanted[min(c, len(words) - 1)]
        for i in range(m):
            at[r, i] = better_guess(of_event[i], place, n, at[r, i], pages.long_links, pages.spread)
            prefetch(pages.long_links, at[r, i])
    for r in range(n_long):
        q, c, place = long_rows[r, 0], long_rows[r, 1], long_rows[r, 2]
        n, of_event = np.int64(found.length[q, c]), wanted[min(c, len(words) - 1)]
        for i in range(m):
            code = find_link(of_event[i], place, n, at[r, i], pages.long_links, pages.spread)
            if code >= 0:
                weights[c, i] += np.float64(scale[q, c]) * pages.values[code]


@njit(nogil=True, cache=True)
def find(keys, words, pages):
    """What the rows of a block of events say. keys: (slots, events)"""
    slots, n = keys.shape
    found, work = make_found(slots, n), make_work(slots, TOGETHER)
    for start in range(0, n, TOGETHER):
        look_up(keys, words, start, min(start + TOGETHER, n), 0, pages, found, work)
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
        n, place = np.int64(read_u4(pages.data, record + 2)), first_link(record, pages)
        targets, weights = np.empty(n, np.uint32), np.empty(n, np.float32)
        for i in range(n):
            targets[i] = target_of(pages.long_links[place + i], pages.spread)
            weights[i] = pages.values[code_of(pages.long_links[place + i], pages.spread)]
        return targets, weights
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
        links = first_link(record, pages)
        if links + n > len(pages.long_links):
            return False
        total = np.float64(0.0)
        for i in range(links, links + n):
            link, target = np.uint64(pages.long_links[i]), target_of(pages.long_links[i], pages.spread)
            rises = (
                i == links
                or link >> pages.spread.code_bits > np.uint64(pages.long_links[i - 1]) >> pages.spread.code_bits
            )
            if not rises or target == 0 or target >= words:
                return False
            total += pages.values[code_of(link, pages.spread)]
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
