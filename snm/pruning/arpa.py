"""Pruning to the bytes of an ARPA file: a line for each n-gram, whose length depends on its words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from snm.errors import SettingsError
from snm.pruning.backoff import PrunedBackoff
from snm.pruning.budget import Budget, Smaller, find_limit

NUMBER_BYTES = 11  # of a logarithm with seven digits, its sign and the tab after it: nearly always at most
HEADER_BYTES = 200


def limit_for_arpa(pruned: PrunedBackoff, size: int) -> tuple[float, Smaller]:
    """The least worth of n-grams such that an ARPA file of those that stay has at most about `size` bytes."""
    sizes = _line_bytes(pruned)

    def smaller(least: float) -> Smaller:
        made = pruned.smaller(least)
        return replace(made, bytes=HEADER_BYTES + int(sizes[pruned.worth >= least].sum(dtype=np.int64)))

    least = smaller(np.inf)
    if least.bytes > size:
        raise SettingsError(
            f"a size of {size:,} bytes is too small: the lines of the single words alone take {least.bytes:,}; give a "
            f"larger --size"
        )
    if smaller(0.0).bytes <= size:
        return 0.0, smaller(0.0)
    worths = pruned.worth[np.isfinite(pruned.worth) & (pruned.worth > 0)]
    return find_limit(smaller, Budget(size=size), float(worths.min()), float(worths.max()))


def _line_bytes(pruned: PrunedBackoff) -> np.ndarray:
    """Bytes of the line of each n-gram. (links,) uint16"""
    model, tree = pruned.model, pruned.tree
    of_word = np.array([len(word.encode()) + 1 for word in model.vocabulary.words], np.int64)
    of_context = np.zeros(len(tree.levels), np.int64)
    sizes = np.empty(len(model.targets), np.uint16)
    lengths = np.diff(model.offsets)
    for level in range(model.extractor.n_templates):
        rows = np.flatnonzero(tree.levels == level)
        counts = lengths[rows]
        links = np.repeat(model.offsets[rows] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        words = np.repeat(of_context[rows], counts) + of_word[model.targets[links]]
        known = tree.children[links] >= 0
        of_context[tree.children[links[known]]] = words[known]
        last = level + 1 == model.extractor.n_templates
        sizes[links] = np.minimum(words + NUMBER_BYTES * (1 if last else 2), 65535)
        if level == 0:  # <s>, which no link leads to
            starts = np.flatnonzero((tree.levels == 1) & (of_context == 0))
            of_context[starts] = len("<s> ")
    return sizes
