"""HSME: maximum entropy over hashed n-gram features, with a hierarchical softmax. Scoring on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from snm.baselines.neural.model import NeuralModel
from snm.baselines.neural.tree import Tree
from snm.kernels import tree as tree_kernels
from snm.layouts.tokens import BEGIN, END


class TreeOutput:
    """Hierarchical softmax: binary decisions from the state and from hashed features."""

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.grouping = self.tree = Tree(arrays["word_up"], arrays["node_up"])
        if not self.tree.is_ordered():
            raise ValueError("a node of the tree precedes its parent")
        if not self.tree.is_shallow():
            raise ValueError("a path of the tree is longer than a Huffman tree's")
        self.order = shape["order"]
        table = arrays["table"]
        shift = np.uint64(64 - (len(table) - 1).bit_length())
        vectors = arrays.get("nodes", np.zeros((len(self.tree), 0), np.float32))
        self.weights = table, shift, arrays["scales"], arrays["starts"], vectors

    def _hashes(self, tokens: np.ndarray) -> np.ndarray:
        hashes = np.empty((len(tokens), self.order), np.uint64)
        tree_kernels.hash_contexts(tokens, BEGIN, hashes)
        return hashes

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        out = np.empty(len(tokens), np.float64)
        tree_kernels.score_words(
            tokens, self._hashes(tokens), *self.weights, states, self.tree.word_up, self.tree.node_up, out
        )
        return out

    def candidates(self, words: np.ndarray, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        texts = np.append(words, np.full((len(words), 1), END, words.dtype), axis=1)
        hashes = self._hashes(texts.ravel()).reshape(*texts.shape, self.order)[:, -1]
        out = np.empty((len(states), ids.shape[1]), np.float64)
        tree_kernels.score_candidates(
            np.ascontiguousarray(ids), np.ascontiguousarray(hashes), *self.weights, states, self.tree.word_up,
            self.tree.node_up, out
        )  # fmt: skip
        return out

    def distribution(self, context: np.ndarray, state: np.ndarray) -> np.ndarray:
        hashes = self._hashes(np.append(context, np.uint32(END)))[-1]
        out = np.empty(len(self.tree.word_up), np.float64)
        tree_kernels.score_all(hashes, *self.weights, state, self.tree.word_up, self.tree.node_up, out)
        return out

    def faults(self) -> Iterator[tuple[bool, str]]:
        node_up, word_up = self.tree.node_up, self.tree.word_up
        sides = np.concatenate([node_up[1:], word_up[word_up >= 0]])
        yield not np.array_equal(np.sort(sides), np.arange(2 * len(node_up))), "the tree is incomplete"


class HsmeModel(NeuralModel):
    """A hierarchical softmax over hashed features, without a recurrent layer."""

    kind = "hsme"

    def _parts(self) -> tuple[None, TreeOutput]:
        return None, TreeOutput(self.shape, self.arrays)
