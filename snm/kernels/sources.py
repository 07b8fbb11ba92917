"""Scoring with several matrices and one gate over the rows of all of them. See `snm.scoring.sources`.

The templates of the members are numbered one after another. Each member's rows are found by the kernels that find
those of a single matrix; here they come together.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import carray, types

from snm.kernels.beams import add_words, find_states, model_of, prefetch_words, scratch_of, share_rows
from snm.kernels.compile import kernel, kernel_for
from snm.kernels.gate import EventRows, add_row, make_own_rows, mix
from snm.kernels.scoring import fill
from snm.kernels.simd import TILE
from snm.kernels.states import SCORES, STATES, pointer
from snm.layouts.beams import BEAM_RECORD

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class TileRows(NamedTuple):
    """The rows of many events: those of template q in tile t are [first[t, q], last[t, q]) of the tile's part."""

    first: np.ndarray  # (tiles, templates) int64
    last: np.ndarray  # (tiles, templates) int64
    # (tiles * templates * TILE,)
    event: np.ndarray  # uint64, within the tile
    code: np.ndarray  # float32, and so are the others: see EventRows
    length: np.ndarray
    row_sum: np.ndarray
    weight: np.ndarray


def make_tiles(tiles: int, templates: int) -> TileRows:
    n = tiles * templates * TILE
    bounds = np.zeros((2, tiles, templates), np.int64)
    return TileRows(bounds[0], bounds[1], np.empty(n, np.uint64), *np.empty((4, n), np.float32))


@kernel
def add_member(targets, scales, matrix, scratch, offset, tiles):
    """Add a member's rows, whose templates are numbered from `offset` on, after those of the members before it.

    `scratch` as `look_up` left it. scales: (targets,) float32, factors of the weights.
    """
    n, all_templates = scratch.keys.shape[1], tiles.first.shape[1]
    own = make_own_rows(n, 0)
    for start in range(0, len(targets), TILE):
        tile, stop, filled = start // TILE, min(start + TILE, len(targets)), np.int64(0)
        for q in range(offset):
            filled = max(filled, tiles.last[tile, q])
        fill(start, stop, targets, matrix, scratch, own)
        at, n_rows = tile * all_templates * TILE + filled, np.int64(0)
        for q in range(n):
            tiles.first[tile, offset + q] = filled + own.first[q]
            tiles.last[tile, offset + q] = filled + own.last[q]
            n_rows = max(n_rows, own.last[q])
        for i in range(n_rows):
            tiles.event[at + i], tiles.code[at + i], tiles.length[at + i] = own.event[i], own.code[i], own.length[i]
            tiles.row_sum[at + i] = own.row_sum[i]
            tiles.weight[at + i] = own.weight[i] * scales[start + np.int64(own.event[i])]


@kernel
def add_distribution(probabilities, template, tiles):
    """Add a member that is one row of each event, whose sum is one, after those of the members before it."""
    all_templates = tiles.first.shape[1]
    for start in range(0, len(probabilities), TILE):
        tile, filled = start // TILE, np.int64(0)
        for q in range(template):
            filled = max(filled, tiles.last[tile, q])
        tiles.first[tile, template] = filled
        base = tile * all_templates * TILE
        for i in range(tiles.first[tile, 0], tiles.last[tile, 0]):  # every event has a row of the empty feature
            at, event = base + filled, tiles.event[base + i]
            tiles.event[at], tiles.code[at], tiles.length[at] = event, _ZERO, _ONE
            tiles.row_sum[at], tiles.weight[at] = _ONE, probabilities[start + np.int64(event)]
            filled += 1
        tiles.last[tile, template] = filled


@kernel
def score_tiles(tiles, gate, probabilities):
    """probabilities[k]: P of event k, whose rows are in `tiles`; 0 where there is no event."""
    templates = tiles.first.shape[1]
    own, size = make_own_rows(templates, len(gate.bias)), templates * TILE
    for start in range(0, len(probabilities), TILE):
        tile, stop = start // TILE, min(start + TILE, len(probabilities))
        part = slice(tile * size, (tile + 1) * size)
        rows = EventRows(
            tiles.first[tile], tiles.last[tile], tiles.event[part], tiles.code[part], tiles.length[part],
            tiles.row_sum[part], tiles.weight[part], own.scale, own.inputs, own.hidden, own.columns, own.output,
            own.sums,
        )  # fmt: skip
        mix(stop - start, rows, gate)
        for k in range(stop - start):
            event = rows.sums[1, k] > 0.0
            probabilities[start + k] = rows.sums[0, k] / rows.sums[1, k] if event else 0.0


# ---------------------------------------------------------------------------------------------
# word by word: the rows of all members are found, then the gate weighs them, then their links are read


@kernel
def weigh_members(events, addresses, address, denominators, factors):
    """Weigh the rows that `find` left in the members' records, by the gate of the record at `address`.

    Fills the members' factors, denominators[c] of each state, and factors[m, c] of members that are one row, whose
    templates come last. addresses: of the members' records, (members,) int64
    """
    joint, offset, i = carray(pointer(address), (1,), BEAM_RECORD)[0], np.int64(0), np.int64(0)
    rows, _ = scratch_of(joint)
    gate = model_of(joint, np.uint32, np.uint32, np.uint8)[1]
    for m in range(len(addresses)):
        own, _ = scratch_of(carray(pointer(addresses[m]), (1,), BEAM_RECORD)[0])
        for q in range(len(own.first)):
            rows.first[offset + q] = i
            for j in range(own.first[q], own.last[q]):
                i = add_row(rows, i, own.event[j], own.code[j], own.length[j], own.row_sum[j], np.float32(0.0))
            rows.last[offset + q] = i
        offset += len(own.first)
    for q in range(offset, offset + len(factors)):
        rows.first[q] = i
        for c in range(events):
            i = add_row(rows, i, c, _ZERO, _ONE, _ONE, _ZERO)
        rows.last[q] = i
    mix(events, rows, gate)
    offset = np.int64(0)
    for m in range(len(addresses)):
        own, beam = scratch_of(carray(pointer(addresses[m]), (1,), BEAM_RECORD)[0])
        for q in range(len(own.first)):
            for j in range(rows.first[offset + q], rows.last[offset + q]):
                beam.scale[q, rows.event[j]] = rows.scale[j]
        offset += len(own.first)
    for m in range(len(factors)):
        for j in range(rows.first[offset + m], rows.last[offset + m]):
            factors[m, rows.event[j]] = rows.scale[j]
    for c in range(events):
        denominators[c] = rows.sums[1, c]


@cache
def member_kernels(*type_names):
    """(`find`, `add`) for members whose starts, long links and singles have these dtypes. See `beams.kernels_of`."""
    starts_type, link_type, code_type = (np.dtype(name).type for name in type_names)

    @kernel_for([types.void(STATES, types.int64)])
    def find(states, address):
        """Find the rows of at most TILE states, and leave them in the record at `address`."""
        record = carray(pointer(address), (1,), BEAM_RECORD)[0]
        matrix, _, templates, classes, _ = model_of(record, starts_type, link_type, code_type)
        rows, beam = scratch_of(record)
        for c in range(len(states)):
            beam.members[c] = c
        find_states(
            len(states), states, np.uint32(record.tag), matrix, templates, classes, record.hash_mask, rows, beam
        )

    @kernel_for([types.void(types.uint32[:, ::1], types.int64, SCORES)])
    def add(words, address, weights):
        """weights[c, i]: the weighed sum of M of words[c, i] over the rows of state c; one row of words is for all."""
        record = carray(pointer(address), (1,), BEAM_RECORD)[0]
        matrix = model_of(record, starts_type, link_type, code_type)[0]
        _, beam = scratch_of(record)
        share_rows(len(weights), len(words) == 1, beam)
        for start in range(0, weights.shape[1], TILE):
            stop = min(start + TILE, weights.shape[1])
            prefetch_words(len(weights), words, start, stop, matrix, beam)
            add_words(len(weights), words, start, stop, matrix, beam, weights)

    return find, add
