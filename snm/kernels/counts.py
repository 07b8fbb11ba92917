"""Counting: links are scattered to buckets; equal ones are merged, and sorted; events are annotated with the counts.

The *sort key* of a link is the part of the feature's key that its bucket does not determine, above the target; see
`KeyLayout`.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.layouts.counts import PACKED_EXACTLY
from snm.layouts.keys import ABSENT, MULTIPLIER

DIGIT_BITS = 11  # of radix sort
FEW_LINKS, FEW_DIGIT_BITS = 4096, 8  # fewer links are sorted by shorter digits, whose table is cleared faster
FIRST_SLOTS = 1 << 12  # of the table in which equal links are found
_ONE = np.uint64(1)
_64 = np.uint64(64)
_MULTIPLIER = np.uint64(MULTIPLIER)


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


@helper
def merge_equal(links, numbers, repeats, table):
    """Move the distinct links to the front, in the order in which they come; returns how many there are.

    numbers[i] becomes the number of link i among them, repeats[number] how often it was there. `table`: scratch memory
    of four slots a link. It begins small and grows: most buckets have far fewer distinct links than links.
    """
    slots = min(FIRST_SLOTS, largest_power(len(table)))
    table[:slots] = 0
    n = 0
    for i in range(len(links)):
        link = links[i]
        slot = find_slot(link, links, table, slots)
        if table[slot] == 0:
            if 2 * n >= slots:
                slots *= 2
                table[:slots] = 0
                for number in range(n):
                    table[find_slot(links[number], links, table, slots)] = number + 1
                slot = find_slot(link, links, table, slots)
            links[n], repeats[n] = link, 0
            n += 1
            table[slot] = n
        number = table[slot] - np.uint32(1)
        repeats[number] += np.uint32(1)
        numbers[i] = number
    return n


@helper
def largest_power(n):
    """The largest power of two that is at most n."""
    power = 1
    while 2 * power <= n:
        power *= 2
    return power


@helper
def find_slot(link, links, table, slots):
    """The slot with the number of a link, plus 1; or the free slot for it."""
    mask = np.uint64(slots - 1)
    slot = ((link * _MULTIPLIER) >> np.uint64(32)) & mask
    while table[slot] != 0 and links[table[slot] - np.uint32(1)] != link:
        slot = (slot + _ONE) & mask
    return slot


@kernel
def count_links(
    links, bounds, first_bucket, bucket_bits, target_bits, type_shift, min_counts, values, counts, distinct,
    table, other_links, orders, repeats, sizes,
):  # fmt: skip
    """Count the links of buckets: the distinct ones come first in each bucket, sorted, with their counts in `counts`.

    Each link gets its packed counts in `values`, in the order of before; 0 if its row is not kept, because it was seen
    less than min_counts[type] times. `values` and `counts` are of the links from the first bucket on.

    distinct: how many distinct links each bucket has. (buckets,)
    Scratch memory for the largest bucket, of n links: `table` (4 n,), `other_links` (n,), `orders` (2, n), `repeats`
    (2, n) and `sizes`, see `merge_equal` and `sort_with_order`. The table may be the memory of the next two.

    Returns how many rows are kept, how many distinct links they have, how many values are of features seen at all, and
    of those seen more than once.
    """
    rows = kept_links = seen = seen_again = 0
    types = np.uint64(len(min_counts) - 1)
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        bucket = links[bounds[b] : bounds[b + 1]]
        packed = values[bounds[b] - bounds[0] : bounds[b + 1] - bounds[0]]
        n = merge_equal(bucket, packed, repeats[0], table[: 4 * len(bucket)])
        distinct[b] = n
        order, link_counts, packed_of = orders[0, :n], counts[bounds[b] - bounds[0] :], repeats[1]
        sort_with_order(bucket[:n], order, other_links[:n], orders[1, :n], sizes)
        stop = np.int64(0)
        while stop < n:
            start, stop = stop, end_of_row(bucket, stop, n, target_bits)
            feature_count = np.int64(0)
            for k in range(start, stop):
                link_counts[k] = repeats[0, order[k]]
                feature_count += link_counts[k]
            key = key_of(bucket[start], prefix, bucket_bits, target_bits)
            kept = feature_count >= min_counts[(key >> type_shift) & types]
            if kept:
                rows += 1
                kept_links += stop - start
                seen += feature_count
                seen_again += feature_count if feature_count > 1 else 0
            for k in range(start, stop):
                packed_of[order[k]] = pack_counts(feature_count, np.int64(link_counts[k])) if kept else np.uint32(0)
        for i in range(len(bucket)):
            packed[i] = packed_of[packed[i]]
    return rows, kept_links, seen, seen_again


@kernel
def collect_rows(
    links, bounds, first_bucket, bucket_bits, target_bits, type_shift, min_counts, link_counts, distinct, counts
):  # fmt: skip
    """Write the rows that are kept to `counts`, from links as `count_links` leaves them."""
    mask, types = (_ONE << target_bits) - _ONE, np.uint64(len(min_counts) - 1)
    row = link = 0
    for b in range(len(bounds) - 1):
        prefix = np.uint64(first_bucket + b) << (_64 - bucket_bits)
        stop, end = bounds[b], bounds[b] + distinct[b]
        while stop < end:
            start, stop = stop, end_of_row(links, stop, end, target_bits)
            key = key_of(links[start], prefix, bucket_bits, target_bits)
            of_row = link_counts[start - bounds[0] : stop - bounds[0]]
            feature_count = np.int64(0)
            for k in range(len(of_row)):
                feature_count += of_row[k]
            if feature_count < min_counts[(key >> type_shift) & types]:
                continue
            counts.features[row], counts.feature_counts[row], counts.offsets[row] = key, feature_count, link
            row += 1
            for k in range(len(of_row)):
                counts.targets[link + k] = np.uint32(links[start + k] & mask)
                counts.link_counts[link + k] = of_row[k]
            link += len(of_row)
    counts.offsets[row] = link


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
