"""Building the directory through which rows are found by their keys."""

from __future__ import annotations

import numpy as np

from snm.kernels import row_index as row_kernels
from snm.layouts.counts import RowIndex

ROWS_PER_ENTRY = 4  # on average; a look-up scans these keys, half a cache line


def build_row_index(features: np.ndarray) -> RowIndex:
    """The directory of sorted feature keys. features: (rows,) uint64"""
    low, high = int(features[0]), int(features[-1])
    wanted = max(1, len(features) // ROWS_PER_ENTRY)
    shift = min(((high - low) // wanted).bit_length(), 63)  # a shift by 64 is undefined
    directory = np.empty(((high - low) >> shift) + 2, np.uint32 if len(features) < 1 << 32 else np.uint64)
    row_kernels.build_index(features, np.uint64(low), np.uint64(shift), directory)
    return RowIndex(features, directory, np.uint64(low), np.uint64(shift))
