"""Backoff models on disk: a probability for every link, and a backoff weight for every row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from snm import parallel
from snm.features.extraction import Extractor
from snm.kernels import backoff as backoff_kernels
from snm.layouts.counts import Counts, RowIndex
from snm.progress import Progress, silent
from snm.text.encoding import Text


@dataclass(frozen=True)
class Training:
    """What an estimator works with: a text and its counts. The slots are the contexts of 0, 1, 2 … words."""

    text: Text
    extractor: Extractor
    counts: Counts
    index: RowIndex
    threads: int = 1
    progress: Progress = silent

    @property
    def orders(self) -> np.ndarray:
        """Context words of every row. (rows,) uint16"""
        return self.extractor.layout.type_of(self.counts.features)

    def sum_shorter(self, probabilities: np.ndarray) -> np.ndarray:
        """Of every row the sum, over its words, of their probabilities one context word shorter. (rows,) float64"""

        tokens = self.text.tokens
        sums = np.zeros(len(self.counts.features), np.float64)

        def work(q: int) -> None:
            for start, stop in self.extractor.blocks(0, len(tokens)):
                keys = self.extractor.keys(tokens, start, stop)
                backoff_kernels.sum_shorter(q, keys, tokens[start:stop], self.index, self.counts, probabilities, sums)
                bar(stop - start)

        columns = range(1, self.extractor.n_templates)
        with self.progress("backing off", len(tokens) * len(columns)) as bar:
            parallel.run(work, columns, self.threads)  # one thread a column: no two write to the same row
        return sums


@dataclass(frozen=True)
class Estimate:
    """A backoff model of given counts, what there is to know of it, and what a user should be told."""

    probabilities: np.ndarray  # (links,) float32
    backoffs: np.ndarray  # (rows,) float32
    details: dict[str, Any]
    warnings: list[str]
