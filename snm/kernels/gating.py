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
    """The rows of at most TOGETHER events: of every slot those that there are.

    All (slots * TOGETHER,), but for `number` and the gate's.
    """

    number: np.ndarray  # (slots,) int64: how many there are
    event: np.ndarray  # uint64: whose
    code: np.ndarray  # float32: of C_i*
    length: np.ndarray  # float32: number of links
    row_sum: np.ndarray  # float32
    weight: np.ndarray  # float32: M of the event's word, 0 where the row has no such link
    scale: np.ndarray  # float32: what the gate multiplies it by; 1 without a gate
    # working memory of the gate
    inputs: np.ndarray  # (3, TOGETHER)
    hidden: np.ndarray  # (TOGETHER, units)
    columns: np.ndarray  # (units, TOGETHER)
    output: np.ndarray  # (TOGETHER,)
    sums: np.ndarray  # (2, TOGETHER) float64: gated weights of the links, gated sums of the rows


@njit(nogil=True, cache=True)
def make_rows(slots, units):
    shape = slots * TOGETHER
    return Rows(
        np.empty(slots, np.int64), np.empty(shape, np.uint64), np.empty(shape, np.float32), np.empty(shape, np.float32),
        np.empty(shape, np.float32), np.empty(shape, np.float32), np.ones(shape, np.float32),
        np.empty((3, TOGETHER), np.float32), np.empty((TOGETHER, units), np.float32),
        np.empty((units, TOGETHER), np.float32), np.empty(TOGETHER, np.float32), np.empty((2, TOGETHER), np.float64),
    )  # fmt: skip


@helper
def add_row(rows, q, event, code, length, row_sum, weight):
    """One more row of slot q; one with a sum of 0 is none."""
    i = q * TOGETHER + rows.number[q]
    rows.event[i] = event
    rows.code[i] = code
    rows.length[i] = length
    rows.row_sum[i] = row_sum
    rows.weight[i] = weight
    rows.number[q] += np.int64(row_sum > _ZERO)


@helper
def clear(rows):
    for q in range(len(rows.number)):
        rows.number[q] = 0


@helper
def add_unigram(rows, event, word, pages):
    """The empty feature's row."""
    add_row(rows, 0, event, pages.unigram_code, pages.unigram_links, pages.unigram_sum, pages.unigrams[word])


@helper
def lanes(n):
    return -(-n // LANES) * LANES


@summing_helper
def weigh(events, rows, gate):
    """rows.scale: the gate's weight of every row.

    Slot by slot, so that a slot's weights are fetched once for all events. The inputs of slot 0 are part of the bias.
    LANES numbers are worked on together, whether all of them are in use or not.
    """
    units, slots = len(gate.bias), len(rows.number)
    weights = gate.hidden.reshape((INPUTS * slots, units))
    hidden, inputs = rows.hidden, rows.inputs
    for k in range(lanes(events)):
        for u in range(units):
            hidden[k, u] = _ZERO
    for q in range(1, slots):
        n, part = rows.number[q], slice(q * TOGETHER, (q + 1) * TOGETHER)
        code, length, row_sum = rows.code[part], rows.length[part], rows.row_sum[part]
        for i in range(n, lanes(n)):
            code[i], length[i], row_sum[i] = _ZERO, _ONE, _ONE
        for i in range(lanes(n)):
            inputs[0, i] = code[i] * _LOG_OF_STEP
            inputs[1, i] = _SCALE * log_of(length[i]) - inputs[0, i]
            inputs[2, i] = _SCALE * log_of(row_sum[i])
        add_products(hidden, rows.event[part], n, weights, INPUTS * q, inputs, units)
    rectify(hidden, gate.bias, rows.columns, units, events)
    for q in range(slots):
        n, part = rows.number[q], slice(q * TOGETHER, (q + 1) * TOGETHER)
        event, scale = rows.event[part], rows.scale[part]
        if n and events <= LANES:
            sum_columns(rows.output, rows.columns, gate.output, q, gate.offset[q], units, LANES)
        elif n:
            sum_columns(rows.output, rows.columns, gate.output, q, gate.offset[q], units, TOGETHER)
        for i in range(n):
            scale[i] = rows.output[event[i]]
        for i in range(lanes(n)):
            scale[i] = exp_of(max(min(scale[i], _LARGEST), -_LARGEST))


@helper
def mix(events, rows, gate):
    """rows.sums of every event: gated weights of the links, and gated sums of the rows; their ratio is P."""
    if len(gate.bias):
        weigh(events, rows, gate)
    numerator, denominator = rows.sums[0], rows.sums[1]
    for k in range(events):
        numerator[k] = denominator[k] = 0.0
    for q in range(len(rows.number)):
        for i in range(q * TOGETHER, q * TOGETHER + rows.number[q]):
            event, scale = rows.event[i], np.float64(rows.scale[i])
            numerator[event] += scale * rows.weight[i]
            denominator[event] += scale * rows.row_sum[i]
