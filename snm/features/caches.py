"""Caches: rows made of the words of the segment so far, which no training text has counted.

A cache with a adjacent words holds the words among the last N that follow the same a words as the target does. Each
weighs 2^(-distance / half), and the weights are divided by their sum: so a cache is a row whose sum is 1, or none where
no word fits. The gate weighs it against the rows of the matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snm.kernels import caches as cache_kernels
from snm.layouts.caches import NOBODY, Caches

MAX_CACHE_WORDS = 1 << 14
MAX_HALVES = 24  # half-lives in a cache: weights stay above 2^-24
DEFAULT_WORDS, DEFAULT_HALF, DEFAULT_ADJACENT = 2000, 500, (0, 2)


@dataclass(frozen=True)
class Cache:
    """One cache: words that followed the last `adjacent` words, up to `words` back, halved every `half` words."""

    adjacent: int
    words: int
    half: int


class CacheReader:
    """Computes the caches' rows of a text's events."""

    def __init__(self, caches: Sequence[Cache], words: int, never_a_target: int) -> None:
        """`words` of the vocabulary; `never_a_target`: `<S>`, or the id of another word that is never predicted."""
        never = never_a_target or NOBODY
        self.layout = Caches.of([(cache.adjacent, cache.words, cache.half) for cache in caches], never)
        self._words = words

    def __len__(self) -> int:
        return len(self.layout.words)

    def rows(self, tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Count code, weight, row sum and weight of the target, of the events whose targets are tokens[start:stop].

        (4, caches, events) float32
        """
        made = np.zeros((4, len(self), stop - start), np.float32)
        if len(self):
            begin = max(0, start - self.layout.span)
            here = tokens[begin:stop]
            gaps = np.empty(len(here), np.int64)
            cache_kernels.find_gaps(here, np.zeros(self._words, np.int64), gaps)
            cache_kernels.read_text(here, start - begin, gaps, self.layout, made)
        return made
