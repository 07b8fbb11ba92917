"""Finding rows by key: a directory over the sorted keys, which are hashes and so spread evenly."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ROWS_A_PLACE = 4  # a look-up scans this many keys on average: half a cache line


class RowIndex(NamedTuple):
    """A directory of sorted feature keys, as the look-up kernels take it."""

    features: np.ndarray  # (rows,) uint64
    places: np.ndarray  # (places + 1,): the first row of each place
    low: np.uint64
    shift: np.uint64

    @classmethod
    def build(cls, features: np.ndarray) -> RowIndex:
        from snm.kernels import lookup

        low, high = int(features[0]), int(features[-1])
        wanted = max(1, len(features) // ROWS_A_PLACE)
        shift = min(((high - low) // wanted).bit_length(), 63)  # a shift by 64 is undefined
        places = np.empty(((high - low) >> shift) + 2, np.uint32 if len(features) < 1 << 32 else np.uint64)
        lookup.build_index(features, np.uint64(low), np.uint64(shift), places)
        return cls(features, places, np.uint64(low), np.uint64(shift))

    @property
    def description(self) -> dict[str, int]:
        """What the manifest of a model says of it."""
        return {"low": int(self.low), "shift": int(self.shift)}
