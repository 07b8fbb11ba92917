"""Recurrent networks: an RNN trained jointly with hashed n-gram features, or an LSTM. Scoring on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from snm.baselines.neural.classes import WordClasses
from snm.baselines.neural.hsme import TreeOutput
from snm.baselines.neural.layer import RecurrentLayer, word_vectors
from snm.baselines.neural.model import NeuralModel, Output
from snm.baselines.neural.products import log_softmax, product, tiles
from snm.kernels import two_level as kernels
from snm.layouts.tokens import BEGIN


class RnnModel(NeuralModel):
    """A recurrent layer with a tree, an adaptive softmax, or a softmax of two levels."""

    kind = "rnn"

    def _parts(self) -> tuple[RecurrentLayer, Output]:
        outputs: dict[str, Callable[..., Output]] = {
            "tree": TreeOutput, "adaptive": SoftmaxOutput, "classes": ClassesOutput,
        }  # fmt: skip
        return RecurrentLayer(self.shape, self.arrays), outputs[self.shape["softmax"]](self.shape, self.arrays)


class SoftmaxOutput:
    """Adaptive softmax: the head has the frequent words and one entry for each tail, a tail has rarer words."""

    grouping = None

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


class ClassesOutput:
    """Softmax of two levels: the classes of words, and the words of a class."""

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.grouping = classes = WordClasses(arrays["places"], arrays["class_starts"])
        if not classes.is_whole():
            raise ValueError("a word has no class, or several")
        self.vectors, self.biases = arrays["vectors.0"], arrays["biases"]
        self.projection = np.ascontiguousarray(arrays["projection"].T)
        self.class_vectors = arrays["class_vectors"][:, :-1].T.copy()
        self.class_biases = arrays["class_vectors"][:, -1].copy()
        self.class_biases[classes.banned([BEGIN, shape["never_a_target"]])] = -np.inf
        self.class_of_row = classes.class_of_rows()
        self._largest = int(np.diff(classes.starts).max())

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        out = np.empty(len(tokens), np.float64)
        z, rows = product(states, self.projection), self.grouping.places[tokens]
        classes = self.class_of_row[rows]
        for tile in tiles(np.arange(len(tokens))):
            out[tile] = log_softmax(self._classes(z[tile]), classes[tile])
        order = np.argsort(classes, kind="stable")  # the words of a class stay in the processor's cache
        inner = np.zeros(len(order), np.float64)
        kernels.score_rows(
            z[order], rows[order], classes[order], self.grouping.starts, self.vectors, self.biases, self._scratch(),
            inner,
        )  # fmt: skip
        out[order] += inner
        return np.exp(out)

    def candidates(self, words: np.ndarray, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        z, out = product(states, self.projection), np.empty((len(states), ids.shape[1]), np.float64)
        logs = np.concatenate([log_softmax(self._classes(z[tile])) for tile in tiles(np.arange(len(states)))])
        kernels.score_candidates(
            z, np.ascontiguousarray(self.grouping.places[ids]), self.class_of_row, logs, self.grouping.starts,
            self.vectors, self.biases, self._scratch(), out,
        )  # fmt: skip
        return np.exp(out)

    def _classes(self, z: np.ndarray) -> np.ndarray:
        scores: np.ndarray = product(z, self.class_vectors) + self.class_biases
        return scores

    def _scratch(self) -> np.ndarray:
        return np.empty(self._largest, np.float32)

    def distribution(self, context: np.ndarray, state: np.ndarray) -> np.ndarray:
        z, starts = product(state[None], self.projection), self.grouping.starts[:-1]
        scores = (self.vectors @ z[0] + self.biases).astype(np.float64)
        scores -= np.maximum.reduceat(scores, starts)[self.class_of_row]
        powers = np.exp(scores)
        powers *= (np.exp(log_softmax(self._classes(z))[0]) / np.add.reduceat(powers, starts))[self.class_of_row]
        p: np.ndarray = powers[self.grouping.places]
        return p

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield from ()
