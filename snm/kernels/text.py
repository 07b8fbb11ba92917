"""Bytes of text to token ids, through one open-addressing table of word hashes.

Words are told apart by a 64-bit hash of their bytes: among ten million distinct words the
chance that any two coincide is 3 in a million.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.hashing import extend, mix64
from snm.kernels.simd import lowest_bit, read_u8
from snm.layouts.tokens import BEGIN, END, UNKNOWN

DONE, TABLE_FULL, POOL_FULL = 0, 1, 2
# fields of `state`
WORDS, POOL_USED, IN_SENTENCE, SENTENCES, IN_DOCUMENT, DOCUMENTS, STATUS, WRITTEN = range(8)
STATE_FIELDS = 8
_OFFSET = np.uint64(0xCBF29CE484222325)
_EMPTY = np.uint32(0xFFFFFFFF)
LEFT_OUT = 0xFFFFFFFE  # id of what is no word: a marker
_ONE, _8 = np.uint64(1), np.uint64(8)
_SPACES, _HIGHEST = np.uint64(0x2121212121212121), np.uint64(0x8080808080808080)  # 33 eight times; the highest bits


@helper
def is_space(byte):
    return byte == 32 or 9 <= byte <= 13


@helper
def word_hash(data, start, stop):
    """Eight bytes at a time; in the end those that are left, maybe none, and the length."""
    h, i = _OFFSET, start
    while stop - i >= 8:
        h = extend(h, read_u8(data, i))
        i += 8
    rest = np.uint64(0)
    for k in range(stop - i):
        rest |= np.uint64(data[i + k]) << (_8 * np.uint64(k))
    return mix64(extend(h, rest) ^ np.uint64(stop - start))


@helper
def read_word(data, start):
    """Where the word that begins there ends, and its hash.

    Eight bytes at a time: where a loop over bytes would end cannot be foretold. It takes three quarters of the time.
    """
    h, i = _OFFSET, start
    while i + 8 <= len(data):
        few = read_u8(data, i)
        small = (few - _SPACES) & ~few & _HIGHEST  # the lowest bit that is set is that of the first byte below 33
        if not small:
            h = extend(h, few)
            i += 8
            continue
        bits = np.uint64(lowest_bit(np.int64(small))) & ~np.uint64(7)
        stop = i + np.int64(bits >> np.uint64(3))
        if not is_space(data[stop]):
            break
        return stop, mix64(extend(h, few & ((_ONE << bits) - _ONE)) ^ np.uint64(stop - start))
    stop = i
    while stop < len(data) and not is_space(data[stop]):
        stop += 1
    return stop, word_hash(data, start, stop)


@helper
def find_word(hashes, ids, h):
    """The place of hash `h` in the table, or of the empty place where it belongs."""
    mask = np.uint64(len(hashes) - 1)
    place = h & mask
    while ids[place] != _EMPTY and hashes[place] != h:
        place = (place + np.uint64(1)) & mask
    return place


@kernel
def insert_words(data, ends, first_id, hashes, ids):
    """Enter words, each on a line that ends at ends[i], with ids from `first_id` up; the first of equal words wins."""
    for i in range(len(ends)):
        h = word_hash(data, ends[i - 1] + 1 if i else 0, ends[i])
        place = find_word(hashes, ids, h)
        if ids[place] == _EMPTY:
            hashes[place] = h
            ids[place] = first_id + i


@kernel
def rehash(old_hashes, old_ids, hashes, ids):
    """Move every entry of a table into a larger one."""
    for i in range(len(old_ids)):
        if old_ids[i] != _EMPTY:
            place = find_word(hashes, ids, old_hashes[i])
            hashes[place] = old_hashes[i]
            ids[place] = old_ids[i]


@kernel
def encode(data, start, learn, documents, hashes, ids, counts, starts, pool, state, out):
    """Encode data[start:], whole words between white space, into `out`; return where it stopped.

    With `learn`, a word that the table lacks is given the next id, its bytes are added to `pool`
    and counted; without, it is <UNK>. With `documents`, <S> opens a document, which ends at a blank line; without,
    every sentence is one. The sentence may go on in the next block. Stops before the end (state[STATUS] says why)
    when the table or the pool has to grow; the caller grows it and calls again.
    """
    n = len(data)
    i = start
    written = 0
    state[STATUS] = DONE
    room = len(ids) // 2
    while i < n:
        byte = data[i]
        if byte == 10:
            if state[IN_SENTENCE]:
                out[written] = END
                written += 1
                state[IN_SENTENCE] = 0
                state[IN_DOCUMENT] = documents
            else:
                state[IN_DOCUMENT] = 0
            i += 1
            continue
        if is_space(byte):
            i += 1
            continue
        stop, h = read_word(data, i)
        place = find_word(hashes, ids, h)
        token = ids[place]
        if token == _EMPTY:
            if learn:
                if state[WORDS] >= room:
                    state[STATUS] = TABLE_FULL
                    break
                if state[POOL_USED] + (stop - i) > len(pool):
                    state[STATUS] = POOL_FULL
                    break
                token = np.uint32(state[WORDS])
                hashes[place] = h
                ids[place] = token
                used = state[POOL_USED]
                pool[used : used + (stop - i)] = data[i:stop]
                state[POOL_USED] = used + (stop - i)
                state[WORDS] += 1
                starts[state[WORDS]] = state[POOL_USED]
            else:
                token = np.uint32(UNKNOWN)
        if token == LEFT_OUT:
            i = stop
            continue
        if not state[IN_SENTENCE]:
            if not state[IN_DOCUMENT]:
                out[written] = BEGIN
                written += 1
                state[DOCUMENTS] += 1
            state[IN_SENTENCE] = 1
            state[SENTENCES] += 1
        if learn:
            counts[token] += 1
        out[written] = token
        written += 1
        i = stop
    state[WRITTEN] = written
    return i
