"""Building the directory through which rows are found by their keys."""

from __future__ import annotations

import numpy as np

from snm.layouts.counts import RowIndex

ROWS_PER_ENTRY = 4  # on average; a look-up scans these keys, half a cache line
PIECE = 1 << 20  # rows that are looked at together


class IndexBuilder:
    """Builds a directory piece by piece: entry i is the first row whose (key - low) >> shift is at least i."""

    def __init__(self, low: int, high: int, rows: int) -> None:
        """`low` and `high`: the first and the last key."""
        wanted = max(1, rows // ROWS_PER_ENTRY)
        self.low, self.shift = low, min(((high - low) // wanted).bit_length(), 63)  # a shift by 64 is undefined
        self.entries = ((high - low) >> self.shift) + 2
        self.dtype = np.dtype(np.uint32 if rows < 1 << 32 else np.uint64)
        self._filled = self._rows = 0

    @property
    def description(self) -> dict[str, int]:
        """Its part of a manifest."""
        return {"low": self.low, "shift": self.shift}

    def add(self, features: np.ndarray) -> np.ndarray:
        """The entries that the next rows complete. features: their keys, sorted. (rows,) uint64"""
        of_rows = ((features - np.uint64(self.low)) >> np.uint64(self.shift)).astype(np.int64)
        last = int(of_rows[-1]) + 1 if len(of_rows) else self._filled
        made = self._rows + np.searchsorted(of_rows, np.arange(self._filled, last))
        self._filled, self._rows = max(last, self._filled), self._rows + len(features)
        return made.astype(self.dtype)

    def finish(self) -> np.ndarray:
        """The entries that are left."""
        return np.full(self.entries - self._filled, self._rows, self.dtype)


def build_row_index(features: np.ndarray) -> RowIndex:
    """The directory of sorted feature keys. features: (rows,) uint64"""
    builder = IndexBuilder(int(features[0]), int(features[-1]), len(features))
    directory, filled = np.empty(builder.entries, builder.dtype), 0
    for start in range(0, len(features), PIECE):
        made = builder.add(features[start : start + PIECE])
        directory[filled : filled + len(made)] = made
        filled += len(made)
    directory[filled:] = builder.finish()
    return RowIndex(features, directory, np.uint64(builder.low), np.uint64(builder.shift))
