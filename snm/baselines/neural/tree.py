"""The binary tree of a hierarchical softmax.

P(w | h) is a product over the inner nodes on the path from the root to w. Each factor is the probability of the side
that the path takes: a logistic function of the node's score after h. The probabilities of all words sum to one for
any scores, and frequent words have short paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from snm.layouts.tokens import BEGIN

NO_LEAF = -1
DOUBLINGS = 8
"""Of the length of a path: a Huffman tree of counts below 2^60 has paths of at most 88 steps, and these are two."""


@dataclass(frozen=True)
class Tree:
    """The tree as steps from children to parents.

    A step is 2 * parent + side. Inner nodes are numbered by falling count, so the root is 0 and parents come before
    their children.
    """

    word_up: np.ndarray  # (words,) int32: the step from each word; NO_LEAF for words that are never a target
    node_up: np.ndarray  # (nodes,) int32: the step from each inner node; NO_LEAF for the root

    def __len__(self) -> int:
        return len(self.node_up)

    def is_ordered(self) -> bool:
        """Whether every path leads to the root."""
        up, nodes = self.node_up, len(self)
        inner = (up[1:] >= 0) & (up[1:] >> 1 < np.arange(1, nodes))
        return bool(up[0] == NO_LEAF and inner.all() and (self.word_up >> 1 < nodes).all())

    def is_shallow(self) -> bool:
        """Whether every path of an ordered tree has at most 2^DOUBLINGS steps."""
        above = np.maximum(self.node_up >> 1, 0)
        for _ in range(DOUBLINGS):
            if not above.any():
                return True
            above = above[above]
        return not above.any()

    @classmethod
    def build(cls, counts: np.ndarray, classes: np.ndarray, never_a_target: int) -> tuple[Tree, np.ndarray]:
        """The tree of words with these counts, and the log odds of side 1 of each node. (nodes,) float32

        Words of one class are below one node: a Huffman tree over the classes, with a Huffman tree over the words of
        each class. A word that was not seen counts once.
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
        """(starts, steps): the path from word w up to the root is steps[starts[w]:starts[w + 1]]."""
        levels, words = [], [np.flatnonzero(self.word_up != NO_LEAF)]
        up = self.word_up[words[0]]
        while len(up):
            levels.append(up)
            up = self.node_up[up >> 1]
            words.append(words[-1][up != NO_LEAF])
            up = up[up != NO_LEAF]
        word_of_step = np.concatenate(words[: len(levels)])
        order = np.argsort(word_of_step, kind="stable")
        starts = np.zeros(len(self.word_up) + 1, np.int64)
        np.cumsum(np.bincount(word_of_step, minlength=len(self.word_up)), out=starts[1:])
        return starts, np.concatenate(levels)[order]


class _Merges:
    """Huffman's algorithm. Nodes are numbered: first the leaves, then inner nodes in the order of their creation."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts
        self.pairs: list[tuple[int, int]] = []

    def merge(self, nodes: list[int]) -> int:
        """Merge nodes of rising counts into one tree; return the number of its root."""
        made: list[int] = []  # of rising counts too, so the next smallest node is at the front of one of the two lists
        i = inner = 0
        while i + inner < len(nodes) + len(made) - 1:
            pair = []
            for _ in range(2):
                if inner >= len(made) or (i < len(nodes) and self.counts[nodes[i]] <= self.counts[made[inner]]):
                    pair.append(nodes[i])
                    i += 1
                else:
                    pair.append(made[inner])
                    inner += 1
            made.append(len(self.counts))
            self.pairs.append((pair[0], pair[1]))
            self.counts.append(self.counts[pair[0]] + self.counts[pair[1]])
        return made[-1] if made else nodes[0]
