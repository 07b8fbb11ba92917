"""One step of a recurrent layer: its memory from the sums of its gates. See `snm.baselines.neural.layer`."""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.fastmath import exp_float32

_ONE, _TWO, _LIMIT = np.float32(1.0), np.float32(2.0), np.float32(40.0)


@helper
def sigmoid(x):
    return _ONE / (_ONE + exp_float32(-max(min(x, _LIMIT), -_LIMIT)))


@helper
def tanh(x):
    return _TWO * sigmoid(_TWO * x) - _ONE


@kernel
def lstm_step(sums, inputs, rows, hidden, cells):
    """Replace memory: of row k from sums[k] + inputs[rows[k]], the input, forget, new and output gates in a row.

    sums: (rows, 4 * units), inputs: (events, 4 * units); hidden, cells: (rows, units). All float32
    """
    units = hidden.shape[1]
    for k in range(len(rows)):
        z, x, h, c = sums[k], inputs[rows[k]], hidden[k], cells[k]
        for u in range(units):
            enter, forget = sigmoid(z[u] + x[u]), sigmoid(z[units + u] + x[units + u])
            c[u] = forget * c[u] + enter * tanh(z[2 * units + u] + x[2 * units + u])
        for u in range(units):
            h[u] = sigmoid(z[3 * units + u] + x[3 * units + u]) * tanh(c[u])


@kernel
def elman_step(sums, inputs, rows, hidden):
    """The same for a layer without gates."""
    for k in range(len(rows)):
        z, x, h = sums[k], inputs[rows[k]], hidden[k]
        for u in range(len(h)):
            h[u] = tanh(z[u] + x[u])
