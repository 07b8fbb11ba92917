"""The gate at scoring time. See snm.calibration."""

import math

import numpy as np
from numba import njit

from snm.calibration import LARGEST, SCALE, log_of_code
from snm.kernels.hashing import helper
from snm.kernels.lookup import find_column

_LOG_OF_CODE = log_of_code()
_SCALE = np.float32(SCALE)


@helper
def weigh_slots(k, code, length, row_sum, gate, hidden, scale):
    """scale[q]: the gate's weight of every slot of event k, 0 where there is no row. Arrays are (slots, events).

    Only slots with a row are looked at: the inputs of the others are zero.
    """
    for u in range(len(hidden)):
        hidden[u] = gate.bias[u]
    for q in range(len(scale)):
        if row_sum[q, k] > 0.0:
            x0 = _LOG_OF_CODE[code[q, k]]
            x1 = _SCALE * np.float32(math.log(length[q, k])) - x0
            x2 = _SCALE * np.float32(math.log(row_sum[q, k]))
            for u in range(len(hidden)):
                hidden[u] += (
                    x0 * gate.hidden[q, 0, u] + x1 * gate.hidden[q, 1, u] + x2 * gate.hidden[q, 2, u]
                    + gate.hidden[q, 3, u]
                )  # fmt: skip
    for u in range(len(hidden)):
        hidden[u] = max(hidden[u], np.float32(0.0))
    for q in range(len(scale)):
        scale[q] = 0.0
        if row_sum[q, k] > 0.0:
            b = gate.offset[q]
            for u in range(len(hidden)):
                b += hidden[u] * gate.output[q, u]
            scale[q] = math.exp(max(min(b, LARGEST), -LARGEST))


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def gate_rows(rows, codes, offsets, sums, gate, scale):
    """scale[event, slot]: the gate's weight of each row, 0 where the row is -1. rows: (events, slots)"""
    slots = rows.shape[1]
    code, length = np.zeros((slots, 1), np.uint8), np.ones((slots, 1), np.float32)
    row_sum = np.zeros((slots, 1), np.float32)
    hidden = np.empty(len(gate.bias), np.float32)
    for k in range(rows.shape[0]):
        for q in range(slots):
            row = rows[k, q]
            row_sum[q, 0] = sums[row] if row >= 0 else 0.0
            if row >= 0:
                code[q, 0] = codes[row]
                length[q, 0] = offsets[row + 1] - offsets[row]
        weigh_slots(0, code, length, row_sum, gate, hidden, scale[k])


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def score(keys, words, index, codes, sums, offsets, targets, weights, gate, probabilities):
    """probabilities[event]: gated weights of the links over gated sums of the rows; 0 where there is no event."""
    slots, n = keys.shape
    rows, links = np.empty(n, np.int64), np.empty(n, np.int64)
    code, length = np.empty((slots, n), np.uint8), np.empty((slots, n), np.float32)
    row_sum, weight = np.zeros((slots, n), np.float32), np.zeros((slots, n), np.float32)
    loaded = np.uint64(0)
    for q in range(slots):
        loaded += find_column(keys[q], words, index, offsets, targets, rows, links)
        for k in range(n):
            if rows[k] >= 0:
                row_sum[q, k] = sums[rows[k]]
        for k in range(n):
            if rows[k] >= 0:
                code[q, k] = codes[rows[k]]
                length[q, k] = offsets[rows[k] + 1] - offsets[rows[k]]
        for k in range(n):
            if links[k] >= 0:
                weight[q, k] = weights[links[k]]
    hidden, scale = np.empty(len(gate.bias), np.float32), np.empty(slots, np.float64)
    for k in range(n):
        probabilities[k] = 0.0
        if row_sum[0, k] == 0.0:
            continue
        weigh_slots(k, code, length, row_sum, gate, hidden, scale)
        numerator = denominator = 0.0
        for q in range(slots):
            numerator += scale[q] * weight[q, k]
            denominator += scale[q] * row_sum[q, k]
        probabilities[k] = numerator / denominator
    return loaded
