"""Backoff models on disk: a probability for every link, and a backoff weight for every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from snm import parallel
from snm.corpus import Text
from snm.counting import Counts
from snm.features import Extractor
from snm.model import RowModel
from snm.progress import Progress, silent
from snm.rows import RowIndex


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
        from snm.kernels import backoff

        tokens, blocks = self.text.tokens, self.extractor.blocks(0, len(self.text.tokens))
        sums = np.zeros(len(self.counts.features), np.float64)

        def work(q: int) -> None:
            for start, stop in blocks:
                keys = self.extractor.keys(tokens, start, stop)
                backoff.sum_shorter(q, keys, tokens[start:stop], self.index, self.counts, probabilities, sums)
                bar(stop - start)

        columns = range(1, self.extractor.n_slots)
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


class BackoffModel(RowModel):
    """P(w | h) of the longest context of h that knows w, times the backoffs of the longer ones that do not."""

    kind = "backoff"
    value_names = "backoffs", "probabilities"

    def _score(self, keys: np.ndarray, words: np.ndarray, out: np.ndarray) -> None:
        from snm.kernels import backoff

        backoff.score(keys, words, self.index, self.offsets, self.targets, self.link_values, self.row_values, out)

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Targets and probabilities of a row's links."""
        return self._row(row)

    def rows_of(self, contexts: np.ndarray) -> np.ndarray:
        """Row of every context, given as word ids from left to right, -1 where there is none. (n, words) to (n,)"""
        from snm.kernels import lookup

        rows = np.empty((len(contexts), 1), np.int64)
        lookup.find_rows(self.extractor.context_keys(contexts)[None, :], self.index, rows)
        found: np.ndarray = rows[:, 0]
        return found

    def distribution(self, context: np.ndarray) -> np.ndarray:
        p = np.zeros(len(self.vocabulary), np.float64)
        for row in self._rows(context):
            if row >= 0:
                targets, probabilities = self._row(row)
                p *= self.row_values[row]
                p[targets] = probabilities
        return p

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield from super().faults()
        p, backoffs = self.link_values, self.row_values
        yield not ((p > 0) & (p <= 1)).all(), "a probability is not between 0 and 1"
        yield not (backoffs >= 0).all(), "a backoff weight is below zero"
