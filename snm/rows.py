"""Finding rows by key: a directory over the sorted keys, which are hashes and so spread evenly."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS_A_PLACE = 4  # a look-up scans this many keys on average: half a cache line


class RowIndex:
    """A directory of sorted feature keys. `arguments` are what the look-up kernels take."""

    def __init__(self, features: np.ndarray, index: np.ndarray, low: int, shift: int) -> None:
        self.features, self.index, self.low, self.shift = features, index, low, shift

    @classmethod
    def build(cls, features: np.ndarray) -> RowIndex:
        from snm.kernels import lookup

        low, high = (int(features[0]), int(features[-1])) if len(features) else (0, 0)
        places = max(1, len(features) // ROWS_A_PLACE)
        shift = min(((high - low) // places).bit_length(), 63)  # a shift by 64 is undefined
        index = np.empty(((high - low) >> shift) + 2, np.uint32 if len(features) < 1 << 32 else np.uint64)
        lookup.build_index(features, np.uint64(low), np.uint64(shift), index)
        return cls(features, index, low, shift)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.features, np.uint64(self.low), np.uint64(self.shift), self.index
