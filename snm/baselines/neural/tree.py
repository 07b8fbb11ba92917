"""A binary tree over the words, as hierarchical softmax has it, and the hashed features of its nodes.

P(w | h) is the product, over the inner nodes on the way from the root to w, of the probability of turning there to the
side of w: a logistic function of the node's score after h. Whatever the scores, the probabilities of all words sum
to one, and a frequent word costs few scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from snm.layouts.tokens import BEGIN

NO_LEAF = -1


@dataclass(frozen=True)
class Tree:
    """Inner nodes are numbered by falling count, so that the root is 0 and parents precede children.

    `word_up` and `node_up` hold of every word and node 2 * parent + side; `NO_LEAF` for words that are never a target
    and for the root.
    """

    word_up: np.ndarray  # (words,) int32
    node_up: np.ndarray  # (nodes,) int32

    def __len__(self) -> int:
        return len(self.node_up)

    @classmethod
    def build(cls, counts: np.ndarray, classes: np.ndarray, never_a_target: int) -> tuple[Tree, np.ndarray]:
        """The tree of words with these counts, and of every node the log odds of its side 1. (nodes,) float32

        Words of one class are below one node: Huffman's trees of the classes' words hang from Huffman's tree of the
        classes. A word that was not seen counts once.
        """
        leaves = np.setdiff1d(np.arange(len(counts)), [BEGIN, never_a_target])
        leaves = leaves[np.lexsort((np.maximum(counts[leaves], 1), classes[leaves]))]
        weights = np.maximum(counts[leaves], 1)
        bounds = [0, *(np.flatnonzero(np.diff(classes[leaves])) + 1).tolist(), len(leaves)]
        merges = _Merges(weights.tolist())
        tops = [merges.merge(list(range(a, b))) for a, b in pairwise(bounds)]
        merges.merge(sorted(tops, key=lambda top: merges.counts[top]))
        return cls._number(merges, leaves, len(counts))

    @classmethod
    def _number(cls, merges: _Merges, leaves: np.ndarray, words: int) -> tuple[Tree, np.ndarray]:
        sums = np.array(merges.counts[len(leaves) :])
        # by falling count: a parent counts more than either child, so that it comes first
        rank = np.empty(len(sums), np.int64)
        rank[np.argsort(-sums, kind="stable")] = np.arange(len(sums))
        word_up, node_up = np.full(words, NO_LEAF, np.int32), np.full(len(sums), NO_LEAF, np.int32)
        pairs, counts = np.array(merges.pairs), np.array(merges.counts)
        for side in range(2):
            child, up = pairs[:, side], 2 * rank + side
            leaf = child < len(leaves)
            word_up[leaves[child[leaf]]] = up[leaf]
            node_up[rank[child[~leaf] - len(leaves)]] = up[~leaf]
        odds = np.empty(len(sums), np.float32)
        odds[rank] = np.log(counts[pairs[:, 1]] / counts[pairs[:, 0]])
        return cls(word_up, node_up), odds

    def paths(self) -> tuple[np.ndarray, np.ndarray]:
        """The way from every word w up to the root, as values of `word_up`: `steps[starts[w]:starts[w + 1]]`."""
        levels, words = [], [np.flatnonzero(self.word_up != NO_LEAF)]
        up = self.word_up[words[0]]
        while len(up):
            levels.append(up)
            up = self.node_up[up >> 1]
            words.append(words[-1][up != NO_LEAF])
            up = up[up != NO_LEAF]
        everyone = np.concatenate(words[: len(levels)])
        order = np.argsort(everyone, kind="stable")
        starts = np.zeros(len(self.word_up) + 1, np.int64)
        np.cumsum(np.bincount(everyone, minlength=len(self.word_up)), out=starts[1:])
        return starts, np.concatenate(levels)[order]


class _Merges:
    """Huffman's algorithm. Things are numbered leaves first, then inner nodes in the order they are made."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts
        self.pairs: list[tuple[int, int]] = []

    def merge(self, things: list[int]) -> int:
        """Put things of rising counts below one node; its number."""
        made: list[int] = []  # by rising count too, so that the least is at the front of one of the two
        thing = inner = 0
        while thing + inner < len(things) + len(made) - 1:
            pair = []
            for _ in range(2):
                if inner >= len(made) or (
                    thing < len(things) and self.counts[things[thing]] <= self.counts[made[inner]]
                ):
                    pair.append(things[thing])
                    thing += 1
                else:
                    pair.append(made[inner])
                    inner += 1
            made.append(len(self.counts))
            self.pairs.append((pair[0], pair[1]))
            self.counts.append(self.counts[pair[0]] + self.counts[pair[1]])
        return made[-1] if made else things[0]
