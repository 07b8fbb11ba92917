"""The codes of stored counts: rows of C as strings of bits, a *chunk* for each bucket of keys.

docs/format.md specifies them, `snm.reference.counts` is the slow twin. Bits are written from the lowest of a 64-bit
word to the highest. Positions are in bits.
"""

import numpy as np

from snm.kernels.bits import floor_log2
from snm.kernels.compile import helper, kernel
from snm.kernels.hashing import extend
from snm.kernels.simd import lowest_bit

KEY_SHIFT = 2  # the lowest two bits of every key are 01
LENGTHS = 65  # of numbers, in bits
PADDING = 16  # words of ones behind codes that are decoded: in damaged ones, a row or a link ends there at the latest
MAX_COUNT = np.uint64(1 << 62)  # of a link; more in damaged codes only
_ONE, _TWO, _6, _63, _64 = (np.uint64(n) for n in (1, 2, 6, 63, 64))


@helper
def put(words, position, number, bits):
    """Write the lowest `bits` (1 to 64) of a number, which has no others; return the position after them."""
    at, shift = position >> 6, np.uint64(position & 63)
    words[at] |= number << shift
    if (position & 63) + bits > 64:
        words[at + 1] = number >> (_64 - shift)
    return position + bits


@helper
def put_rice(words, position, number, bits):
    """number >> bits as so many zeros and a one; then the lowest `bits` (0 to 62)."""
    position += np.int64(number >> np.uint64(bits))
    words[position >> 6] |= _ONE << np.uint64(position & 63)
    position += 1
    if bits:
        position = put(words, position, number & ((_ONE << np.uint64(bits)) - _ONE), bits)
    return position


@helper
def put_gamma(words, position, number):
    """Elias's gamma code of a number above zero: as many zeros as it has bits after the highest; a one; these bits."""
    length = floor_log2(number)
    position += length
    words[position >> 6] |= _ONE << np.uint64(position & 63)
    position += 1
    if length:
        position = put(words, position, number ^ (_ONE << np.uint64(length)), length)
    return position


@helper
def put_golomb(words, position, number, bits):
    """The gamma code of (number >> bits) + 1, then the lowest `bits` (0 to 32): an exponential Golomb code."""
    position = put_gamma(words, position, (number >> np.uint64(bits)) + _ONE)
    if bits:
        position = put(words, position, number & ((_ONE << np.uint64(bits)) - _ONE), bits)
    return position


@helper
def peek(words, position):
    """The 64 bits from a position on."""
    at, shift = position >> 6, np.uint64(position & 63)
    return (words[at] >> shift) | ((words[at + 1] << _ONE) << (_63 - shift))


@helper
def count_zeros(words, position):
    """Number of zeros before the next one."""
    zeros = np.int64(0)
    seen = peek(words, position)
    while seen == 0:
        zeros += 64
        seen = peek(words, position + zeros)
    return zeros + lowest_bit(np.int64(seen))


@helper
def get(words, position, bits):
    """A number of `bits` (0 to 63)."""
    return peek(words, position) & ((_ONE << np.uint64(bits)) - _ONE)


@helper
def get_gamma(words, position):
    """The number, and the position after it."""
    length = min(count_zeros(words, position), 63)  # more in damaged codes only
    number = (_ONE << np.uint64(length)) | get(words, position + length + 1, length)
    return number, position + 2 * length + 1


@helper
def get_golomb(words, position, bits):
    """The number, and the position after it."""
    number, position = get_gamma(words, position)
    return ((number - _ONE) << np.uint64(bits)) | get(words, position, bits), position + bits


@helper
def gamma_bits(number):
    return 2 * floor_log2(number) + 1


@helper
def best_golomb(lengths):
    """The parameter of the exponential Golomb code that takes least, and the bits that it takes at most.

    lengths: how many numbers have so many bits. (LENGTHS,)
    """
    best, least = 0, np.int64(-1)
    for bits in range(33):
        size = np.int64(0)
        for length in range(33):
            size += lengths[length] * (bits + 1 + 2 * max(0, length - bits))
        if least < 0 or size < least:
            best, least = bits, size
    return best, least


@helper
def length_of(number):
    return floor_log2(number) + 1 if number else 0


@kernel
def plan_chunks(counts, edges, bucket_bits, chunks):
    """Choose the parameters of each bucket's codes, and count its rows and links; return the words that all need.

    edges: bucket b has the rows edges[b]:edges[b + 1] of `counts`. (buckets + 1,)
    """
    firsts, gaps = np.empty(LENGTHS, np.int64), np.empty(LENGTHS, np.int64)
    words = np.int64(0)
    for b in range(len(chunks)):
        rows = edges[b + 1] - edges[b]
        start, stop = counts.offsets[edges[b]], counts.offsets[edges[b + 1]]
        chunks[b].rows, chunks[b].links = rows, stop - start
        if rows == 0:
            continue
        firsts[:] = 0
        gaps[:] = 0
        size = np.int64(0)
        for row in range(edges[b], edges[b + 1]):
            first, last = counts.offsets[row], counts.offsets[row + 1]
            size += 1 + gamma_bits(last - first)
            firsts[length_of(counts.targets[first])] += 1
            for link in range(first, last):
                size += gamma_bits(counts.link_counts[link])
                if link > first:
                    gaps[length_of(counts.targets[link] - counts.targets[link - 1] - np.uint32(1))] += 1
        # the best parameter of a Rice code is log2 of ln 2 times the mean, here 2^(62 - bucket_bits) / rows
        spread = np.uint64(1) << np.uint64(64 - KEY_SHIFT - bucket_bits)
        key_bits = max(0, length_of((spread // np.uint64(rows) >> np.uint64(4)) * np.uint64(11)) - 1)
        target_bits, of_firsts = best_golomb(firsts)
        gap_bits, of_gaps = best_golomb(gaps)
        chunks[b].key_bits, chunks[b].target_bits, chunks[b].gap_bits = key_bits, target_bits, gap_bits
        size += of_firsts + of_gaps + rows * (key_bits + 1) + np.int64(spread >> np.uint64(key_bits))
        words += (size + 63) >> 6
    return words


@kernel
def encode_chunks(counts, edges, first_bucket, bucket_bits, chunks, words):
    """Write the codes of buckets, one after another, to `words`, which are zeros; return how many they take.

    chunks: as `plan_chunks` made them; gets sizes and checksums. `first_bucket` is the number of the first bucket.
    """
    at = np.int64(0)
    for b in range(len(chunks)):
        key_bits, target_bits, gap_bits = chunks[b].key_bits, chunks[b].target_bits, chunks[b].gap_bits
        before = np.uint64(first_bucket + b) << np.uint64(64 - KEY_SHIFT - bucket_bits)  # the least key that may follow
        position = at << 6
        for row in range(edges[b], edges[b + 1]):
            key = counts.features[row] >> _TWO
            position = put_rice(words, position, key - before, key_bits)
            before = key + _ONE
            start, stop = counts.offsets[row], counts.offsets[row + 1]
            if stop - start == 1:
                count = np.uint64(counts.link_counts[start])
                position = put(words, position, np.uint64(count == 1), 1)
                if count > 1:
                    position = put(words, position, _ONE, 1)
                    position = put_gamma(words, position, count - _ONE)
                position = put_golomb(words, position, np.uint64(counts.targets[start]), target_bits)
                continue
            position = put_gamma(words, position + 1, np.uint64(stop - start))
            position = put_golomb(words, position, np.uint64(counts.targets[start]), target_bits)
            position = put_gamma(words, position, np.uint64(counts.link_counts[start]))
            for link in range(start + 1, stop):
                gap = np.uint64(counts.targets[link] - counts.targets[link - 1] - np.uint32(1))
                position = put_golomb(words, position, gap, gap_bits)
                position = put_gamma(words, position, np.uint64(counts.link_counts[link]))
        end = (position + 63) >> 6
        chunks[b].words, chunks[b].checksum = end - at, checksum(words[at:end])
        at = end
    return at


@helper
def checksum(words):
    """The chain of the words, from the last to the first, as of a context; see `snm.layouts.keys`."""
    found = np.uint64(0)
    for i in range(len(words) - 1, -1, -1):
        found = extend(found, words[i])
    return found


@helper
def has_valid_bits(chunk):
    """Whether the parameters of its codes are such as `plan_chunks` chooses."""
    return 0 <= chunk.key_bits <= 62 and 0 <= chunk.target_bits <= 32 and 0 <= chunk.gap_bits <= 32


@kernel
def decode_chunks(words, chunks, first_bucket, bucket_bits, n_words, row, link, counts):
    """Write the rows of buckets to `counts`, from a row and a link on; return the index of a damaged chunk, or -1.

    words: the code of the first chunk begins at 0; PADDING words of ones follow the last. n_words: of the vocabulary.
    A chunk is damaged if its checksum is wrong, and if it has other rows and links than it says, or keys and targets
    that there are not: whoever wrote it may have written the checksum too.
    """
    at, n_words, bucket_shift = np.int64(0), np.uint64(n_words), np.uint64(64 - KEY_SHIFT - bucket_bits)
    for b in range(len(chunks)):
        if not 0 <= chunks[b].words <= len(words) - PADDING - at or not has_valid_bits(chunks[b]):
            return b
        if checksum(words[at : at + chunks[b].words]) != chunks[b].checksum:
            return b
        key_bits, target_bits, gap_bits = chunks[b].key_bits, chunks[b].target_bits, chunks[b].gap_bits
        bucket = np.uint64(first_bucket + b)
        before = bucket << bucket_shift
        position, end = at << 6, (at + chunks[b].words) << 6
        last_row, last_link = row + chunks[b].rows, link + chunks[b].links
        if not (row <= last_row <= len(counts.features) and link <= last_link <= len(counts.targets)):
            return b
        for _ in range(chunks[b].rows):
            zeros = count_zeros(words, position)
            position += zeros + 1
            key = before + ((np.uint64(zeros) << np.uint64(key_bits)) | get(words, position, key_bits))
            position += key_bits
            if key < before or key >> bucket_shift != bucket:
                return b
            before = key + _ONE
            counts.features[row] = (key << _TWO) | _ONE
            counts.offsets[row] = link
            single = get(words, position, 1)
            position += 1
            links, count = np.int64(1), np.int64(1)
            if not single:
                number, position = get_gamma(words, position)
                links = np.int64(number)
                if links == 1:
                    number, position = get_gamma(words, position)
                    count = np.int64(number) + 1
            target, position = get_golomb(words, position, target_bits)
            if links > 1:
                number, position = get_gamma(words, position)
                count = np.int64(number)
            total = count
            inside = position <= end and 0 < links <= last_link - link
            if not inside or target >= n_words or np.uint64(count) > MAX_COUNT:
                return b
            counts.targets[link], counts.link_counts[link] = np.uint32(target), count
            for i in range(link + 1, link + links):
                number, position = get_golomb(words, position, gap_bits)
                target += min(number, n_words) + _ONE
                number, position = get_gamma(words, position)
                if position > end or target >= n_words or number > MAX_COUNT or total < 0:
                    return b
                counts.targets[i], counts.link_counts[i] = np.uint32(target), np.int64(number)
                total += np.int64(number)
            if total < 0:  # beyond 63 bits
                return b
            counts.feature_counts[row] = total
            link += links
            row += 1
        if row != last_row or link != last_link:
            return b
        at += chunks[b].words
    counts.offsets[row] = link
    return -1
