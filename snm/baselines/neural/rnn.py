"""Recurrent networks: an RNN trained jointly with hashed n-gram features, or an LSTM. Scoring on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from snm.baselines.neural.hsme import TreeOutput
from snm.baselines.neural.model import ROWS_PER_PRODUCT, NeuralModel, Output
from snm.layouts.tokens import BEGIN


class RnnModel(NeuralModel):
    """A recurrent layer with a hierarchical or an adaptive softmax."""

    kind = "rnn"

    def _parts(self) -> tuple[RecurrentLayer, Output]:
        make = TreeOutput if self.shape["softmax"] == "tree" else SoftmaxOutput
        return RecurrentLayer(self.shape, self.arrays), make(self.shape, self.arrays)


class RecurrentLayer:
    """An Elman or LSTM layer."""

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.hidden, self.cell = shape["hidden"], shape["cell"]
        self.vectors, self.edges = _word_vectors(arrays)
        both = np.concatenate([arrays["layer.weight_ih_l0"], arrays["layer.weight_hh_l0"]], axis=1)
        self.weights = np.ascontiguousarray(both.T)
        self.bias = arrays["layer.bias_ih_l0"] + arrays["layer.bias_hh_l0"]

    def start(self) -> tuple[np.ndarray, ...]:
        empty = np.zeros((ROWS_PER_PRODUCT, self.hidden), np.float32)
        return empty, empty

    def step(self, words: np.ndarray, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """(state, cell) after one more word in each row."""
        state, cell = memory
        given = np.empty((ROWS_PER_PRODUCT, len(self.weights)), np.float32)
        for part, low in zip(self.vectors, self.edges, strict=False):
            rows = np.flatnonzero((words >= low) & (words < low + len(part)))
            given[rows, : part.shape[1]] = part[words[rows] - low]
        given[:, -self.hidden :] = state
        z = given @ self.weights + self.bias
        if self.cell == "rnn":
            return np.tanh(z), cell
        input_gate, forget_gate, new, output_gate = np.split(z, 4, axis=1)
        cell = _sigmoid(forget_gate) * cell + _sigmoid(input_gate) * np.tanh(new)
        return _sigmoid(output_gate) * np.tanh(cell), cell


def _word_vectors(arrays: dict[str, np.ndarray]) -> tuple[list[np.ndarray], list[int]]:
    """The word vectors of each part of the vocabulary, and the edges of the parts."""
    vectors = [arrays[name] for name in sorted(arrays) if name.startswith("vectors.")]
    return vectors, [0, *accumulate(map(len, vectors))]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    half: np.ndarray = np.tanh(x * np.float32(0.5))
    return half * np.float32(0.5) + np.float32(0.5)


class SoftmaxOutput:
    """Adaptive softmax: the head has the frequent words and one entry for each tail, a tail has rarer words."""

    tree = None

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.vectors, self.edges = _word_vectors(arrays)
        self.projection = np.ascontiguousarray(arrays["projection"].T)
        self.biases, parts = arrays["biases"], arrays["parts"]
        self.head = np.concatenate([self.vectors[0], parts[:, :-1]]).T.copy()
        self.head_bias = np.concatenate([self.biases[: self.edges[1]], parts[:, -1]])
        self.head_bias[[BEGIN, shape["never_a_target"]]] = -np.inf

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        out = np.empty(len(tokens), np.float64)
        z = _product(states, self.projection)
        part_of = np.searchsorted(self.edges, tokens, "right") - 1
        columns = np.where(part_of > 0, self.edges[1] + part_of - 1, tokens)
        for rows in _tiles(np.arange(len(tokens))):
            out[rows] = _log_softmax(self._head(z[rows]), columns[rows])
        for i in range(1, len(self.vectors)):
            for rows in _tiles(np.flatnonzero(part_of == i)):
                out[rows] += _log_softmax(self._tail(i, z[rows]), tokens[rows] - self.edges[i])
        return np.exp(out)

    def _head(self, z: np.ndarray) -> np.ndarray:
        """Scores of the frequent words, then of the tails. (rows, words + tails)"""
        scores: np.ndarray = _product(z, self.head) + self.head_bias
        return scores

    def _tail(self, i: int, z: np.ndarray) -> np.ndarray:
        scores: np.ndarray = _product(z, self.vectors[i].T) + self.biases[self.edges[i] : self.edges[i + 1]]
        return scores

    def distribution(self, context: np.ndarray, state: np.ndarray) -> np.ndarray:
        z = _product(state[None], self.projection)
        head = _log_softmax(self._head(z))[0]
        first = self.edges[1]
        tails = [head[first + i - 1] + _log_softmax(self._tail(i, z))[0] for i in range(1, len(self.vectors))]
        p: np.ndarray = np.exp(np.concatenate([head[:first], *tails]))
        return p

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield from ()


def _tiles(rows: np.ndarray) -> Iterator[np.ndarray]:
    for i in range(0, len(rows), ROWS_PER_PRODUCT):
        yield rows[i : i + ROWS_PER_PRODUCT]


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, ROWS_PER_PRODUCT rows at a time."""
    padded = np.zeros((-len(a) % ROWS_PER_PRODUCT + len(a), a.shape[1]), a.dtype)
    padded[: len(a)] = a
    parts = [tile @ b for tile in _tiles(padded)]
    made: np.ndarray = np.concatenate(parts)[: len(a)] if len(parts) > 1 else parts[0][: len(a)]
    return made


def _log_softmax(scores: np.ndarray, columns: np.ndarray | None = None) -> np.ndarray:
    """log P of the given column of each row, (rows,), or of all columns, (rows, n). float64

    Exponentials are summed in double precision, so that probabilities sum to one.
    """
    largest = scores.max(axis=1)
    sums = np.log(np.exp(scores - largest[:, None]).sum(axis=1, dtype=np.float64)) + largest
    logs: np.ndarray
    if columns is None:
        logs = scores - sums[:, None]
    else:
        logs = scores[np.arange(len(scores)), columns] - sums
    return logs
