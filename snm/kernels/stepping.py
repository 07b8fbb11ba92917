"""Scoring words after each of many states: what a beam search asks for.

A call from Python unpacks every array that it is given, which takes longer than scoring a word, and to make an array
takes as long as to look for a row. So the arrays of a model, and working memory, come as their addresses, in one array
of integers that is made once. A state comes as the address of its bytes.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

from snm.calibration import INPUTS, Gate
from snm.kernels.extraction import ABSENT, EMPTY_KEY
from snm.kernels.gating import Rows, add_row, add_unigram, mix
from snm.kernels.hashing import extend, feature_hash, fusing_helper, helper, mix64
from snm.kernels.memory import as_double, as_long, prefetch
from snm.kernels.pages import (
    NO_ROW,
    ask_for_link,
    ask_for_page,
    ask_for_record,
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
SCALARS = 15  # places of the handle before the addresses
ROWS = SCALARS + 15  # places of the addresses of working memory
BEAM = ROWS + 13
WORD, SCORE = BEAM + 9, BEAM + 10  # places of a word and its score, for `step`
HANDLE = SCORE + 1
_BELOW_ONE = 0x3FF0000000000000 - 0x3FE6A09E667F3BCD  # from the root of 1/2 to 1, in bits
_LOG10_2, _LN_10 = math.log10(2), math.log(10)

# A helper may not return an array that it makes; these may, and are put into their callers as well.
making_helper = njit(nogil=True, forceinline=True, cache=True)


class StateBytes(types.Type):  # type: ignore[misc]
    """A state as Python has it: bytes, of which a kernel gets the address."""

    def __init__(self):
        super().__init__("StateBytes")


register_model(StateBytes)(models.OpaqueModel)


@unbox(StateBytes)
def address_of_bytes(_, state, c):
    """TypeError where it is something else."""
    address = c.pyapi.bytes_as_string(state)
    return NativeValue(address, is_error=cgutils.is_null(c.builder, address))


@intrinsic
def pointer(typing_context, address):
    """A pointer from a number, or to a state."""

    def generate(context, builder, signature, arguments):
        if isinstance(address, StateBytes):
            return arguments[0]
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address if isinstance(address, StateBytes) else types.int64), generate


class Beam(NamedTuple):
    """Working memory for TOGETHER states."""

    keys: np.ndarray  # (slots, TOGETHER) uint64
    records: np.ndarray  # (slots, TOGETHER) int64
    first_with: np.ndarray  # (slots, TOGETHER) int64: the first state with the same row, -1 where there is none
    scale: np.ndarray  # (slots, TOGETHER) float32
    members: np.ndarray  # (TOGETHER,) int64: states that are not equal
    which: np.ndarray  # (TOGETHER,) int64: for each state which of them it is equal to
    hashes: np.ndarray  # (TOGETHER,) uint64: theirs
    hashed_words: np.ndarray  # (2, width) uint64: a state's words, and their classes
    read: np.ndarray  # (TOGETHER,) float32: what a row has for words


@making_helper
def longs(address, shape):
    return carray(pointer(address), shape, np.int64)


@making_helper
def hashes(address, shape):
    return carray(pointer(address), shape, np.uint64)


@making_helper
def floats(address, shape):
    return carray(pointer(address), shape, np.float32)


def make_beam(slots: int, width: int) -> Beam:
    square = slots, TOGETHER
    return Beam(
        np.empty(square, np.uint64), np.empty(square, np.int64), np.empty(square, np.int64),
        np.empty(square, np.float32), np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64),
        np.empty(TOGETHER, np.uint64), np.empty((2, width), np.uint64), np.empty(TOGETHER, np.float32),
    )  # fmt: skip


@making_helper
def working_memory(handle):
    """Rows and Beam, as `make_rows` and `make_beam` made them."""
    slots, units, width = handle[1], handle[2], handle[14]
    some, square, states = (slots * TOGETHER,), (slots, TOGETHER), (TOGETHER,)
    rows = Rows(
        longs(handle[ROWS], (slots,)),
        longs(handle[ROWS + 1], (slots,)),
        hashes(handle[ROWS + 2], some),
        floats(handle[ROWS + 3], some),
        floats(handle[ROWS + 4], some),
        floats(handle[ROWS + 5], some),
        floats(handle[ROWS + 6], some),
        floats(handle[ROWS + 7], some),
        floats(handle[ROWS + 8], (3, slots * TOGETHER)),
        floats(handle[ROWS + 9], (TOGETHER, units)),
        floats(handle[ROWS + 10], (units, TOGETHER)),
        floats(handle[ROWS + 11], states),
        carray(pointer(handle[ROWS + 12]), (2, TOGETHER), np.float64),
    )
    beam = Beam(
        hashes(handle[BEAM], square),
        longs(handle[BEAM + 1], square),
        longs(handle[BEAM + 2], square),
        floats(handle[BEAM + 3], square),
        longs(handle[BEAM + 4], states),
        longs(handle[BEAM + 5], states),
        hashes(handle[BEAM + 6], states),
        hashes(handle[BEAM + 7], (2, width)),
        floats(handle[BEAM + 8], states),
    )
    return rows, beam


@making_helper
def unpack(handle, starts_type, link_type, code_type):
    """Pages, gate, table of slots and classes of a model, from `snm.model.SnmModel._handle`."""
    words, slots, units = handle[0], handle[1], handle[2]
    numbers = carray(pointer(handle[SCALARS + 9]), (2,), np.float32)
    pages = Pages(
        carray(pointer(handle[SCALARS + 12]), (handle[13],), starts_type),
        carray(pointer(handle[SCALARS]), (handle[3],), np.uint8),
        carray(pointer(handle[SCALARS + 13]), (1,), link_type),
        carray(pointer(handle[SCALARS + 14]), (slots, words), code_type),
        floats(handle[SCALARS + 1], (handle[4],)),
        floats(handle[SCALARS + 2], (words,)),
        longs(handle[SCALARS + 3], (slots,)),
        longs(handle[SCALARS + 4], (slots,)),
        np.uint64(handle[5]),
        Spread(handle[6], np.uint64(handle[7]), np.uint64(handle[8]), (_ONE << np.uint64(handle[6])) - _ONE,
               np.uint64(8 * handle[9])),
        handle[9],
        np.uint8(handle[10]),
        numbers[0],
        numbers[1],
    )  # fmt: skip
    gate = Gate(
        floats(handle[SCALARS + 5], (slots, INPUTS, units)),
        floats(handle[SCALARS + 6], (units,)),
        floats(handle[SCALARS + 7], (slots, units)),
        floats(handle[SCALARS + 8], (slots,)),
    )
    table = hashes(handle[SCALARS + 10], (slots, SLOT_COLUMNS))
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
    i = rows.last[0]
    for q in range(1, slots):
        rows.first[q] = i
        for c in range(n):
            record = records[q, c]
            if record == NO_ROW:
                continue
            if is_long(record, pages):
                code, links, row_sum = read_long(record, pages)
            else:
                code, links, row_sum, _ = read_short(q, record, np.uint32(0), pages)
            i = add_row(rows, i, c, code, links, row_sum, _ZERO)
        rows.last[q] = i


@helper
def share_rows(n, shared, beam):
    """beam.first_with. A row that several states have is read once, where their words are the same."""
    for q in range(1, len(beam.records)):
        records = beam.records[q]
        for c in range(n):
            first = c
            for before in range(c - 1 if shared else -1, -1, -1):
                first = before if records[before] == records[c] else first
            beam.first_with[q, c] = first if records[c] != NO_ROW else -1


@helper
def row_for(c, words):
    """The row of `words` that is of state c: where there is one, it is of all states."""
    return min(c, len(words) - 1)


@helper
def ask_for_words(n, words, start, stop, pages, beam):
    """Ask for the links of long rows to these words."""
    for q in range(1, len(beam.records)):
        for c in range(n):
            record = beam.records[q, c]
            if beam.first_with[q, c] == c and is_long(record, pages):
                first, links = first_link(record, pages), read_long(record, pages)[1]
                for word in words[row_for(c, words)][start:stop]:
                    at = slot_of_link(spread_target(word, pages.spread), links, pages.spread)
                    ask_for_link(first + at, pages.long_links)


@helper
def add_words(n, words, start, stop, pages, beam, weights):
    """weights[c, i]: the sum over the rows of state c of what they have for word i, times beam.scale[slot, c]."""
    shared = len(words) == 1
    for c in range(n):
        of_state, weight = words[row_for(c, words)][start:stop], weights[c][start:stop]
        for i in range(len(of_state)):
            weight[i] = np.float64(beam.scale[0, c]) * pages.unigrams[of_state[i]]
    for q in range(1, len(beam.records)):
        for c in range(n):
            if beam.first_with[q, c] != c:
                continue
            read_words(q, beam.records[q, c], words[row_for(c, words)][start:stop], pages, beam.read)
            for d in range(c, n if shared else c + 1):
                if beam.first_with[q, d] == c:
                    weight, factor = weights[d][start:stop], np.float64(beam.scale[q, d])
                    for i in range(len(weight)):
                        weight[i] += factor * beam.read[i]


@fusing_helper
def take_logs(numbers):
    """log10 of numbers, to one part in 10^15, in a way that LLVM takes many at a time.

    With m 2^e = x and m between the root of 1/2 and that of 2, a series of z = (m - 1) / (m + 1).
    """
    for i in range(len(numbers)):
        bits = as_long(numbers[i])
        e = np.int64((bits + _BELOW_ONE) >> 52) - 1023
        m = as_double(bits - (e << 52))
        z = (m - 1.0) / (m + 1.0)
        y = z * z
        series = 1.0 / 19.0
        for n in range(17, 0, -2):
            series = series * y + 1.0 / n
        numbers[i] = e * _LOG10_2 + (2.0 / _LN_10) * z * series


_STATES, _HANDLE, _CHOSEN, _SCORES = types.uint32[:, ::1], types.int64[::1], types.int64[::1], types.float64[:, ::1]
_WORDS = types.uint32[::1], types.uint32[:, ::1]  # for all states, or a row for each
_STEP = types.float64(types.int64, StateBytes(), types.int64)


@helper
def are_for(words, states, width, vocabulary):
    """Whether there are words for as many states of that width, all of the vocabulary."""
    for word in words.flat:
        if word >= vocabulary:
            return False
    return words.size > 0 and states.shape[1] == width and (words.ndim == 1 or len(words) == len(states))


@njit([types.boolean(_STATES, w, types.int64, _CHOSEN, _STATES) for w in _WORDS], nogil=True, cache=True)
def follow(states, listed, vocabulary, chosen, after):
    """after[k]: the state after hypothesis chosen[k] of `expand`; False where there is no such hypothesis, or word."""
    m, width = listed.shape[-1], after.shape[1]
    if not are_for(listed, states, width, vocabulary):
        return False
    words, hypotheses = listed.reshape((-1, m)), len(states) * m
    for k in range(len(chosen)):
        if not 0 <= chosen[k] < hypotheses:
            return False
        c, i = chosen[k] // m, chosen[k] % m
        for j in range(width - 1):
            after[k, j] = states[c, j + 1]
        after[k, width - 1] = words[min(c, len(words) - 1), i]
    return True


@helper
def find_states(n, states, pages, table, classes, hash_mask, rows, beam):
    """The rows of the first n of beam.members."""
    by_class = False
    for q in range(len(table)):
        by_class |= table[q, 3] != 0
    rows.first[0] = rows.last[0] = 0
    for c in range(n):
        write_keys(states[beam.members[c]], table, classes, by_class, hash_mask, c, beam.hashed_words, beam.keys)
        rows.last[0] = add_unigram(rows, rows.last[0], c, np.uint32(0), pages)
    find_rows(n, beam.keys, pages, beam.records, rows)


@helper
def weigh_states(n, gate, rows, beam):
    """beam.scale: what the gate multiplies the rows by."""
    mix(n, rows, gate)
    for q in range(len(beam.scale)):
        for i in range(rows.first[q], rows.last[q]):
            beam.scale[q, rows.event[i]] = rows.scale[i]


@njit(nogil=True, cache=True)
def score(states, words, handle, starts_type, link_type, code_type, scores):
    """scores[c, i] = log10 P(words[c, i] | states[c]), NaN where the word is never predicted.

    Of at most TOGETHER states. Where `words` has one row, it is of all of them. The types are those of a model's
    starts, long links and singles.
    """
    pages, gate, table, classes = unpack(handle, starts_type, link_type, code_type)
    rows, beam = working_memory(handle)
    hash_mask, never = np.uint64(handle[11]), handle[12]
    n, m, shared = len(states), scores.shape[1], len(words) == 1
    for c in range(n):
        beam.members[c] = beam.which[c] = c
    if shared and n > 1:
        n = find_equal(states, beam)
    find_states(n, states, pages, table, classes, hash_mask, rows, beam)
    share_rows(n, shared, beam)
    for start in range(0, m, TOGETHER):
        stop = min(start + TOGETHER, m)
        ask_for_words(n, words, start, stop, pages, beam)
        if start == 0:
            weigh_states(n, gate, rows, beam)  # while links are on their way
        add_words(n, words, start, stop, pages, beam, scores)
    for c in range(n):
        factor = 1.0 / rows.sums[1, c]
        for i in range(m):
            scores[c, i] *= factor
    take_logs(scores.reshape(scores.size)[: n * m])
    for r in range(len(words)):
        for i in range(m):
            if words[r, i] in (never, BEGIN):
                scores[r : n if shared else r + 1, i] = math.nan
    for c in range(len(states) - 1, -1, -1):  # no state is further back than the one that it is equal to
        for i in range(m):
            scores[c, i] = scores[beam.which[c], i]


@cache
def kernels_of(*type_names):
    """`expand` and `step` for models whose starts, long links and singles are of these types.

    They close over the types and nothing else: Numba would take other kernels for new ones in each process, and compile
    them anew.
    """
    starts_type, link_type, code_type = (np.dtype(name).type for name in type_names)

    @njit([types.boolean(_STATES, w, _HANDLE, _SCORES) for w in _WORDS], nogil=True, cache=True)
    def expand(states, listed, handle, scores):
        """`score`, or False where there are no words for all states, or some that are not of the vocabulary."""
        if not are_for(listed, states, handle[14], handle[0]):
            return False
        words = listed.reshape((-1, listed.shape[-1]))
        for start in range(0, len(states), TOGETHER):
            part = slice(start, min(start + TOGETHER, len(states)))
            of_part = words if len(words) == 1 else words[part]
            score(states[part], of_part, handle, starts_type, link_type, code_type, scores[part])
        return True

    @njit([_STEP], cache=True)
    def step(address, state, word):
        """One word after one state, given the address of a handle. Python's lock is kept."""
        handle = longs(address, (HANDLE,))
        words = carray(pointer(address + 8 * WORD), (1, 1), np.uint32)
        scores = carray(pointer(address + 8 * SCORE), (1, 1), np.float64)
        words[0, 0] = word
        states = carray(pointer(state), (1, handle[14]), np.uint32)
        score(states, words, handle, starts_type, link_type, code_type, scores)
        return scores[0, 0]

    return expand, step.get_overload(_STEP)
