"""Statistics of counts that metafeatures need: how many targets a feature has, how many features a target follows."""

import numpy as np

from snm.kernels.adjustment import half_bucket
from snm.kernels.compile import kernel
from snm.kernels.counts import pack_counts


@kernel
def measure_rows(c, measured):
    """measured[row]: how many targets a row of counts c has, and how many of them it was seen with once, packed."""
    for row in range(len(c.features)):
        once = np.int64(0)
        for link in range(c.offsets[row], c.offsets[row + 1]):
            once += c.link_counts[link] == 1
        measured[row] = pack_counts(np.int64(c.offsets[row + 1] - c.offsets[row]), once)


@kernel
def count_features(c, type_shift, type_mask, into):
    """Add the number of rows of each type in which each target is to into[type, target]."""
    for row in range(len(c.features)):
        of_type = into[(c.features[row] >> type_shift) & type_mask]
        for link in range(c.offsets[row], c.offsets[row + 1]):
            of_type[c.targets[link]] += np.uint32(1)


@kernel
def half_octaves(numbers):
    """Replace numbers by their half octaves, 0 by 0. (rows, columns) uint32"""
    for i in range(numbers.shape[0]):
        for j in range(numbers.shape[1]):
            if numbers[i, j]:
                numbers[i, j] = half_bucket(np.int64(numbers[i, j]))
