"""The recurrent layer of a network: its memory after each word."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from snm.baselines.neural.products import ROWS_PER_PRODUCT, product
from snm.kernels import recurrent as kernels

STEPS = 64  # words of each sentence whose products with the input weights are computed together


class RecurrentLayer:
    """An Elman or LSTM layer.

    Its memory is the hidden states and, of an LSTM, the cells. (rows, hidden) float32 each
    """

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.hidden, self.cell = shape["hidden"], shape["cell"]
        self.vectors, self.edges = word_vectors(arrays)
        self.places = arrays.get("places")  # the rows of words; without, their ids
        self.input_weights = np.ascontiguousarray(arrays["layer.weight_ih_l0"].T)
        self.weights = np.ascontiguousarray(arrays["layer.weight_hh_l0"].T)
        self.bias = arrays["layer.bias_ih_l0"] + arrays["layer.bias_hh_l0"]
        self._step = kernels.lstm_step if self.cell == "lstm" else kernels.elman_step

    def start(self, rows: int) -> tuple[np.ndarray, ...]:
        """The memory before a sentence."""
        return tuple(np.zeros((rows, self.hidden), np.float32) for _ in range(2 if self.cell == "lstm" else 1))

    def step(self, words: np.ndarray, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The memory after one more word in each row."""
        after = tuple(part.copy() for part in memory)
        self._step(product(after[0], self.weights), self._inputs(words), np.arange(len(words)), *after)
        return after

    def run(self, tokens: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The hidden state before each token of up to ROWS_PER_PRODUCT sentences, the longest first; 0 before `<S>`.

        (tokens of the sentences, hidden), in their order
        """
        states = np.zeros((int(lengths.sum()), self.hidden), np.float32)
        firsts, memory = np.cumsum(lengths) - lengths, self.start(ROWS_PER_PRODUCT)
        sums = np.empty((ROWS_PER_PRODUCT, self.weights.shape[1]), np.float32)
        for start in range(0, int(lengths[0]) - 1, STEPS):
            steps = range(start, min(start + STEPS, int(lengths[0]) - 1))
            counts = [int(np.searchsorted(1 - lengths, -t)) for t in steps]  # sentences with a word after word t
            rows = np.concatenate([begins[:n] + t for t, n in zip(steps, counts, strict=True)])
            inputs, at = self._inputs(tokens[rows]), 0
            for t, n in zip(steps, counts, strict=True):
                np.matmul(memory[0], self.weights, out=sums)
                self._step(sums, inputs, np.arange(at, at + n), *memory)
                states[firsts[:n] + t + 1] = memory[0][:n]
                at += n
        return states

    def _inputs(self, words: np.ndarray) -> np.ndarray:
        """The products of words' vectors with the input weights, and the biases. (words, gates * hidden)"""
        made = product(self._vectors_of(words), self.input_weights)
        made += self.bias
        return made

    def _vectors_of(self, words: np.ndarray) -> np.ndarray:
        if len(self.vectors) == 1:
            one: np.ndarray = self.vectors[0][words if self.places is None else self.places[words]]
            return one
        found = np.zeros((len(words), len(self.input_weights)), np.float32)
        for part, low in zip(self.vectors, self.edges, strict=False):
            rows = np.flatnonzero((words >= low) & (words < low + len(part)))
            found[rows] = part[words[rows] - low]
        return found


def word_vectors(arrays: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """The word vectors of each part of the vocabulary, and the edges of the parts."""
    vectors = [arrays[name] for name in sorted(arrays) if name.startswith("vectors.")]
    return vectors, [0, *accumulate(map(len, vectors))]
