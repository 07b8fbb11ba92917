"""Scoring one more word after each of many states: what a beam search asks for.

A call from Python unpacks every array that it is given, which takes longer than scoring a word. So the arrays of a
model come as their addresses, in one array of integers that is made once.
"""

import math

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from snm.calibration import INPUTS, Gate
from snm.kernels.extraction import ABSENT, EMPTY_KEY
from snm.kernels.gating import make_mixed, mix
from snm.kernels.hashing import extend, feature_hash, helper, mix64
from snm.kernels.pages import TOGETHER, look_up, make_found, make_work
from snm.pages import Pages, Spread
from snm.vocabulary import BEGIN

_ONE = np.uint64(1)
SLOT_COLUMNS = 7  # of Extractor.slot_table
SCALARS = 13  # places of the handle before the addresses


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


@njit(nogil=True, cache=True)
def steps(states, words, handle, starts, long_links, singles, scores, after):
    """scores[i] = log10 P(words[i] | states[i]), NaN where the word is never predicted; after[i]: the state with it."""
    pages, gate, table, classes = unpack(handle, starts, long_links, singles)
    slots, width = len(table), states.shape[1]
    never, hash_mask = handle[12], np.uint64(handle[11])
    together = min(TOGETHER, len(words))
    keys = np.empty((slots, together), np.uint64)
    found = make_found(slots, together)
    work = make_work(slots, together)
    mixed = make_mixed(slots, together, len(gate.bias))
    for start in range(0, len(words), TOGETHER):
        n = min(TOGETHER, len(words) - start)
        for i in range(n):
            write_keys(states[start + i], table, classes, hash_mask, i, keys)
        look_up(keys, words[start : start + n], 0, n, 0, pages, found, work)
        mix(n, found, gate, mixed)
        for i in range(n):
            word = words[start + i]
            predicted = word != never and word != BEGIN
            scores[start + i] = math.log10(mixed.sums[0, i] / mixed.sums[1, i]) if predicted else math.nan
            for j in range(width - 1):
                after[start + i, j] = states[start + i, j + 1]
            after[start + i, width - 1] = word


@njit(nogil=True, cache=True)
def step(state, word, handle, starts, long_links, singles, after):
    """The same for one state and one word; returns the score."""
    scores = np.empty(1, np.float64)
    words = np.full(1, word, np.uint32)
    width = len(state)
    steps(
        state.reshape((1, width)), words, handle, starts, long_links, singles, scores, after.reshape((1, width))
    )  # fmt: skip
    return scores[0]
