"""Steps of a recurrent layer: its memory after each word. See `snm.baselines.neural.layer`.

A tile of the recurrent weights has all gates of some units, so the sums of a tile become new hidden states while they
are in the first cache. Units are padded to whole tiles.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.fastmath import exp_float32
from snm.kernels.products import LANES, OUTPUTS, ROWS, VECTORS, multiply_rows, number_rows, quantise_row
from snm.kernels.simd import prefetch

GATES = 4  # of an LSTM: input, forget, new, output
LSTM_UNITS = OUTPUTS // GATES  # of a tile
assert LSTM_UNITS == LANES
_ONE, _TWO, _LIMIT = np.float32(1.0), np.float32(2.0), np.float32(40.0)


@helper
def sigmoid(x):
    return _ONE / (_ONE + exp_float32(-max(min(x, _LIMIT), -_LIMIT)))


@helper
def tanh(x):
    return _TWO * sigmoid(_TWO * x) - _ONE


@helper
def lstm_units(sums, scale, scales, inputs, hidden, cells):
    """Replace the memory of a tile's units."""
    for u in range(LANES):
        enter = sigmoid(np.float32(sums[u]) * (scale * scales[u]) + inputs[u])
        f, n, o = u + LANES, u + 2 * LANES, u + 3 * LANES
        forget = sigmoid(np.float32(sums[f]) * (scale * scales[f]) + inputs[f])
        new = tanh(np.float32(sums[n]) * (scale * scales[n]) + inputs[n])
        leave = sigmoid(np.float32(sums[o]) * (scale * scales[o]) + inputs[o])
        c = forget * cells[u] + enter * new
        cells[u] = c
        hidden[u] = leave * tanh(c)


@helper
def elman_units(sums, scale, scales, inputs, hidden):
    for u in range(OUTPUTS):
        hidden[u] = tanh(np.float32(sums[u]) * (scale * scales[u]) + inputs[u])


@helper
def take_step(n, inputs, input_of, weights, weight_scales, rows, scales, which, sums, hidden, cells):
    """Replace the memory of the first n rows. input_of[k]: the row of `inputs` of the word that row k takes.

    rows, scales: the hidden states as integers. Without cells, (0, 0), the layer is Elman's.
    """
    lstm = cells.shape[1] > 0
    units, lines = LSTM_UNITS if lstm else OUTPUTS, inputs.reshape((inputs.size // LANES, LANES))
    for tile in range(len(weights)):
        own, outputs = slice(tile * units, (tile + 1) * units), slice(tile * OUTPUTS, (tile + 1) * OUTPUTS)
        of_weights = weight_scales[outputs]
        for first in range(0, n, ROWS):
            count = min(ROWS, n - first)
            multiply_rows(rows, which, first, count, weights, tile, sums)
            for i in range(count):
                k = first + i
                for v in range(VECTORS):  # of the next tile: a fifth of the time would be spent waiting for them
                    prefetch(lines, (input_of[k] * len(weights) + tile + 1) * VECTORS + v)
                x = inputs[input_of[k], outputs]
                if lstm:
                    lstm_units(sums[i], scales[k], of_weights, x, hidden[k, own], cells[k, own])
                else:
                    elman_units(sums[i], scales[k], of_weights, x, hidden[k, own])
    inputs_used = rows.shape[1]
    for k in range(n):
        scales[k] = quantise_row(hidden[k, :inputs_used], rows[k])


@kernel
def step(inputs, input_of, weights, weight_scales, rows, scales, hidden, cells):
    """Replace the memory of all rows, see `take_step`."""
    n = len(rows)
    which, sums = np.empty(n + ROWS, np.int64), np.empty((ROWS, OUTPUTS), np.int32)
    number_rows(which, n)
    take_step(n, inputs, input_of, weights, weight_scales, rows, scales, which, sums, hidden, cells)


@kernel
def run(begins, lengths, inputs, input_of_token, weights, weight_scales, pairs, cells_width, states):
    """Fill states[k], the hidden state before token k, of sentences: the longest first. 0 before `<S>`.

    input_of_token: the row of `inputs` of each token. pairs: of inputs of a tile. states: (tokens, hidden)
    """
    n, units = len(begins), states.shape[1]
    width = weight_scales.size // (GATES if cells_width else 1)
    rows, scales = np.zeros((n, 2 * pairs), np.int16), np.zeros(n, np.float32)
    hidden, cells = np.zeros((n, width), np.float32), np.zeros((n, cells_width), np.float32)
    which, input_of = np.empty(n + ROWS, np.int64), np.empty(n, np.int64)
    sums = np.empty((ROWS, OUTPUTS), np.int32)
    number_rows(which, n)
    for k in range(n):
        states[begins[k]] = 0
    active = n
    for t in range(lengths[0] - 1):
        while lengths[active - 1] < t + 2:
            active -= 1
        for k in range(active):
            input_of[k] = input_of_token[begins[k] + t]
        take_step(active, inputs, input_of, weights, weight_scales, rows, scales, which, sums, hidden, cells)
        for k in range(active):
            states[begins[k] + t + 1] = hidden[k, :units]
