"""Counts C: rows of features, links to their targets, and the directory through which rows are found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PACKED_EXACTLY = 4096  # counts below this are exact in the sixteen bits that an annotated event has for each


class Counts(NamedTuple):
    """Rows of C in the order of their feature keys. Row i owns links offsets[i]:offsets[i + 1]."""

    features: np.ndarray  # (rows,) uint64, sorted
    feature_counts: np.ndarray  # (rows,) uint32: C_i*
    offsets: np.ndarray  # (rows + 1,) int64
    targets: np.ndarray  # (links,) uint32, sorted inside a row
    link_counts: np.ndarray  # (links,) uint32: C_ij

    def between(self, row: int, end: int) -> Counts:
        """The rows [row, end)."""
        first, last = self.offsets[row], self.offsets[end]
        return Counts(
            self.features[row:end], self.feature_counts[row:end], self.offsets[row : end + 1] - first,
            self.targets[first:last], self.link_counts[first:last],
        )  # fmt: skip


class Unigrams(NamedTuple):
    """The counts of the empty feature, which events are not annotated with."""

    total: np.int64
    counts: np.ndarray  # (words,) uint32


class RowIndex(NamedTuple):
    """A directory over sorted feature keys. Keys are hashes, so they are spread evenly over it."""

    features: np.ndarray  # (rows,) uint64
    directory: np.ndarray  # (entries + 1,): the first row whose (key - low) >> shift is at least the entry's number
    low: np.uint64
    shift: np.uint64

    @property
    def description(self) -> dict[str, int]:
        """Its part of a manifest."""
        return {"low": int(self.low), "shift": int(self.shift)}
