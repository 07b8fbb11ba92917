"""The recurrent layer of a network in NumPy: its memory after each word."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from snm.baselines.neural.products import product


class RecurrentLayer:
    """An Elman or LSTM layer."""

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.hidden, self.cell = shape["hidden"], shape["cell"]
        self.vectors, self.edges = word_vectors(arrays)
        self.places = arrays.get("places")  # the rows of words; without, their ids
        both = np.concatenate([arrays["layer.weight_ih_l0"], arrays["layer.weight_hh_l0"]], axis=1)
        self.weights = np.ascontiguousarray(both.T)
        self.bias = arrays["layer.bias_ih_l0"] + arrays["layer.bias_hh_l0"]

    def start(self, rows: int) -> tuple[np.ndarray, ...]:
        """The memory before a sentence: hidden states, and the cells of an LSTM. (rows, hidden) each"""
        return (np.zeros((rows, self.hidden), np.float32),) * (2 if self.cell == "lstm" else 1)

    def step(self, words: np.ndarray, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The memory after one more word in each row."""
        state = memory[0]
        words = words if self.places is None else self.places[words]
        given = np.empty((len(words), len(self.weights)), np.float32)
        for part, low in zip(self.vectors, self.edges, strict=False):
            rows = np.flatnonzero((words >= low) & (words < low + len(part)))
            given[rows, : part.shape[1]] = part[words[rows] - low]
        given[:, -self.hidden :] = state
        z = product(given, self.weights) + self.bias
        if self.cell == "rnn":
            return (np.tanh(z),)
        input_gate, forget_gate, new, output_gate = np.split(z, 4, axis=1)
        cell = _sigmoid(forget_gate) * memory[1] + _sigmoid(input_gate) * np.tanh(new)
        return _sigmoid(output_gate) * np.tanh(cell), cell


def word_vectors(arrays: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """The word vectors of each part of the vocabulary, and the edges of the parts."""
    vectors = [arrays[name] for name in sorted(arrays) if name.startswith("vectors.")]
    return vectors, [0, *accumulate(map(len, vectors))]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    half: np.ndarray = np.tanh(x * np.float32(0.5))
    return half * np.float32(0.5) + np.float32(0.5)
