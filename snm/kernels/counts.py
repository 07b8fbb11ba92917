"""Counting: links are scattered to buckets, sorted, and run-length encoded; events are annotated with the counts.

The *sort key* of a link is the part of the feature's key that its bucket does not determine, above the target; see
`KeyLayout`.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.layouts.counts import PACKED_EXACTLY
from snm.layouts.keys import ABSENT

DIGIT_BITS = 11  # of radix sort
FEW_LINKS, FEW_DIGIT_BITS = 4096, 8  # fewer links are sorted by shorter digits, whose table is cleared faster
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
def scatter(keys, targets, bucket_bits, target_bits, first, last, cursors, links):
    """Write the sort key of each link in the buckets [first, last) to links[cursors[bucket]]; advance the cursor."""
    shift = _64 - bucket_bits
    drop_target = ~((_ONE << target_bits) - _ONE)
    low, high = np.uint64(first), np.uint64(last)
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            key = column[k]
            bucket = key >> shift
            if key != ABSENT and bucket >= low and bucket < high:
                links[cursors[bucket]] = (((key ^ _ONE) << bucket_bits) & drop_target) | np.uint64(targets[k])
                cursors[bucket] += 1


@kernel
def scatter_numbers(keys, numbers, bucket_bits, first, last, cursors, out):
    """As `scatter`, with numbers[event] in place of a link."""
    shift = _64 - bucket_bits
    low, high = np.uint64(first), np.uint64(last)
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            bucket = column[k] >> shift
            if column[k] != ABSENT and bucket >= low and bucket < high:
                out[cursors[bucket]] = numbers[k]
                cursors[bucket] += 1


@kernel
def gather(keys, bucket_bits, cursors, counts, values):
    """Take the counts of links in the order in which `scatter` wrote the links: values[event, template], 0 for none."""
    shift = _64 - bucket_bits
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            values[k, q] = 0
            if column[k] != ABSENT:
                bucket = column[k] >> shift
                values[k, q] = counts[cursors[bucket]]
                cursors[bucket] += 1


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
def collect_runs(links, bounds, first_bucket, bucket_bits, target_bits, type_shift, min_counts, counts):
    """Write the rows and links of sorted buckets to `counts`, see `snm.layouts.counts.Counts`."""
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
            counts.features[row] = key
            counts.feature_counts[row] = i - start
            counts.offsets[row] = link
            row += 1
            for k in range(start, i):
                if k == start or links[k] != links[k - 1]:
                    counts.targets[link] = np.uint32(links[k] & mask)
                    counts.link_counts[link] = 0
                    link += 1
                counts.link_counts[link - 1] += 1
    counts.offsets[row] = link


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


@helper
def sort_with_order(links, order, other_links, other_order, sizes):
    """Sort links, and set order[i] to where link i was before. By the digits of radix sort, the lowest first.

    `other_links` and `other_order` are scratch memory of the same sizes, `sizes` of one number for each digit. Sorting
    indices by comparison takes up to three times as long.
    """
    for i in range(len(links)):
        order[i] = i
    bits = DIGIT_BITS if len(links) >= FEW_LINKS else FEW_DIGIT_BITS
    swapped = False
    for digit in range(0, 64, bits):
        swapped ^= move_by_digit(
            other_links if swapped else links, other_order if swapped else order, np.uint64(digit), sizes[: 1 << bits],
            links if swapped else other_links, order if swapped else other_order,
        )  # fmt: skip
    if swapped:
        for i in range(len(links)):
            links[i], order[i] = other_links[i], other_order[i]


@helper
def move_by_digit(links, order, shift, sizes, to_links, to_order):
    """Copy links and their order, sorted by one digit and else as they were; False if there is nothing to sort.

    sizes: one for each value of a digit, a power of two of them.
    """
    mask = np.uint64(len(sizes) - 1)
    for d in range(len(sizes)):
        sizes[d] = 0
    for i in range(len(links)):
        sizes[(links[i] >> shift) & mask] += 1
    if len(links) and sizes[(links[0] >> shift) & mask] == len(links):
        return False
    begin = np.int64(0)
    for d in range(len(sizes)):
        sizes[d], begin = begin, begin + sizes[d]
    for i in range(len(links)):
        digit = (links[i] >> shift) & mask
        at = sizes[digit]
        sizes[digit] = at + 1
        to_links[at], to_order[at] = links[i], order[i]
    return True


@kernel
def sort_and_annotate(
    links, bounds, first_bucket, bucket_bits, target_bits, type_shift, min_counts, values, other_links, orders, sizes
):  # fmt: skip
    """Sort buckets, and give each link its packed counts in `values`, in the order of before; 0 if its row is not kept.

    values: of the links from the first bucket on. `other_links` and `orders` (2, n) are scratch memory for the largest
    bucket. Returns how many values are of features seen at all, and seen more than once.
    """
    seen = seen_again = 0
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        bucket = links[bounds[b] : bounds[b + 1]]
        packed = values[bounds[b] - bounds[0] : bounds[b + 1] - bounds[0]]
        n = len(bucket)
        order = orders[0, :n]
        sort_with_order(bucket, order, other_links[:n], orders[1, :n], sizes)
        i = np.int64(0)
        while i < n:
            start = i
            i, _, kept = next_row(bucket, i, n, prefix, bucket_bits, target_bits, type_shift, min_counts)
            seen += i - start if kept else 0
            seen_again += i - start if kept and i - start > 1 else 0
            k = start
            while k < i:
                first, link = k, bucket[k]
                while k < i and bucket[k] == link:
                    k += 1
                counts = pack_counts(i - start, k - first) if kept else np.uint32(0)
                for j in range(first, k):
                    packed[order[j]] = counts
    return seen, seen_again


@kernel
def replace_links(halves, bounds, values):
    """Write the values of each bucket to where its links begin. halves: the links, as two numbers each."""
    for b in range(len(bounds) - 1):
        n, start = bounds[b + 1] - bounds[b], bounds[b] - bounds[0]
        for i in range(n):
            halves[2 * bounds[b] + i] = values[start + i]


@kernel
def collect_run(values, starts, sizes, out):
    """Copy a run's values, sizes[b] from values[starts[b]] on for each bucket, to `out`."""
    at = 0
    for b in range(len(sizes)):
        for i in range(sizes[b]):
            out[at + i] = values[starts[b] + i]
        at += sizes[b]
