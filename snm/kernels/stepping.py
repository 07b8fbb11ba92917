"""Scoring words after each of many states: what a beam search asks for.

A call from Python unpacks every array that it is given, which takes longer than scoring a word. So the arrays of a
model come as their addresses, in one array of integers that is made once.
"""

import math
from ctypes import PYFUNCTYPE, c_char_p, c_double, c_int64
from functools import cache

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from snm.calibration import INPUTS, Gate
from snm.kernels.extraction import ABSENT, EMPTY_KEY
from snm.kernels.gating import make_mixed, mix
from snm.kernels.hashing import extend, feature_hash, helper, mix64
from snm.kernels.memory import as_double, as_long, prefetch
from snm.kernels.pages import (
    TOGETHER,
    add_rows,
    ask_for_page,
    look_up,
    make_found,
    make_work,
)
from snm.pages import Pages, Spread
from snm.vocabulary import BEGIN

_ONE = np.uint64(1)
SLOT_COLUMNS = 7  # of Extractor.slot_table
SCALARS = 14  # places of the handle before the addresses
HANDLE = SCALARS + 15
_BELOW_ONE = 0x3FF0000000000000 - 0x3FE6A09E667F3BCD  # from the root of 1/2 to 1, in bits
_LOG10_2, _LN_10 = math.log10(2), math.log(10)
FEW = 8  # states of a call below which all their pages are asked for at once


@intrinsic
def pointer(typing_context, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


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
def chain_of(state, length, skipped, as_classes, classes):
    """The chain of `length` words, or of their classes, before the last `skipped` of a state."""
    chain = np.uint64(0)
    for j in range(length):
        word = np.uint64(state[len(state) - 1 - skipped - j])
        if as_classes:
            word = np.uint64(classes[word])
        chain = extend(chain, mix64(word + _ONE))
    return chain


@helper
def write_keys(state, table, classes, hash_mask, column, keys):
    """keys[slot, column]: the features after a state. Rows of `table` are the slots', see Extractor.slot_table."""
    context = 1
    while context < len(state) and state[len(state) - context] != BEGIN:
        context += 1
    for q in range(len(table)):
        remote, skip, adjacent = np.int64(table[q, 0]), np.int64(table[q, 1]), np.int64(table[q, 2])
        if remote + adjacent == 0:
            keys[q, column] = EMPTY_KEY
            continue
        keys[q, column] = ABSENT
        if remote + skip + adjacent > context:
            continue
        near = chain_of(state, adjacent, 0, False, classes)
        far = chain_of(state, remote, adjacent + skip, table[q, 3] != 0, classes)
        key = (feature_hash(near, far, table[q, 4]) & hash_mask) | table[q, 5]
        repeated = False
        for p in range(np.int64(table[q, 6]), q):
            repeated |= keys[p, column] == key
        if not repeated:
            keys[q, column] = key


@helper
def ask_for_all(n, keys, pages):
    """Ask for the pages of all features of n states at once: of one state they would come one after another."""
    for q in range(1, len(keys)):
        for k in range(n):
            prefetch(pages.starts, keys[q, k] >> pages.shift)
    for q in range(1, len(keys)):
        for k in range(n):
            ask_for_page(keys[q, k], pages)


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


@njit(nogil=True, cache=True)
def follow(states, words, vocabulary, chosen, after):
    """after[k]: the state after hypothesis chosen[k] of `score`; False where there is no such hypothesis, or word."""
    hypotheses, m, width = len(states) * words.shape[1], words.shape[1], states.shape[1]
    for k in range(len(chosen)):
        if not 0 <= chosen[k] < hypotheses:
            return False
        c, i = chosen[k] // m, chosen[k] % m
        for j in range(width - 1):
            after[k, j] = states[c, j + 1]
        word = words[min(c, len(words) - 1), i]
        if word >= vocabulary:
            return False
        after[k, width - 1] = word
    return True


@njit(nogil=True, cache=True)
def score(states, words, handle, starts, long_links, singles, scores):
    """scores[c, i] = log10 P(words[c, i] | states[c]), NaN where the word is never predicted.

    Where `words` has one row, it is of all states. Rows and gate are found once a state.
    """
    pages, gate, table, classes = unpack(handle, starts, long_links, singles)
    slots, n = len(table), len(states)
    never, hash_mask = handle[12], np.uint64(handle[11])
    keys, first_words = np.empty((slots, n), np.uint64), np.empty(n, np.uint32)
    for c in range(n):
        write_keys(states[c], table, classes, hash_mask, c, keys)
        first_words[c] = words[min(c, len(words) - 1), 0]
    if n < FEW:
        ask_for_all(n, keys, pages)
    found, work = make_found(slots, n), make_work(slots, min(n, TOGETHER))
    for start in range(0, n, TOGETHER):
        look_up(keys, first_words, start, min(start + TOGETHER, n), 0, pages, found, work)
    mixed = make_mixed(slots, n, len(gate.bias))
    mix(n, found, gate, mixed)
    for c in range(n):
        scores[c, 0] = mixed.sums[0, c]
    if scores.shape[1] > 1:
        others, weights = words[:, 1:], scores[:, 1:]
        for c in range(n):
            for i in range(weights.shape[1]):
                weights[c, i] = np.float64(mixed.scale[0, c]) * pages.unigrams[others[min(c, len(words) - 1), i]]
        add_rows(others, mixed.scale, pages, found, weights)
    for c in range(n):
        take_logs(scores[c], mixed.sums[1, c])
        for i in range(scores.shape[1]):
            word = words[min(c, len(words) - 1), i]
            if word in (never, BEGIN):
                scores[c, i] = math.nan


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

    @njit(nogil=True, cache=True)
    def expand(states, words, handle, scores):
        """`score`, or False where a word is not of the vocabulary."""
        for c in range(words.shape[0]):
            for i in range(words.shape[1]):
                if words[c, i] >= handle[0]:
                    return False
        if scores.size > 0:
            score_words(states, words, handle, scores)
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
