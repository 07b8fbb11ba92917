"""Backoff models: n-grams of one order sorted into rows, numbers returned to events, and scoring.

Template q is the context of q words, so keys[q] is the row of keys of that order. (orders, events)
"""

import numpy as np

from snm.kernels.compile import kernel
from snm.kernels.counts import end_of_row, key_of, merge_equal, sort_with_order
from snm.kernels.row_index import find_column
from snm.layouts.keys import ABSENT

_ONE = np.uint64(1)
_64 = np.uint64(64)


@kernel
def select_events(keys, levels, highest):
    """Set an event's key keys[1] to ABSENT if its level is above `highest`, unless it has no longer context keys[0]."""
    for k in range(keys.shape[1]):
        if levels[k] > highest and keys[0, k] != ABSENT:
            keys[1, k] = ABSENT


@kernel
def sort_into_rows(
    links, bounds, first_bucket, bucket_bits, target_bits, features, lengths, targets, counts, firsts, link_of,
    table, other_links, orders, repeats, sizes,
):  # fmt: skip
    """Sort buckets, and write their rows; return the numbers of rows and of distinct links.

    features[row] and lengths[row], its number of links; targets[link] and counts[link]; firsts[link], the event with
    the link that came first, and link_of[event]. Events are numbered from bounds[0] on. The last five are scratch
    memory, see `snm.kernels.counts.count_links`.
    """
    mask = (_ONE << target_bits) - _ONE
    row = link = np.int64(0)
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        bucket, base = links[bounds[b] : bounds[b + 1]], bounds[b] - bounds[0]
        numbers, place_of = link_of[base : base + len(bucket)], repeats[1]
        n = merge_equal(bucket, numbers, repeats[0], table[: 4 * len(bucket)])
        order = orders[0, :n]
        sort_with_order(bucket[:n], order, other_links[:n], orders[1, :n], sizes)
        for k in range(n):
            targets[link + k] = np.uint32(bucket[k] & mask)
            counts[link + k] = repeats[0, order[k]]
            place_of[order[k]] = link + k
        for i in range(len(bucket) - 1, -1, -1):
            numbers[i] = place_of[numbers[i]]
            firsts[numbers[i]] = base + i
        link += n
        stop = np.int64(0)
        while stop < n:
            start, stop = stop, end_of_row(bucket, stop, n, target_bits)
            features[row] = key_of(bucket[start], prefix, bucket_bits, target_bits)
            lengths[row] = stop - start
            row += 1
    return row, link


@kernel
def take_back(keys, bucket_bits, cursors, numbers, results):
    """Set results[event] to the event's number, for events with a key. The reverse of `kernels.counts.scatter`.

    numbers[cursors[bucket]] is the next one of a bucket.
    """
    shift = _64 - bucket_bits
    for k in range(len(keys)):
        if keys[k] != ABSENT:
            bucket = keys[k] >> shift
            results[k] = numbers[cursors[bucket]]
            cursors[bucket] += 1


@kernel
def copy_rows(starts, sizes, values, out):
    """Copy rows one after another: sizes[i] values from values[starts[i]] on."""
    at = np.int64(0)
    for i in range(len(starts)):
        for k in range(sizes[i]):
            out[at + k] = values[starts[i] + k]
        at += sizes[i]


@kernel
def score(keys, words, index, offsets, targets, probabilities, backoffs, out):
    """Fill out[event]: the probability in the longest context that has the word, times the backoffs of longer ones."""
    rows, links = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    out[:] = 0.0
    loaded = np.uint64(0)
    for q in range(keys.shape[0]):
        loaded += find_column(keys[q], words, index, offsets, targets, rows, links)
        for k in range(len(words)):
            if links[k] >= 0:
                out[k] = probabilities[links[k]]
            elif rows[k] >= 0:
                out[k] *= backoffs[rows[k]]
    return loaded
