"""Estimating a backoff model, order by order: a probability for each link and a backoff weight for each row.

An estimator (Kneser-Ney, Katz, stupid backoff) says what the rows of an order become; `estimate` takes the rows through
it, from the unigrams up, and writes the model's arrays. The rows of each order come in the order of their keys and are
kept on disk; in the end all orders are merged by key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from snm.baselines.backoff.orders import Orders, Rows
from snm.counts.index import IndexBuilder
from snm.kernels import backoff as backoff_kernels
from snm.layouts.counts import Counts
from snm.layouts.keys import EMPTY_KEY
from snm.storage import ModelWriter

HIGHEST_COUNT = 7  # statistics of larger counts are not needed
MERGED_ROWS = 1 << 18  # of an order, at a time
ROW_ARRAYS = {"features": "<u8", "lengths": "<u4", "backoffs": "<f4"}
LINK_ARRAYS = {"targets": "<u4", "probabilities": "<f4"}


class Estimator(Protocol):
    """How a kind of backoff model estimates. Called for the unigrams first, then for each order."""

    details: dict[str, Any]
    """Its entry of the manifest."""
    warnings: list[str]
    """For the user."""

    def prepare(self, orders: Orders, unigrams: Counts) -> None:
        """Collect what is needed of all orders before the first is estimated."""

    def estimate_unigrams(self, unigrams: Counts) -> tuple[np.ndarray, float, np.ndarray]:
        """Probabilities, the backoff weight, and a number for each word, which its events bring to the bigrams.

        (links,), 1, (words,)
        """

    def estimate(self, order: int, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Probabilities, backoff weights, and the numbers that events bring to the next order.

        (links,), (rows,), (links,)
        """


@dataclass(frozen=True)
class Estimated:
    """What was written."""

    rows_by_order: np.ndarray
    links: int
    index: dict[str, int]  # of the directory, for the manifest


def estimate(orders: Orders, estimator: Estimator, unigrams: Counts) -> Estimated:
    """Estimate a model and write its arrays. unigrams: the row of the empty feature."""
    writer, rows_by_order = orders.writer, np.zeros(orders.highest, np.int64)
    estimator.prepare(orders, unigrams)
    probabilities, backoff, of_words = estimator.estimate_unigrams(unigrams)
    numbers = orders.numbers(of_words) if orders.highest > 1 else of_words
    for order in range(2, orders.highest + 1):

        def work(rows: Rows, order: int = order) -> tuple[tuple[Rows, np.ndarray, np.ndarray], np.ndarray]:
            probabilities, backoffs, numbers = estimator.estimate(order, rows)
            return (rows, probabilities, backoffs), numbers

        for name, dtype in (ROW_ARRAYS | LINK_ARRAYS).items():
            writer.array(f"{name}-{order}", dtype)
        for part in orders.estimate(order, work, numbers):
            rows_by_order[order - 1] += len(part[0].features)
            _append(writer, f"-{order}", *part)
        writer.close()  # buffers of all these files would take memory
    rows_by_order[0] = 1
    del numbers
    return _merge(orders, unigrams, probabilities, backoff, rows_by_order)


def _append(writer: ModelWriter, suffix: str, rows: Rows, probabilities: np.ndarray, backoffs: np.ndarray) -> None:
    values = rows.features, rows.lengths, backoffs, rows.targets, probabilities
    for name, array in zip(ROW_ARRAYS | LINK_ARRAYS, values, strict=True):
        writer.append(name + suffix, array)


def _merge(
    orders: Orders, unigrams: Counts, probabilities: np.ndarray, backoff: float, rows_by_order: np.ndarray
) -> Estimated:
    """Merge the rows of all orders by their keys. What has been read is freed."""
    writer, rows = orders.writer, int(rows_by_order.sum())
    sources = [_Source(writer, order, int(rows_by_order[order - 1])) for order in range(2, orders.highest + 1)]
    last = max((source.last_key for source in sources), default=EMPTY_KEY)
    index = IndexBuilder(int(EMPTY_KEY), int(last), rows)
    types = {"features": "<u8", "offsets": "<i8", "backoffs": "<f4", **LINK_ARRAYS, "index": index.dtype.str}
    for name, dtype in types.items():
        writer.array(name, dtype)
    links = 0

    def write(features: np.ndarray, lengths: np.ndarray, *rest: np.ndarray) -> None:
        nonlocal links
        offsets = links + np.cumsum(lengths, dtype=np.int64)
        arrays = features, offsets - lengths, *rest, index.add(features)
        for name, values in zip(types, arrays, strict=True):
            writer.append(name, values)
        links = int(offsets[-1])

    length = np.array([len(unigrams.targets)], np.uint32)
    write(unigrams.features, length, np.array([backoff]), unigrams.targets, probabilities)
    with orders.progress("merging", rows) as bar:
        for part in _merged(sources):
            write(*part)
            bar(len(part[0]))
    writer.append("offsets", np.array([links]))
    writer.append("index", index.finish())
    return Estimated(rows_by_order, links, index.description)


def _merged(sources: list[_Source]) -> Iterator[tuple[np.ndarray, ...]]:
    """The rows of all sources in the order of keys: features, lengths, backoffs, targets, probabilities."""
    while sources := [source for source in sources if source.left]:
        limit = min(source.limit() for source in sources)
        parts = [source.take(limit) for source in sources]
        features, lengths, backoffs, targets, probabilities = (np.concatenate(p) for p in zip(*parts, strict=True))
        by_key = np.argsort(features, kind="stable")
        ends = np.cumsum(lengths, dtype=np.int64)
        starts, sizes = (ends - lengths)[by_key], lengths[by_key].astype(np.int64)
        sorted_targets, sorted_probabilities = np.empty_like(targets), np.empty_like(probabilities)
        backoff_kernels.copy_rows(starts, sizes, targets, sorted_targets)
        backoff_kernels.copy_rows(starts, sizes, probabilities, sorted_probabilities)
        yield features[by_key], lengths[by_key], backoffs[by_key], sorted_targets, sorted_probabilities


class _Source:
    """The rows of one order on disk, read from the first to the last."""

    def __init__(self, writer: ModelWriter, order: int, rows: int) -> None:
        self.writer, self.suffix, self.rows = writer, f"-{order}", rows
        self.row = self.link = 0
        self.last_key = writer.read(f"features-{order}", rows - 1, rows)[0] if rows else EMPTY_KEY
        self._features = np.empty(0, np.uint64)

    @property
    def left(self) -> bool:
        if self.row == self.rows:
            self._drop()
        return self.row < self.rows

    def limit(self) -> np.uint64:
        """The largest key among the next rows."""
        if not len(self._features):
            self._features = self._read("features", self.row, min(self.row + MERGED_ROWS, self.rows))
        found: np.uint64 = self._features[-1]
        return found

    def take(self, limit: np.uint64) -> tuple[np.ndarray, ...]:
        """The next rows, up to the key `limit`."""
        n = int(np.searchsorted(self._features, limit, "right"))
        features, self._features = self._features[:n], self._features[n:]
        lengths = self._read("lengths", self.row, self.row + n)
        end = self.link + int(lengths.sum(dtype=np.int64))
        backoffs = self._read("backoffs", self.row, self.row + n)
        links = [self._read(name, self.link, end) for name in LINK_ARRAYS]
        self.row, self.link = self.row + n, end
        for name in ROW_ARRAYS | LINK_ARRAYS:
            self.writer.free(name + self.suffix, self.link if name in LINK_ARRAYS else self.row)
        return features, lengths, backoffs, *links

    def _read(self, name: str, start: int, stop: int) -> np.ndarray:
        return self.writer.read(name + self.suffix, start, stop)

    def _drop(self) -> None:
        for name in ROW_ARRAYS | LINK_ARRAYS:
            self.writer.drop(name + self.suffix)
