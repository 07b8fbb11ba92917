"""Counting: links are scattered to buckets, sorted, and run-length encoded; events are annotated with the counts.

The *sort key* of a link is the part of the feature's key that its bucket does not determine, above the target; see
`KeyLayout`.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.layouts.counts import PACKED_EXACTLY
from snm.layouts.keys import ABSENT

_ONE = np.uint64(1)
_64 = np.uint64(64)


@kernel
def count_buckets(keys, bucket_bits, sizes):
    """Add the number of keys in each bucket to `sizes`. keys: (templates, events)"""
    shift = _64 - bucket_bits
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            if column[k] != ABSENT:
                sizes[column[k] >> shift] += 1


@kernel
def scatter(keys, targets, bucket_bits, target_bits, first, last, cursors, links, base, origins):
    """Write the sort key of each link in the buckets [first, last) to links[cursors[bucket]], and advance the cursor.

    Unless it is empty, `origins` receives at the same index where the link comes from: base + event * templates +
    template.
    """
    shift = _64 - bucket_bits
    drop_target = ~((_ONE << target_bits) - _ONE)
    low, high = np.uint64(first), np.uint64(last)
    templates = keys.shape[0]
    for q in range(templates):
        column = keys[q]
        for k in range(len(column)):
            key = column[k]
            bucket = key >> shift
            if key != ABSENT and bucket >= low and bucket < high:
                at = cursors[bucket]
                links[at] = (((key ^ _ONE) << bucket_bits) & drop_target) | np.uint64(targets[k])
                if len(origins):
                    origins[at] = base + k * templates + q
                cursors[bucket] = at + 1


@kernel
def place_links(piece, begin, sizes, starts, links):
    """Copy links that were read back from disk to their buckets.

    The links of a run are in the order of their buckets, sizes[b] of them in bucket b. `piece` are those from number
    `begin` on. Bucket b goes to links[starts[b]:].
    """
    first = 0  # number of the bucket's first link in the run
    for b in range(len(sizes)):
        low, high = max(first, begin), min(first + sizes[b], begin + len(piece))
        if low < high:
            at = starts[b] + low - first
            links[at : at + high - low] = piece[low - begin : high - begin]
        first += sizes[b]


@helper
def end_of_row(links, i, end, target_bits):
    """Where the row of links[i] ends."""
    feature = links[i] >> target_bits
    while i < end and links[i] >> target_bits == feature:
        i += 1
    return i


@helper
def key_of(link, prefix, bucket_bits, target_bits):
    """The feature's key, from a sort key and the bits of its bucket."""
    return prefix | (((link >> target_bits) << target_bits) >> bucket_bits) | _ONE


@helper
def next_row(links, i, end, prefix, bucket_bits, target_bits, type_shift, min_counts):
    """Where the row that begins at links[i] ends, its key, and whether it is kept."""
    stop = end_of_row(links, i, end, target_bits)
    key = key_of(links[i], prefix, bucket_bits, target_bits)
    return stop, key, stop - i >= min_counts[(key >> type_shift) & np.uint64(len(min_counts) - 1)]


@kernel
def count_runs(links, bounds, first_bucket, bucket_bits, target_bits, type_shift, min_counts):
    """Number of rows and of distinct links in sorted buckets, without rows seen less than min_counts[type] times."""
    rows = distinct = 0
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        i = bounds[b]
        while i < bounds[b + 1]:
            start = i
            i, _, kept = next_row(links, i, bounds[b + 1], prefix, bucket_bits, target_bits, type_shift, min_counts)
            if not kept:
                continue
            rows += 1
            distinct += 1
            for k in range(start + 1, i):
                distinct += links[k] != links[k - 1]
    return rows, distinct


@kernel
def encode_runs(
    links, bounds, first_bucket, bucket_bits, target_bits, type_shift, min_counts,
    features, feature_counts, offsets, targets, link_counts,
):  # fmt: skip
    """Write the rows and links of sorted buckets, see `snm.layouts.counts.Counts`."""
    mask = (_ONE << target_bits) - _ONE
    row = link = 0
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        i = bounds[b]
        while i < bounds[b + 1]:
            start = i
            i, key, kept = next_row(links, i, bounds[b + 1], prefix, bucket_bits, target_bits, type_shift, min_counts)
            if not kept:
                continue
            features[row] = key
            feature_counts[row] = np.uint32(i - start)
            offsets[row] = link
            row += 1
            for k in range(start, i):
                if k == start or links[k] != links[k - 1]:
                    targets[link] = np.uint32(links[k] & mask)
                    link_counts[link] = 0
                    link += 1
                link_counts[link - 1] += np.uint32(1)
    offsets[row] = link


@helper
def pack_counts(feature_count, link_count):
    """(C_i*, C_ij) in 32 bits, twelve significant bits each: exact below PACKED_EXACTLY. 0 stands for no feature."""
    return (pack_count(feature_count) << np.uint32(16)) | pack_count(link_count)


@helper
def pack_count(count):
    shift = 0
    while count >> shift >= PACKED_EXACTLY:
        shift += 1
    return np.uint32((shift << 11) + (count >> shift))


@helper
def unpack_count(packed):
    """The count that was packed, rounded down; in the same half octave."""
    shift = max(packed >> np.uint32(11), np.uint32(1)) - np.uint32(1)
    return np.int64(packed - (shift << np.uint32(11))) << np.int64(shift)


@kernel
def annotate_runs(
    links, bounds, first_bucket, bucket_bits, target_bits, type_shift, min_counts, wanted, origins, values
):  # fmt: skip
    """Set values[origins[i]] to the packed counts of the link wanted[i], or to 0 where its row is not kept.

    `links` are sorted buckets; `wanted` are some of their links, also sorted.
    """
    w = 0
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        i = bounds[b]
        while i < bounds[b + 1]:
            start = i
            i, _, kept = next_row(links, i, bounds[b + 1], prefix, bucket_bits, target_bits, type_shift, min_counts)
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
