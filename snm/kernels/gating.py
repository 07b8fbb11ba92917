"""The gate at scoring time. See snm.calibration."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from snm.calibration import INPUTS, LANES, LARGEST, SCALE, log_of_code
from snm.kernels.hashing import helper, summing_helper
from snm.kernels.memory import as_bits, as_float
from snm.kernels.vectors import TOGETHER, add_products, rectify, sum_columns

_LOG_OF_STEP = log_of_code()[1]  # of a count: what one more in its code adds to its logarithm
FEW = 6  # events whose rows the gate answers for one by one
_SCALE, _ZERO = np.float32(SCALE), np.float32(0.0)
_LN2, _LOG2_E, _LARGEST = np.float32(math.log(2)), np.float32(1 / math.log(2)), np.float32(LARGEST)
_ONE, _S2, _S3, _S4, _S5, _S6 = (np.float32(1 / math.factorial(n)) for n in range(1, 7))
_ROOT_HALF = np.float32(math.sqrt(0.5))
_L = tuple(
    np.float32(c)
    for c in (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
        -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )
)  # fmt: skip


@helper
def log_of(x):
    """The logarithm of a float32 above zero, to its precision, in a way that LLVM takes many at a time.

    With m 2^e = x and m between the root of 1/2 and that of 2, a series for log(m): the Cephes library's.
    """
    bits = as_bits(x)
    m = as_float((bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F000000))
    small = m < _ROOT_HALF
    e = np.float32(np.int32(bits >> np.uint32(23)) - np.int32(126)) - (_ONE if small else _ZERO)
    r = m + m - _ONE if small else m - _ONE
    series = _L[0]
    for i in range(1, 9):
        series = series * r + _L[i]
    return e * _LN2 + (r + r * r * (r * series - np.float32(0.5)))


@helper
def exp_of(x):
    """exp(x) of a float32 between -LARGEST and LARGEST, to its precision, likewise."""
    scaled = x * _LOG2_E
    whole = np.int32(scaled + np.float32(127.5)) - np.int32(127)
    r = (scaled - np.float32(whole)) * _LN2
    series = _S6
    for factor in (_S5, _S4, _S3, _S2, _ONE, _ONE):
        series = series * r + factor
    return series * as_float(np.uint32(whole + np.int32(127)) << np.uint32(23))


class Rows(NamedTuple):
    """The rows of at most TOGETHER events, slot after slot: of slot q those from first[q] to last[q], in any order."""

    first: np.ndarray  # (slots,) int64
    last: np.ndarray  # (slots,) int64
    # (slots * TOGETHER,)
    event: np.ndarray  # uint64: whose
    code: np.ndarray  # float32: of C_i*
    length: np.ndarray  # float32: number of links
    row_sum: np.ndarray  # float32
    weight: np.ndarray  # float32: M of the event's word, 0 where the row has no such link
    scale: np.ndarray  # float32: what the gate multiplies it by; 1 without a gate
    # working memory of the gate
    inputs: np.ndarray  # (3, slots * TOGETHER)
    hidden: np.ndarray  # (TOGETHER, units)
    columns: np.ndarray  # (units, TOGETHER)
    output: np.ndarray  # (TOGETHER,)
    sums: np.ndarray  # (2, TOGETHER) float64: gated weights of the links, gated sums of the rows


@njit(nogil=True, cache=True)
def make_rows(slots, units):
    shape = slots * TOGETHER
    return Rows(
        np.empty(slots, np.int64), np.empty(slots, np.int64), np.empty(shape, np.uint64), np.empty(shape, np.float32),
        np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.float32),
        np.ones(shape, np.float32), np.empty((3, shape), np.float32), np.empty((TOGETHER, units), np.float32),
        np.empty((units, TOGETHER), np.float32), np.empty(TOGETHER, np.float32), np.empty((2, TOGETHER), np.float64),
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
        rows.scale[i] = exp_of(max(min(rows.scale[i], _LARGEST), -_LARGEST))


@summing_helper
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
        of_length[i] = _SCALE * log_of(length[i]) - of_code[i]
    for i in range(len(code)):
        of_sum[i] = _SCALE * log_of(row_sum[i])
    for k in range(events):
        for u in range(units):
            rows.hidden[k, u] = gate.bias[u]
    weights = gate.hidden.reshape((INPUTS * len(rows.last), units))
    for q in range(1, len(rows.last)):
        add_products(rows.hidden, rows.event, rows.first[q], rows.last[q], weights, INPUTS * q, rows.inputs, units)


@summing_helper
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
            sum_columns(rows.output, rows.columns, gate.output, q, gate.offset[q], units, TOGETHER)
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
