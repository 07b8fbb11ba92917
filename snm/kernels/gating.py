"""The gate at scoring time. See snm.calibration."""

import math

import numpy as np
from numba import njit

from snm.calibration import LARGEST, SCALE, log_of_code
from snm.kernels.hashing import helper, summing_helper
from snm.kernels.memory import as_bits, as_float
from snm.kernels.pages import TOGETHER, look_up, make_found

_LOG_OF_CODE = log_of_code()
_SCALE, _ZERO = np.float32(SCALE), np.float32(0.0)
_LN2 = np.float32(math.log(2))
# of a float32 in [1, 2): the logarithm at 256 points, and one over those points
_POINTS = 1 + np.arange(256) / 256
_LOG_OF_POINT, _ONE_OVER_POINT = np.log(_POINTS).astype(np.float32), (1 / _POINTS).astype(np.float32)


@helper
def log_of(x):
    """The logarithm of a float32 above zero, to its precision, without a call of the library's."""
    bits = as_bits(x)
    exponent = np.float32(np.int64(bits >> np.uint32(23)) - 127)
    point = (bits >> np.uint32(15)) & np.uint32(255)
    fraction = as_float((bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000))
    rest = fraction * _ONE_OVER_POINT[point] - np.float32(1.0)
    return exponent * _LN2 + (_LOG_OF_POINT[point] + rest * (np.float32(1.0) - np.float32(0.5) * rest))


@summing_helper
def weigh_slots(k, found, gate, hidden, scale):
    """scale[q]: the gate's weight of every slot of event k, 0 where there is no row.

    Only slots with a row are looked at: the inputs of the others are zero, and those of slot 0 part of the bias.
    """
    units = len(gate.bias)
    for u in range(units):
        hidden[u] = gate.bias[u]
    for q in range(1, len(scale)):
        if found.row_sum[q, k] > _ZERO:
            x0 = _LOG_OF_CODE[found.code[q, k]]
            x1 = _SCALE * log_of(found.length[q, k]) - x0
            x2 = _SCALE * log_of(found.row_sum[q, k])
            w0, w1, w2, w3 = gate.hidden[q, 0], gate.hidden[q, 1], gate.hidden[q, 2], gate.hidden[q, 3]
            for u in range(units):
                hidden[u] += x0 * w0[u] + x1 * w1[u] + x2 * w2[u] + w3[u]
    for u in range(units):
        hidden[u] = max(hidden[u], _ZERO)
    for q in range(len(scale)):
        scale[q] = _ZERO
        if found.row_sum[q, k] > _ZERO:
            b, w = gate.offset[q], gate.output[q]
            for u in range(units):
                b += hidden[u] * w[u]
            scale[q] = math.exp(max(min(b, np.float32(LARGEST)), np.float32(-LARGEST)))


@helper
def probability_of(k, found, gate, hidden, scale):
    """Of the word of event k: gated weights of the links over gated sums of the rows. `scale` is 1 without a gate."""
    if len(gate.bias):
        weigh_slots(k, found, gate, hidden, scale)
    numerator = denominator = 0.0
    for q in range(len(scale)):
        numerator += np.float64(scale[q]) * found.weight[q, k]
        denominator += np.float64(scale[q]) * found.row_sum[q, k]
    return numerator / denominator


@njit(nogil=True, cache=True)
def gate_events(found, gate, scale):
    """scale[event, slot]: the weight by a folded gate of each row that was found, 0 where there is none."""
    hidden = np.empty(len(gate.bias), np.float32)
    for k in range(len(scale)):
        weigh_slots(k, found, gate, hidden, scale[k])


@njit(nogil=True, cache=True)
def score(keys, words, pages, gate, probabilities):
    """probabilities[event]: gated weights of the links over gated sums of the rows; 0 where there is no event."""
    slots, n = keys.shape
    found = make_found(slots, TOGETHER)
    alive = np.empty((TOGETHER, 2), np.int64)
    long_rows = np.empty((slots * TOGETHER, 4), np.int64)
    hidden, scale = np.empty(len(gate.bias), np.float32), np.ones(slots, np.float32)
    for start in range(0, n, TOGETHER):
        stop = min(start + TOGETHER, n)
        look_up(keys, words, start, stop, start, pages, found, alive, long_rows)
        for k in range(stop - start):
            probabilities[start + k] = 0.0
            if found.row_sum[0, k] == _ZERO:
                continue
            probabilities[start + k] = probability_of(k, found, gate, hidden, scale)
