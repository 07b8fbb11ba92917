"""Scoring words after each of many states: what a beam search asks for.

A call from Python unpacks every array that it is given, which takes longer than scoring a word, and to make an array
takes as long as to look for a row. So the arrays of a model, and working memory, come as their addresses, in one array
of integers that is made once.
"""

import math
from ctypes import PYFUNCTYPE, c_char_p, c_double, c_int64
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from snm.calibration import INPUTS, Gate
from snm.kernels.extraction import ABSENT, EMPTY_KEY
from snm.kernels.gating import Rows, add_row, add_unigram, clear, mix
from snm.kernels.hashing import extend, feature_hash, helper, mix64
from snm.kernels.memory import as_double, as_long, prefetch
from snm.kernels.pages import (
    NO_ROW,
    ask_for_link,
    ask_for_page,
    ask_for_record,
    find_link,
    first_link,
    is_long,
    read_long,
    read_short,
    read_words,
    record_at,
    slot_of_link,
    spread_target,
)
from snm.kernels.vectors import TOGETHER
from snm.pages import Pages, Spread
from snm.vocabulary import BEGIN

_ONE, _ZERO = np.uint64(1), np.float32(0.0)
SLOT_COLUMNS = 7  # of Extractor.slot_table
SCALARS = 14  # places of the handle before the addresses
WORKING = SCALARS + 15  # place of the address of working memory
HANDLE = WORKING + 1
_ARRAYS = 13  # of working memory, of `slots * TOGETHER` numbers
_BELOW_ONE = 0x3FF0000000000000 - 0x3FE6A09E667F3BCD  # from the root of 1/2 to 1, in bits
_LOG10_2, _LN_10 = math.log10(2), math.log(10)


@intrinsic
def pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


class Beam(NamedTuple):
    """Working memory for TOGETHER states."""

    keys: np.ndarray  # (slots, TOGETHER) uint64
    records: np.ndarray  # (slots, TOGETHER) int64
    row_of: np.ndarray  # (slots, TOGETHER) int64: which of the rows that are read, -1 for none
    long_rows: np.ndarray  # (slots * TOGETHER, 2) int64: row, and state that has its words
    scale: np.ndarray  # (slots, TOGETHER) float32
    members: np.ndarray  # (TOGETHER,) int64: states that are not equal
    which: np.ndarray  # (TOGETHER,) int64: for each state which of them it is equal to
    hashes: np.ndarray  # (TOGETHER,) uint64: theirs


@njit(nogil=True, cache=True)
def longs(address, shape):
    return carray(pointer(address), shape, np.int64)


@njit(nogil=True, cache=True)
def floats(address, shape):
    return carray(pointer(address), shape, np.float32)


def working_numbers(slots: int, units: int) -> int:
    """How many float32 `working_memory` takes."""
    return 2 * TOGETHER * (_ARRAYS * slots + 4 + units + 3)


@njit(nogil=True, cache=True)
def working_memory(handle):
    """Rows and Beam. Every array of `slots * TOGETHER` numbers has eight bytes for each."""
    slots, units, at = handle[1], handle[2], handle[WORKING]
    size, shape, square = 8 * slots * TOGETHER, (slots * TOGETHER,), (slots, TOGETHER)
    inputs, hidden = at + _ARRAYS * size, at + _ARRAYS * size + 32 * TOGETHER
    rows = Rows(
        longs(at, (slots,)),
        carray(pointer(at + size), shape, np.uint64),
        floats(at + 2 * size, shape),
        floats(at + 3 * size, shape),
        floats(at + 4 * size, shape),
        floats(at + 5 * size, shape),
        floats(at + 6 * size, shape),
        floats(inputs, (3, TOGETHER)),
        floats(hidden, (TOGETHER, units)),
        floats(hidden + 4 * TOGETHER * units, (units, TOGETHER)),
        floats(inputs + 12 * TOGETHER, (TOGETHER,)),
        carray(pointer(inputs + 16 * TOGETHER), (2, TOGETHER), np.float64),
    )
    beam = Beam(
        carray(pointer(at + 7 * size), square, np.uint64),
        longs(at + 8 * size, square),
        longs(at + 9 * size, square),
        longs(at + 10 * size, (slots * TOGETHER, 2)),
        floats(at + 12 * size, square),
        longs(hidden + 8 * TOGETHER * units, (TOGETHER,)),
        longs(hidden + 8 * TOGETHER * (units + 1), (TOGETHER,)),
        carray(pointer(hidden + 8 * TOGETHER * (units + 2)), (TOGETHER,), np.uint64),
    )
    return rows, beam


@njit(nogil=True, cache=True)
def unpack(handle, starts, long_links, singles):
    """Pages, gate, table of slots and classes of a model, from `snm.model.SnmModel._handle`."""
    words, slots, units = handle[0], handle[1], handle[2]
    numbers = carray(pointer(handle[SCALARS + 9]), (2,), np.float32)
    pages = Pages(
        starts,
        carray(pointer(handle[SCALARS]), (handle[3],), np.uint8),
        long_links,
        singles,
        carray(pointer(handle[SCALARS + 1]), (handle[4],), np.float32),
        carray(pointer(handle[SCALARS + 2]), (words,), np.float32),
        carray(pointer(handle[SCALARS + 3]), (slots,), np.int64),
        carray(pointer(handle[SCALARS + 4]), (slots,), np.int64),
        np.uint64(handle[5]),
        Spread(handle[6], np.uint64(handle[7]), np.uint64(handle[8]), (_ONE << np.uint64(handle[6])) - _ONE,
               np.uint64(8 * handle[9])),
        handle[9],
        np.uint8(handle[10]),
        numbers[0],
        numbers[1],
    )  # fmt: skip
    gate = Gate(
        carray(pointer(handle[SCALARS + 5]), (slots, INPUTS, units), np.float32),
        carray(pointer(handle[SCALARS + 6]), (units,), np.float32),
        carray(pointer(handle[SCALARS + 7]), (slots, units), np.float32),
        carray(pointer(handle[SCALARS + 8]), (slots,), np.float32),
    )
    table = carray(pointer(handle[SCALARS + 10]), (slots, SLOT_COLUMNS), np.uint64)
    classes = carray(pointer(handle[SCALARS + 11]), (words,), np.uint16)
    return pages, gate, table, classes


@helper
def chain_of(hashes, length, skipped):
    """The chain of `length` words before the last `skipped`, from their hashes, the last word's first."""
    chain = np.uint64(0)
    for j in range(skipped, skipped + length):
        chain = extend(chain, hashes[j])
    return chain


@helper
def write_keys(state, table, classes, by_class, hash_mask, column, hashes, keys):
    """keys[slot, column]: the features after a state. Rows of `table` are the slots', see Extractor.slot_table."""
    width, context = len(state), 0
    for j in range(width):
        word = state[width - 1 - j]
        hashes[0, j] = mix64(np.uint64(word) + _ONE)
        if by_class:
            hashes[1, j] = mix64(np.uint64(classes[word]) + _ONE)
        context += context == j and (j == 0 or state[width - j] != BEGIN)
    for q in range(len(table)):
        remote, skip, adjacent = np.int64(table[q, 0]), np.int64(table[q, 1]), np.int64(table[q, 2])
        if remote + adjacent == 0:
            keys[q, column] = EMPTY_KEY
            continue
        keys[q, column] = ABSENT
        if remote + skip + adjacent > context:
            continue
        near = chain_of(hashes[0], adjacent, 0)
        far = chain_of(hashes[np.int64(table[q, 3] != 0)], remote, adjacent + skip)
        key = (feature_hash(near, far, table[q, 4]) & hash_mask) | table[q, 5]
        repeated = False
        for p in range(np.int64(table[q, 6]), q):
            repeated |= keys[p, column] == key
        if not repeated:
            keys[q, column] = key


@helper
def find_equal(states, beam):
    """Returns how many of at most TOGETHER states are left without those that came before, which are beam.members.

    beam.which[c] is where states[c] is among them. Hypotheses of a beam that differ further back have equal states.
    """
    n = 0
    for c in range(len(states)):
        h = np.uint64(0)
        for j in range(states.shape[1]):
            h = extend(h, np.uint64(states[c, j]))
        d = 0
        while d < n and not (beam.hashes[d] == h and same(states[c], states[beam.members[d]])):
            d += 1
        beam.which[c] = d
        if d == n:
            beam.members[n], beam.hashes[n] = c, h
            n += 1
    return n


@helper
def same(state, other):
    differ = np.uint32(0)
    for j in range(len(state)):
        differ |= state[j] ^ other[j]
    return differ == 0


@helper
def find_rows(n, keys, pages, records, rows):
    """records[slot, state]: where the row of every key is, NO_ROW where there is none; and what it says of itself.

    All pages are asked for before the first is read.
    """
    slots = len(keys)
    for q in range(1, slots):
        for c in range(n):
            prefetch(pages.starts, keys[q, c] >> pages.shift)
    for q in range(1, slots):
        for c in range(n):
            records[q, c] = ask_for_page(keys[q, c], pages)
    for q in range(1, slots):
        parent = pages.parent_of_slot[q]
        for c in range(n):
            record = record_at(keys[q, c], records[q, c], pages)
            if parent > 0 and records[parent, c] == NO_ROW and keys[parent, c] != ABSENT:
                record = np.int64(NO_ROW)  # what was seen was seen in part
            records[q, c] = record
            ask_for_record(record, pages)
    for q in range(1, slots):
        for c in range(n):
            record = records[q, c]
            if record == NO_ROW:
                continue
            if is_long(record, pages):
                code, links, row_sum = read_long(record, pages)
            else:
                code, links, row_sum, _ = read_short(q, record, np.uint32(0), pages)
            add_row(rows, q, c, code, links, row_sum, _ZERO)


@helper
def ask_for_words(states, words, pages, beam, wanted, read, at):
    """List the rows of all states, read the short ones for `words`, and ask for the links of long ones.

    Where `words` has one row, it is of all states, and a row that several have is read once. Returns how many rows are
    long. `read` and `at` have room for every row of every state.
    """
    m = words.shape[1]
    slots, shared, n_rows, n_long = len(beam.keys), len(words) == 1, 0, 0
    records, row_of, long_rows = beam.records, beam.row_of, beam.long_rows
    for c in range(len(words)):
        for i in range(m):
            wanted[c, i] = spread_target(words[c, i], pages.spread)
    for q in range(1, slots):
        for c in range(states):
            record, of_state = records[q, c], 0 if shared else c
            row_of[q, c] = -1
            if record == NO_ROW:
                continue
            for before in range(c if shared else 0):
                if records[q, before] == record:
                    row_of[q, c] = row_of[q, before]
            if row_of[q, c] >= 0:
                continue
            row_of[q, c] = n_rows
            if is_long(record, pages):
                long_rows[n_long, 0], long_rows[n_long, 1] = n_rows, of_state
                first, n = first_link(record, pages), read_long(record, pages)[1]
                for i in range(m):
                    at[n_long, i] = first + slot_of_link(wanted[of_state, i], n, pages.spread)
                    ask_for_link(at[n_long, i], pages.long_links)
                n_long += 1
            else:
                read_words(q, record, words[of_state], pages, read[n_rows])
            n_rows += 1
    return n_long


@helper
def add_words(n_long, pages, beam, wanted, read, at, weights):
    """Add to weights[c, i] what the rows of state c have for word i, times beam.scale[slot, c]."""
    long_rows, (states, m) = beam.long_rows, weights.shape
    for r in range(n_long):
        for i in range(m):
            code = find_link(wanted[long_rows[r, 1], i], at[r, i], pages.long_links, pages.spread)
            read[long_rows[r, 0], i] = pages.values[code] if code >= 0 else _ZERO
    for q in range(1, len(beam.keys)):
        for c in range(states):
            if beam.row_of[q, c] >= 0:
                row, factor = read[beam.row_of[q, c]], np.float64(beam.scale[q, c])
                for i in range(m):
                    weights[c, i] += factor * row[i]


@helper
def take_logs(weights, total):
    """log10 of weights / total, to one part in 10^15, in a way that LLVM takes many at a time.

    With m 2^e = x and m between the root of 1/2 and that of 2, a series of z = (m - 1) / (m + 1).
    """
    for i in range(len(weights)):
        bits = as_long(weights[i] / total)
        e = np.int64((bits + _BELOW_ONE) >> 52) - 1023
        m = as_double(bits - (e << 52))
        z = (m - 1.0) / (m + 1.0)
        y = z * z
        series = 1.0 / 19.0
        for n in range(17, 0, -2):
            series = series * y + 1.0 / n
        weights[i] = e * _LOG10_2 + (2.0 / _LN_10) * z * series


_STATES, _HANDLE, _CHOSEN, _SCORES = types.uint32[:, ::1], types.int64[::1], types.int64[::1], types.float64[:, ::1]
_WORDS = types.uint32[::1], types.uint32[:, ::1]  # for all states, or a row for each


@helper
def are_for(words, states, vocabulary):
    """Whether there are words for as many states, all of the vocabulary."""
    for word in words.flat:
        if word >= vocabulary:
            return False
    return words.size > 0 and (words.ndim == 1 or len(words) == len(states))


@njit([types.boolean(_STATES, w, types.int64, _CHOSEN, _STATES) for w in _WORDS], nogil=True, cache=True)
def follow(states, listed, vocabulary, chosen, after):
    """after[k]: the state after hypothesis chosen[k] of `expand`; False where there is no such hypothesis, or word."""
    if not are_for(listed, states, vocabulary):
        return False
    words = listed.reshape((-1, listed.shape[-1]))
    hypotheses, m, width = len(states) * words.shape[1], words.shape[1], states.shape[1]
    for k in range(len(chosen)):
        if not 0 <= chosen[k] < hypotheses:
            return False
        c, i = chosen[k] // m, chosen[k] % m
        for j in range(width - 1):
            after[k, j] = states[c, j + 1]
        after[k, width - 1] = words[min(c, len(words) - 1), i]
    return True


@helper
def find_states(n, states, pages, table, classes, hash_mask, hashes, rows, beam):
    """The rows of the first n of beam.members."""
    by_class = False
    for q in range(len(table)):
        by_class |= table[q, 3] != 0
    clear(rows)
    for c in range(n):
        write_keys(states[beam.members[c]], table, classes, by_class, hash_mask, c, hashes, beam.keys)
        add_unigram(rows, c, np.uint32(0), pages)
    find_rows(n, beam.keys, pages, beam.records, rows)


@helper
def weigh_states(states, gate, rows, beam):
    """beam.scale: what the gate multiplies the rows by."""
    mix(states, rows, gate)
    for q in range(len(beam.scale)):
        for i in range(q * TOGETHER, q * TOGETHER + rows.number[q]):
            beam.scale[q, rows.event[i]] = rows.scale[i]


@njit(nogil=True, cache=True)
def score(states, words, handle, starts, long_links, singles, scores):
    """scores[c, i] = log10 P(words[c, i] | states[c]), NaN where the word is never predicted.

    Where `words` has one row, it is of all states.
    """
    pages, gate, table, classes = unpack(handle, starts, long_links, singles)
    rows, beam = working_memory(handle)
    hash_mask, never, m = np.uint64(handle[11]), handle[12], scores.shape[1]
    most = min(len(states), TOGETHER) * len(table)
    hashes = np.empty((2, states.shape[1]), np.uint64)  # of a state's words, and of their classes
    wanted, at, read = np.empty(words.shape, np.int64), np.empty((most, m), np.int64), np.empty((most, m), np.float32)
    for start in range(0, len(states), TOGETHER):
        part = slice(start, min(start + TOGETHER, len(states)))
        of_part, weights, n = words if len(words) == 1 else words[part], scores[part], len(states[part])
        for c in range(n):
            beam.members[c] = beam.which[c] = c
        if len(words) == 1:
            n = find_equal(states[part], beam)
        find_states(n, states[part], pages, table, classes, hash_mask, hashes, rows, beam)
        n_long = ask_for_words(n, of_part, pages, beam, wanted, read, at)
        weigh_states(n, gate, rows, beam)  # while links are on their way
        for c in range(n):
            for i in range(m):
                weights[c, i] = np.float64(beam.scale[0, c]) * pages.unigrams[of_part[min(c, len(of_part) - 1), i]]
        add_words(n_long, pages, beam, wanted, read, at, weights[:n])
        for c in range(n):
            take_logs(weights[c], rows.sums[1, c])
            for i in range(m):
                if of_part[min(c, len(of_part) - 1), i] in (never, BEGIN):
                    weights[c, i] = math.nan
        for c in range(len(weights) - 1, -1, -1):  # no state is further back than the one that it is equal to
            for i in range(m):
                weights[c, i] = weights[beam.which[c], i]


@cache
def kernels_of(*type_names):
    """`expand` and `step` for models whose starts, long links and singles are of these types."""

    starts_type, link_type, code_type = (np.dtype(name).type for name in type_names)

    @njit(nogil=True, cache=True)
    def score_words(states, words, handle, scores):
        starts = carray(pointer(handle[SCALARS + 12]), (handle[13],), starts_type)
        long_links = carray(pointer(handle[SCALARS + 13]), (1,), link_type)
        singles = carray(pointer(handle[SCALARS + 14]), (handle[1], handle[0]), code_type)
        score(states, words, handle, starts, long_links, singles, scores)

    @njit([types.boolean(_STATES, w, _HANDLE, _SCORES) for w in _WORDS], nogil=True, cache=True)
    def expand(states, listed, handle, scores):
        """`score`, or False where there are no words for all states, or some that are not of the vocabulary."""
        if not are_for(listed, states, handle[0]):
            return False
        score_words(states, listed.reshape((-1, listed.shape[-1])), handle, scores)
        return True

    @cfunc(types.float64(types.int64, types.voidptr, types.int64, types.int64), cache=True)
    def step(address, state, width, word):
        """A C function for one word after one state, given the address of a handle, the state, its width, and the word.

        A word takes 3.8 µs so; with a Numba function, which unpacks each of its arguments, it took 6.5. Python's lock
        is kept.
        """
        words, scores = np.full((1, 1), word, np.uint32), np.empty((1, 1), np.float64)
        handle = carray(pointer(address), (HANDLE,), np.int64)
        score_words(carray(state, (1, width), np.uint32), words, handle, scores)
        return scores[0, 0]

    return expand, PYFUNCTYPE(c_double, c_int64, c_char_p, c_int64, c_int64)(step.address)
