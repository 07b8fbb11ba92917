"""The counts of annotated events on disk: packed counts, see `snm.kernels.counts.pack_counts`, in one to five bytes.

The pairs with 1 <= C_ij <= C_i* are numbered from 1 on, by C_i* and then by C_ij; 0 is no feature. Where the feature
count is up to LARGEST_NUMBERED, the number of the pair is coded:

- below TWO_BYTES: one byte;
- below FIRST_OF_THREE, and counted from TWO_BYTES: two bytes, the higher one plus TWO_BYTES;
- counted from FIRST_OF_THREE: three bytes, the highest plus THREE_BYTES.

Larger feature counts occur again and again in a bucket, because they are those of few features. A table of the last
SLOTS of them is kept while values are written and read, empty at first. If it has the feature count, the code is the
byte TABLE plus its slot, and the packed link count: one byte if it is below 255, else 255 and two bytes. Otherwise the
code is OTHER and four bytes of packed counts, and the feature count takes its slot. Bytes of a number are in the order
of the lowest to the highest, except for pair numbers, where the highest says how many there are.
"""

import numpy as np

from snm.kernels.compile import helper, kernel

TWO_BYTES, TABLE, THREE_BYTES, OTHER = 192, 216, 248, 255
SLOTS = THREE_BYTES - TABLE
FIRST_OF_THREE = TWO_BYTES + ((TABLE - TWO_BYTES) << 8)  # the first number that takes three bytes
LARGEST_NUMBERED = int((2 * (FIRST_OF_THREE + ((OTHER - THREE_BYTES) << 16))) ** 0.5) - 1
MAX_BYTES = 5  # of a value


@helper
def number_of(feature_count, link_count):
    return feature_count * (feature_count - 1) // 2 + link_count


@helper
def slot_of(feature_count):
    return (feature_count ^ (feature_count >> 5) ^ (feature_count >> 10)) & (SLOTS - 1)


@kernel
def encode_values(values, starts, sizes, out):
    """Write a run's values, sizes[b] from values[starts[b]] on for each bucket, to `out`; return how many bytes."""
    table = np.zeros(SLOTS, np.int64)
    at = np.int64(0)
    for b in range(len(sizes)):
        for i in range(starts[b], starts[b] + sizes[b]):
            feature_count, link_count = np.int64(values[i] >> np.uint32(16)), np.int64(values[i] & np.uint32(0xFFFF))
            if feature_count > LARGEST_NUMBERED:
                at = put_large(feature_count, link_count, table, at, out)
                continue
            number = number_of(feature_count, link_count) if feature_count else np.int64(0)
            if number < TWO_BYTES:
                out[at] = number
                at += 1
            elif number < FIRST_OF_THREE:
                number -= TWO_BYTES
                out[at], out[at + 1] = TWO_BYTES + (number >> 8), number & 255
                at += 2
            else:
                number -= FIRST_OF_THREE
                out[at] = THREE_BYTES + (number >> 16)
                out[at + 1], out[at + 2] = (number >> 8) & 255, number & 255
                at += 3
    return at


@helper
def put_large(feature_count, link_count, table, at, out):
    """Write a pair that has no number; return the position after it."""
    slot = slot_of(feature_count)
    if table[slot] == feature_count:
        out[at] = TABLE + slot
        at += 1
        if link_count < 255:
            out[at] = link_count
            return at + 1
        out[at] = 255
    else:
        table[slot] = feature_count
        out[at], out[at + 1], out[at + 2] = OTHER, feature_count & 255, feature_count >> 8
        at += 2
    out[at + 1], out[at + 2] = link_count & 255, link_count >> 8
    return at + 3


@kernel
def list_pairs(pairs):
    """Set pairs[number] to the packed counts of a pair, for the first numbers."""
    pairs[0] = 0
    feature_count, link_count = 1, 1
    for number in range(1, len(pairs)):
        pairs[number] = (feature_count << 16) | link_count
        link_count += 1
        if link_count > feature_count:
            feature_count, link_count = feature_count + 1, 1


@kernel
def decode_values(coded, pairs, out):
    """Expand what `encode_values` wrote. pairs: (FIRST_OF_THREE,) uint32, of `list_pairs`"""
    table = np.zeros(SLOTS, np.int64)
    at = np.int64(0)
    for i in range(len(out)):
        first = np.int64(coded[at])
        at += 1
        if first < TWO_BYTES:
            out[i] = pairs[first]
        elif first < TABLE:
            out[i] = pairs[TWO_BYTES + ((first - TWO_BYTES) << 8) + coded[at]]
            at += 1
        elif first < THREE_BYTES:
            link_count = np.int64(coded[at])
            at += 1
            if link_count == 255:
                link_count = coded[at] | (np.int64(coded[at + 1]) << 8)
                at += 2
            out[i] = (table[first - TABLE] << 16) | link_count
        elif first < OTHER:
            number = FIRST_OF_THREE + ((first - THREE_BYTES) << 16) + (np.int64(coded[at]) << 8) + coded[at + 1]
            feature_count = np.int64(0.5 + np.sqrt(2.0 * number))  # exact: it is the number of a triangle
            out[i] = (feature_count << 16) | (number - number_of(feature_count, 0))
            at += 2
        else:
            feature_count = coded[at] | (np.int64(coded[at + 1]) << 8)
            table[slot_of(feature_count)] = feature_count
            out[i] = (feature_count << 16) | coded[at + 2] | (np.int64(coded[at + 3]) << 8)
            at += 4
