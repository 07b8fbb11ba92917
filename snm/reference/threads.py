"""The exchange of private weights between threads, one weight at a time: the twin of kernels in `fast_training`."""

from __future__ import annotations

import numpy as np

from snm.layouts.weights import PrivateWeights


def copy_shared(table: np.ndarray, private: PrivateWeights) -> None:
    """Copy the shared weights to a thread's private ones."""
    for i, (row, slot) in enumerate(zip(private.rows.tolist(), private.slots.tolist(), strict=True)):
        table[private.first + row] = private.before[i] = table[slot]


def exchange(table: np.ndarray, private: PrivateWeights) -> None:
    """Add what a thread has learned to the shared weights, and take over what other threads have added.

    AdaGrad's steps are shorter, the larger the sum of squares: what the thread has learned shrinks by the root of its
    own sum of squares over that of all threads.
    """
    for i, (row, slot) in enumerate(zip(private.rows.tolist(), private.slots.tolist(), strict=True)):
        mine, shared, before = table[private.first + row], table[slot], private.before[i]
        learned, share = mine[0] - before[0], np.float32(1)
        if table.shape[1] == 2:
            by_others = max(shared[1] - before[1], np.float32(0))
            share = np.sqrt(mine[1] / (mine[1] + by_others))
            mine[1] += by_others
        if shared[0] != before[0]:  # others have changed the weight; otherwise the thread's own one stands
            mine[0] = shared[0] + share * learned
        shared[:] = before[:] = mine
