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
from numba import carray, from_dtype, types
from numba.core import cgutils
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

from snm.kernels.compile import array_helper, helper, kernel, kernel_for
from snm.kernels.fastmath import log10_in_place
from snm.kernels.gate import EventRows, add_row, add_unigram, mix
from snm.kernels.hashing import extend, feature_key, mix64
from snm.kernels.matrix import (
    NO_ROW,
    first_link,
    is_long,
    position_of_link,
    prefetch_link,
    prefetch_page,
    prefetch_record,
    read_long,
    read_short,
    read_words,
    record_at,
    spread_target,
)
from snm.kernels.simd import TILE, prefetch
from snm.layouts.beams import BEAM_RECORD
from snm.layouts.gate import INPUTS, Gate
from snm.layouts.keys import ABSENT, EMPTY_KEY, TEMPLATE
from snm.layouts.matrix import Matrix, Spread
from snm.layouts.tokens import BEGIN

_ONE, _ZERO = np.uint64(1), np.float32(0.0)
_WORD, _SCORE = (BEAM_RECORD.fields[name][1] for name in ("word", "score"))  # offsets in the record


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
    """Working memory for TILE states."""

    keys: np.ndarray  # (slots, TILE) uint64
    records: np.ndarray  # (slots, TILE) int64
    first_with: np.ndarray  # (slots, TILE) int64: the first state with the same row, -1 where there is none
    scale: np.ndarray  # (slots, TILE) float32
    members: np.ndarray  # (TILE,) int64: states that are not equal
    which: np.ndarray  # (TILE,) int64: for each state which of them it is equal to
    hashes: np.ndarray  # (TILE,) uint64: theirs
    hashed_words: np.ndarray  # (2, width) uint64: a state's words, and their classes
    read: np.ndarray  # (TILE,) float32: what a row has for words


@array_helper
def longs(address, shape):
    return carray(pointer(address), shape, np.int64)


@array_helper
def hashes(address, shape):
    return carray(pointer(address), shape, np.uint64)


@array_helper
def floats(address, shape):
    return carray(pointer(address), shape, np.float32)


def make_beam(slots: int, width: int) -> Beam:
    square = slots, TILE
    return Beam(
        np.empty(square, np.uint64), np.empty(square, np.int64), np.empty(square, np.int64),
        np.empty(square, np.float32), np.empty(TILE, np.int64), np.empty(TILE, np.int64),
        np.empty(TILE, np.uint64), np.empty((2, width), np.uint64), np.empty(TILE, np.float32),
    )  # fmt: skip


@array_helper
def scratch_of(h):
    """EventRows and Beam, as `make_rows` and `make_beam` made them."""
    n, units = h.n_templates, h.units
    flat, square, states = (n * TILE,), (n, TILE), (TILE,)
    rows = EventRows(
        longs(h.rows_first_at, (n,)),
        longs(h.rows_last_at, (n,)),
        hashes(h.rows_event_at, flat),
        floats(h.rows_code_at, flat),
        floats(h.rows_length_at, flat),
        floats(h.rows_row_sum_at, flat),
        floats(h.rows_weight_at, flat),
        floats(h.rows_scale_at, flat),
        floats(h.rows_inputs_at, (3, n * TILE)),
        floats(h.rows_hidden_at, (TILE, units)),
        floats(h.rows_columns_at, (units, TILE)),
        floats(h.rows_output_at, states),
        carray(pointer(h.rows_sums_at), (2, TILE), np.float64),
    )
    beam = Beam(
        hashes(h.beam_keys_at, square),
        longs(h.beam_records_at, square),
        longs(h.beam_first_with_at, square),
        floats(h.beam_scale_at, square),
        longs(h.beam_members_at, states),
        longs(h.beam_which_at, states),
        hashes(h.beam_hashes_at, states),
        hashes(h.beam_hashed_words_at, (2, h.width)),
        floats(h.beam_read_at, states),
    )
    return rows, beam


@array_helper
def model_of(h, starts_type, link_type, code_type):
    """Matrix, gate, templates and classes of the model of a record."""
    words, n = h.words, h.n_templates
    matrix = Matrix(
        carray(pointer(h.starts_at), (h.n_starts,), starts_type),
        carray(pointer(h.data_at), (h.n_bytes,), np.uint8),
        carray(pointer(h.long_links_at), (1,), link_type),
        carray(pointer(h.singles_at), (n, words), code_type),
        floats(h.values_at, (h.n_values,)),
        floats(h.unigrams_at, (words,)),
        longs(h.single_of_template_at, (n,)),
        longs(h.parent_of_template_at, (n,)),
        h.shift,
        Spread(h.spread_bits, h.spread_factor, h.spread_inverse, (_ONE << np.uint64(h.spread_bits)) - _ONE,
               np.uint64(8 * h.code_bytes)),
        h.code_bytes,
        np.uint8(h.unigram_code),
        h.unigram_links,
        h.unigram_sum,
    )  # fmt: skip
    gate = Gate(
        floats(h.gate_hidden_at, (n, INPUTS, h.units)),
        floats(h.gate_bias_at, (h.units,)),
        floats(h.gate_output_at, (n, h.units)),
        floats(h.gate_offset_at, (n,)),
    )
    templates = carray(pointer(h.templates_at), (n,), TEMPLATE)
    classes = carray(pointer(h.classes_at), (words,), np.uint16)
    return matrix, gate, templates, classes


@helper
def chain_of(hashes, length, skipped):
    """The chain of `length` words before the last `skipped`, from their hashes, the last word's first."""
    chain = np.uint64(0)
    for j in range(skipped, skipped + length):
        chain = extend(chain, hashes[j])
    return chain


@helper
def write_keys(state, templates, classes, by_class, hash_mask, column, hashes, keys):
    """keys[template, column]: the features after a state."""
    width, context = len(state), 0
    for j in range(width):
        word = state[width - 1 - j]
        hashes[0, j] = mix64(np.uint64(word) + _ONE)
        if by_class:
            hashes[1, j] = mix64(np.uint64(classes[word]) + _ONE)
        context += context == j and (j == 0 or state[width - j] != BEGIN)
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
    """Returns how many of at most TILE states are left without those that came before, which are beam.members.

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
            records[q, c] = prefetch_page(keys[q, c], pages)
    for q in range(1, slots):
        parent = pages.parent_of_template[q]
        for c in range(n):
            record = record_at(keys[q, c], records[q, c], pages)
            if parent > 0 and records[parent, c] == NO_ROW and keys[parent, c] != ABSENT:
                record = np.int64(NO_ROW)  # what was seen was seen in part
            records[q, c] = record
            prefetch_record(record, pages)
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
def prefetch_words(n, words, start, stop, pages, beam):
    """Ask for the links of long rows to these words."""
    for q in range(1, len(beam.records)):
        for c in range(n):
            record = beam.records[q, c]
            if beam.first_with[q, c] == c and is_long(record, pages):
                first, links = first_link(record, pages), read_long(record, pages)[1]
                for word in words[row_for(c, words)][start:stop]:
                    at = position_of_link(spread_target(word, pages.spread), links, pages.spread)
                    prefetch_link(first + at, pages.long_links)


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


_STATES, _RECORD, _CHOSEN, _SCORES = (
    types.uint32[:, ::1],
    from_dtype(BEAM_RECORD)[::1],
    types.int64[::1],
    types.float64[:, ::1],
)
_WORDS = types.uint32[::1], types.uint32[:, ::1]  # for all states, or a row for each
_STEP = types.float64(types.int64, StateBytes(), types.int64)


@helper
def are_for(words, states, width, vocabulary):
    """Whether there are words for as many states of that width, all of the vocabulary."""
    for word in words.flat:
        if word >= vocabulary:
            return False
    return words.size > 0 and states.shape[1] == width and (words.ndim == 1 or len(words) == len(states))


@kernel_for([types.boolean(_STATES, w, types.int64, _CHOSEN, _STATES) for w in _WORDS])
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
def find_states(n, states, pages, templates, classes, hash_mask, rows, beam):
    """The rows of the first n of beam.members."""
    by_class = False
    for q in range(len(templates)):
        by_class |= templates[q].by_class != 0
    rows.first[0] = rows.last[0] = 0
    for c in range(n):
        write_keys(states[beam.members[c]], templates, classes, by_class, hash_mask, c, beam.hashed_words, beam.keys)
        rows.last[0] = add_unigram(rows, rows.last[0], c, np.uint32(0), pages)
    find_rows(n, beam.keys, pages, beam.records, rows)


@helper
def weigh_states(n, gate, rows, beam):
    """beam.scale: what the gate multiplies the rows by."""
    mix(n, rows, gate)
    for q in range(len(beam.scale)):
        for i in range(rows.first[q], rows.last[q]):
            beam.scale[q, rows.event[i]] = rows.scale[i]


@kernel
def score(states, words, record, starts_type, link_type, code_type, scores):
    """scores[c, i] = log10 P(words[c, i] | states[c]), NaN where the word is never predicted.

    Of at most TILE states. Where `words` has one row, it is of all of them. The types are those of a model's
    starts, long links and singles.
    """
    pages, gate, templates, classes = model_of(record, starts_type, link_type, code_type)
    rows, beam = scratch_of(record)
    n, m, shared = len(states), scores.shape[1], len(words) == 1
    for c in range(n):
        beam.members[c] = beam.which[c] = c
    if shared and n > 1:
        n = find_equal(states, beam)
    find_states(n, states, pages, templates, classes, record.hash_mask, rows, beam)
    share_rows(n, shared, beam)
    for start in range(0, m, TILE):
        stop = min(start + TILE, m)
        prefetch_words(n, words, start, stop, pages, beam)
        if start == 0:
            weigh_states(n, gate, rows, beam)  # while links are on their way
        add_words(n, words, start, stop, pages, beam, scores)
    for c in range(n):
        factor = 1.0 / rows.sums[1, c]
        for i in range(m):
            scores[c, i] *= factor
    log10_in_place(scores.reshape(scores.size)[: n * m])
    for r in range(len(words)):
        for i in range(m):
            if words[r, i] in (record.never_a_target, BEGIN):
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

    @kernel_for([types.boolean(_STATES, w, _RECORD, _SCORES) for w in _WORDS])
    def expand(states, listed, record, scores):
        """`score`, or False where there are no words for all states, or some that are not of the vocabulary."""
        if not are_for(listed, states, record[0].width, record[0].words):
            return False
        words = listed.reshape((-1, listed.shape[-1]))
        for start in range(0, len(states), TILE):
            part = slice(start, min(start + TILE, len(states)))
            of_part = words if len(words) == 1 else words[part]
            score(states[part], of_part, record[0], starts_type, link_type, code_type, scores[part])
        return True

    @kernel_for([_STEP], nogil=False)
    def step(address, state, word):
        """One word after one state, given the address of a record, whose scratch memory the GIL protects."""
        record = carray(pointer(address), (1,), BEAM_RECORD)[0]
        words = carray(pointer(address + _WORD), (1, 1), np.uint32)
        scores = carray(pointer(address + _SCORE), (1, 1), np.float64)
        words[0, 0] = word
        states = carray(pointer(state), (1, record.width), np.uint32)
        score(states, words, record, starts_type, link_type, code_type, scores)
        return scores[0, 0]

    return expand, step.get_overload(_STEP)
