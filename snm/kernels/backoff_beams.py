"""Scoring words after states with a backoff model. A call passes one address, as in `snm.kernels.beams`."""

import math
from functools import cache

import numpy as np
from numba import carray, types

from snm.kernels.compile import array_helper, helper, kernel_for
from snm.kernels.hashing import extend, feature_key, mix64
from snm.kernels.row_index import find_link, find_row
from snm.kernels.simd import prefetch
from snm.kernels.states import SCORES, STATES, STEP, WORDS, are_states, are_valid, pointer
from snm.layouts.beams import BACKOFF_RECORD
from snm.layouts.counts import RowIndex
from snm.layouts.keys import TEMPLATE
from snm.layouts.tokens import BEGIN

_ONE = np.uint64(1)


@array_helper
def index_of(record, entry_type):
    """The directory of the rows of a record's model."""
    return RowIndex(
        carray(pointer(record.features_at), (record.n_rows,), np.uint64),
        carray(pointer(record.directory_at), (record.n_entries,), entry_type),
        record.low,
        record.shift,
    )


@array_helper
def model_of(record, entry_type):
    """Index, links, templates and scratch memory of a record."""
    n = record.width + 1
    return (
        index_of(record, entry_type),
        carray(pointer(record.offsets_at), (record.n_rows + 1,), np.int64),
        carray(pointer(record.targets_at), (record.n_links,), np.uint32),
        carray(pointer(record.probabilities_at), (record.n_links,), np.float32),
        carray(pointer(record.backoffs_at), (record.n_rows,), np.float32),
        carray(pointer(record.templates_at), (n,), TEMPLATE),
        carray(pointer(record.keys_at), (n,), np.uint64),
        carray(pointer(record.rows_at), (n,), np.int64),
    )


@helper
def find_contexts(state, tag, templates, hash_mask, index, keys, rows):
    """rows[q]: the row of the last q words of a state, -1 where there is none. No context goes beyond <S>."""
    width, chain, n = len(state), np.uint64(0), 1
    while n <= width and (n == 1 or state[width - n + 1] ^ tag != BEGIN):
        chain = extend(chain, mix64(np.uint64(state[width - n] ^ tag) + _ONE))
        key = feature_key(chain, np.uint64(0), templates[n].salt, hash_mask, templates[n].type_tag)
        keys[n] = key
        if key >= index.low:
            prefetch(index.directory, (key - index.low) >> index.shift)
        n += 1
    rows[0] = 0  # the empty context has the smallest key
    for q in range(1, width + 1):
        rows[q] = find_row(keys[q], index) if q < n else -1


@helper
def probability(word, rows, offsets, targets, probabilities, backoffs):
    """P(word) in the longest context with a link to it, times the backoffs of longer ones; 0 where none has one."""
    factor = 1.0
    for q in range(len(rows) - 1, -1, -1):
        row = rows[q]
        if row < 0:
            continue
        link = find_link(word, offsets[row], offsets[row + 1], targets)
        if link >= 0:
            return factor * probabilities[link]
        factor *= backoffs[row]
    return 0.0


@helper
def log10_of(p, word, record):
    """log10 of a word's probability, NaN for a word that is never predicted."""
    predicted = p > 0.0 and word != BEGIN and word != record.never_a_target
    return math.log10(p) if predicted else math.nan


@cache
def kernels_of(entry_type_name):
    """(`expand`, `step`) for models whose directory has this dtype. They close over nothing else, as in `beams`."""
    entry_type = np.dtype(entry_type_name).type

    @kernel_for([types.boolean(STATES, w, types.int64, SCORES) for w in WORDS])
    def expand(states, given, address, scores):
        """scores[c, i] = log10 P(word i | states[c]); False if states or words are invalid. `address`: of a record."""
        record = carray(pointer(address), (1,), BACKOFF_RECORD)[0]
        if not are_valid(given, states, record.tag, record.width, record.words):
            return False
        index, offsets, targets, probabilities, backoffs, templates, keys, rows = model_of(record, entry_type)
        words = given.reshape((-1, given.shape[-1]))
        for c in range(len(states)):
            find_contexts(states[c], np.uint32(record.tag), templates, record.hash_mask, index, keys, rows)
            of_state = words[min(c, len(words) - 1)]
            for i in range(len(of_state)):
                p = probability(of_state[i], rows, offsets, targets, probabilities, backoffs)
                scores[c, i] = log10_of(p, of_state[i], record)
        return True

    @kernel_for([STEP], nogil=False)
    def step(address, state, word):
        """log10 P of a word after a state, infinite for an invalid state. The GIL protects the record at `address`."""
        record = carray(pointer(address), (1,), BACKOFF_RECORD)[0]
        states = carray(pointer(state), (1, record.width), np.uint32)
        if not are_states(states, record.tag, record.words):
            return math.inf
        index, offsets, targets, probabilities, backoffs, templates, keys, rows = model_of(record, entry_type)
        find_contexts(states[0], np.uint32(record.tag), templates, record.hash_mask, index, keys, rows)
        p = probability(np.uint32(word), rows, offsets, targets, probabilities, backoffs)
        return log10_of(p, word, record)

    return expand, step.get_overload(STEP)
