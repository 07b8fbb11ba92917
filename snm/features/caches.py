"""Caches: rows made of the words of the segment so far, which no training text has counted.

A cache with a adjacent words holds the words among the last N that follow the same a words as the target does. Each
weighs 2^(-distance / half), and the weights are divided by their sum: so a cache is a row whose sum is 1, or none where
no word fits. The gate weighs it against the rows of the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CACHE_WORDS = 1 << 14
MAX_HALVES = 24  # half-lives in a cache: weights stay above 2^-24
DEFAULT_WORDS, DEFAULT_HALF, DEFAULT_ADJACENT = 2000, 500, (0, 2)


@dataclass(frozen=True)
class Cache:
    """One cache: words that followed the last `adjacent` words, up to `words` back, halved every `half` words."""

    adjacent: int
    words: int
    half: int
