"""Weights of a network in 16 bits, and their products with rows of numbers: see `snm.kernels.products`.

A row of numbers is rounded to integers, of 512 numbers up to 4,096, and an output's weights to integers as large as no
sum of products overflows, about as many. Sums are exact, so a row's products do not depend on the other rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from snm.kernels import products as kernels
from snm.kernels.products import OUTPUTS


class Rows(NamedTuple):
    """Rows of numbers as integers, and what one is worth in each row."""

    numbers: np.ndarray  # (n, inputs or one more, an even number) int16
    scales: np.ndarray  # (n,) float32

    @classmethod
    def of(cls, numbers: np.ndarray) -> Rows:
        """numbers: (n, inputs) float32"""
        made = cls(_rows(*numbers.shape), np.empty(len(numbers), np.float32))
        kernels.quantise(np.ascontiguousarray(numbers), *made)
        return made


def _rows(n: int, inputs: int) -> np.ndarray:
    return np.empty((n, -(-inputs // 2) * 2), np.int16)


class Weights:
    """Weights as integers, in tiles of OUTPUTS outputs, with biases."""

    def __init__(self, weights: np.ndarray, biases: np.ndarray | None = None, order: np.ndarray | None = None) -> None:
        """weights: (outputs, inputs) float32. order: the rows of `weights` in tiles, -1 for an output that is none."""
        order = np.arange(len(weights)) if order is None else order
        order = np.append(order, np.full(-len(order) % OUTPUTS, -1))
        self.outputs = len(weights)
        self.tiles = np.empty((len(order) // OUTPUTS, -(-weights.shape[1] // 2), OUTPUTS, 2), np.int16)
        if weights.shape[1] % 2:
            self.tiles[:, -1, :, 1] = 0
        self.scales = np.empty(len(order), np.float32)
        kernels.pack(np.ascontiguousarray(weights), order, self.tiles, self.scales)
        self.biases = np.zeros(len(order), np.float32)
        if biases is not None:
            self.biases = np.where(order < 0, np.float32(-np.inf), biases[order])

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.tiles, self.scales, self.biases

    def padded(self, rows: Rows | np.ndarray) -> np.ndarray:
        """The products and biases of all outputs in their order, those that are none included. (n, …) float32"""
        numbers, scales = rows if isinstance(rows, Rows) else Rows.of(rows)
        out = np.empty((len(numbers), len(self.scales)), np.float32)
        kernels.multiply(numbers, scales, *self.arrays, out)
        return out

    def products(self, rows: Rows | np.ndarray) -> np.ndarray:
        """The same without order: of outputs as they were given. (n, outputs) float32"""
        made: np.ndarray = self.padded(rows)[:, : self.outputs]
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
