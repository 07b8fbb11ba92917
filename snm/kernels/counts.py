"""Histogram, scatter and run-length encoding of link keys, and the counts of the events that are learned from.

A *link* is a feature with a target. Its sort key holds what the bucket does not already say of
the feature's key, then the target: see `KeyLayout`.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.layouts.counts import PACKED_EXACTLY
from snm.layouts.keys import ABSENT

_ONE = np.uint64(1)
_64 = np.uint64(64)


@kernel
def count_buckets(keys, bucket_bits, sizes):
    """Add the number of keys that fall into each bucket. keys: (slots, events)"""
    shift = _64 - bucket_bits
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            if column[k] != ABSENT:
                sizes[column[k] >> shift] += 1


@kernel
def scatter(keys, targets, bucket_bits, target_bits, first, last, cursors, links, base, origins):
    """Write the sort key of every link whose bucket is in [first, last) to its bucket's next place.

    Where `origins` is not empty it receives beside it which link of the text that is: base + event * slots + slot.
    """
    shift = _64 - bucket_bits
    drop_target = ~((_ONE << target_bits) - _ONE)
    low, high = np.uint64(first), np.uint64(last)
    slots = keys.shape[0]
    for q in range(slots):
        column = keys[q]
        for k in range(len(column)):
            key = column[k]
            bucket = key >> shift
            if key != ABSENT and bucket >= low and bucket < high:
                place = cursors[bucket]
                links[place] = (((key ^ _ONE) << bucket_bits) & drop_target) | np.uint64(targets[k])
                if len(origins):
                    origins[place] = base + k * slots + q
                cursors[bucket] = place + 1


@kernel
def place_links(piece, begin, sizes, starts, links):
    """Put links that were read back from disk to their buckets.

    piece: those from the `begin`-th on, of some that lie in the order of their buckets, sizes[b] of bucket b; they go
    to links[starts[b]:].
    """
    first = 0  # of the bucket
    for b in range(len(sizes)):
        low, high = max(first, begin), min(first + sizes[b], begin + len(piece))
        if low < high:
            place = starts[b] + low - first
            links[place : place + high - low] = piece[low - begin : high - begin]
        first += sizes[b]


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


@helper
def next_row(links, i, end, prefix, bucket_bits, target_bits, type_shift, least):
    """Where the row that begins at links[i] ends, its key, and whether it was seen often enough to be kept."""
    stop = end_of_row(links, i, end, target_bits)
    key = key_of(links[i], prefix, bucket_bits, target_bits)
    return stop, key, stop - i >= least[(key >> type_shift) & np.uint64(len(least) - 1)]


@kernel
def count_runs(links, bounds, first_bucket, bucket_bits, target_bits, type_shift, least):
    """Number of distinct features and of distinct links in sorted buckets.

    least[type]: features of this type that were seen less often are left out.
    """
    rows = distinct = 0
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        i = bounds[b]
        while i < bounds[b + 1]:
            start = i
            i, _, kept = next_row(links, i, bounds[b + 1], prefix, bucket_bits, target_bits, type_shift, least)
            if not kept:
                continue
            rows += 1
            distinct += 1
            for k in range(start + 1, i):
                distinct += links[k] != links[k - 1]
    return rows, distinct


@kernel
def encode_runs(
    links, bounds, first_bucket, bucket_bits, target_bits, type_shift, least,
    features, totals, offsets, targets, counts,
):  # fmt: skip
    """Write the rows and links of sorted buckets."""
    mask = (_ONE << target_bits) - _ONE
    row = link = 0
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        i = bounds[b]
        while i < bounds[b + 1]:
            start = i
            i, key, kept = next_row(links, i, bounds[b + 1], prefix, bucket_bits, target_bits, type_shift, least)
            if not kept:
                continue
            features[row] = key
            totals[row] = np.uint32(i - start)
            offsets[row] = link
            row += 1
            for k in range(start, i):
                if k == start or links[k] != links[k - 1]:
                    targets[link] = np.uint32(links[k] & mask)
                    counts[link] = 0
                    link += 1
                counts[link - 1] += np.uint32(1)
    offsets[row] = link


@helper
def pack_counts(total, link):
    """(C_i*, C_ij) in 32 bits, twelve significant bits each: exact below 4096. Zero stands for no feature."""
    return (pack_count(total) << np.uint32(16)) | pack_count(link)


@helper
def pack_count(count):
    shift = 0
    while count >> shift >= PACKED_EXACTLY:
        shift += 1
    return np.uint32((shift << 11) + (count >> shift))


@helper
def unpack_count(packed):
    """Never more than the count was, and in the same half octave."""
    shift = max(packed >> np.uint32(11), np.uint32(1)) - np.uint32(1)
    return np.int64(packed - (shift << np.uint32(11))) << np.int64(shift)


@kernel
def annotate_runs(
    links, bounds, first_bucket, bucket_bits, target_bits, type_shift, least, wanted, origins, values
):  # fmt: skip
    """values[origins[i]] = the counts of the link wanted[i], for links in rows that are kept.

    `links` are sorted buckets; `wanted` are some of their links, sorted too: both are walked side by side.
    """
    w = 0
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        i = bounds[b]
        while i < bounds[b + 1]:
            start = i
            i, _, kept = next_row(links, i, bounds[b + 1], prefix, bucket_bits, target_bits, type_shift, least)
            k = start
            while k < i:
                link = links[k]
                first = k
                while k < i and links[k] == link:
                    k += 1
                packed = pack_counts(i - start, k - first) if kept else np.uint32(0)
                while w < len(wanted) and wanted[w] == link:
                    values[origins[w]] = packed
                    w += 1
