"""Backoff models on disk: reading and scoring."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from snm import parallel
from snm.counts.index import build_row_index
from snm.errors import FormatError
from snm.kernels import backoff as backoff_kernels
from snm.kernels import backoff_beams as beam_kernels
from snm.kernels import row_index as row_kernels
from snm.layouts.beams import BACKOFF_ARRAYS, BACKOFF_RECORD
from snm.layouts.counts import RowIndex
from snm.model import check_targets
from snm.scoring.beams import BeamScorer
from snm.scoring.model import RowModel

CHECKED = 1 << 20  # rows or links that are checked together


class BackoffBeams(BeamScorer):
    """`expand` and `step` of a backoff model."""

    def __init__(self, model: BackoffModel) -> None:
        i = model.index
        self._scalars = {
            "n_rows": len(i.features),
            "n_entries": len(i.directory),
            "n_links": len(model.targets),
            "low": i.low,
            "shift": i.shift,
        }
        values, templates = (model.link_probabilities, model.backoffs), model.extractor.templates
        missing = model.extractor.span + 1 - len(templates)  # a model of unigrams has no template for its state's word
        templates = np.append(templates, np.zeros(missing, templates.dtype))
        self._arrays = i.features, i.directory, model.offsets, model.targets, *values, templates
        super().__init__(model.extractor, beam_kernels.kernels_of(i.directory.dtype.name))

    def record(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        record, orders = np.zeros(1, BACKOFF_RECORD), self.extractor.span + 1
        for name, value in self._scalars.items():
            record[name] = value
        scratch = np.zeros(orders, np.uint64), np.zeros(orders, np.int64)
        return record, dict(zip(BACKOFF_ARRAYS, (*self._arrays, *scratch), strict=True))


class BackoffModel(RowModel):
    """P(w | h): the probability of w in the longest context of h with a link to w, times the longer ones' backoffs."""

    kind = "backoff"

    def _open(self) -> None:
        super()._open()
        low, shift = self.manifest["index"]["low"], self.manifest["index"]["shift"]
        self.backoffs, self.link_probabilities = self._array("backoffs", "<f4"), self._array("probabilities", "<f4")
        self.offsets, self.targets = self._array("offsets", "<i8"), self._array("targets", "<u4")
        features, directory = self._array("features", "<u8"), self._array("index", "<u4", "<u8")
        rows, links, last = len(features), len(self.targets), (int(features[-1]) - low) >> shift
        types = [(t.a, t.is_ngram) for t in self.spec.types]
        if not links or self.spec.caches or types != [(a, True) for a in range(len(types))]:
            raise FormatError(f"{self.path}: expected links, of n-grams of every length; restore or rebuild the model")
        if (
            (len(self.backoffs), len(self.offsets), len(self.link_probabilities)) != (rows, rows + 1, links)
            or (self.offsets[0], self.offsets[-1]) != (0, links)
            or (features[0], len(directory), directory[-1]) != (low, last + 2, rows)
        ):
            raise FormatError(f"{self.path}: the lengths of its arrays do not match; restore or rebuild the model")
        self.index = RowIndex(features, directory, np.uint64(low), np.uint64(shift))

    def _probabilities(self, tokens: np.ndarray, threads: int) -> np.ndarray:
        out = np.zeros(len(tokens), np.float64)
        values = self.link_probabilities, self.backoffs

        def work(block: tuple[int, int]) -> None:
            part = slice(*block)
            keys = self.extractor.keys(tokens, *block)
            backoff_kernels.score(keys, tokens[part], self.index, self.offsets, self.targets, *values, out[part])

        parallel.run(work, self.extractor.blocks(0, len(tokens)), threads)
        return out

    @cached_property
    def _beams(self) -> BeamScorer:
        return BackoffBeams(self)

    def row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Targets and probabilities of a row's links; none of row -1."""
        start, stop = int(self.offsets[row]), int(self.offsets[row + 1])
        links = slice(max(start, 0), max(start, stop, 0))
        check_targets(self, self.targets[links])
        return self.targets[links], self.link_probabilities[links]

    def rows_of(self, contexts: np.ndarray) -> np.ndarray:
        """Row of each context, given as word ids from left to right; -1 where there is none. (n, words) to (n,)"""
        return self._find(self.extractor.context_keys(contexts)[None, :])[:, 0]

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """Row of each key; -1 where there is none. (templates, events) to (events, templates)"""
        rows = np.empty(keys.T.shape, np.int64)
        row_kernels.find_rows(keys, self.index, rows)
        return rows

    def _distribution(self, context: np.ndarray) -> np.ndarray:
        p = np.zeros(len(self.vocabulary), np.float64)
        with np.errstate(all="ignore"):  # `distribution` refuses what is no number
            for row in self._find(self._keys(context))[0]:
                if row >= 0:
                    targets, probabilities = self.row(row)
                    p *= self.backoffs[row]
                    p[targets] = probabilities
        return p

    def structure_faults(self) -> Iterator[tuple[bool, str]]:
        features, offsets, targets = self.index.features, self.offsets, self.targets
        yield not _is_increasing(features), "feature keys are not in order"
        known = all((self.layout.type_of(features[part]) < len(self.spec.types)).all() for part in _parts(features))
        yield not known, "a key is of no type of the features"
        unordered = offsets[0] != 0 or offsets[-1] != len(targets) or not _is_increasing(offsets, equal=True)
        yield bool(unordered), "the rows' offsets are not in order"
        yield any(self._has_unordered_rows(part) for part in _parts(features)), "the links of a row are not in order"
        wrong = any((targets[part] >= len(self.vocabulary)).any() for part in _parts(targets))
        yield wrong, "a target is not in the vocabulary"
        index = build_row_index(features)
        same = index.low == self.index.low and index.shift == self.index.shift
        yield (
            not (same and np.array_equal(index.directory, self.index.directory)),
            "the directory is not that of the features",
        )
        for values, what in ((self.link_probabilities, "probability"), (self.backoffs, "backoff weight")):
            right = all(((values[part] >= 0) & (values[part] < np.inf)).all() for part in _parts(values))
            yield not right, f"a {what} is no number, or below zero"

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield from self.structure_faults()
        p = self.link_probabilities
        right = all(((p[part] > 0) & (p[part] <= 1)).all() for part in _parts(p))
        yield not right, "a probability is not between 0 and 1"

    def _has_unordered_rows(self, rows: slice) -> bool:
        """Whether the targets of a row among `rows`, whose offsets are in order, are not."""
        offsets = self.offsets[rows.start : rows.stop + 1]
        targets = self.targets[offsets[0] : offsets[-1]]
        descents = np.flatnonzero(targets[1:] <= targets[:-1]) + 1
        return not np.isin(descents + offsets[0], offsets).all()


def _parts(values: np.ndarray) -> Iterator[slice]:
    """Parts of an array that are checked together, because NumPy's temporary arrays take memory."""
    return (slice(start, min(start + CHECKED, len(values))) for start in range(0, len(values), CHECKED))


def _is_increasing(values: np.ndarray, equal: bool = False) -> bool:
    """Whether each value is above the one before, or `equal`."""
    pairs = (values[max(0, part.start - 1) : part.stop] for part in _parts(values))
    return all(((piece[1:] > piece[:-1]) | (equal & (piece[1:] == piece[:-1]))).all() for piece in pairs)
