"""Logarithms of whole numbers."""

import numpy as np

from snm.kernels.compile import helper
from snm.kernels.simd import leading_zeros


@helper
def floor_log2(count):
    """Floor of log2 of a count above zero."""
    return 63 - leading_zeros(np.int64(count))
