"""The gate at scoring time. See snm.calibration."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from snm.calibration import INPUTS, LARGEST, SCALE, log_of_code
from snm.kernels.hashing import helper, summing_helper
from snm.kernels.memory import as_bits, as_float
from snm.kernels.pages import TOGETHER, look_up, make_found, make_work
from snm.kernels.vectors import add_products, sum_products

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


@summing_helper
def weigh(n, found, gate, inputs, hidden, scale):
    """scale[q, k]: the gate's weight of every slot of n events, 0 where there is no row.

    Slot by slot, so that a slot's weights are fetched once for all events. Slots without a row are passed over: their
    inputs are zero. Those of slot 0 are part of the bias.
    """
    units = len(gate.bias)
    weights = gate.hidden.reshape((INPUTS * len(scale), units))
    for k in range(n):
        for u in range(units):
            hidden[k, u] = gate.bias[u]
    for q in range(1, len(scale)):
        row_sum, length, code = found.row_sum[q], found.length[q], found.code[q]
        for k in range(n):
            inputs[0, k] = np.float32(code[k]) * _LOG_OF_STEP
            inputs[1, k] = _SCALE * log_of(length[k]) - inputs[0, k]
            inputs[2, k] = _SCALE * log_of(row_sum[k])
        for k in range(n):
            if row_sum[k] > _ZERO:
                add_products(hidden, k, weights, INPUTS * q, inputs[0, k], inputs[1, k], inputs[2, k], units)
    for k in range(n):
        for u in range(units):
            hidden[k, u] = max(hidden[k, u], _ZERO)
    for q in range(len(scale)):
        row_sum = found.row_sum[q]
        for k in range(n):
            if row_sum[k] > _ZERO:
                scale[q, k] = gate.offset[q] + sum_products(hidden, k, gate.output, q, units)
        for k in range(n):
            weight = exp_of(max(min(scale[q, k], _LARGEST), -_LARGEST))
            scale[q, k] = weight if row_sum[k] > _ZERO else _ZERO


class Mixed(NamedTuple):
    """Working memory of `mix` for a number of events."""

    inputs: np.ndarray  # (3, events)
    hidden: np.ndarray  # (events, units)
    scale: np.ndarray  # (slots, events): what the gate multiplies each row by; 1 without a gate
    sums: np.ndarray  # (2, events): gated weights of the links, gated sums of the rows


@njit(nogil=True, cache=True)
def make_mixed(slots, events, units):
    return Mixed(
        np.empty((3, events), np.float32), np.empty((events, units), np.float32),
        np.ones((slots, events), np.float32), np.empty((2, events), np.float64),
    )  # fmt: skip


@helper
def mix(n, found, gate, mixed):
    """mixed.sums of n events: gated weights of the links, and gated sums of the rows; their ratio is P."""
    scale, numerator, denominator = mixed.scale, mixed.sums[0], mixed.sums[1]
    if len(gate.bias):
        weigh(n, found, gate, mixed.inputs, mixed.hidden, scale)
    for k in range(n):
        numerator[k] = denominator[k] = 0.0
    for q in range(len(scale)):
        for k in range(n):
            numerator[k] += np.float64(scale[q, k]) * found.weight[q, k]
            denominator[k] += np.float64(scale[q, k]) * found.row_sum[q, k]


@njit(nogil=True, cache=True)
def gate_events(found, gate, scale):
    """scale[slot, event]: the weight by a folded gate of each row that was found, 0 where there is none."""
    n = scale.shape[1]
    weigh(n, found, gate, np.empty((3, n), np.float32), np.empty((n, len(gate.bias)), np.float32), scale)


@njit(nogil=True, cache=True)
def score(keys, words, pages, gate, probabilities):
    """probabilities[event]: gated weights of the links over gated sums of the rows; 0 where there is no event."""
    slots, n = keys.shape
    found, work = make_found(slots, TOGETHER), make_work(slots, TOGETHER)
    mixed = make_mixed(slots, TOGETHER, len(gate.bias))
    for start in range(0, n, TOGETHER):
        stop = min(start + TOGETHER, n)
        look_up(keys, words, start, stop, start, pages, found, work)
        mix(stop - start, found, gate, mixed)
        for k in range(stop - start):
            event = found.row_sum[0, k] > _ZERO
            probabilities[start + k] = mixed.sums[0, k] / mixed.sums[1, k] if event else 0.0
