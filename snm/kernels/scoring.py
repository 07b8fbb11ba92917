"""Scoring text: the rows of many events at once.

The features of a hundred thousand events are looked for in the order of their keys, which is the order of the pages:
one after another, neighbours in memory, instead of all over a model that is larger than any cache. They are spread over
parts by the highest bits of their keys, found part by part, and given back to their events. Of snm10-skip a word takes
two thirds of the time so.

In rounds: a feature is looked for only where shorter ones that it contains have been found, for what was seen was
seen in part; where features seen once were left out, they must have been seen more often. What is looked for has the
same two numbers, before and after: the key, the slot and the word; then what the row says of itself and of the word.
"""

from typing import NamedTuple

import numpy as np

from snm.kernels.bits import floor_log2
from snm.kernels.compile import helper, kernel
from snm.kernels.gate import add_unigram, clear, make_rows, mix
from snm.kernels.matrix import (
    NO_ROW,
    first_link,
    is_long,
    page_start,
    position_of_link,
    prefetch_link,
    prefetch_page,
    prefetch_record,
    prefetch_rest,
    read_long,
    read_short,
    record_at,
    spread_target,
    weight_of_link,
)
from snm.kernels.simd import TILE, as_bits, as_float, equal_numbers, lowest_bit, prefetch
from snm.layouts.keys import ABSENT
from snm.layouts.matrix import MAX_UNSUMMED, WIDE

PART_BITS = 10  # of a key that name its part, at most
BATCH_ITEMS = 256  # that are looked for in stages
MEMO = 8  # numbers for a feature: its key, what its row says of itself, its first link, its links, its record
KEYS_PER_LINE = 8
SLOTS_AHEAD = 4  # whose keys are asked for: a third of the time of `list_items`
MIN_ITEMS = 256  # of a part, on average, where there are fewer bits
SLOT_BITS = 10  # of `Work.whose`: there are at most 1024 slots
GONE, ONCE, HERE, NEVER = 0, 1, 2, 3  # of a feature: not found, seen once, seen more often; there is none in that slot
_LOW, _32, _64 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(64)
_ALL, _ONE, _TWO, _TOGETHER = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(1), np.uint64(2), np.uint64(TILE)
_MEMO, _FIRST, _NUMBER, _RECORD = np.uint64(MEMO), np.uint64(3), np.uint64(4), np.uint64(5)
_SLOT_BITS, _SLOT = np.uint64(SLOT_BITS), np.uint64((1 << SLOT_BITS) - 1)


class Work(NamedTuple):
    """Working memory for a number of events, and the rounds. Pairs of numbers lie one after another."""

    parts: np.ndarray  # (slots, 2) int64: the slots of two features, or twice one, that a slot's feature contains
    least: np.ndarray  # (slots,) int64: how often its feature was seen, at the least, to be kept
    slots: np.ndarray  # (slots - 1,) int64: round by round
    rounds: np.ndarray  # (rounds + 1,) int64: where in `slots` each begins
    keys: np.ndarray  # (blocks, slots, events of a block) uint64
    state: np.ndarray  # (events * slots,) uint8: TILE events at a time, slot by slot
    first: np.ndarray  # (rounds, events / TILE + 1) int64: where those of TILE events begin in the next two
    whose: np.ndarray  # (events * (slots - 1),) uint32: event and slot, round by round, event by event
    found: np.ndarray  # (2 * events * (slots - 1),) uint64
    listed: np.ndarray  # (items of a round,) uint64: their keys
    items: np.ndarray  # (2 * items of a round,) uint64: part by part
    ends: np.ndarray  # (2 ** PART_BITS,) int64: of the parts
    memo: np.ndarray  # (MEMO * a power of two,) uint64: features of one word, see `remember`


@helper
def pack(items, i, code, length, row_sum, weight):
    items[2 * i] = np.uint64(as_bits(row_sum)) | (np.uint64(as_bits(weight)) << _32)
    items[2 * i + 1] = np.uint64(as_bits(np.float32(length))) | (np.uint64(code) << _32)


@helper
def unpack(items, i):
    """Code, length, row sum and weight. i is a uint64: Numba would look whether another number is negative."""
    sums, kind = items[_TWO * i], items[_TWO * i + _ONE]
    return (
        np.float32(np.int32(kind >> _32)), as_float(np.uint32(kind & _LOW)),
        as_float(np.uint32(sums & _LOW)), as_float(np.uint32(sums >> _32)),
    )  # fmt: skip


@helper
def find_weight(items, i, wanted, at, pages):
    """Add to item i, of a long row, the weight of a spread target, whose link is about at long_links[at]."""
    weight = weight_of_link(wanted, at, pages)
    items[2 * i] = (items[2 * i] & _LOW) | (np.uint64(as_bits(weight)) << _32)


@helper
def mark_wanted(keys, part, other, least, state):
    """state[k]: NEVER, GONE or, for now, HERE, by the states of the features that it contains."""
    for k in range(len(keys)):
        wanted = HERE if min(part[k], other[k]) >= least else GONE
        state[k] = wanted if keys[k] != ABSENT else NEVER


@helper
def place_of_keys(event, q, shape):
    """Where the keys of slot q lie from this event on, TILE of them."""
    _, slots, in_block = shape
    return (event // in_block * slots + q) * in_block + event % in_block


@helper
def prefetch_keys(keys, place):
    for k in range(0, TILE, KEYS_PER_LINE):
        prefetch(keys, place + k)


@helper
def list_items(events, round, at, shift, ends, work):
    """The features of one round, TILE events at a time, to work.whose[at:] and work.listed; returns how many.

    ends[part] is where a part's items begin then. Without branches, here and below: they could not be foretold.
    """
    whose, listed, first = work.whose[at:], work.listed, work.first[round]
    keys, slots = work.keys.reshape(work.keys.size), work.keys.shape[1]
    of_round = work.slots[work.rounds[round] : work.rounds[round + 1]]
    for p in range(len(ends)):
        ends[p] = 0
    n = np.uint64(0)
    for start in range(0, events, TILE):
        few = min(TILE, events - start)
        first[start // TILE] = at + np.int64(n)
        for r in range(len(of_round)):
            q, place = of_round[r], place_of_keys(start, of_round[r], work.keys.shape)
            ahead = r + SLOTS_AHEAD
            tile_ahead = start + ahead // len(of_round) * TILE
            prefetch_keys(keys, place_of_keys(tile_ahead, of_round[ahead % len(of_round)], work.keys.shape))
            of_slot, tile, own = keys[place : place + few], work.state[start * slots :], start * slots + q * TILE
            least = np.uint8(min(work.least[q], HERE) if round else GONE)
            part, other = tile[work.parts[q, 0] * TILE :], tile[work.parts[q, 1] * TILE :]
            mark_wanted(of_slot, part, other, least, work.state[own:])
            slot = (np.uint64(start) << _SLOT_BITS) | np.uint64(q)
            here = np.uint64(equal_numbers(work.state, own, np.uint32(HERE), TILE, 1))
            here &= _ALL >> np.uint64(TILE - few)
            while here:
                k = np.uint64(lowest_bit(np.int64(here)))
                here &= here - _ONE
                listed[n], whose[n] = of_slot[k], slot + (k << _SLOT_BITS)
                ends[of_slot[k] >> shift] += 1
                n += _ONE
    first[-(-events // TILE)] = at + np.int64(n)
    begin = 0
    for p in range(len(ends)):
        begin, ends[p] = begin + ends[p], begin
    return np.int64(n)


@helper
def spread_items(words, n, at, shift, ends, work):
    """Items to their parts. ends[part] is where it ends then."""
    items, listed, whose = work.items, work.listed, work.whose[at:]
    for j in range(np.uint64(n)):
        key, event, slot = listed[j], whose[j] >> _SLOT_BITS, whose[j] & _SLOT
        i = _TWO * np.uint64(ends[key >> shift])
        ends[key >> shift] += 1
        prefetch(items, i + _32)
        items[i], items[i + _ONE] = key, np.uint64(words[event]) | (slot << _32)


@helper
def give_items(n, at, shift, ends, work):
    """What was found to work.found, event by event."""
    items, listed, whose, found, state = work.items, work.listed, work.whose[at:], work.found[2 * at :], work.state
    slots = np.uint64(work.keys.shape[1])
    for p in range(len(ends) - 1, 0, -1):
        ends[p] = ends[p - 1]
    ends[0] = 0
    for j in range(np.uint64(n)):
        part, event, slot = listed[j] >> shift, whose[j] >> _SLOT_BITS, whose[j] & _SLOT
        i = _TWO * np.uint64(ends[part])
        ends[part] += 1
        prefetch(items, i + _32)
        found[_TWO * j], found[_TWO * j + _ONE] = items[i], items[i + _ONE]
        tile = event // _TOGETHER * _TOGETHER
        here, often = items[i] != 0, items[i + _ONE] > _LOW  # with a code above that of one
        state[tile * slots + slot * _TOGETHER + event - tile] = np.uint8(here) + np.uint8(here & often)


@helper
def find_records(items, pages, records):
    """Where the rows of at most BATCH_ITEMS items are.

    In stages, so that the fetches from memory of one stage do not wait for each other.
    """
    n = len(items) // 2
    for i in range(n):
        prefetch(pages.starts, items[2 * i] >> pages.shift)
    for i in range(n):
        records[i] = prefetch_page(items[2 * i], pages)
    for i in range(n):
        records[i] = record_at(items[2 * i], records[i], pages)
        prefetch_record(records[i], pages)


@helper
def remember(key, record, pages, memo, place):
    """Write what the row of this key says of itself to memo[place:]; it has no links there if it is not long."""
    memo[place], memo[place + _FIRST], memo[place + _NUMBER] = key, np.uint64(0), np.uint64(0)
    memo[place + _RECORD] = np.uint64(record)
    if is_long(record, pages):
        code, links, row_sum = read_long(record, pages)
        pack(memo[place + _ONE :], 0, code, links, row_sum, np.float32(0.0))
        memo[place + _FIRST], memo[place + _NUMBER] = np.uint64(first_link(record, pages)), np.uint64(links)


@helper
def remember_items(items, pages, shift, memo, missing, records):
    """Have what the rows of all these items say of themselves in the memo; where two have one place, that of the last.

    `missing` is for as many pairs of numbers as `items`.
    """
    n = np.int64(0)
    for i in range(len(items) // 2):
        missing[2 * n] = items[2 * i]
        n += np.int64(memo[_MEMO * (items[2 * i] >> shift)] != items[2 * i])
    find_records(missing[: 2 * n], pages, records)
    for i in range(n):
        key = missing[2 * i]
        remember(key, records[i], pages, memo, _MEMO * (key >> shift))


@helper
def recall_items(items, pages, shift, memo, missing, records, links_at):
    """What the rows of features of one word say, in place of the items.

    They are few, come again and again, and nearly all are long: what they say of themselves is remembered. They come in
    the order of their keys, and so do their places.
    """
    remember_items(items, pages, shift, memo, missing, records)
    for i in range(len(items) // 2):
        key, word, q = items[2 * i], np.uint32(items[2 * i + 1] & _LOW), np.int64(items[2 * i + 1] >> _32)
        place = _MEMO * (key >> shift)
        if memo[place] != key:  # another of these items has the same place
            remember(key, record_at(key, page_start(key, pages), pages), pages, memo, place)
        n, wanted = np.int64(memo[place + _NUMBER]), spread_target(word, pages.spread)
        links_at[i, 0], links_at[i, 1] = wanted, -1
        if n:
            items[2 * i], items[2 * i + 1] = memo[place + _ONE], memo[place + _TWO]
            links_at[i, 1] = np.int64(memo[place + _FIRST]) + position_of_link(wanted, n, pages.spread)
            prefetch_link(links_at[i, 1], pages.long_links)
        elif np.int64(memo[place + _RECORD]) == NO_ROW:
            items[2 * i] = 0
        else:
            code, links, row_sum, weight = read_short(q, np.int64(memo[place + _RECORD]), word, pages)
            pack(items, i, code, links, row_sum, weight)
    for i in range(len(items) // 2):
        if links_at[i, 1] >= 0:
            find_weight(items, i, links_at[i, 0], links_at[i, 1], pages)


@helper
def sort_items(records, pages, lists):
    """List the numbers of short rows of up to MAX_UNSUMMED links, of longer ones, and of long rows; returns how many of each.

    Each kind is then read by a loop of its own: which one comes next cannot be foretold.
    """
    few = many = long = np.uint64(0)
    for i in range(len(records)):
        flags = pages.data[max(records[i], np.int64(0)) + 1]
        long_here = is_long(records[i], pages)
        is_many = (records[i] >= 0) & (flags & (WIDE - 1) > MAX_UNSUMMED)  # a long row has no number there
        lists[0, few] = lists[1, many] = lists[2, long] = i
        few += np.uint64((records[i] != NO_ROW) & (not is_many) & (not long_here))
        many += np.uint64(is_many)
        long += np.uint64(long_here)
    return np.int64(few), np.int64(many), np.int64(long)


@helper
def read_items(items, records, pages, lists, links_at):
    """What the rows at these records say: in place of the items."""
    few, many, n_long = sort_items(records[: len(items) // 2], pages, lists)
    for i in range(len(items) // 2):
        items[2 * i] = 0
    for k in range(n_long):
        i = lists[2, k]
        wanted = spread_target(np.uint32(items[2 * i + 1] & _LOW), pages.spread)
        code, links, row_sum = read_long(records[i], pages)
        links_at[k, 0] = wanted
        links_at[k, 1] = first_link(records[i], pages) + position_of_link(wanted, links, pages.spread)
        pack(items, i, code, links, row_sum, np.float32(0.0))
    for k in range(n_long):
        prefetch_link(links_at[k, 1], pages.long_links)
    for i in lists[1, :many]:
        prefetch_rest(records[i], pages)
    for kind, n in ((0, few), (1, many)):
        for i in lists[kind, :n]:
            word, q = np.uint32(items[2 * i + 1] & _LOW), np.int64(items[2 * i + 1] >> _32)
            code, links, row_sum, weight = read_short(q, records[i], word, pages)
            pack(items, i, code, links, row_sum, weight)
    for k in range(n_long):
        find_weight(items, lists[2, k], links_at[k, 0], links_at[k, 1], pages)


@kernel
def look_up(words, pages, work):
    """Find the rows of the events whose keys are in `work`."""
    records, links_at = np.empty(BATCH_ITEMS, np.int64), np.empty((BATCH_ITEMS, 2), np.int64)
    lists, missing = np.empty((3, BATCH_ITEMS), np.int64), np.empty(2 * BATCH_ITEMS, np.uint64)
    events, at, of_memo = len(words), 0, _64 - np.uint64(floor_log2(len(work.memo) // MEMO))
    for round in range(len(work.rounds) - 1):
        bits = 1
        while bits < PART_BITS and events * (work.rounds[round + 1] - work.rounds[round]) >> bits > MIN_ITEMS:
            bits += 1
        ends, shift = work.ends[: 1 << bits], _64 - np.uint64(bits)
        n = list_items(events, round, at, shift, ends, work)
        spread_items(words, n, at, shift, ends, work)
        for i in range(0, n, BATCH_ITEMS):
            items = work.items[2 * i : 2 * min(i + BATCH_ITEMS, n)]
            if round == 0:
                recall_items(items, pages, of_memo, work.memo, missing, records, links_at)
            else:
                find_records(items, pages, records)
                read_items(items, records, pages, lists, links_at)
        give_items(n, at, shift, ends, work)
        at += n


@helper
def fill(start, stop, words, pages, work, rows):
    """The rows of the events [start, stop)."""
    in_block, tile = work.keys.shape[2], start // TILE
    clear(rows)
    i = np.int64(0)
    for e in range(start, stop):
        if work.keys[e // in_block, 0, e % in_block] != ABSENT:
            i = add_unigram(rows, i, e - start, words[e], pages)
    before, begin = np.uint64(0), np.uint64(start)
    for round in range(len(work.rounds) - 1):
        for j in range(np.uint64(work.first[round, tile]), np.uint64(work.first[round, tile + 1])):
            event, q = work.whose[j] >> _SLOT_BITS, work.whose[j] & _SLOT
            if q != before:  # of a slot all come together
                rows.last[before] = rows.first[q] = i
                before = q
            rows.event[i] = event - begin
            rows.code[i], rows.length[i], rows.row_sum[i], rows.weight[i] = unpack(work.found, j)
            i += np.int64(work.found[_TWO * j] != 0)
    rows.last[before] = i


@kernel
def score(words, pages, gate, work, probabilities):
    """probabilities[event]: gated weights of the links over gated sums of the rows; 0 where there is no event."""
    look_up(words, pages, work)
    rows = make_rows(work.keys.shape[1], len(gate.bias))
    for start in range(0, len(words), TILE):
        stop = min(start + TILE, len(words))
        fill(start, stop, words, pages, work, rows)
        mix(stop - start, rows, gate)
        for k in range(stop - start):
            event = rows.sums[1, k] > 0.0
            probabilities[start + k] = rows.sums[0, k] / rows.sums[1, k] if event else 0.0


class Found(NamedTuple):
    """What the rows of events say of themselves and of the events' words. All (slots, events)"""

    code: np.ndarray  # uint8: of C_i*
    length: np.ndarray  # float32: number of links
    row_sum: np.ndarray  # float32: 0 where there is no row
    weight: np.ndarray  # float32: M of the event's word, 0 where the row has no such link
    scale: np.ndarray  # float32: what the gate multiplies the row by, 0 where there is none


@kernel
def find(words, pages, gate, work):
    """What there is to know of the events whose keys are in `work`, part by part."""
    look_up(words, pages, work)
    shape = work.keys.shape[1], len(words)
    found = Found(
        np.zeros(shape, np.uint8), np.ones(shape, np.float32), np.zeros(shape, np.float32),
        np.zeros(shape, np.float32), np.zeros(shape, np.float32),
    )  # fmt: skip
    rows = make_rows(shape[0], len(gate.bias))
    for start in range(0, len(words), TILE):
        stop = min(start + TILE, len(words))
        fill(start, stop, words, pages, work, rows)
        mix(stop - start, rows, gate)
        for q in range(shape[0]):
            for i in range(rows.first[q], rows.last[q]):
                k = start + np.int64(rows.event[i])
                found.code[q, k], found.length[q, k] = np.uint8(rows.code[i]), rows.length[i]
                found.row_sum[q, k], found.weight[q, k] = rows.row_sum[i], rows.weight[i]
                found.scale[q, k] = rows.scale[i]
    return found
