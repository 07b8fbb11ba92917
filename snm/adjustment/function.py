"""The adjustment function A(i, j): its table of weights, and rows of M computed from it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from snm import parallel
from snm.adjustment.registered import classes_of
from snm.adjustment.settings import TrainingSettings
from snm.adjustment.statistics import Diversities, continuation_buckets, measure_diversity
from snm.counts.store import StoredCounts
from snm.features.extraction import Extractor
from snm.kernels import adjustment as adjustment_kernels
from snm.layouts.counts import Counts
from snm.layouts.weights import (
    BUCKETS_PER_LINE,
    AdjustmentTable,
    FastPlan,
    LinkClasses,
    Window,
    bucket_hashes,
    line_hashes,
    type_offsets,
)


class AdjustmentFunction(Protocol):
    """A(i, j), on a CPU or a GPU."""

    start: float  # initial value of every A(i, j)
    table: Any  # (slots, 1 or 2) float32: theta and, for AdaGrad, its sum of squared gradients

    def singles(self) -> np.ndarray:
        """M_ij of features seen once, which leave-one-out ignores, by type and target. (types, words) float32

        Empty after other losses, where such features are like all others.
        """

    def weigh(
        self, counts: Counts, threads: int = 1, singles: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """M and its row sums for the rows of `counts`: (links,) float32, (rows,) float32."""

    def measure(self, unigrams: Counts, counts: StoredCounts, threads: int = 1) -> None:
        """Measure what the metafeatures need of the counts that the adjustment is for: before training and weighing."""

    def weights(self) -> Any:
        """A copy of all theta, for `restore`."""

    def restore(self, weights: Any | None) -> None:
        """Return to these weights; None for those that training starts with."""


class Adjustment:
    """A(i, j) over a table of weights in memory."""

    def __init__(self, extractor: Extractor, settings: TrainingSettings, slots: int, threads: int = 1) -> None:
        """`threads`: how many may train at once; each has private rows behind the shared slots."""
        types, metafeatures = extractor.spec.types, settings.metafeatures
        self.plan, self.threads, self.extractor = metafeatures.plan(), threads, extractor
        unknown = np.zeros((1, len(extractor.vocabulary)), np.uint32)
        self._classes = {
            name: unknown if name == "continuation" else classes_of(name, extractor.vocabulary, types)
            for name in metafeatures.classes
        }
        self._link_classes = LinkClasses.of(self._classes, len(types))
        self.diversities: Diversities | None = None
        """Those of the features of events, where metafeatures need them; `measure` makes them."""
        self.fast_plan = FastPlan.of(self.plan)
        self._private_rows = 0 if self.fast_plan is None else self.fast_plan.private_rows(len(types))
        columns = 2 if settings.optimiser == "adagrad" else 1
        self._all_rows = _aligned_zeros(slots + threads * self._private_rows, columns)
        self.table = self._all_rows[:slots]
        if settings.optimiser == "adagrad":
            self.table[:, 1] = settings.accumulator
        self.start = 0.0 if settings.start is None else settings.start
        self._layout, self._words = extractor.layout, len(extractor.vocabulary)
        self._type_hashes = np.array([t.salt for t in types], np.uint64)
        self._singles_by_type = settings.loss == "leave-one-out"
        self._window, self._type_offsets = Window.of(slots, self.plan), type_offsets(slots, len(types))
        link_buckets = metafeatures.link_buckets
        self._buckets = (
            metafeatures.feature_buckets == "double", link_buckets == "double", link_buckets == "half",
            np.int64(BUCKETS_PER_LINE[link_buckets].bit_length() - 1),
        )  # fmt: skip

    @property
    def for_kernels(self) -> AdjustmentTable:
        """The tuple that the adjustment kernels take."""
        plan, layout = self.plan, self._layout
        return AdjustmentTable(
            np.uint64(layout.type_shift), np.uint64((1 << layout.type_bits) - 1), self._type_hashes,
            bucket_hashes("feature-count"), line_hashes(), self._window, self._type_offsets, *self._buckets,
            plan.has_diversity, bucket_hashes("diversity"), self._link_classes, self.start, plan.parent,
            plan.component, plan.base, plan.weight_class, plan.multiplicity, plan.ends, plan.lexical,
            np.uint64(len(self.table)), self._all_rows,
        )  # fmt: skip

    def measure(self, unigrams: Counts, counts: StoredCounts, threads: int = 1) -> None:
        if "continuation" in self._classes:
            self._classes["continuation"] = continuation_buckets(unigrams, counts, self.extractor, threads)
            self._link_classes = LinkClasses.of(self._classes, len(self._type_hashes))
        if self.plan.has_diversity:
            self.diversities = measure_diversity(unigrams, counts, threads)

    def first_private_row(self, thread: int) -> int:
        """Row of the kernels' table at which a thread's private copies begin, see `snm.adjustment.threads`."""
        return len(self.table) + thread * self._private_rows

    def singles(self) -> np.ndarray:
        made = np.empty((len(self._type_hashes) if self._singles_by_type else 0, self._words), np.float32)
        a = self.for_kernels
        scratch = adjustment_kernels.make_scratch(1, a)
        for type_index, weights in enumerate(made):
            adjustment_kernels.weigh_singles(type_index, a, weights, scratch)
        return made

    def weigh(
        self, counts: Counts, threads: int = 1, singles: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        singles = self.singles() if singles is None else singles
        weights = np.empty(len(counts.targets), np.float32)
        sums = np.empty(len(counts.features), np.float32)
        a = self.for_kernels

        def work(rows: tuple[int, int]) -> None:
            scratch = adjustment_kernels.make_scratch(adjustment_kernels.BATCH, a)
            adjustment_kernels.weigh_rows(*rows, counts, a, singles, weights, sums, scratch)

        parallel.run(work, _even_rows(counts.offsets, 8 * threads), threads)
        return weights, sums

    def weights(self) -> np.ndarray:
        return self.table[:, 0].copy()

    def restore(self, weights: np.ndarray | None) -> None:
        self.table[:, 0] = 0 if weights is None else weights


def _aligned_zeros(slots: int, columns: int) -> np.ndarray:
    """A table whose lines of eight slots are cache lines. (slots, columns) float32"""
    raw = np.zeros(slots * columns + 16, np.float32)
    skip = -raw.ctypes.data % 64 // 4
    return raw[skip : skip + slots * columns].reshape(slots, columns)


def _even_rows(offsets: np.ndarray, n: int) -> list[tuple[int, int]]:
    """Ranges of rows with about the same number of links each."""
    rows = len(offsets) - 1
    wanted = np.linspace(offsets[0], offsets[-1], n + 1)[1:-1]
    return parallel.between([0, *np.searchsorted(offsets[:-1], wanted).tolist(), rows])
