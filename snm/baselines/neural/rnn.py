"""Recurrent networks: an RNN trained jointly with hashed n-gram features, or an LSTM. Scoring on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from snm.baselines.neural.classes import WordClasses
from snm.baselines.neural.hsme import TreeOutput
from snm.baselines.neural.layer import RecurrentLayer, word_vectors
from snm.baselines.neural.model import NeuralModel, Output
from snm.baselines.neural.products import Rows, Weights, log_softmax
from snm.kernels import two_level as kernels
from snm.kernels.products import BLOCK, OUTPUTS
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
        self.arrays, self.never_targets = arrays, [BEGIN, shape["never_a_target"]]

    @cached_property
    def _projection(self) -> Weights:
        return Weights(self.arrays["projection"])

    @cached_property
    def _parts(self) -> list[Weights]:
        """The weights of the head and of each tail."""
        biases, parts = self.arrays["biases"], self.arrays["parts"]
        head_biases = np.concatenate([biases[: self.edges[1]], parts[:, -1]])
        head_biases[self.never_targets] = -np.inf
        head = Weights(np.concatenate([self.vectors[0], parts[:, :-1]]), head_biases)
        edges = pairwise(self.edges[1:])
        return [head, *(Weights(v, biases[a:b]) for v, (a, b) in zip(self.vectors[1:], edges, strict=True))]

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        out = np.empty(len(tokens), np.float64)
        part_of = np.searchsorted(self.edges, tokens, "right") - 1
        columns = np.where(part_of > 0, self.edges[1] + part_of - 1, tokens)
        for rows in _tiles(np.arange(len(tokens))):
            z = self._z(states[rows])
            out[rows] = log_softmax(self._parts[0].products(z), columns[rows])
        for i in range(1, len(self.vectors)):
            for rows in _tiles(np.flatnonzero(part_of == i)):
                scores = self._parts[i].products(self._z(states[rows]))
                out[rows] += log_softmax(scores, tokens[rows] - self.edges[i])
        return np.exp(out)

    def _z(self, states: np.ndarray) -> Rows:
        return Rows.of(self._projection.products(states))

    def distribution(self, context: np.ndarray, state: np.ndarray) -> np.ndarray:
        z = self._z(state[None])
        head, *tails = (log_softmax(part.products(z))[0] for part in self._parts)
        first = self.edges[1]
        p: np.ndarray = np.exp(np.concatenate([head[:first], *(head[first + i] + t for i, t in enumerate(tails))]))
        return p

    def candidates(self, words: np.ndarray, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        out = np.empty((len(states), ids.shape[1]), np.float64)
        for rows in _tiles(np.arange(len(states))):
            out[rows] = self._candidates(states[rows], ids if len(ids) == 1 else ids[rows])
        return np.exp(out)

    def _candidates(self, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """log P of words after some states; only the parts that the words are in are computed."""
        z = self._z(states)
        ids = np.broadcast_to(ids, (len(states), ids.shape[1]))
        part_of = np.searchsorted(self.edges, ids, "right") - 1
        columns = np.where(part_of > 0, self.edges[1] + part_of - 1, ids)
        logs: np.ndarray = np.take_along_axis(log_softmax(self._parts[0].products(z)), columns, axis=1)
        for i in range(1, len(self.vectors)):
            here = part_of == i
            rows = np.flatnonzero(here.any(axis=1))
            if len(rows):
                tail = log_softmax(self._parts[i].products(Rows(z.numbers[rows], z.scales[rows])))
                inside = np.where(here[rows], ids[rows].astype(np.int64) - self.edges[i], 0)
                logs[rows] += np.where(here[rows], np.take_along_axis(tail, inside, axis=1), 0)
        return logs

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield from ()


def _tiles(rows: np.ndarray) -> Iterator[np.ndarray]:
    for i in range(0, len(rows), BLOCK):
        yield rows[i : i + BLOCK]


class ClassesOutput:
    """Softmax of two levels: the classes of words, and the words of a class."""

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.grouping = classes = WordClasses(arrays["places"], arrays["class_starts"])
        if not classes.is_whole():
            raise ValueError("a word has no class, or several")
        self.arrays = arrays
        self.banned = classes.banned([BEGIN, shape["never_a_target"]])
        self.class_of_row = classes.class_of_rows()
        sizes = np.diff(classes.starts)
        self._tiles_of = np.where(sizes > 1, -(-sizes // OUTPUTS), 0)  # of each class
        self._tiles = np.append(0, np.cumsum(self._tiles_of))

    @cached_property
    def _projection(self) -> Weights:
        return Weights(self.arrays["projection"])

    @cached_property
    def _classes(self) -> Weights:
        vectors, biases = self.arrays["class_vectors"][:, :-1], self.arrays["class_vectors"][:, -1].copy()
        biases[self.banned] = -np.inf
        return Weights(vectors, biases)

    @cached_property
    def _words(self) -> Weights:
        """The words of every class that has several, each class in tiles of its own."""
        starts = self.grouping.starts[:-1]
        first = np.repeat(starts - OUTPUTS * self._tiles[:-1], OUTPUTS * self._tiles_of)
        rows, ends = np.arange(len(first)) + first, np.repeat(self.grouping.starts[1:], OUTPUTS * self._tiles_of)
        return Weights(self.arrays["vectors.0"], self.arrays["biases"], np.where(rows < ends, rows, -1))

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        z, rows = self._z(states), self.grouping.places[tokens]
        out: np.ndarray = self._score_classes(z, self.class_of_row[rows][:, None])[:, 0]
        self._add_words(z, np.arange(len(tokens)), rows, out)
        np.exp(out, out=out)
        return out

    def candidates(self, words: np.ndarray, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        z, rows = self._z(states), self.grouping.places[np.broadcast_to(ids, (len(states), ids.shape[1]))]
        out: np.ndarray = self._score_classes(z, self.class_of_row[rows]).ravel()
        self._add_words(z, np.repeat(np.arange(len(states)), ids.shape[1]), rows.ravel(), out)
        np.exp(out, out=out)
        return out.reshape(rows.shape)

    def _score_classes(self, z: Rows, classes: np.ndarray) -> np.ndarray:
        """log P of classes after each state. (1 or n, m) to (n, m)"""
        out = np.empty((len(z.numbers), classes.shape[1]), np.float64)
        kernels.score_classes(*z, *self._classes.arrays, classes, out)
        return out

    def _z(self, states: np.ndarray) -> Rows:
        """The vectors whose products with words' vectors are scores."""
        return Rows.of(self._projection.products(states))

    def _add_words(self, z: Rows, states: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
        """Add log P of words within their classes. rows: of the words; states: the row of z of each event."""
        classes = self.class_of_row[rows]
        order = np.argsort(classes, kind="stable")  # the weights of a class are shared by its events
        inner = np.zeros(len(order), np.float64)
        within = rows[order] - self.grouping.starts[classes[order]]
        kernels.score_words(
            *z, states[order], classes[order], within, self._tiles, *self._words.arrays, inner
        )  # fmt: skip
        out[order] += inner

    def distribution(self, context: np.ndarray, state: np.ndarray) -> np.ndarray:
        z, sizes = self._z(state[None]), np.diff(self.grouping.starts)
        of_classes = np.exp(self._score_classes(z, np.arange(len(sizes))[None])[0])
        in_rows = np.repeat(of_classes, sizes)
        scores, starts = self._words.padded(z)[0].astype(np.float64), OUTPUTS * self._tiles[:-1][sizes > 1]
        if len(starts):
            scores -= np.repeat(np.maximum.reduceat(scores, starts), OUTPUTS * self._tiles_of[sizes > 1])
            powers = np.exp(scores)
            powers /= np.repeat(np.add.reduceat(powers, starts), OUTPUTS * self._tiles_of[sizes > 1])
            in_rows[np.repeat(sizes > 1, sizes)] *= powers[~np.isneginf(scores)]
        p: np.ndarray = in_rows[self.grouping.places]
        return p

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield from ()
