"""The gate at scoring time. See snm.calibration."""

import math

import numpy as np
from numba import njit

from snm.calibration import LARGEST, SCALE, log_of_code
from snm.kernels.hashing import helper
from snm.kernels.pages import find

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
def gate_events(found, gate, scale):
    """scale[event, slot]: the gate's weight of each row that was found, 0 where there is none."""
    hidden = np.empty(len(gate.bias), np.float32)
    for k in range(len(scale)):
        weigh_slots(k, found.code, found.length, found.row_sum, gate, hidden, scale[k])


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def score(keys, words, pages, gate, probabilities):
    """probabilities[event]: gated weights of the links over gated sums of the rows; 0 where there is no event."""
    slots, n = keys.shape
    found = find(keys, words, pages)
    hidden, scale = np.empty(len(gate.bias), np.float32), np.ones(slots, np.float64)
    for k in range(n):
        probabilities[k] = 0.0
        if found.row_sum[0, k] == 0.0:
            continue
        if len(gate.bias):
            weigh_slots(k, found.code, found.length, found.row_sum, gate, hidden, scale)
        numerator = denominator = 0.0
        for q in range(slots):
            numerator += scale[q] * found.weight[q, k]
            denominator += scale[q] * found.row_sum[q, k]
        probabilities[k] = numerator / denominator
