"""The probabilities of an SNM's n-grams: P after the context alone, by the gate for contexts of its length."""

from __future__ import annotations

import numpy as np

from snm.kernels import projection as kernels
from snm.kernels import rows as row_kernels
from snm.layouts.gate import Gate
from snm.layouts.keys import ABSENT
from snm.layouts.tokens import BEGIN
from snm.progress import Advance, ignore
from snm.projection.continuations import Continuations
from snm.projection.gates import longest_row, needed
from snm.projection.ngrams import LEAST, Ngrams
from snm.scoring.model import SnmModel


def probabilities_of(
    model: SnmModel, ngrams: Ngrams, continuations: Continuations, gates: list[Gate], advance: Advance = ignore
) -> np.ndarray:
    """P of the n-grams. (links,) float32

    gates: for each number of words of a context one over all templates and continuation rows.
    """
    made, weights = np.full(len(ngrams.targets), LEAST, np.float32), np.empty(longest_row(ngrams), np.float32)
    reach, m = needed(model), model.matrix
    unigrams = int(m.unigram_code), float(m.unigram_links), float(m.unigram_sum)
    folded = [gate.folded(*unigrams) for gate in gates]
    for words, rows in ngrams.pieces():
        level, above = words.shape[1], ngrams.rows_within(words)[:, : ngrams.order - 1]
        any_words = ngrams.targets[ngrams.offsets[rows]]
        keys = _keys_after(model, words, any_words)
        keys[reach > level] = ABSENT
        extra = continuations.found(above, np.full_like(above, -1))
        found = row_kernels.find(keys, any_words, m, folded[level], extra)
        kernels.score_rows(
            keys, rows, np.ascontiguousarray(above), found.scale, found.row_sum, ngrams.offsets, ngrams.targets,
            continuations.weights, m, weights, made,
        )  # fmt: skip
        advance(int((ngrams.offsets[rows + 1] - ngrams.offsets[rows]).sum()))
    return np.maximum(made, LEAST)


def _keys_after(model: SnmModel, words: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Keys of the events after contexts, (n, words); `<S>` stands before them. (templates, n) uint64"""
    n, length = words.shape
    tokens = np.full((n, length + 2), BEGIN, np.uint32)
    tokens[:, 1:-1], tokens[:, -1] = words, targets
    keys = np.empty((model.extractor.n_templates, n), np.uint64)
    flat, per_block = tokens.ravel(), max(1, model.extractor.block // (length + 2))
    for first in range(0, n, per_block):
        last = min(first + per_block, n)
        block = model.extractor.keys(flat, first * (length + 2), last * (length + 2))
        keys[:, first:last] = block[:, length + 1 :: length + 2]
    return keys
