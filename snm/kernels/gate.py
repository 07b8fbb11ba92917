"""The gate at scoring time, see `snm.layouts.gate`: B of the rows of up to TILE events, and their gated sums."""

from typing import NamedTuple

import numpy as np

from snm.kernels.compile import helper, kernel, sum_helper
from snm.kernels.fastmath import exp_float32, log_float32
from snm.kernels.simd import TILE, add_products, rectify, sum_columns
from snm.layouts.gate import INPUTS, LANES, MAX_GATE, SCALE, log_of_code

_LOG_PER_CODE = log_of_code()[1]  # what one more in a count code adds to the logarithm
MAX_FEW = 6  # events up to which the output layer is computed row by row
_SCALE, _ZERO, _ONE, _MAX_GATE = (np.float32(x) for x in (SCALE, 0.0, 1.0, MAX_GATE))


class EventRows(NamedTuple):
    """The rows of at most TILE events. Those of template q are [first[q], last[q]), in any order."""

    first: np.ndarray  # (templates,) int64
    last: np.ndarray  # (templates,) int64
    # (templates * TILE,)
    event: np.ndarray  # uint64
    code: np.ndarray  # float32: count code
    length: np.ndarray  # float32: number of links
    row_sum: np.ndarray  # float32
    weight: np.ndarray  # float32: M of the event's target, 0 where the row has no such link
    scale: np.ndarray  # float32: exp(B); 1 without a gate
    # scratch memory of the gate
    inputs: np.ndarray  # (3, templates * TILE) float32
    hidden: np.ndarray  # (TILE, units) float32
    columns: np.ndarray  # (units, TILE) float32
    output: np.ndarray  # (TILE,) float32
    sums: np.ndarray  # (2, TILE) float64: gated weights of the links, gated row sums


def make_rows(templates: int, units: int) -> EventRows:
    """Not a kernel: making thirteen arrays takes a second to compile."""
    n = templates * TILE
    return EventRows(
        np.empty(templates, np.int64), np.empty(templates, np.int64), np.empty(n, np.uint64), np.empty(n, np.float32),
        np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32), np.ones(n, np.float32),
        np.empty((3, n), np.float32), np.empty((TILE, units), np.float32), np.empty((units, TILE), np.float32),
        np.empty(TILE, np.float32), np.empty((2, TILE), np.float64),
    )  # fmt: skip


make_own_rows = kernel(make_rows)
"""For a kernel that scores many events: LLVM knows that nothing else refers to its arrays."""


@helper
def add_row(rows, i, event, code, length, row_sum, weight):
    """Write row i; return where the next one goes. A row with a sum of 0 is overwritten."""
    rows.event[i] = event
    rows.code[i] = code
    rows.length[i] = length
    rows.row_sum[i] = row_sum
    rows.weight[i] = weight
    return i + np.int64(row_sum > _ZERO)


@helper
def add_unigram(rows, i, event, word, matrix):
    """Write the empty feature's row."""
    return add_row(rows, i, event, matrix.unigram_code, matrix.unigram_links, matrix.unigram_sum, matrix.unigrams[word])


@helper
def clear(rows):
    for q in range(len(rows.first)):
        rows.first[q] = rows.last[q] = 0


@helper
def whole_lanes(n):
    return -(-n // LANES) * LANES


@helper
def compute_gate(events, rows, gate):
    """Fill in rows.scale."""
    n_rows = np.int64(0)
    for q in range(len(rows.last)):
        n_rows = max(n_rows, rows.last[q])
    add_inputs(events, n_rows, rows, gate)
    if events <= MAX_FEW:
        output_by_row(events, rows, gate)
    else:
        output_by_template(events, rows, gate)
    for i in range(whole_lanes(n_rows)):
        rows.scale[i] = exp_float32(max(min(rows.scale[i], _MAX_GATE), -_MAX_GATE))


@sum_helper
def add_inputs(events, n_rows, rows, gate):
    """Fill in rows.hidden, the sums of the hidden layer. The inputs of template 0, always the same, are in the bias.

    All lanes of the last vector are computed, used or not.
    """
    units, part = len(gate.bias), slice(rows.last[0] // LANES * LANES, whole_lanes(n_rows))
    for i in range(n_rows, whole_lanes(n_rows)):
        rows.code[i], rows.length[i], rows.row_sum[i] = _ZERO, _ONE, _ONE
    code, length, row_sum = rows.code[part], rows.length[part], rows.row_sum[part]
    of_code, of_length, of_sum = rows.inputs[0][part], rows.inputs[1][part], rows.inputs[2][part]
    for i in range(len(code)):
        of_code[i] = code[i] * _LOG_PER_CODE
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
def output_by_row(events, rows, gate):
    """Fill rows.scale with B, row by row."""
    units, hidden = len(gate.bias), rows.hidden
    for k in range(events):
        for u in range(units):
            hidden[k, u] = max(hidden[k, u], _ZERO)
    for q in range(len(rows.last)):
        for i in range(rows.first[q], rows.last[q]):
            event, b = rows.event[i], gate.offset[q]
            for u in range(units):
                b += hidden[event, u] * gate.output[q, u]
            rows.scale[i] = b


@helper
def output_by_template(events, rows, gate):
    """The same by templates, for all events at once, so that a template's weights are loaded once."""
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
    """Fill in rows.sums: gated weights of the links, and gated row sums; P is their ratio."""
    if len(gate.bias):
        compute_gate(events, rows, gate)
    numerator, denominator = rows.sums[0], rows.sums[1]
    for k in range(events):
        numerator[k] = denominator[k] = 0.0
    for q in range(len(rows.last)):
        for i in range(rows.first[q], rows.last[q]):
            event, scale = rows.event[i], np.float64(rows.scale[i])
            numerator[event] += scale * rows.weight[i]
            denominator[event] += scale * rows.row_sum[i]
