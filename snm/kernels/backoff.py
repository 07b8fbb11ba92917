"""Backoff models: n-grams of one order sorted into rows, numbers returned to events, and scoring.

Template q is the context of q words, so keys[q] is the row of keys of that order. (orders, events)
"""

import numpy as np

from snm.kernels.compile import kernel
from snm.kernels.counts import end_of_row, key_of, sort_with_order
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
    links, bounds, first_bucket, bucket_bits, target_bits,
    features, lengths, targets, counts, firsts, link_of, other_links, orders, sizes,
):  # fmt: skip
    """Sort buckets, and write their rows; return the numbers of rows and of distinct links.

    features[row] and lengths[row], its number of links; targets[link] and counts[link]; firsts[link], the event with
    the link that came first, and link_of[event]. Events are numbered from bounds[0] on. `other_links`, `orders` (2, n)
    and `sizes` are scratch memory, see `sort_with_order`.
    """
    mask = (_ONE << target_bits) - _ONE
    row = link = np.int64(0)
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        bucket, base = links[bounds[b] : bounds[b + 1]], bounds[b] - bounds[0]
        n = len(bucket)
        order = orders[0, :n]
        sort_with_order(bucket, order, other_links[:n], orders[1, :n], sizes)
        i = np.int64(0)
        while i < n:
            stop, before = end_of_row(bucket, i, n, target_bits), link
            features[row] = key_of(bucket[i], prefix, bucket_bits, target_bits)
            while i < stop:
                start, same = i, bucket[i]
                targets[link] = np.uint32(same & mask)
                firsts[link] = base + order[i]
                while i < stop and bucket[i] == same:
                    link_of[base + order[i]] = link
                    i += 1
                counts[link] = i - start
                link += 1
            lengths[row] = link - before
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
