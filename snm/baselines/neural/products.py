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
    padded = np.zeros((-len(a) % ROWS_PER_PRODUCT + len(a), a.shape[1]), a.dtype)
    padded[: len(a)] = a
    parts = [tile @ b for tile in tiles(padded)]
    made: np.ndarray = np.concatenate(parts)[: len(a)] if len(parts) > 1 else parts[0][: len(a)]
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
