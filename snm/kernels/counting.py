"""Histogram, scatter and run-length encoding of link keys.

A *link* is a feature with a target. Its sort key holds what the bucket does not already say of
the feature's key, then the target: see `KeyLayout`.
"""

import numpy as np
from numba import njit

from snm.kernels.extraction import ABSENT
from snm.kernels.hashing import helper

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


@helper
def end_of_row(links, i, end, target_bits):
    """Where the links of the feature of links[i] end."""
    feature = links[i] >> target_bits
    while i < end and links[i] >> target_bits == feature:
        i += 1
    return i


@helper
def key_of(link, prefix, bucket_bits, target_bits):
    """The feature's key, from a sort key and the bucket it lies in."""
    return prefix | (((link >> target_bits) << target_bits) >> bucket_bits) | _ONE


@njit(nogil=True, cache=True)
def count_runs(links, bounds, first_bucket, bucket_bits, target_bits, type_shift, least, rows, distinct):
    """Number of distinct features and of distinct links in each sorted bucket.

    least[type]: features of this type that were seen less often are left out.
    """
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        n_rows = n_links = 0
        i = bounds[b]
        while i < bounds[b + 1]:
            start, i = i, end_of_row(links, i, bounds[b + 1], target_bits)
            kind = (key_of(links[start], prefix, bucket_bits, target_bits) >> type_shift) & np.uint64(len(least) - 1)
            if i - start < least[kind]:
                continue
            n_rows += 1
            n_links += 1
            for k in range(start + 1, i):
                n_links += links[k] != links[k - 1]
        rows[b] = n_rows
        distinct[b] = n_links


@njit(nogil=True, cache=True)
def encode_runs(
    links, bounds, first_bucket, bucket_bits, target_bits, type_shift, least,
    row, link, features, totals, offsets, targets, counts,
):  # fmt: skip
    """Write the rows and links of the sorted buckets from row `row` and link `link` on."""
    mask = (_ONE << target_bits) - _ONE
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        i = bounds[b]
        while i < bounds[b + 1]:
            start, i = i, end_of_row(links, i, bounds[b + 1], target_bits)
            key = key_of(links[start], prefix, bucket_bits, target_bits)
            if i - start < least[(key >> type_shift) & np.uint64(len(least) - 1)]:
                continue
            features[row] = key
            totals[row] = np.uint64(i - start)
            offsets[row] = link
            row += 1
            for k in range(start, i):
                if k == start or links[k] != links[k - 1]:
                    targets[link] = np.uint32(links[k] & mask)
                    counts[link] = 0
                    link += 1
                counts[link - 1] += np.uint32(1)
