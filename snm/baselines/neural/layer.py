"""The recurrent layer of a network: its memory after each word."""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from snm.baselines.neural.products import Rows, Weights
from snm.kernels import recurrent as kernels
from snm.kernels.products import BLOCK, OUTPUTS
from snm.kernels.recurrent import GATES, LSTM_UNITS


class RecurrentLayer:
    """An Elman or LSTM layer.

    Its memory is the hidden states and, of an LSTM, the cells. (rows, hidden) float32 each
    """

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.hidden, self.lstm, self.arrays = shape["hidden"], shape["cell"] == "lstm", arrays
        self.vectors, self.edges = word_vectors(arrays)
        self.places = arrays.get("places")  # the rows of words; without, their ids
        self._order = self._outputs_in_tiles()

    def _outputs_in_tiles(self) -> np.ndarray:
        """The outputs in the order of tiles, each of which has all gates of some units; -1 for a unit that is none."""
        if not self.lstm:
            return np.arange(self.hidden)
        units = np.arange(-(-self.hidden // LSTM_UNITS) * LSTM_UNITS).reshape(-1, 1, LSTM_UNITS)
        of_gates = np.where(units < self.hidden, units + self.hidden * np.arange(GATES)[:, None], -1)
        return of_gates.ravel()

    @cached_property
    def _weights(self) -> Weights:
        return Weights(self.arrays["layer.weight_hh_l0"], None, self._order)

    @cached_property
    def _input_weights(self) -> Weights:
        bias = self.arrays["layer.bias_ih_l0"] + self.arrays["layer.bias_hh_l0"]
        made = Weights(self.arrays["layer.weight_ih_l0"], bias, self._order)
        made.biases[np.isneginf(made.biases)] = 0
        return made

    def start(self, rows: int) -> tuple[np.ndarray, ...]:
        """The memory before a sentence."""
        return tuple(np.zeros((rows, self.hidden), np.float32) for _ in range(2 if self.lstm else 1))

    def step(self, words: np.ndarray, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The memory after one more word in each row."""
        w = self._weights
        width = len(w.scales) // OUTPUTS * (LSTM_UNITS if self.lstm else OUTPUTS)
        after = [np.pad(part, ((0, 0), (0, width - self.hidden))) for part in memory]
        cells = after[1] if self.lstm else np.zeros((0, 0), np.float32)
        rows, (distinct, input_of) = Rows.of(memory[0]), np.unique(words, return_inverse=True)
        kernels.step(self._inputs(distinct), input_of, w.tiles, w.scales, *rows, after[0], cells)
        return tuple(part[:, : self.hidden] for part in after)

    def run(self, tokens: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The hidden state before each token of sentences; 0 before `<S>`. (tokens, hidden)

        The products of the vector of a word are computed once, however often it occurs.
        """
        states, w = np.empty((len(tokens), self.hidden), np.float32), self._weights
        distinct, input_of = np.unique(tokens, return_inverse=True)
        inputs, order = self._inputs(distinct), np.argsort(-lengths, kind="stable")
        cells_width = len(w.scales) // GATES if self.lstm else 0
        for first in range(0, len(order), BLOCK):
            group = order[first : first + BLOCK]  # sentences of similar length
            kernels.run(
                begins[group], lengths[group], inputs, input_of, w.tiles, w.scales, w.tiles.shape[1], cells_width,
                states,
            )  # fmt: skip
        return states

    def _inputs(self, words: np.ndarray) -> np.ndarray:
        """The products of words' vectors with the input weights, and the biases, in tiles. (words, …)"""
        return self._input_weights.padded(self._vectors_of(words))

    def _vectors_of(self, words: np.ndarray) -> np.ndarray:
        if len(self.vectors) == 1:
            one: np.ndarray = self.vectors[0][words if self.places is None else self.places[words]]
            return one
        found = np.zeros((len(words), self.vectors[0].shape[1]), np.float32)
        for part, low in zip(self.vectors, self.edges, strict=False):
            rows = np.flatnonzero((words >= low) & (words < low + len(part)))
            found[rows] = part[words[rows] - low]
        return found


def word_vectors(arrays: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """The word vectors of each part of the vocabulary, and the edges of the parts."""
    vectors = [arrays[name] for name in sorted(arrays) if name.startswith("vectors.")]
    return vectors, [0, *accumulate(map(len, vectors))]
