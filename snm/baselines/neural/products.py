"""Matrix products and softmaxes in NumPy that give a row the same result whatever the other rows are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

ROWS_PER_PRODUCT = 32
"""Rows of every matrix product, sentences or events. The number is fixed, because products of other shapes round
differently: the score of a sentence must not depend on the other sentences."""


def tiles(rows: np.ndarray) -> Iterator[np.ndarray]:
    for i in range(0, len(rows), ROWS_PER_PRODUCT):
        yield rows[i : i + ROWS_PER_PRODUCT]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, ROWS_PER_PRODUCT rows at a time."""
    made = np.empty((len(a), b.shape[1]), a.dtype)
    whole = len(a) // ROWS_PER_PRODUCT * ROWS_PER_PRODUCT
    for i in range(0, whole, ROWS_PER_PRODUCT):
        np.matmul(a[i : i + ROWS_PER_PRODUCT], b, out=made[i : i + ROWS_PER_PRODUCT])
    if whole < len(a):
        rest = np.zeros((ROWS_PER_PRODUCT, a.shape[1]), a.dtype)
        rest[: len(a) - whole] = a[whole:]
        made[whole:] = (rest @ b)[: len(a) - whole]
    return made


def log_softmax(scores: np.ndarray, columns: np.ndarray | None = None) -> np.ndarray:
    """log P of the given column of each row, (rows,), or of all columns, (rows, n). float64

    Exponentials are summed in double precision, so that probabilities sum to one.
    """
    largest = scores.max(axis=1)
    sums = np.log(np.exp(scores - largest[:, None]).sum(axis=1, dtype=np.float64)) + largest
    logs: np.ndarray
    if columns is None:
        logs = scores - sums[:, None]
    else:
        logs = scores[np.arange(len(scores)), columns] - sums
    return logs
