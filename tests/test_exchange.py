"""The exchange of private weights between threads against its slow twin, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snm.kernels import fast_training
from snm.layouts.weights import PrivateWeights
from snm.reference import threads

SLOTS, COPIES = 50, 30


def private_weights(random: np.random.Generator, thread: int, copies: int, columns: int) -> PrivateWeights:
    """Copies of slots, some of them of the same slot; the private rows of threads lie behind the shared slots."""
    return PrivateWeights(
        np.int64(SLOTS + thread * COPIES),
        random.permutation(COPIES)[:copies],
        random.integers(0, SLOTS, copies),
        np.zeros((copies, columns), np.float32),
    )


def learn(table: np.ndarray, private: PrivateWeights, random: np.random.Generator, chance: float) -> None:
    """Steps of some of a thread's weights; sums of squares grow."""
    rows = private.first + private.rows[random.random(len(private.rows)) < chance]
    table[rows, 0] += random.normal(size=len(rows)).astype(np.float32)
    if table.shape[1] == 2:
        table[rows, 1] += random.random(len(rows)).astype(np.float32)


@given(
    seed=st.integers(0, 2**32), columns=st.sampled_from([1, 2]), copies=st.sampled_from([0, 1, COPIES]),
    order=st.lists(st.integers(0, 2), max_size=12), chance=st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
def test_exchanges_are_the_slow_twins(seed: int, columns: int, copies: int, order: list[int], chance: float) -> None:
    """Three threads that learn and exchange in any order: the same bits after each step."""
    random = np.random.default_rng(seed)
    table = random.normal(size=(SLOTS + 3 * COPIES, columns)).astype(np.float32)
    table[:, -1] = np.abs(table[:, -1]) + 1  # sums of squares, where there are two columns
    slow_table = table.copy()
    fast = [private_weights(random, thread, copies, columns) for thread in range(3)]
    slow = [private._replace(before=private.before.copy()) for private in fast]
    for one, other in zip(fast, slow, strict=True):
        fast_training.copy_shared(table, one)
        threads.copy_shared(slow_table, other)
    for thread in order:
        learn(table, fast[thread], np.random.default_rng([seed, thread]), chance)
        learn(slow_table, slow[thread], np.random.default_rng([seed, thread]), chance)
        fast_training.exchange(table, fast[thread])
        threads.exchange(slow_table, slow[thread])
        assert np.array_equal(table, slow_table)
        assert np.array_equal(fast[thread].before, slow[thread].before)


@pytest.mark.parametrize("columns", [1, 2])
def test_what_one_thread_learns_reaches_the_other(columns: int) -> None:
    table = np.ones((3, columns), np.float32)
    one, other = (
        PrivateWeights(np.int64(row), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, columns), np.float32))
        for row in (1, 2)
    )
    for private in (one, other):
        fast_training.copy_shared(table, private)
    table[1, 0] += 0.5
    fast_training.exchange(table, one)
    fast_training.exchange(table, other)
    assert table[:, 0].tolist() == [1.5, 1.5, 1.5]
    assert (one.before[0, 0], other.before[0, 0]) == (1.5, 1.5)
