"""What the estimators of backoff models take and return.

A backoff model has a probability for each link and a backoff weight for each row.
"""

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
    """A text and its counts. The templates are the contexts of 0, 1, 2 … words."""

    text: Text
    extractor: Extractor
    counts: Counts
    index: RowIndex
    threads: int = 1
    progress: Progress = silent

    @property
    def orders(self) -> np.ndarray:
        """Context words of each row. (rows,) uint16"""
        return self.extractor.layout.type_of(self.counts.features)

    def sum_shorter(self, probabilities: np.ndarray) -> np.ndarray:
        """For each row, the sum of its targets' probabilities after the context without its first word.

        (links,) to (rows,) float64
        """
        tokens = self.text.tokens
        sums = np.zeros(len(self.counts.features), np.float64)

        def work(q: int) -> None:
            for start, stop in self.extractor.blocks(0, len(tokens)):
                keys = self.extractor.keys(tokens, start, stop)
                backoff_kernels.sum_shorter(q, keys, tokens[start:stop], self.index, self.counts, probabilities, sums)
                bar(stop - start)

        templates = range(1, self.extractor.n_templates)
        with self.progress("backing off", len(tokens) * len(templates)) as bar:
            parallel.run(work, templates, self.threads)  # one thread a template: no two write to the same row
        return sums


@dataclass(frozen=True)
class Estimate:
    """An estimated model, its entry of the manifest, and warnings for the user."""

    probabilities: np.ndarray  # (links,) float32
    backoffs: np.ndarray  # (rows,) float32
    details: dict[str, Any]
    warnings: list[str]
