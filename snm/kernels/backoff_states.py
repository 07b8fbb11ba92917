"""Scoring one more word with a backoff model as KenLM does: with the length of the n-gram, and with short states.

A state has the ids of the last words, the last one first, and no more of them than begin a longer n-gram of the model.
So histories that the model cannot tell apart have equal states.
"""

import math
from functools import cache

import numpy as np
from numba import carray, types

from snm.kernels.backoff_beams import model_of
from snm.kernels.compile import helper, kernel_for
from snm.kernels.hashing import extend, feature_key, mix64
from snm.kernels.row_index import find_link, find_row
from snm.kernels.states import StateBytes, pointer
from snm.layouts.beams import BACKOFF_RECORD

LOG_ZERO = -99.0  # log10 of probability 0, by convention
LENGTH = 1 << 8  # of a state, below the length of the n-gram in the result of `step`
_ONE = np.uint64(1)


@helper
def log10_or_zero(p):
    return math.log10(p) if p > 0.0 else LOG_ZERO


@helper
def score(words, n, word, templates, hash_mask, index, offsets, targets, probabilities, backoffs, rows):
    """(log10 P(word) after the first n of `words`, length of its n-gram; 0 if only backoff weights were found)."""
    chain, longest = np.uint64(0), 0
    rows[0] = 0  # the empty context has the smallest key
    for q in range(1, n + 1):
        chain = extend(chain, mix64(np.uint64(words[q - 1]) + _ONE))
        key = feature_key(chain, np.uint64(0), templates[q].salt, hash_mask, templates[q].type_tag)
        rows[q] = find_row(key, index)
        longest = q if rows[q] >= 0 else longest
    total = 0.0
    for q in range(longest, -1, -1):
        row = rows[q]
        if row >= 0:
            link = find_link(word, offsets[row], offsets[row + 1], targets)
            if link >= 0:
                return total + log10_or_zero(probabilities[link]), q + 1
            total += log10_or_zero(backoffs[row])
    return total, 0


@helper
def state_length(words, n, word, templates, hash_mask, index):
    """How many of the n words, `word` and the first of `words`, begin a longer n-gram."""
    chain, longest = np.uint64(0), 0
    for q in range(1, n + 1):
        last = word if q == 1 else words[q - 2]
        chain = extend(chain, mix64(np.uint64(last) + _ONE))
        key = feature_key(chain, np.uint64(0), templates[q].salt, hash_mask, templates[q].type_tag)
        longest = q if find_row(key, index) >= 0 else longest
    return longest


@cache
def kernel_of(entry_type_name):
    """`step` for models whose directory has this dtype."""
    entry_type = np.dtype(entry_type_name).type
    signature = types.Tuple((types.float64, types.int64))(types.int64, StateBytes(), types.int64, types.int64)

    @kernel_for([signature], nogil=False)
    def step(address, state, length, word):
        """(log10 P of a word after a state of `length` words, LENGTH * length of its n-gram + length of the new state).

        The n-gram has length 0 if only backoff weights were found. The GIL protects the record at `address`.
        """
        record = carray(pointer(address), (1,), BACKOFF_RECORD)[0]
        index, offsets, targets, probabilities, backoffs, templates, _, rows = model_of(record, entry_type)
        words, width = carray(pointer(state), (length,), np.uint32), record.width
        found, n = score(
            words, min(length, width), np.uint32(word), templates, record.hash_mask, index, offsets, targets,
            probabilities, backoffs, rows,
        )  # fmt: skip
        kept = state_length(words, min(length + 1, width), np.uint32(word), templates, record.hash_mask, index)
        return found, LENGTH * n + kept

    return step.get_overload(signature)
