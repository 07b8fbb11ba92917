"""Tries of characters: the words of a vocabulary, and hot words as an automaton (Aho and Corasick's)."""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.hashing import mix64
from snm.layouts.decoding import DEAD, NODE_BITS, NONE, ROOT

_ONE = np.uint64(1)
_BITS = np.uint64(NODE_BITS)


@helper
def place_of(node, character, keys):
    """Where the edge of a character is in the table, or where it would be."""
    key = (np.uint64(node) << _BITS | np.uint64(character)) + _ONE
    mask = np.uint64(len(keys) - 1)
    at = mix64(key) & mask
    while keys[at] != 0 and keys[at] != key:
        at = (at + _ONE) & mask
    return at


@helper
def child_of(node, character, trie):
    """The node that a character leads to, or NONE."""
    at = place_of(node, character, trie.keys)
    return np.int64(trie.children[at]) if trie.keys[at] != 0 else np.int64(NONE)


@kernel
def count_nodes(characters, starts):
    """Nodes of a trie of sorted words, the root not counted. Word i is characters[starts[i]:starts[i + 1]]."""
    nodes = np.int64(0)
    for i in range(len(starts) - 1):
        length, common = starts[i + 1] - starts[i], np.int64(0)
        if i > 0:
            most = min(length, starts[i] - starts[i - 1])
            while common < most and characters[starts[i] + common] == characters[starts[i - 1] + common]:
                common += 1
        nodes += length - common
    return nodes


@kernel
def fill(characters, starts, ids, trie, first, parents, letters):
    """Add words and their ids. Nodes are numbered from `first`, parents before children; return their number.

    parents, letters: of each node, or empty.
    """
    nodes = np.int64(first)
    for i in range(len(starts) - 1):
        node = np.int64(ROOT)
        for j in range(starts[i], starts[i + 1]):
            at = place_of(node, characters[j], trie.keys)
            if trie.keys[at] == 0:
                trie.keys[at] = (np.uint64(node) << _BITS | np.uint64(characters[j])) + _ONE
                trie.children[at] = nodes
                if len(parents):
                    parents[nodes], letters[nodes] = node, characters[j]
                nodes += 1
            node = np.int64(trie.children[at])
        trie.values[node] = ids[i]
    return nodes


@helper
def follow(node, character, hot):
    """The node of the automaton after one more character. A phrase begins at the beginning of a word only."""
    while True:
        if node == DEAD:
            return np.int64(ROOT) if character == 32 else np.int64(DEAD)
        child = child_of(node, character, hot.trie)
        if child != NONE:
            return child
        node = np.int64(hot.fail[node])


@kernel
def weigh(characters, starts, weights, longest_first, hot):
    """Fill `partial`, and `bonus` with that of the phrase that ends at each node."""
    for i in longest_first:
        node, length = np.int64(ROOT), starts[i + 1] - starts[i]
        for j in range(length):
            node = child_of(node, characters[starts[i] + j], hot.trie)
            hot.partial[node] = weights[i] * (j + 1) / length
        hot.bonus[node] = weights[i]


@kernel
def link(parents, letters, hot):
    """Fill `fail`, and add up `bonus` of phrases that end together, in the order of the nodes' depth."""
    hot.fail[ROOT] = hot.fail[DEAD] = DEAD
    depths = np.zeros(len(parents), np.int64)
    for node in range(DEAD + 1, len(parents)):
        depths[node] = depths[parents[node]] + 1
    for depth in range(1, depths.max() + 1):
        for node in range(DEAD + 1, len(parents)):
            if depths[node] == depth:
                hot.fail[node] = follow(np.int64(hot.fail[parents[node]]), letters[node], hot)
                hot.bonus[node] += hot.bonus[hot.fail[node]]
