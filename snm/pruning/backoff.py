"""Entropy pruning of backoff models (Stolcke, 1998; SRILM's `ngram -prune`).

An n-gram is worth what the perplexity of the model gains by it, with the backoff weight that is right without it. Those
worth least leave, unless a longer n-gram that stays has them as its context. Then backoff weights are computed anew, so
the probabilities of every context sum to one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from snm import parallel
from snm.baselines.backoff.model import BackoffModel
from snm.counts.index import IndexBuilder
from snm.kernels import backoff_pruning as kernels
from snm.manifest import SPELLING, describe_rows, take_spelling
from snm.progress import Progress, silent
from snm.pruning.budget import Budget, Smaller, describe, find_limit, too_small
from snm.pruning.ngrams import build_tree
from snm.storage import NPY_HEADER, VOCABULARY, ModelWriter

LINK_BYTES, ROW_BYTES = 8, 20  # of a model on disk: target and probability; key, offset and backoff
MAX_RISE = 700.0  # of entropy, whose exponential is a number
MANIFEST_BYTES = 3000  # at most, beside what it says of each feature type
ROWS_PER_STEP = 1 << 18
ARRAYS = 6


class PrunedBackoff:
    """The worth of every n-gram of a model, and what is left of it with less."""

    def __init__(
        self, model: BackoffModel, writer: ModelWriter, threads: int = 1, progress: Progress = silent,
        spelling: float = math.inf,
    ) -> None:  # fmt: skip
        """`writer`: of the smaller model; working arrays lie in temporary files beside it.

        spelling: bytes that the words of the spelling model may take.
        """
        self._spelling_bytes = spelling
        self.model, self.writer, self.threads, self.progress = model, writer, threads, progress
        with progress("n-grams", len(model.targets)) as bar:
            self.tree = build_tree(model, writer.scratch, bar)
        self.worth = writer.scratch((len(model.targets),), np.float32)
        self.worth_of_row = writer.scratch((len(model.index.features),), np.float32)
        self._measure()
        self._own = self._losses()
        self._keep_parents()

    def _measure(self) -> None:
        m, t = self.model, self.tree
        rows = len(m.index.features)
        arrays = m.offsets, m.targets, m.link_probabilities, m.backoffs

        def work(part: tuple[int, int]) -> None:
            kernels.measure(*part, t.parents, t.log_contexts, *arrays, self.worth)

        steps = [(first, min(first + ROWS_PER_STEP, rows)) for first in range(0, rows, ROWS_PER_STEP)]
        parallel.run(work, steps, self.threads)

    def _losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Worths in rising order, and the sum of those up to each: the estimated rise of entropy."""
        finite = np.sort(self.worth[np.isfinite(self.worth)])
        return finite, np.cumsum(finite, dtype=np.float64)

    def _keep_parents(self) -> None:
        for level in range(self.model.extractor.n_templates - 1, -1, -1):
            kernels.keep_parents(
                level, self.tree.levels, self.tree.children, self.model.offsets, self.worth, self.worth_of_row
            )

    def smaller(self, least: float) -> Smaller:
        """The model of the n-grams that are worth at least so much."""
        links, rows = int((self.worth >= least).sum()), int((self.worth_of_row >= least).sum())
        worths, sums = self._own
        lost = int(np.searchsorted(worths, least))
        rise = min(float(sums[lost - 1]), MAX_RISE) if lost else 0.0
        return Smaller(self.bytes_of(rows, links), links, math.expm1(rise))

    def bytes_of(self, rows: int, links: int) -> int:
        """Bytes of a model folder of so many rows and links; the manifest at its largest."""
        keys = self.model.index.features
        entries = IndexBuilder(int(keys[0]), int(keys[-1]), rows).entries
        files = self.model.manifest["files"]
        words = len(self.model.vocabulary.lines) + min(files.get(SPELLING, {"bytes": 0})["bytes"], self._spelling_bytes)
        arrays = LINK_BYTES * links + ROW_BYTES * rows + 8 + 4 * entries + ARRAYS * NPY_HEADER
        return int(arrays) + int(words) + MANIFEST_BYTES

    def limit(self, budget: Budget) -> tuple[float, Smaller]:
        """The least worth of an n-gram that stays, and what the model will be."""
        least = self.smaller(math.inf)
        if budget.loss is None and not least.fits(budget):
            raise too_small(budget, least, "the vocabulary and the unigrams")
        worths = self._own[0][self._own[0] > 0]
        if not len(worths):
            return math.inf, least
        return find_limit(self.smaller, budget, float(worths[0]), float(worths[-1]))

    def write(self, least: float, described: dict[str, Any]) -> None:
        """Write the arrays of the smaller model and finish it. `described`: its entry `pruning`."""
        m, kept = self.model, np.flatnonzero(self.worth_of_row >= least)
        features = m.index.features[kept]
        index = IndexBuilder(int(features[0]), int(features[-1]), len(features))
        types = {"features": "<u8", "targets": "<u4", "probabilities": "<f4", "index": index.dtype.str}
        for name, dtype in types.items():
            self.writer.array(name, dtype)
        lengths = self._write_links(least)[kept]
        self.writer.append("features", features)
        self.writer.append("index", index.add(features))
        self.writer.append("index", index.finish())
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
        self.writer.array("offsets", "<i8").append(offsets)
        self.writer.array("backoffs", "<f4").append(self._backoffs(kept, offsets))
        m.vocabulary.write(self.writer.folder / VOCABULARY)
        by_type = np.bincount(self.tree.levels[kept], minlength=len(m.spec.types))
        how: dict[str, Any] = {name: m.manifest[name] for name in ("text", "estimation") if name in m.manifest}
        how |= {"index": index.description}
        how |= take_spelling(m.path, m.manifest, self.writer.folder, m.vocabulary, self._spelling_bytes)
        self.writer.finish(
            describe_rows(m.extractor, by_type, int(offsets[-1]), m.kind, {**how, "pruning": described}), self.threads
        )

    def _write_links(self, least: float) -> np.ndarray:
        """Write the links that stay; return how many each row has. (rows,) int64"""
        m = self.model
        rows = len(m.index.features)
        lengths = np.zeros(rows, np.int64)
        with self.progress("pruning", len(m.targets)) as bar:
            for first in range(0, rows, ROWS_PER_STEP):
                last = min(first + ROWS_PER_STEP, rows)
                most = int(m.offsets[last] - m.offsets[first])
                targets, probabilities = np.empty(most, np.uint32), np.empty(most, np.float32)
                n = kernels.select(
                    first, last, least, m.offsets, self.worth, m.targets, m.link_probabilities, lengths[first:last],
                    targets, probabilities,
                )  # fmt: skip
                self.writer.append("targets", targets[:n])
                self.writer.append("probabilities", probabilities[:n])
                bar(most)
        return lengths

    def _backoffs(self, kept: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The backoff weights of the rows that stay, computed from the arrays that have been written."""
        number = np.full(len(self.tree.levels), -1)
        number[kept] = np.arange(len(kept))
        parents = self.tree.parents[kept].astype(np.int64)
        while (gone := np.flatnonzero((parents >= 0) & (number[parents] < 0))).size:
            parents[gone] = self.tree.parents[parents[gone]]
        parents = np.where(parents >= 0, number[parents], -1)
        targets, probabilities = self.writer.load("targets", "<u4"), self.writer.load("probabilities", "<f4")
        levels, backoffs = self.tree.levels[kept], np.array(self.model.backoffs[kept])
        for level in range(1, self.model.extractor.n_templates):
            kernels.set_backoffs(level, levels, parents, offsets, targets, probabilities, backoffs)
        return backoffs


def prune_backoff(
    model: BackoffModel, writer: ModelWriter, budget: Budget, threads: int = 1, progress: Progress = silent
) -> Smaller:
    """Write the part of a model that fits the budget."""
    pruned = PrunedBackoff(model, writer, threads, progress, budget.spelling_bytes)
    least, made = pruned.limit(budget)
    limit = least if math.isfinite(least) else None
    before = {"rows": model.manifest["rows"], "links": model.manifest["links"]}
    pruned.write(least, describe(budget, "entropy", limit=limit, estimated_loss=made.loss, **before))
    return made
