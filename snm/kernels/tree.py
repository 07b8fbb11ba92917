"""Probabilities of a binary tree of words (`hsme` models).

The log odds of a node are its start, the product of its vector and the hidden state, and weights of hashed n-grams of
the context.
"""

import math

import numpy as np

from snm.kernels.compile import kernel, sum_helper
from snm.kernels.hashing import MULTIPLIER, extend, mix64

_1 = np.uint64(1)


@kernel
def hash_contexts(tokens, begin, out):
    """Fill out[token, n]: the hash of the n words before the token, 0 where the segment has fewer."""
    start = 0
    for k in range(len(tokens)):
        if tokens[k] == begin:
            start = k
            out[k] = 0
            continue
        chain = np.uint64(0)
        for a in range(out.shape[1]):
            if a:
                if k - a < start:
                    out[k, a:] = 0
                    break
                chain = extend(chain, mix64(np.uint64(tokens[k - a]) + _1))
            out[k, a] = mix64(chain ^ mix64(np.uint64(a) + _1)) | _1


@sum_helper
def _dot(a, b):
    total = np.float32(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@kernel
def _score(node, hashes, table, shift, scales, starts, vectors, hidden):
    """The log odds of side 1 of a node."""
    score = np.float64(starts[node]) + _dot(vectors[node], hidden)
    for a in range(len(hashes)):
        if hashes[a]:
            score += scales[a] * table[(hashes[a] + np.uint64(node) * MULTIPLIER) >> shift]
    return score


@kernel
def _log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


@kernel
def _probability(word, hashes, table, shift, scales, starts, vectors, hidden, word_up, node_up):
    """P of a word after one context; 0 for a word without a leaf."""
    up = word_up[word]
    if up < 0:
        return 0.0
    log = 0.0
    while up >= 0:
        node = up >> 1
        score = _score(node, hashes, table, shift, scales, starts, vectors, hidden)
        log += _log_sigmoid(score if up & 1 else -score)
        up = node_up[node]
    return math.exp(log)


@kernel
def score_words(words, hashes, table, shift, scales, starts, vectors, hidden, word_up, node_up, out):
    """Fill out[k]: P(words[k]) after the context of hashes[k] and the state hidden[k]; 0 for words without a leaf.

    word_up[word] and node_up[node] are steps to their parents, see `snm.baselines.neural.tree.Tree`.
    """
    for k in range(len(words)):
        out[k] = _probability(words[k], hashes[k], table, shift, scales, starts, vectors, hidden[k], word_up, node_up)


@kernel
def score_candidates(words, hashes, table, shift, scales, starts, vectors, hidden, word_up, node_up, out):
    """Fill out[k, j]: P(words[k, j]) after context k, or of words[0, j] if there is one row of words."""
    for k in range(len(hidden)):
        row = words[0 if len(words) == 1 else k]
        for j in range(len(row)):
            out[k, j] = _probability(
                row[j], hashes[k], table, shift, scales, starts, vectors, hidden[k], word_up, node_up
            )


@kernel
def score_all(hashes, table, shift, scales, starts, vectors, hidden, word_up, node_up, out):
    """Fill out[word]: P of each word after one context."""
    logs = np.empty((len(node_up), 2), np.float64)
    for node in range(len(node_up)):
        score = _score(node, hashes, table, shift, scales, starts, vectors, hidden)
        above = logs[node_up[node] >> 1, node_up[node] & 1] if node else 0.0
        logs[node, 0], logs[node, 1] = above + _log_sigmoid(-score), above + _log_sigmoid(score)
    for word in range(len(word_up)):
        up = word_up[word]
        out[word] = math.exp(logs[up >> 1, up & 1]) if up >= 0 else 0.0
