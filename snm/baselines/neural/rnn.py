"""Recurrent networks: an RNN trained jointly with hashed n-gram features, or an LSTM. Scoring on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from snm.baselines.neural.hsme import TreeOutput
from snm.baselines.neural.layer import RecurrentLayer, word_vectors
from snm.baselines.neural.model import NeuralModel, Output
from snm.baselines.neural.products import log_softmax, product, tiles
from snm.layouts.tokens import BEGIN


class RnnModel(NeuralModel):
    """A recurrent layer with a hierarchical or an adaptive softmax."""

    kind = "rnn"

    def _parts(self) -> tuple[RecurrentLayer, Output]:
        make = TreeOutput if self.shape["softmax"] == "tree" else SoftmaxOutput
        return RecurrentLayer(self.shape, self.arrays), make(self.shape, self.arrays)


class SoftmaxOutput:
    """Adaptive softmax: the head has the frequent words and one entry for each tail, a tail has rarer words."""

    tree = None

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.vectors, self.edges = word_vectors(arrays)
        self.projection = np.ascontiguousarray(arrays["projection"].T)
        self.biases, parts = arrays["biases"], arrays["parts"]
        self.head = np.concatenate([self.vectors[0], parts[:, :-1]]).T.copy()
        self.head_bias = np.concatenate([self.biases[: self.edges[1]], parts[:, -1]])
        self.head_bias[[BEGIN, shape["never_a_target"]]] = -np.inf

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        out = np.empty(len(tokens), np.float64)
        z = product(states, self.projection)
        part_of = np.searchsorted(self.edges, tokens, "right") - 1
        columns = np.where(part_of > 0, self.edges[1] + part_of - 1, tokens)
        for rows in tiles(np.arange(len(tokens))):
            out[rows] = log_softmax(self._head(z[rows]), columns[rows])
        for i in range(1, len(self.vectors)):
            for rows in tiles(np.flatnonzero(part_of == i)):
                out[rows] += log_softmax(self._tail(i, z[rows]), tokens[rows] - self.edges[i])
        return np.exp(out)

    def _head(self, z: np.ndarray) -> np.ndarray:
        """Scores of the frequent words, then of the tails. (rows, words + tails)"""
        scores: np.ndarray = product(z, self.head) + self.head_bias
        return scores

    def _tail(self, i: int, z: np.ndarray) -> np.ndarray:
        scores: np.ndarray = product(z, self.vectors[i].T) + self.biases[self.edges[i] : self.edges[i + 1]]
        return scores

    def distribution(self, context: np.ndarray, state: np.ndarray) -> np.ndarray:
        z = product(state[None], self.projection)
        head = log_softmax(self._head(z))[0]
        first = self.edges[1]
        tails = [head[first + i - 1] + log_softmax(self._tail(i, z))[0] for i in range(1, len(self.vectors))]
        p: np.ndarray = np.exp(np.concatenate([head[:first], *tails]))
        return p

    def candidates(self, words: np.ndarray, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        out = np.empty((len(states), ids.shape[1]), np.float64)
        for rows in tiles(np.arange(len(states))):
            out[rows] = self._candidates(states[rows], ids if len(ids) == 1 else ids[rows])
        return np.exp(out)

    def _candidates(self, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """log P of words after at most ROWS_PER_PRODUCT states; only the parts that the words are in are computed."""
        z = product(states, self.projection)
        ids = np.broadcast_to(ids, (len(states), ids.shape[1]))
        part_of = np.searchsorted(self.edges, ids, "right") - 1
        columns = np.where(part_of > 0, self.edges[1] + part_of - 1, ids)
        logs: np.ndarray = np.take_along_axis(log_softmax(self._head(z)), columns, axis=1)
        for i in range(1, len(self.vectors)):
            here = part_of == i
            rows = np.flatnonzero(here.any(axis=1))
            if len(rows):
                tail = log_softmax(self._tail(i, z[rows]))
                inside = np.where(here[rows], ids[rows].astype(np.int64) - self.edges[i], 0)
                logs[rows] += np.where(here[rows], np.take_along_axis(tail, inside, axis=1), 0)
        return logs

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield from ()
