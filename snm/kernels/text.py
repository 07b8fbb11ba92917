"""Bytes of text to tokens, by an open-addressing hash table of words.

Words are identified by a 64-bit hash of their bytes. Among ten million distinct words the chance that any two collide
is 3 in a million.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.hashing import extend, mix64
from snm.kernels.simd import lowest_bit, prefetch, read_u8
from snm.layouts.tokens import BEGIN, END, UNKNOWN

DONE, TABLE_FULL, POOL_FULL = range(3)  # values of state[STATUS]
# indices of `state`
WORDS, POOL_USED, IN_SENTENCE, SENTENCES, IN_DOCUMENT, DOCUMENTS, STATUS, WRITTEN, UNKNOWNS, TEXT_BYTES = range(10)
LINES, STATE_FIELDS = 10, 11
AHEAD = 32  # line feeds and words that are found together
_OFFSET = np.uint64(0xCBF29CE484222325)
EMPTY = np.uint32(0xFFFFFFFF)
LEFT_OUT = 0xFFFFFFFE  # id of markers such as <s> in a text, which are no words
_ONE, _8 = np.uint64(1), np.uint64(8)
_SPACES, _HIGHEST = np.uint64(0x2121212121212121), np.uint64(0x8080808080808080)  # bytes of 33; highest bits


@helper
def is_space(byte):
    return byte == 32 or 9 <= byte <= 13


@helper
def word_hash(data, start, stop):
    """The hash of eight bytes at a time, then of the rest, which may be empty, and of the length."""
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
    """Where the word that begins at `start` ends, and its hash.

    Eight bytes at a time, because the end of a loop over bytes is unpredictable: it takes three quarters of the time.
    """
    h, i = _OFFSET, start
    while i + 8 <= len(data):
        eight = read_u8(data, i)
        small = (eight - _SPACES) & ~eight & _HIGHEST  # its lowest bit set is in the first byte below 33
        if not small:
            h = extend(h, eight)
            i += 8
            continue
        bits = np.uint64(lowest_bit(np.int64(small))) & ~np.uint64(7)
        stop = i + np.int64(bits >> np.uint64(3))
        if not is_space(data[stop]):
            break
        return stop, mix64(extend(h, eight & ((_ONE << bits) - _ONE)) ^ np.uint64(stop - start))
    stop = i
    while stop < len(data) and not is_space(data[stop]):
        stop += 1
    return stop, word_hash(data, start, stop)


@helper
def find_word(hashes, ids, h):
    """Index of hash `h` in the table, or of the free entry where it belongs."""
    mask = np.uint64(len(hashes) - 1)
    at = h & mask
    while ids[at] != EMPTY and hashes[at] != h:
        at = (at + np.uint64(1)) & mask
    return at


@kernel
def insert_words(data, ends, first_id, hashes, ids):
    """Insert words with ids from `first_id` up; line i of `data` ends at ends[i]. The first of equal words wins."""
    for i in range(len(ends)):
        h = word_hash(data, ends[i - 1] + 1 if i else 0, ends[i])
        at = find_word(hashes, ids, h)
        if ids[at] == EMPTY:
            hashes[at] = h
            ids[at] = first_id + i


@kernel
def rehash(old_hashes, old_ids, hashes, ids):
    """Copy every entry of a table into a larger one."""
    for i in range(len(old_ids)):
        if old_ids[i] != EMPTY:
            at = find_word(hashes, ids, old_hashes[i])
            hashes[at] = old_hashes[i]
            ids[at] = old_ids[i]


@helper
def find_ahead(data, i, hashes, ids, found):
    """Find the next line feeds and words, and prefetch the words' entries, so that cache misses overlap.

    found: where each begins and ends, and its hash. Return how many there are, and where the last one ends. (AHEAD, 3)
    """
    n, mask = np.int64(0), np.uint64(len(hashes) - 1)
    while n < AHEAD and i < len(data):
        byte = data[i]
        if byte == 10:
            found[n, 0], found[n, 1] = np.uint64(i), np.uint64(i)
            n += 1
            i += 1
        elif is_space(byte):
            i += 1
        else:
            stop, h = read_word(data, i)
            found[n, 0], found[n, 1], found[n, 2] = np.uint64(i), np.uint64(stop), h
            prefetch(hashes, h & mask)
            prefetch(ids, h & mask)
            n += 1
            i = stop
    return n, i


@kernel
def encode(data, start, learn, documents, hashes, ids, counts, starts, pool, unknown, state, out):
    """Encode the words of data[start:] into `out`; return where it stopped.

    With `learn`, words are counted, and a new word gets the next id and its bytes are added to `pool`; without, it is
    <UNK>, and `unknown` gets where it begins and ends; -1 and -1 where the text has <unk>. With `documents`, <S> opens
    a document, which ends at a blank line; without, a sentence. The last word is complete, the last sentence may
    continue in the next block. When the table or the pool is full, state[STATUS] says so; the caller grows it and calls
    again from where it stopped.
    """
    n = len(data)
    i = start
    written = 0
    state[STATUS] = DONE
    state[UNKNOWNS] = 0
    room = len(ids) // 2
    found, left, done, ahead = np.empty((AHEAD, 3), np.uint64), np.int64(0), np.int64(0), i
    while True:
        if done == left:
            left, ahead = find_ahead(data, ahead, hashes, ids, found)
            done = np.int64(0)
            if left == 0:
                i = n
                break
        i, stop, h = np.int64(found[done, 0]), np.int64(found[done, 1]), found[done, 2]
        done += 1
        if i == stop:
            state[LINES] += 1
            if state[IN_SENTENCE]:
                out[written] = END
                written += 1
                state[IN_SENTENCE] = 0
                state[IN_DOCUMENT] = documents
            else:
                state[IN_DOCUMENT] = 0
            continue
        at = find_word(hashes, ids, h)
        token = ids[at]
        if token == EMPTY:
            if learn:
                if state[WORDS] >= room:
                    state[STATUS] = TABLE_FULL
                    break
                if state[POOL_USED] + (stop - i) > len(pool):
                    state[STATUS] = POOL_FULL
                    break
                token = np.uint32(state[WORDS])
                hashes[at] = h
                ids[at] = token
                used = state[POOL_USED]
                for k in range(stop - i):  # the assignment of a slice takes two seconds to compile
                    pool[used + k] = data[i + k]
                state[POOL_USED] = used + (stop - i)
                state[WORDS] += 1
                starts[state[WORDS]] = state[POOL_USED]
            else:
                token = np.uint32(UNKNOWN)
                unknown[2 * state[UNKNOWNS]] = i
                unknown[2 * state[UNKNOWNS] + 1] = stop
                state[UNKNOWNS] += 1
        elif token == UNKNOWN and not learn:
            unknown[2 * state[UNKNOWNS]] = -1
            unknown[2 * state[UNKNOWNS] + 1] = -1
            state[UNKNOWNS] += 1
        if token == LEFT_OUT:
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
        state[TEXT_BYTES] += stop - i + 1
        out[written] = token
        written += 1
    state[WRITTEN] = written
    return i


@kernel
def hash_spans(data, spans, out):
    """The hash of the word data[start:stop], for each pair of `spans`."""
    for w in range(len(out)):
        out[w] = word_hash(data, spans[2 * w], spans[2 * w + 1])
