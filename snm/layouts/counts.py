"""Counts C: rows of features, links to their targets, and the directory through which rows are found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PACKED_EXACTLY = 4096  # counts below this are exact in the sixteen bits that an annotated event has for each

CHUNK = np.dtype(
    [
        ("words", "<i8"),  # of 64 bits, that its code takes
        ("rows", "<i8"),
        ("links", "<i8"),
        ("checksum", "<u8"),
        ("key_bits", "<i4"),  # parameters of its codes, see docs/format.md
        ("target_bits", "<i2"),
        ("gap_bits", "<i2"),
    ]
)
"""A bucket of stored counts, as `snm.kernels.count_codes` writes and reads it."""


class Counts(NamedTuple):
    """Rows of C in the order of their feature keys. Row i owns links offsets[i]:offsets[i + 1]."""

    features: np.ndarray  # (rows,) uint64, sorted
    feature_counts: np.ndarray  # (rows,) int64: C_i*
    offsets: np.ndarray  # (rows + 1,) int64
    targets: np.ndarray  # (links,) uint32, sorted inside a row
    link_counts: np.ndarray  # (links,) int64: C_ij

    @classmethod
    def empty(cls, rows: int, links: int) -> Counts:
        """Arrays for so many rows and links, not filled."""
        return cls(
            np.empty(rows, np.uint64), np.empty(rows, np.int64), np.empty(rows + 1, np.int64),
            np.empty(links, np.uint32), np.empty(links, np.int64),
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: list[Counts]) -> Counts:
        """The rows of several parts, in their order."""
        lengths = [len(part.targets) for part in parts]
        offsets = [part.offsets[:-1] + end - n for part, end, n in zip(parts, np.cumsum(lengths), lengths, strict=True)]
        return cls(
            np.concatenate([part.features for part in parts]), np.concatenate([part.feature_counts for part in parts]),
            np.append(np.concatenate(offsets), sum(lengths)),
            np.concatenate([part.targets for part in parts]), np.concatenate([part.link_counts for part in parts]),
        )  # fmt: skip

    def select(self, rows: np.ndarray) -> Counts:
        """The listed rows."""
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        links = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Counts(
            self.features[rows], self.feature_counts[rows], offsets, self.targets[links], self.link_counts[links]
        )

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
    counts: np.ndarray  # (words,) int64


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
