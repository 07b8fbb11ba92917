"""Scoring one more word after each of many states: what a beam search asks for.

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
from snm.kernels.memory import prefetch
from snm.kernels.pages import (
    TOGETHER,
    add_links,
    ask_again,
    ask_for_links,
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
def same(a, b):
    equal = True
    for j in range(len(a)):
        equal &= a[j] == b[j]
    return equal


@njit(nogil=True, cache=True)
def distinct(states, first, of):
    """Number the states that differ, and return how many: of[i] is state i's number, first[c] the first one with it."""
    size = 2
    while size < 2 * len(states):
        size *= 2
    table = np.full(size, -1, np.int64)
    n = 0
    for i in range(len(states)):
        h = np.uint64(0)
        for j in range(states.shape[1]):
            h = extend(h, np.uint64(states[i, j]))
        place = np.int64(mix64(h) & np.uint64(size - 1))
        while table[place] >= 0 and not same(states[first[table[place]]], states[i]):
            place = (place + 1) & (size - 1)
        if table[place] < 0:
            table[place] = n
            first[n] = i
            n += 1
        of[i] = table[place]
    return n


@njit(nogil=True, cache=True)
def add_other_words(words, contexts, first, of, pages, found, mixed, weights):
    """weights[i]: the gated weights of the links to word i, of words that are not the first after their state.

    Row by row, and in stages, see `look_up`.
    """
    slots, n = len(mixed.scale), len(words)
    ends, order = np.zeros(contexts + 2, np.int64), np.empty(n, np.int64)
    for i in range(n):
        ends[of[i] + 2] += i != first[of[i]]
    for c in range(contexts):
        ends[c + 2] += ends[c + 1]
    for i in range(n):
        weights[i] = np.float64(mixed.scale[0, of[i]]) * pages.unigrams[words[i]]
        if i != first[of[i]]:
            order[ends[of[i] + 1]] = i
            ends[of[i] + 1] += 1
    at = np.empty((n, slots), np.int64)
    for c in range(contexts):
        for q in range(1, slots):
            ask_for_links(q, c, order[ends[c] : ends[c + 1]], words, pages, found, at)
    for c in range(contexts):
        for q in range(1, slots):
            ask_again(q, c, order[ends[c] : ends[c + 1]], words, pages, found, at)
    for c in range(contexts):
        for q in range(1, slots):
            scale = np.float64(mixed.scale[q, c])
            add_links(q, c, order[ends[c] : ends[c + 1]], words, scale, pages, found, at, weights)


@njit(nogil=True, cache=True)
def score(states, words, handle, starts, long_links, singles, scores):
    """scores[i] = log10 P(words[i] | states[i]), NaN where the word is never predicted.

    What does not depend on the word, the rows and the gate, is done once for equal states.
    """
    pages, gate, table, classes = unpack(handle, starts, long_links, singles)
    slots, n = len(table), len(words)
    never, hash_mask = handle[12], np.uint64(handle[11])
    first, of = np.zeros(n, np.int64), np.zeros(n, np.int64)
    contexts = distinct(states, first, of) if n > 1 else n
    keys = np.empty((slots, contexts), np.uint64)
    first_words = np.empty(contexts, np.uint32)
    for c in range(contexts):
        write_keys(states[first[c]], table, classes, hash_mask, c, keys)
        first_words[c] = words[first[c]]
    if contexts < FEW:
        ask_for_all(contexts, keys, pages)
    found, work = make_found(slots, contexts), make_work(slots, min(contexts, TOGETHER))
    for start in range(0, contexts, TOGETHER):
        look_up(keys, first_words, start, min(start + TOGETHER, contexts), 0, pages, found, work)
    mixed = make_mixed(slots, contexts, len(gate.bias))
    mix(contexts, found, gate, mixed)
    if n > contexts:
        add_other_words(words, contexts, first, of, pages, found, mixed, scores)
    for i in range(n):
        c, word = of[i], words[i]
        weight = mixed.sums[0, c] if i == first[c] else scores[i]
        predicted = word != never and word != BEGIN
        scores[i] = math.log10(weight / mixed.sums[1, c]) if predicted else math.nan


@njit(nogil=True, cache=True)
def steps(states, words, handle, starts, long_links, singles, scores, after):
    """The scores, and the states after the words; False where one is not of the vocabulary."""
    for word in words:
        if word >= handle[0]:
            return False
    score(states, words, handle, starts, long_links, singles, scores)
    width = states.shape[1]
    for i in range(len(words)):
        for j in range(width - 1):
            after[i, j] = states[i, j + 1]
        after[i, width - 1] = words[i]
    return True


@cache
def step_of(*type_names):
    """A C function for one word after one state, of models whose starts, long links and singles are of these types.

    It is called with the address of a handle, a state, the number of its words, and the next word. A word takes 3.8 µs
    so; with a Numba function, which unpacks each of its arguments, it took 6.5. Python's lock is kept.
    """

    starts_type, link_type, code_type = (np.dtype(name).type for name in type_names)

    @cfunc(types.float64(types.int64, types.voidptr, types.int64, types.int64), cache=True)
    def step(address, state, width, word):
        handle = carray(pointer(address), (HANDLE,), np.int64)
        starts = carray(pointer(handle[SCALARS + 12]), (handle[13],), starts_type)
        long_links = carray(pointer(handle[SCALARS + 13]), (1,), link_type)
        singles = carray(pointer(handle[SCALARS + 14]), (handle[1], handle[0]), code_type)
        words, scores = np.full(1, word, np.uint32), np.empty(1, np.float64)
        score(carray(state, (1, width), np.uint32), words, handle, starts, long_links, singles, scores)
        return scores[0]

    return PYFUNCTYPE(c_double, c_int64, c_char_p, c_int64, c_int64)(step.address)
