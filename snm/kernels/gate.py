"""The gate at scoring time. See snm.calibration."""

from typing import NamedTuple

import numpy as np

from snm.kernels.compile import helper, kernel, sum_helper
from snm.kernels.fastmath import exp_float32, log_float32
from snm.kernels.simd import TILE, add_products, rectify, sum_columns
from snm.layouts.gate import INPUTS, LANES, MAX_GATE, SCALE, log_of_code

_LOG_OF_STEP = log_of_code()[1]  # of a count: what one more in its code adds to its logarithm
FEW = 6  # events whose rows the gate answers for one by one
_SCALE, _ZERO, _ONE, _MAX_GATE = (np.float32(x) for x in (SCALE, 0.0, 1.0, MAX_GATE))


class EventRows(NamedTuple):
    """The rows of at most TILE events, slot after slot: of slot q those from first[q] to last[q], in any order."""

    first: np.ndarray  # (slots,) int64
    last: np.ndarray  # (slots,) int64
    # (slots * TILE,)
    event: np.ndarray  # uint64: whose
    code: np.ndarray  # float32: of C_i*
    length: np.ndarray  # float32: number of links
    row_sum: np.ndarray  # float32
    weight: np.ndarray  # float32: M of the event's word, 0 where the row has no such link
    scale: np.ndarray  # float32: what the gate multiplies it by; 1 without a gate
    # working memory of the gate
    inputs: np.ndarray  # (3, slots * TILE)
    hidden: np.ndarray  # (TILE, units)
    columns: np.ndarray  # (units, TILE)
    output: np.ndarray  # (TILE,)
    sums: np.ndarray  # (2, TILE) float64: gated weights of the links, gated sums of the rows


@kernel
def make_rows(slots, units):
    shape = slots * TILE
    return EventRows(
        np.empty(slots, np.int64), np.empty(slots, np.int64), np.empty(shape, np.uint64), np.empty(shape, np.float32),
        np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.float32),
        np.ones(shape, np.float32), np.empty((3, shape), np.float32), np.empty((TILE, units), np.float32),
        np.empty((units, TILE), np.float32), np.empty(TILE, np.float32), np.empty((2, TILE), np.float64),
    )  # fmt: skip


@helper
def add_row(rows, i, event, code, length, row_sum, weight):
    """Row i. Returns where the next one goes: one with a sum of 0 is none."""
    rows.event[i] = event
    rows.code[i] = code
    rows.length[i] = length
    rows.row_sum[i] = row_sum
    rows.weight[i] = weight
    return i + np.int64(row_sum > _ZERO)


@helper
def add_unigram(rows, i, event, word, pages):
    """The empty feature's row."""
    return add_row(rows, i, event, pages.unigram_code, pages.unigram_links, pages.unigram_sum, pages.unigrams[word])


@helper
def clear(rows):
    for q in range(len(rows.first)):
        rows.first[q] = rows.last[q] = 0


@helper
def lanes(n):
    return -(-n // LANES) * LANES


@helper
def weigh(events, rows, gate):
    """rows.scale: the gate's weight of every row."""
    total = np.int64(0)
    for q in range(len(rows.last)):
        total = max(total, rows.last[q])
    add_inputs(events, total, rows, gate)
    if events <= FEW:
        answer_few(events, rows, gate)
    else:
        answer_many(events, rows, gate)
    for i in range(lanes(total)):
        rows.scale[i] = exp_float32(max(min(rows.scale[i], _MAX_GATE), -_MAX_GATE))


@sum_helper
def add_inputs(events, total, rows, gate):
    """rows.hidden: what the rows of every event add up to. The inputs of slot 0, always the same, are part of the bias.

    LANES numbers are worked on together, whether all of them are in use or not.
    """
    units, part = len(gate.bias), slice(rows.last[0] // LANES * LANES, lanes(total))
    for i in range(total, lanes(total)):
        rows.code[i], rows.length[i], rows.row_sum[i] = _ZERO, _ONE, _ONE
    code, length, row_sum = rows.code[part], rows.length[part], rows.row_sum[part]
    of_code, of_length, of_sum = rows.inputs[0][part], rows.inputs[1][part], rows.inputs[2][part]
    for i in range(len(code)):
        of_code[i] = code[i] * _LOG_OF_STEP
    for i in range(len(code)):
        of_length[i] = _SCALE * log_float32(length[i]) - of_code[i]
    for i in range(len(code)):
        of_sum[i] = _SCALE * log_float32(row_sum[i])
    for k in range(events):
        for u in range(units):
            rows.hidden[k, u] = gate.bias[u]
    weights = gate.hidden.reshape((INPUTS * len(rows.last), units))
    for q in range(1, len(rows.last)):
        add_products(rows.hidden, rows.event, rows.first[q], rows.last[q], weights, INPUTS * q, rows.inputs, units)


@sum_helper
def answer_few(events, rows, gate):
    """rows.scale: its logarithm, row by row."""
    units, hidden = len(gate.bias), rows.hidden
    for k in range(events):
        for u in range(units):
            hidden[k, u] = max(hidden[k, u], _ZERO)
    for q in range(len(rows.last)):
        for i in range(rows.first[q], rows.last[q]):
            event, answer = rows.event[i], gate.offset[q]
            for u in range(units):
                answer += hidden[event, u] * gate.output[q, u]
            rows.scale[i] = answer


@helper
def answer_many(events, rows, gate):
    """The same, slot by slot, of all events, so that a slot's weights are fetched once."""
    units = len(gate.bias)
    rectify(rows.hidden, rows.columns, units, events)
    for q in range(len(rows.last)):
        if rows.first[q] == rows.last[q]:
            continue
        if events <= LANES:
            sum_columns(rows.output, rows.columns, gate.output, q, gate.offset[q], units, LANES)
        else:
            sum_columns(rows.output, rows.columns, gate.output, q, gate.offset[q], units, TILE)
        for i in range(rows.first[q], rows.last[q]):
            rows.scale[i] = rows.output[rows.event[i]]


@helper
def mix(events, rows, gate):
    """rows.sums of every event: gated weights of the links, and gated sums of the rows; their ratio is P."""
    if len(gate.bias):
        weigh(events, rows, gate)
    numerator, denominator = rows.sums[0], rows.sums[1]
    for k in range(events):
        numerator[k] = denominator[k] = 0.0
    for q in range(len(rows.last)):
        for i in range(rows.first[q], rows.last[q]):
            event, scale = rows.event[i], np.float64(rows.scale[i])
            numerator[event] += scale * rows.weight[i]
            denominator[event] += scale * rows.row_sum[i]
