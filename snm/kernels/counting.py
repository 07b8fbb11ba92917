"""Histogram, scatter and run-length encoding of link keys.

A *link* is a feature with a target. Its sort key holds what the bucket does not already say of
the feature's key, then the target: see `KeyLayout`.
"""

import numpy as np
from numba import njit

from snm.kernels.extraction import ABSENT

_ONE = np.uint64(1)
_64 = np.uint64(64)


@njit(nogil=True, cache=True)
def count_buckets(keys, bucket_bits, sizes):
    """Add the number of keys that fall into each bucket. keys: (slots, events)"""
    shift = _64 - bucket_bits
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            if column[k] != ABSENT:
                sizes[column[k] >> shift] += 1


@njit(nogil=True, cache=True)
def scatter(keys, targets, bucket_bits, target_bits, first, last, cursors, links):
    """Write the sort key of every link whose bucket is in [first, last) to its bucket's next place."""
    shift = _64 - bucket_bits
    drop_target = ~((_ONE << target_bits) - _ONE)
    low, high = np.uint64(first), np.uint64(last)
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            key = column[k]
            bucket = key >> shift
            if key != ABSENT and bucket >= low and bucket < high:
                place = cursors[bucket]
                links[place] = (((key ^ _ONE) << bucket_bits) & drop_target) | np.uint64(targets[k])
                cursors[bucket] = place + 1


@njit(nogil=True, cache=True)
def count_runs(links, bounds, target_bits, rows, distinct):
    """Number of distinct features and of distinct links in each sorted bucket."""
    for b in range(len(bounds) - 1):
        n_rows = n_links = 0
        for i in range(bounds[b], bounds[b + 1]):
            if i == bounds[b] or links[i] != links[i - 1]:
                n_links += 1
                if i == bounds[b] or (links[i] >> target_bits) != (links[i - 1] >> target_bits):
                    n_rows += 1
        rows[b] = n_rows
        distinct[b] = n_links


@njit(nogil=True, cache=True)
def encode_runs(
    links, bounds, first_bucket, bucket_bits, target_bits,
    row, link, features, totals, offsets, targets, counts,
):  # fmt: skip
    """Write the rows and links of the sorted buckets from row `row` and link `link` on."""
    mask = (_ONE << target_bits) - _ONE
    row -= 1
    link -= 1
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        for i in range(bounds[b], bounds[b + 1]):
            if i == bounds[b] or links[i] != links[i - 1]:
                link += 1
                targets[link] = np.uint32(links[i] & mask)
                counts[link] = 0
                if i == bounds[b] or (links[i] >> target_bits) != (links[i - 1] >> target_bits):
                    row += 1
                    features[row] = prefix | ((links[i] & ~mask) >> bucket_bits) | _ONE
                    totals[row] = 0
                    offsets[row] = link
            counts[link] += np.uint32(1)
            totals[row] += np.uint64(1)
