"""Scoring words after each of many states, as a beam search needs it.

Unpacking the arrays of a call takes longer than scoring a word, and making an array as long as a look-up. So the arrays
of a model and scratch memory are passed as addresses, in one record that is made once (`snm.layouts.beams`). A state is
passed as the address of its bytes.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import carray, types

from snm.kernels.caches import add_cache_rows, add_cached
from snm.kernels.compile import array_helper, helper, kernel, kernel_for
from snm.kernels.fastmath import log10_in_place
from snm.kernels.gate import EventRows, add_unigram, mix
from snm.kernels.hashing import extend, feature_key, mix64
from snm.kernels.matrix import (
    NO_ROW,
    first_link,
    is_long,
    position_of_link,
    prefetch_link,
    read_long,
    read_words,
    spread_target,
)
from snm.kernels.rows import find_rows
from snm.kernels.simd import TILE
from snm.kernels.states import SCORES, STATES, STEP, WORDS, are_states, are_valid, pointer
from snm.layouts.beams import BEAM_RECORD
from snm.layouts.caches import Caches
from snm.layouts.gate import INPUTS, Gate
from snm.layouts.keys import ABSENT, EMPTY_KEY, TEMPLATE
from snm.layouts.matrix import Matrix, Spread
from snm.layouts.tokens import BEGIN

_ONE = np.uint64(1)
_FIELDS = dict(BEAM_RECORD.fields or {})
_WORD, _SCORE = _FIELDS["word"][1], _FIELDS["score"][1]  # offsets in the record


class Beam(NamedTuple):
    """Scratch memory for TILE states."""

    keys: np.ndarray  # (templates, TILE) uint64
    records: np.ndarray  # (templates, TILE) int64
    first_with: np.ndarray  # (templates, TILE) int64: the first state with the same row, -1 where there is no row
    scale: np.ndarray  # (templates + caches, TILE) float32: the gate's factors
    members: np.ndarray  # (TILE,) int64: the distinct states
    which: np.ndarray  # (TILE,) int64: index in `members` of each state
    hashes: np.ndarray  # (TILE,) uint64: of the members
    hashed_words: np.ndarray  # (2, span) uint64: hashes of a state's words and of their classes, last word first
    read: np.ndarray  # (TILE,) float32: weights of words in a row
    masses: np.ndarray  # (caches, TILE) float64: the summed weights of a cache's words, 0 where it has none
    cached: np.ndarray  # (words,) float64: weights of words in all caches; zeros between calls


@array_helper
def longs(address, shape):
    return carray(pointer(address), shape, np.int64)


@array_helper
def hashes(address, shape):
    return carray(pointer(address), shape, np.uint64)


@array_helper
def floats(address, shape):
    return carray(pointer(address), shape, np.float32)


@array_helper
def doubles(address, shape):
    return carray(pointer(address), shape, np.float64)


def make_beam(templates: int, span: int, caches: int, words: int) -> Beam:
    """`words` of the vocabulary."""
    square = templates, TILE
    return Beam(
        np.empty(square, np.uint64), np.empty(square, np.int64), np.empty(square, np.int64),
        np.empty((templates + caches, TILE), np.float32), np.empty(TILE, np.int64), np.empty(TILE, np.int64),
        np.empty(TILE, np.uint64), np.empty((2, span), np.uint64), np.empty(TILE, np.float32),
        np.empty((caches, TILE)), np.zeros(words if caches else 0),
    )  # fmt: skip


@array_helper
def scratch_of(record):
    """The EventRows and the Beam of a record."""
    n, units, caches = record.n_templates, record.units, record.n_caches
    all = n + caches
    flat, square, states = (all * TILE,), (n, TILE), (TILE,)
    rows = EventRows(
        longs(record.rows_first_at, (all,)),
        longs(record.rows_last_at, (all,)),
        hashes(record.rows_event_at, flat),
        floats(record.rows_code_at, flat),
        floats(record.rows_length_at, flat),
        floats(record.rows_row_sum_at, flat),
        floats(record.rows_weight_at, flat),
        floats(record.rows_scale_at, flat),
        floats(record.rows_inputs_at, (3, all * TILE)),
        floats(record.rows_hidden_at, (TILE, units)),
        floats(record.rows_columns_at, (units, TILE)),
        floats(record.rows_output_at, states),
        doubles(record.rows_sums_at, (2, TILE)),
    )
    beam = Beam(
        hashes(record.beam_keys_at, square),
        longs(record.beam_records_at, square),
        longs(record.beam_first_with_at, square),
        floats(record.beam_scale_at, (all, TILE)),
        longs(record.beam_members_at, states),
        longs(record.beam_which_at, states),
        hashes(record.beam_hashes_at, states),
        hashes(record.beam_hashed_words_at, (2, record.span)),
        floats(record.beam_read_at, states),
        doubles(record.beam_masses_at, (caches, TILE)),
        doubles(record.beam_cached_at, (record.words if caches else 0,)),
    )
    return rows, beam


@array_helper
def model_of(record, starts_type, link_type, code_type):
    """Matrix, gate, templates, classes and caches of the model of a record."""
    words, n, all = record.words, record.n_templates, record.n_templates + record.n_caches
    matrix = Matrix(
        carray(pointer(record.starts_at), (record.n_starts,), starts_type),
        carray(pointer(record.data_at), (record.n_bytes,), np.uint8),
        carray(pointer(record.long_links_at), (record.n_positions,), link_type),
        carray(pointer(record.singles_at), (record.n_single_types, words if record.n_single_types else 0), code_type),
        floats(record.values_at, (record.n_values,)),
        floats(record.unigrams_at, (words,)),
        longs(record.single_of_template_at, (n,)),
        longs(record.parent_of_template_at, (n,)),
        record.shift,
        Spread(
            record.spread_bits,
            record.spread_factor,
            record.spread_inverse,
            (_ONE << np.uint64(record.spread_bits)) - _ONE,
            np.uint64(8 * record.code_bytes),
        ),
        record.code_bytes,
        np.uint8(record.unigram_code),
        record.unigram_links,
        record.unigram_sum,
    )
    gate = Gate(
        floats(record.gate_hidden_at, (all, INPUTS, record.units)),
        floats(record.gate_bias_at, (record.units,)),
        floats(record.gate_output_at, (all, record.units)),
        floats(record.gate_offset_at, (all,)),
    )
    templates = carray(pointer(record.templates_at), (n,), TEMPLATE)
    classes = carray(pointer(record.classes_at), (words,), np.uint16)
    of_caches, weights = (record.n_caches,), (record.n_caches, record.n_distances)
    caches = Caches(
        longs(record.cache_adjacent_at, of_caches),
        longs(record.cache_words_at, of_caches),
        doubles(record.cache_decay_at, weights),
        doubles(record.cache_sums_at, weights),
        floats(record.cache_codes_at, (record.n_distances,)),
        record.never_a_target,
    )
    return matrix, gate, templates, classes, caches


@helper
def chain_of(hashes, length, skipped):
    """The chain of the `length` words before the last `skipped` words. hashes: of words, last word first."""
    chain = np.uint64(0)
    for j in range(skipped, skipped + length):
        chain = extend(chain, hashes[j])
    return chain


@helper
def write_keys(state, tag, templates, classes, by_class, hash_mask, column, hashes, keys):
    """keys[template, column]: the keys of the features after a state, or ABSENT."""
    width, context = len(state), 0
    for j in range(width):
        word = state[width - 1 - j] ^ tag
        hashes[0, j] = mix64(np.uint64(word) + _ONE)
        if by_class:
            hashes[1, j] = mix64(np.uint64(classes[word]) + _ONE)
        context += context == j and (j == 0 or state[width - j] ^ tag != BEGIN)
    for q in range(len(templates)):
        t = templates[q]
        if t.remote + t.adjacent == 0:
            keys[q, column] = EMPTY_KEY
            continue
        keys[q, column] = ABSENT
        if t.remote + t.skipped + t.adjacent > context:
            continue
        near = chain_of(hashes[0], t.adjacent, 0)
        far = chain_of(hashes[t.by_class], t.remote, t.adjacent + t.skipped)
        key = feature_key(near, far, t.salt, hash_mask, t.type_tag)
        repeated = False
        for p in range(t.first_of_type, q):
            repeated |= keys[p, column] == key
        if not repeated:
            keys[q, column] = key


@helper
def find_equal(states, beam):
    """Fill beam.members and beam.which; return the number of distinct states, of at most TILE.

    Hypotheses that differ only in earlier words have equal states.
    """
    n = 0
    for c in range(len(states)):
        h = np.uint64(0)
        for j in range(states.shape[1]):
            h = extend(h, np.uint64(states[c, j]))
        d = 0
        while d < n and not (beam.hashes[d] == h and are_equal(states[c], states[beam.members[d]])):
            d += 1
        beam.which[c] = d
        if d == n:
            beam.members[n], beam.hashes[n] = c, h
            n += 1
    return n


@helper
def are_equal(state, other):
    differ = np.uint32(0)
    for j in range(len(state)):
        differ |= state[j] ^ other[j]
    return differ == 0


@helper
def share_rows(n, shared, beam):
    """Fill beam.first_with. A row of several states is read once if they have the same words (`shared`)."""
    for q in range(1, len(beam.records)):
        records = beam.records[q]
        for c in range(n):
            first = c
            for before in range(c - 1 if shared else -1, -1, -1):
                first = before if records[before] == records[c] else first
            beam.first_with[q, c] = first if records[c] != NO_ROW else -1


@helper
def row_for(c, words):
    """The row of `words` for state c; a single row is for all states."""
    return min(c, len(words) - 1)


@helper
def prefetch_words(n, words, start, stop, matrix, beam):
    """Prefetch the links of words[:, start:stop] in long rows."""
    for q in range(1, len(beam.records)):
        for c in range(n):
            record = beam.records[q, c]
            if beam.first_with[q, c] == c and is_long(record, matrix):
                first, links = first_link(record, matrix), read_long(record, matrix)[1]
                for word in words[row_for(c, words)][start:stop]:
                    at = position_of_link(spread_target(word, matrix.spread), links, matrix.spread)
                    prefetch_link(first + at, matrix.long_links)


@helper
def add_words(n, words, start, stop, matrix, beam, weights):
    """weights[c, i]: the sum over the rows of state c of beam.scale[template, c] times M of word i in [start, stop)."""
    shared = len(words) == 1
    for c in range(n):
        of_state, weight = words[row_for(c, words)][start:stop], weights[c][start:stop]
        for i in range(len(of_state)):
            weight[i] = np.float64(beam.scale[0, c]) * matrix.unigrams[of_state[i]]
    for q in range(1, len(beam.records)):
        for c in range(n):
            if beam.first_with[q, c] != c:
                continue
            read_words(q, beam.records[q, c], words[row_for(c, words)][start:stop], matrix, beam.read)
            for d in range(c, n if shared else c + 1):
                if beam.first_with[q, d] == c:
                    weight, factor = weights[d][start:stop], np.float64(beam.scale[q, d])
                    for i in range(len(weight)):
                        weight[i] += factor * beam.read[i]


@helper
def find_states(n, states, tag, matrix, templates, classes, hash_mask, rows, beam):
    """Fill `rows` and `beam` with the rows of the first n of beam.members."""
    by_class, span = False, beam.hashed_words.shape[1]
    for q in range(len(templates)):
        by_class |= templates[q].by_class != 0
    rows.first[0] = rows.last[0] = 0
    for c in range(n):
        state = states[beam.members[c]]
        write_keys(
            state[len(state) - span :], tag, templates, classes, by_class, hash_mask, c, beam.hashed_words, beam.keys
        )
        rows.last[0] = add_unigram(rows, rows.last[0], c, np.uint32(0), matrix)
    find_rows(n, beam.keys, matrix, beam.records, rows)


@helper
def weigh_states(n, gate, rows, beam):
    """Fill beam.scale with the gate's factors."""
    mix(n, rows, gate)
    for q in range(len(rows.last)):
        for i in range(rows.first[q], rows.last[q]):
            beam.scale[q, rows.event[i]] = rows.scale[i]


@kernel
def score(states, words, record, starts_type, link_type, code_type, scores):
    """scores[c, i] = log10 P(words[c, i] | states[c]) of at most TILE states, NaN for a word that is never predicted.

    A single row of `words` is for all states. The types are the dtypes of a model's starts, long links and singles.
    """
    matrix, gate, templates, classes, caches = model_of(record, starts_type, link_type, code_type)
    rows, beam = scratch_of(record)
    n, m, shared = len(states), scores.shape[1], len(words) == 1
    for c in range(n):
        beam.members[c] = beam.which[c] = c
    if shared and n > 1:
        n = find_equal(states, beam)
    tag = np.uint32(record.tag)
    find_states(n, states, tag, matrix, templates, classes, record.hash_mask, rows, beam)
    add_cache_rows(n, states, tag, caches, rows, beam)
    share_rows(n, shared, beam)
    for start in range(0, m, TILE):
        stop = min(start + TILE, m)
        prefetch_words(n, words, start, stop, matrix, beam)
        if start == 0:
            weigh_states(n, gate, rows, beam)  # while links are being fetched
        add_words(n, words, start, stop, matrix, beam, scores)
    for c in range(n if len(caches.words) else 0):
        add_cached(c, states[beam.members[c]], words[row_for(c, words)], tag, caches, beam, scores[c])
    for c in range(n):
        factor = 1.0 / rows.sums[1, c]
        for i in range(m):
            scores[c, i] *= factor
    log10_in_place(scores.reshape(scores.size)[: n * m])
    for r in range(len(words)):
        for i in range(m):
            if words[r, i] in (record.never_a_target, BEGIN):
                scores[r : n if shared else r + 1, i] = math.nan
    for c in range(len(states) - 1, -1, -1):  # backward: a member's index is never above its state's
        for i in range(m):
            scores[c, i] = scores[beam.which[c], i]


@cache
def kernels_of(*type_names):
    """(`expand`, `step`) for models whose starts, long links and singles have these dtypes.

    They close over the dtypes and nothing else: with other variables Numba would not find them in its cache, and would
    compile them again in each process.
    """
    starts_type, link_type, code_type = (np.dtype(name).type for name in type_names)

    @kernel_for([types.boolean(STATES, w, types.int64, SCORES) for w in WORDS])
    def expand(states, given, address, scores):
        """`score` of any number of states; False if states or words are invalid. `address`: of a record."""
        record = carray(pointer(address), (1,), BEAM_RECORD)[0]
        if not are_valid(given, states, record.tag, record.width, record.words):
            return False
        words = given.reshape((-1, given.shape[-1]))
        for start in range(0, len(states), TILE):
            part = slice(start, min(start + TILE, len(states)))
            of_part = words if len(words) == 1 else words[part]
            score(states[part], of_part, record, starts_type, link_type, code_type, scores[part])
        return True

    @kernel_for([STEP], nogil=False)
    def step(address, state, word):
        """log10 P of a word after a state, infinite for an invalid state. The GIL protects the record at `address`."""
        record = carray(pointer(address), (1,), BEAM_RECORD)[0]
        words = carray(pointer(address + _WORD), (1, 1), np.uint32)
        scores = carray(pointer(address + _SCORE), (1, 1), np.float64)
        words[0, 0] = word
        states = carray(pointer(state), (1, record.width), np.uint32)
        if not are_states(states, record.tag, record.words):
            return math.inf
        score(states, words, record, starts_type, link_type, code_type, scores)
        return scores[0, 0]

    return expand, step.get_overload(STEP)
