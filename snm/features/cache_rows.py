"""From tokens to the rows of caches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from snm.features.caches import Cache
from snm.kernels import caches as cache_kernels
from snm.layouts.caches import NOBODY, Caches


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
            cache_kernels.read_caches(here, start - begin, gaps, self.layout, made)
        return made
