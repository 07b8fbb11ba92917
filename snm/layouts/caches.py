"""Caches as kernels take them: rows made of the words of the segment so far. See `snm.features.caches`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from snm.layouts.matrix import CODES_PER_OCTAVE

NOBODY = -1  # as `never_a_target`, where every word may be a target


class Caches(NamedTuple):
    """The caches of a model. Arrays of a model without caches have no rows."""

    adjacent: np.ndarray  # (caches,) int64: how many words before the target a cached word must follow too
    words: np.ndarray  # (caches,) int64: how many words back a cache reaches
    decay: np.ndarray  # (caches, most words + 1) float64: the weight of a word by its distance from the target
    sums: np.ndarray  # (caches, most words + 1) float64: the weights of the nearest words, summed
    codes: np.ndarray  # (most words + 1,) float32: count codes
    never_a_target: int

    @classmethod
    def of(cls, caches: Sequence[tuple[int, int, int]], never_a_target: int) -> Caches:
        """From (adjacent words, words, half-life in words) of each cache."""
        adjacent, words, half = np.array(list(caches), np.int64).reshape(-1, 3).T
        distance = np.arange(int(words.max(initial=0)) + 1)
        decay = 0.5 ** (distance / half[:, None])
        decay[:, 0] = 0.0
        codes = np.round(CODES_PER_OCTAVE * np.log2(np.maximum(distance, 1))).clip(0, 255).astype(np.float32)
        adjacent, words = np.ascontiguousarray(adjacent), np.ascontiguousarray(words)
        return cls(adjacent, words, decay, np.cumsum(decay, axis=1), codes, never_a_target)

    @property
    def span(self) -> int:
        """Words before a target that its caches depend on."""
        return int((self.words + self.adjacent).max(initial=0))
