"""A binary tree over the words, as hierarchical softmax has it, and the hashed features of its nodes.

P(w | h) is the product, over the inner nodes on the way from the root to w, of the probability of turning there to the
side of w: a logistic function of the node's score after h. Whatever the scores, the probabilities of all words sum
to one, and a word costs as many scores as it has bits in Huffman's code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snm.vocabulary import BEGIN

NO_LEAF = -1
HASH_STEP = 0x9E3779B97F4A7C15  # multiplier of a node's number in the hash of a feature of it


@dataclass(frozen=True)
class Tree:
    """Huffman's tree. Inner nodes are numbered by falling count, so that the root is 0 and parents precede children.

    `word_up` and `node_up` hold of every word and node 2 * parent + side; `NO_LEAF` for words that are never a target
    and for the root.
    """

    word_up: np.ndarray  # (words,) int32
    node_up: np.ndarray  # (nodes,) int32

    def __len__(self) -> int:
        return len(self.node_up)

    @classmethod
    def build(cls, counts: np.ndarray, never_a_target: int) -> tuple[Tree, np.ndarray]:
        """The tree of words with these counts, and of every node the log odds of its side 1. (nodes,) float32

        A word that was not seen counts once.
        """
        leaves = np.setdiff1d(np.arange(len(counts)), [BEGIN, never_a_target])
        leaves = leaves[np.argsort(counts[leaves], kind="stable")]
        children, sums = _merge(np.maximum(counts[leaves], 1).tolist())
        # by falling count: a parent counts more than either child, so that it comes first
        rank = np.empty(len(sums), np.int64)
        rank[np.argsort(-np.array(sums), kind="stable")] = np.arange(len(sums))
        word_up, node_up = np.full(len(counts), NO_LEAF, np.int32), np.full(len(sums), NO_LEAF, np.int32)
        odds = np.empty(len(sums), np.float32)
        for node, (pair, weights) in enumerate(children):
            for side, child in enumerate(pair):
                up = 2 * rank[node] + side
                if child < len(leaves):
                    word_up[leaves[child]] = up
                else:
                    node_up[rank[child - len(leaves)]] = up
            odds[rank[node]] = np.log(weights[1] / weights[0])
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


Merges = list[tuple[tuple[int, int], tuple[int, int]]]


def _merge(counts: list[int]) -> tuple[Merges, list[int]]:
    """Huffman's algorithm on rising counts: of every inner node its children and their counts, and its own count.

    Children are numbered leaves first, then inner nodes in the order they are made, which is by rising count.
    """
    made: Merges = []
    sums: list[int] = []
    leaf = inner = 0
    while leaf + inner < len(counts) + len(sums) - 1:
        pair, weights = [], []
        for _ in range(2):
            if inner >= len(sums) or (leaf < len(counts) and counts[leaf] <= sums[inner]):
                pair.append(leaf)
                weights.append(counts[leaf])
                leaf += 1
            else:
                pair.append(len(counts) + inner)
                weights.append(sums[inner])
                inner += 1
        made.append(((pair[0], pair[1]), (weights[0], weights[1])))
        sums.append(weights[0] + weights[1])
    return made, sums
