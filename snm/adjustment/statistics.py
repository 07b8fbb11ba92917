"""What metafeatures beyond the paper's need to know of the counts: diversity and continuation counts.

The *diversity* of a feature is the number of different targets that it was seen with. The *continuation count* of a
target is the number of different features of a type that it follows, as in Kneser-Ney's lower orders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snm.counts.index import build_row_index
from snm.counts.store import StoredCounts
from snm.features.extraction import Extractor
from snm.kernels import row_index as row_kernels
from snm.kernels import statistics as statistics_kernels
from snm.layouts.counts import Counts, RowIndex

ROWS_AT_A_TIME = 1 << 20
ROW_BYTES = 13  # of a feature that was seen more than once: key, two packed numbers, its share of a directory
SEEN_ONCE = np.uint32(1 << 16 | 1)  # packed: one target, seen once


@dataclass(frozen=True)
class Diversities:
    """The diversity of features: how many targets, and how many of them a feature was seen with once, packed."""

    index: RowIndex  # of the features that were seen more than once
    packed: np.ndarray  # (rows,) uint32, see `snm.kernels.counts.pack_counts`

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Those of some features. (templates, events) uint64 to (events, templates) uint32"""
        taken = np.empty(keys.shape[::-1], np.uint32)
        row_kernels.take_values(keys, self.index, self.packed, SEEN_ONCE, taken)
        return taken

    @property
    def bytes(self) -> int:
        return ROW_BYTES * len(self.packed)


def measure_diversity(unigrams: Counts, counts: StoredCounts, threads: int = 1) -> Diversities:
    """The diversities of all features. `unigrams`: the row of the empty feature, the first; `counts`: all others."""
    rows = 1 + int(counts.rows_by_type.sum() - counts.singles_by_type.sum())
    features, packed, filled = np.empty(rows, np.uint64), np.empty(rows, np.uint32), 0
    for part in (unigrams, *counts.parts(ROWS_AT_A_TIME, threads=threads)):
        measured = np.empty(len(part.features), np.uint32)
        statistics_kernels.measure_rows(part, measured)
        kept = (part.feature_counts > 1) | (part.features == unigrams.features[0])
        end = filled + int(np.count_nonzero(kept))
        features[filled:end], packed[filled:end] = part.features[kept], measured[kept]
        filled = end
    return Diversities(build_row_index(features[:filled]), packed[:filled])


def continuation_buckets(unigrams: Counts, counts: StoredCounts, extractor: Extractor, threads: int = 1) -> np.ndarray:
    """Half octaves of the continuation count of each target, by type; 0 where it has no link. (types, words) uint32"""
    layout, types = extractor.layout, len(extractor.spec.types)
    made = np.zeros((types, len(extractor.vocabulary)), np.uint32)
    shift, mask = np.uint64(layout.type_shift), np.uint64((1 << layout.type_bits) - 1)
    for part in (unigrams, *counts.parts(ROWS_AT_A_TIME, threads=threads)):
        statistics_kernels.count_features(part, shift, mask, made)
    statistics_kernels.half_octaves(made)
    return made
