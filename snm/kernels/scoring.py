"""Scoring text: the rows of many events are found at once.

The keys of about a hundred thousand events are distributed over buckets by their top bits and looked up bucket by
bucket, so successive look-ups touch neighbouring pages of a model that is larger than any cache. With snm10-skip a word
takes two thirds of the time that look-ups event by event take.

Look-ups go in rounds. A key is looked up only if its template's parents were found, since every stored feature's
parents are stored too; with pruning they must have been seen often enough as well. An *item* is two numbers: at first a
key and its target and template, after the look-up the packed row (`pack_row`).
"""

from typing import NamedTuple

import numpy as np

from snm.kernels.bits import floor_log2
from snm.kernels.compile import helper, kernel
from snm.kernels.gate import add_row, add_unigram, clear, make_own_rows, mix
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
from snm.layouts.matrix import LONG, MAX_UNSUMMED, WIDE

BUCKET_BITS = 10  # of a key, at most
BATCH_ITEMS = 256  # looked up in stages
MEMO_NUMBERS = 8  # of a feature, a cache line: key, packed row (2), first position, number of links, record
KEYS_PER_LINE = 8
TEMPLATES_AHEAD = 4  # whose keys are prefetched: `list_items` takes a third less time
MIN_ITEMS = 256  # of a bucket, on average: with fewer items there are fewer buckets
TEMPLATE_BITS = 10  # of an owner: there are at most 1024 templates
NOT_FOUND, SEEN_ONCE, SEEN_OFTEN, NO_FEATURE = 0, 1, 2, 3  # status; a parent without a feature excludes nothing
_LINKS_OR_LONG = np.uint8(LONG | WIDE - 1)
_LOW, _32, _64 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(64)
_ALL, _ONE, _TWO, _TILE = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(1), np.uint64(2), np.uint64(TILE)
_MEMO_NUMBERS, _FIRST, _LINKS, _RECORD = np.uint64(MEMO_NUMBERS), np.uint64(3), np.uint64(4), np.uint64(5)
_TEMPLATE_BITS, _TEMPLATE = np.uint64(TEMPLATE_BITS), np.uint64((1 << TEMPLATE_BITS) - 1)


class Scratch(NamedTuple):
    """The rounds of a model, and scratch memory for a number of events. Both numbers of an item are neighbours."""

    parents: np.ndarray  # (templates, 2) int64: two parents of each template, or one twice
    min_counts: np.ndarray  # (templates,) int64: how often a feature must be seen to be stored
    order: np.ndarray  # (templates - 1,) int64: templates, round by round
    rounds: np.ndarray  # (rounds + 1,) int64: where each begins in `order`
    keys: np.ndarray  # (blocks, templates, events of a block) uint64
    status: np.ndarray  # (events * templates,) uint8: tile by tile, template by template
    first: np.ndarray  # (rounds, tiles + 1) int64: where the items of a tile begin in `owners` and `found`
    owners: np.ndarray  # (events * (templates - 1),) uint32: event and template of each item, round by round
    found: np.ndarray  # (2 * events * (templates - 1),) uint64: packed rows, in the same order
    item_keys: np.ndarray  # (items of a round,) uint64: in the same order
    items: np.ndarray  # (2 * items of a round,) uint64: bucket by bucket
    ends: np.ndarray  # (2 ** BUCKET_BITS,) int64: of the buckets
    memo: np.ndarray  # (MEMO_NUMBERS * a power of two,) uint64: rows of features of one word, see `remember`


@helper
def pack_row(items, i, count_code, length, row_sum, weight):
    """Write a row to item i: row sum and weight, number of links and count code, 32 bits each."""
    items[2 * i] = np.uint64(as_bits(row_sum)) | (np.uint64(as_bits(weight)) << _32)
    items[2 * i + 1] = np.uint64(as_bits(np.float32(length))) | (np.uint64(count_code) << _32)


@helper
def unpack_row(items, i):
    """(count code, number of links, row sum, weight), all float32. i is a uint64: Numba checks the sign of others."""
    sums, code_and_length = items[_TWO * i], items[_TWO * i + _ONE]
    return (
        np.float32(np.int32(code_and_length >> _32)), as_float(np.uint32(code_and_length & _LOW)),
        as_float(np.uint32(sums & _LOW)), as_float(np.uint32(sums >> _32)),
    )  # fmt: skip


@helper
def set_weight(items, i, wanted, at, matrix):
    """Set the weight of item i, of a long row, to that of a spread target; its line is that of long_links[at]."""
    weight = weight_of_link(wanted, at, matrix)
    items[2 * i] = (items[2 * i] & _LOW) | (np.uint64(as_bits(weight)) << _32)


@helper
def mark_wanted(keys, parent, second_parent, required, status):
    """status[k]: NO_FEATURE, NOT_FOUND or, if key k is to be looked up, SEEN_OFTEN."""
    for k in range(len(keys)):
        wanted = SEEN_OFTEN if min(parent[k], second_parent[k]) >= required else NOT_FOUND
        status[k] = wanted if keys[k] != ABSENT else NO_FEATURE


@helper
def keys_at(event, q, shape):
    """Where the keys of template q of TILE events from this one on begin in the flat `keys`."""
    _, templates, per_block = shape
    return (event // per_block * templates + q) * per_block + event % per_block


@helper
def prefetch_keys(keys, begin):
    for k in range(0, TILE, KEYS_PER_LINE):
        prefetch(keys, begin + k)


@helper
def list_items(events, round, at, shift, ends, scratch):
    """List the items of a round, tile by tile, in scratch.owners[at:] and scratch.item_keys; return their number.

    Set ends[bucket] to where the bucket begins. No branch depends on a key, here and below: it would be unpredictable.
    """
    owners, item_keys, first = scratch.owners[at:], scratch.item_keys, scratch.first[round]
    keys, templates = scratch.keys.reshape(scratch.keys.size), scratch.keys.shape[1]
    order = scratch.order[scratch.rounds[round] : scratch.rounds[round + 1]]
    for b in range(len(ends)):
        ends[b] = 0
    n = np.uint64(0)
    for start in range(0, events, TILE):
        n_events = min(TILE, events - start)
        first[start // TILE] = at + np.int64(n)
        for r in range(len(order)):
            q, keys_begin = order[r], keys_at(start, order[r], scratch.keys.shape)
            ahead = r + TEMPLATES_AHEAD
            start_ahead = start + ahead // len(order) * TILE
            prefetch_keys(keys, keys_at(start_ahead, order[ahead % len(order)], scratch.keys.shape))
            own_keys, own = keys[keys_begin : keys_begin + n_events], start * templates + q * TILE
            tile = scratch.status[start * templates :]
            required = np.uint8(min(scratch.min_counts[q], SEEN_OFTEN) if round else NOT_FOUND)
            parent, second_parent = tile[scratch.parents[q, 0] * TILE :], tile[scratch.parents[q, 1] * TILE :]
            mark_wanted(own_keys, parent, second_parent, required, scratch.status[own:])
            owner = (np.uint64(start) << _TEMPLATE_BITS) | np.uint64(q)
            wanted = np.uint64(equal_numbers(scratch.status, own, np.uint32(SEEN_OFTEN), TILE, 1))
            wanted &= _ALL >> np.uint64(TILE - n_events)
            while wanted:
                k = np.uint64(lowest_bit(np.int64(wanted)))
                wanted &= wanted - _ONE
                item_keys[n], owners[n] = own_keys[k], owner + (k << _TEMPLATE_BITS)
                ends[own_keys[k] >> shift] += 1
                n += _ONE
    first[-(-events // TILE)] = at + np.int64(n)
    begin = 0
    for b in range(len(ends)):
        begin, ends[b] = begin + ends[b], begin
    return np.int64(n)


@helper
def distribute_items(targets, n, at, shift, ends, scratch):
    """Distribute the items of a round over buckets. Set ends[bucket] to where the bucket ends."""
    items, item_keys, owners = scratch.items, scratch.item_keys, scratch.owners[at:]
    for j in range(np.uint64(n)):
        key, event, template = item_keys[j], owners[j] >> _TEMPLATE_BITS, owners[j] & _TEMPLATE
        i = _TWO * np.uint64(ends[key >> shift])
        ends[key >> shift] += 1
        prefetch(items, i + _32)
        items[i], items[i + _ONE] = key, np.uint64(targets[event]) | (template << _32)


@helper
def collect_rows(n, at, shift, ends, scratch):
    """Copy packed rows from the buckets to scratch.found[2 * at:], in the order of the items, and set their status."""
    items, item_keys, owners = scratch.items, scratch.item_keys, scratch.owners[at:]
    found, status, templates = scratch.found[2 * at :], scratch.status, np.uint64(scratch.keys.shape[1])
    for b in range(len(ends) - 1, 0, -1):
        ends[b] = ends[b - 1]
    ends[0] = 0
    for j in range(np.uint64(n)):
        bucket, event, template = item_keys[j] >> shift, owners[j] >> _TEMPLATE_BITS, owners[j] & _TEMPLATE
        i = _TWO * np.uint64(ends[bucket])
        ends[bucket] += 1
        prefetch(items, i + _32)
        found[_TWO * j], found[_TWO * j + _ONE] = items[i], items[i + _ONE]
        tile = event // _TILE * _TILE
        found_here, often = items[i] != 0, items[i + _ONE] > _LOW  # the count code of 1 is 0
        status[tile * templates + template * _TILE + event - tile] = np.uint8(found_here) + np.uint8(found_here & often)


@helper
def find_records(items, matrix, records):
    """records[i]: the record of the row of item i, of at most BATCH_ITEMS. In stages, so that cache misses overlap."""
    n = len(items) // 2
    for i in range(n):
        prefetch(matrix.starts, items[2 * i] >> matrix.shift)
    for i in range(n):
        records[i] = prefetch_page(items[2 * i], matrix)
    for i in range(n):
        records[i] = record_at(items[2 * i], records[i], matrix)
        prefetch_record(records[i], matrix)


@helper
def remember(key, record, matrix, memo, entry):
    """Write the row of this key to memo[entry:]. Rows that are not long have 0 links there."""
    memo[entry], memo[entry + _FIRST], memo[entry + _LINKS] = key, np.uint64(0), np.uint64(0)
    memo[entry + _RECORD] = np.uint64(record)
    if is_long(record, matrix):
        count_code, links, row_sum = read_long(record, matrix)
        pack_row(memo[entry + _ONE :], 0, count_code, links, row_sum, np.float32(0.0))
        memo[entry + _FIRST], memo[entry + _LINKS] = np.uint64(first_link(record, matrix)), np.uint64(links)


@helper
def remember_items(items, matrix, shift, memo, missing, records):
    """Bring the rows of all items into the memo; of several with the same entry, the last.

    `missing`: scratch of the size of `items`.
    """
    n = np.int64(0)
    for i in range(len(items) // 2):
        missing[2 * n] = items[2 * i]
        n += np.int64(memo[_MEMO_NUMBERS * (items[2 * i] >> shift)] != items[2 * i])
    find_records(missing[: 2 * n], matrix, records)
    for i in range(n):
        key = missing[2 * i]
        remember(key, records[i], matrix, memo, _MEMO_NUMBERS * (key >> shift))


@helper
def recall_items(items, matrix, shift, memo, missing, records, links_at):
    """Replace items of the first round by their packed rows, through the memo.

    These are features of one word: few, frequent, and nearly all long. Entries of the memo are in the order of keys.
    """
    remember_items(items, matrix, shift, memo, missing, records)
    for i in range(len(items) // 2):
        key, target, q = items[2 * i], np.uint32(items[2 * i + 1] & _LOW), np.int64(items[2 * i + 1] >> _32)
        entry = _MEMO_NUMBERS * (key >> shift)
        if memo[entry] != key:  # another of these items has the same entry
            remember(key, record_at(key, page_start(key, matrix), matrix), matrix, memo, entry)
        n, wanted = np.int64(memo[entry + _LINKS]), spread_target(target, matrix.spread)
        links_at[i, 0], links_at[i, 1] = wanted, -1
        if n:
            items[2 * i], items[2 * i + 1] = memo[entry + _ONE], memo[entry + _TWO]
            links_at[i, 1] = np.int64(memo[entry + _FIRST]) + position_of_link(wanted, n, matrix.spread)
            prefetch_link(links_at[i, 1], matrix.long_links)
        elif np.int64(memo[entry + _RECORD]) == NO_ROW:
            items[2 * i] = 0
        else:
            count_code, links, row_sum, weight = read_short(q, np.int64(memo[entry + _RECORD]), target, matrix)
            pack_row(items, i, count_code, links, row_sum, weight)
    for i in range(len(items) // 2):
        if links_at[i, 1] >= 0:
            set_weight(items, i, links_at[i, 0], links_at[i, 1], matrix)


@helper
def group_items(records, matrix, lists):
    """List rows of up to MAX_UNSUMMED links, other short rows, and long rows in lists[0:3]; return their numbers.

    A loop for each of the three avoids an unpredictable branch.
    """
    few = many = long = np.uint64(0)
    for i in range(len(records)):
        flags = matrix.data[max(records[i], np.int64(0)) + 1]
        long_here = is_long(records[i], matrix)
        many_here = (records[i] >= 0) & (flags & _LINKS_OR_LONG > MAX_UNSUMMED) & (flags & _LINKS_OR_LONG < LONG)
        lists[0, few] = lists[1, many] = lists[2, long] = i
        few += np.uint64((records[i] != NO_ROW) & (not many_here) & (not long_here))
        many += np.uint64(many_here)
        long += np.uint64(long_here)
    return np.int64(few), np.int64(many), np.int64(long)


@helper
def read_items(items, records, matrix, lists, links_at):
    """Replace items by the packed rows at these records."""
    few, many, n_long = group_items(records[: len(items) // 2], matrix, lists)
    for i in range(len(items) // 2):
        items[2 * i] = 0
    for k in range(n_long):
        i = lists[2, k]
        wanted = spread_target(np.uint32(items[2 * i + 1] & _LOW), matrix.spread)
        count_code, links, row_sum = read_long(records[i], matrix)
        links_at[k, 0] = wanted
        links_at[k, 1] = first_link(records[i], matrix) + position_of_link(wanted, links, matrix.spread)
        pack_row(items, i, count_code, links, row_sum, np.float32(0.0))
    for k in range(n_long):
        prefetch_link(links_at[k, 1], matrix.long_links)
    for i in lists[1, :many]:
        prefetch_rest(records[i], matrix)
    for group, n in ((0, few), (1, many)):
        for i in lists[group, :n]:
            target, q = np.uint32(items[2 * i + 1] & _LOW), np.int64(items[2 * i + 1] >> _32)
            count_code, links, row_sum, weight = read_short(q, records[i], target, matrix)
            pack_row(items, i, count_code, links, row_sum, weight)
    for k in range(n_long):
        set_weight(items, lists[2, k], links_at[k, 0], links_at[k, 1], matrix)


@kernel
def look_up(targets, matrix, scratch):
    """Find the rows of the events whose keys are in scratch.keys: fill its `owners`, `found` and `first`."""
    records, links_at = np.empty(BATCH_ITEMS, np.int64), np.empty((BATCH_ITEMS, 2), np.int64)
    lists, missing = np.empty((3, BATCH_ITEMS), np.int64), np.empty(2 * BATCH_ITEMS, np.uint64)
    events, at, memo_shift = len(targets), np.int64(0), _64 - np.uint64(floor_log2(len(scratch.memo) // MEMO_NUMBERS))
    for round in range(len(scratch.rounds) - 1):
        bits = 1
        while bits < BUCKET_BITS and events * (scratch.rounds[round + 1] - scratch.rounds[round]) >> bits > MIN_ITEMS:
            bits += 1
        ends, shift = scratch.ends[: 1 << bits], _64 - np.uint64(bits)
        n = list_items(events, round, at, shift, ends, scratch)
        distribute_items(targets, n, at, shift, ends, scratch)
        for i in range(0, n, BATCH_ITEMS):
            items = scratch.items[2 * i : 2 * min(i + BATCH_ITEMS, n)]
            if round == 0:
                recall_items(items, matrix, memo_shift, scratch.memo, missing, records, links_at)
            else:
                find_records(items, matrix, records)
                read_items(items, records, matrix, lists, links_at)
        collect_rows(n, at, shift, ends, scratch)
        at += n


@helper
def fill(start, stop, targets, matrix, scratch, rows):
    """Fill `rows` with the rows of the events [start, stop), a tile."""
    per_block, tile = scratch.keys.shape[2], start // TILE
    clear(rows)
    i = np.int64(0)
    for e in range(start, stop):
        if scratch.keys[e // per_block, 0, e % per_block] != ABSENT:
            i = add_unigram(rows, i, e - start, targets[e], matrix)
    before, begin = np.uint64(0), np.uint64(start)
    for round in range(len(scratch.rounds) - 1):
        for j in range(np.uint64(scratch.first[round, tile]), np.uint64(scratch.first[round, tile + 1])):
            event, q = scratch.owners[j] >> _TEMPLATE_BITS, scratch.owners[j] & _TEMPLATE
            if q != before:  # items of a template are neighbours
                rows.last[before] = rows.first[q] = i
                before = q
            rows.event[i] = event - begin
            rows.code[i], rows.length[i], rows.row_sum[i], rows.weight[i] = unpack_row(scratch.found, j)
            i += np.int64(scratch.found[_TWO * j] != 0)
    rows.last[before] = i


@helper
def fill_caches(start, stop, templates, cached, rows):
    """Append the caches' rows of the events [start, stop) to `rows`. They follow those of the templates."""
    i = np.int64(0)
    for q in range(templates):
        i = max(i, rows.last[q])
    for q in range(cached.shape[1]):
        rows.first[templates + q] = i
        for e in range(start, stop):
            i = add_row(rows, i, e - start, cached[0, q, e], cached[1, q, e], cached[2, q, e], cached[3, q, e])
        rows.last[templates + q] = i


@kernel
def score(targets, matrix, gate, cached, scratch, probabilities):
    """probabilities[k] = P(targets[k]), of the events whose keys are in scratch.keys; 0 where there is no event.

    cached: rows of caches, see `snm.features.caches`. (4, caches, events) float32
    """
    look_up(targets, matrix, scratch)
    templates = scratch.keys.shape[1]
    rows = make_own_rows(templates + cached.shape[1], len(gate.bias))
    for start in range(0, len(targets), TILE):
        stop = min(start + TILE, len(targets))
        fill(start, stop, targets, matrix, scratch, rows)
        fill_caches(start, stop, templates, cached, rows)
        mix(stop - start, rows, gate)
        for k in range(stop - start):
            event = rows.sums[1, k] > 0.0
            probabilities[start + k] = rows.sums[0, k] / rows.sums[1, k] if event else 0.0
