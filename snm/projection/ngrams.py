"""N-grams as rows of links, how to walk over them, and writing them as a backoff model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.counts.index import build_row_index
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.kernels import backoff_pruning as pruning_kernels
from snm.kernels import row_index as row_kernels
from snm.layouts.counts import RowIndex
from snm.layouts.keys import ABSENT, KeyLayout
from snm.layouts.tokens import BEGIN
from snm.manifest import describe_rows
from snm.storage import VOCABULARY, ModelWriter
from snm.text.vocabulary import Vocabulary

PIECE = 1 << 19  # n-grams that are looked at together
LEAST = 1e-12  # of a probability


def extractor_for(vocabulary: Vocabulary, order: int, links: int) -> Extractor:
    """The n-gram features of a backoff model."""
    spec = FeatureSpec(f"ngram(0..{order - 1})")
    return Extractor(spec, KeyLayout.for_work(len(vocabulary), len(spec.types), links), vocabulary)


@dataclass(frozen=True)
class Ngrams:
    """The n-grams of a backoff model, without probabilities. A row is a context, a link an n-gram."""

    extractor: Extractor
    features: np.ndarray  # (rows,) uint64: keys, sorted
    offsets: np.ndarray  # (rows + 1,) int64
    targets: np.ndarray  # (links,) uint32, sorted inside a row
    index: RowIndex = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", build_row_index(self.features))

    @property
    def order(self) -> int:
        return self.extractor.n_templates

    @property
    def levels(self) -> np.ndarray:
        """Words of the context of each row. (rows,) int64"""
        return self.extractor.layout.type_of(self.features).astype(np.int64)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The row of each key, -1 where there is none. (templates, n) to (n, templates)"""
        rows = np.empty(keys.T.shape, np.int64)
        row_kernels.find_rows(np.ascontiguousarray(keys), self.index, rows)
        return rows

    def rows_of(self, words: np.ndarray) -> np.ndarray:
        """The row of each context, given as ids; -1 where there is none. (n, words) to (n,)"""
        return self.find(self.extractor.context_keys(words)[None])[:, 0]

    def rows_within(self, words: np.ndarray) -> np.ndarray:
        """The rows of the contexts that end these, from the empty one to the whole; -1 for none. (n, order) int64"""
        keys = np.full((self.order, len(words)), ABSENT)
        for length in range(words.shape[1] + 1):
            keys[length] = self.extractor.context_keys(np.ascontiguousarray(words[:, words.shape[1] - length :]))
        return self.find(keys)

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Contexts of one length as ids, (n, words), and their rows; every row that n-grams lead to, once."""
        stack = [(np.zeros((1, 0), np.uint32), np.zeros(1, np.int64))]
        while stack:
            words, rows = stack.pop()
            lengths = self.offsets[rows + 1] - self.offsets[rows]
            cut = max(1, int(np.searchsorted(np.cumsum(lengths), PIECE, "right")))
            if cut < len(words):
                stack.append((words[cut:], rows[cut:]))
                words, rows = words[:cut], rows[:cut]
            yield words, rows
            if words.shape[1] + 1 < self.order:
                longer = self._longer(words, rows)
                below = self.rows_of(longer)
                if (below >= 0).any():
                    stack.append((longer[below >= 0], below[below >= 0]))

    def _longer(self, words: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The n-grams of some rows, as contexts of one word more. (n, words + 1) uint32"""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        longer = np.column_stack([np.repeat(words, lengths, axis=0), self.targets[self.links_of(rows)]])
        if words.shape[1] == 0:
            longer = np.append(longer, [[BEGIN]], axis=0)
        return np.ascontiguousarray(longer, np.uint32)

    def links_of(self, rows: np.ndarray) -> np.ndarray:
        """The links of some rows, one row after another."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        return np.repeat(self.offsets[rows] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())

    def parents(self) -> np.ndarray:
        """The row of the longest shorter context that ends each one, -1 for the empty one. (rows,) int64"""
        parents = np.full(len(self.features), -1)
        for words, rows in self.pieces():
            if words.shape[1]:
                shorter = self.rows_within(words)[:, : words.shape[1]]
                parents[rows] = shorter[np.arange(len(rows)), longest_of(shorter)]
        return parents


def longest_of(rows: np.ndarray) -> np.ndarray:
    """The last column that has a row, of (n, order) rows; -1 where none has. (n,)"""
    here = rows >= 0
    return np.where(here.any(axis=1), rows.shape[1] - 1 - here[:, ::-1].argmax(axis=1), -1)


def write_rows(
    writer: ModelWriter, ngrams: Ngrams, probabilities: np.ndarray, parents: np.ndarray, text: dict[str, int],
    threads: int = 1,
) -> None:  # fmt: skip
    """Write a backoff model with these probabilities; backoff weights are computed."""
    extractor, levels = ngrams.extractor, ngrams.levels
    backoffs = np.ones(len(ngrams.features), np.float32)
    for level in range(1, ngrams.order):
        pruning_kernels.set_backoffs(level, levels, parents, ngrams.offsets, ngrams.targets, probabilities, backoffs)
    index = ngrams.index
    for name, dtype, values in (
        ("features", "<u8", ngrams.features), ("offsets", "<i8", ngrams.offsets), ("targets", "<u4", ngrams.targets),
        ("probabilities", "<f4", probabilities), ("backoffs", "<f4", backoffs),
        ("index", index.directory.dtype.str, index.directory),
    ):  # fmt: skip
        writer.array(name, dtype).append(values)
    extractor.vocabulary.write(writer.folder / VOCABULARY)
    by_type = np.bincount(levels, minlength=len(extractor.spec.types))
    how = {
        "text": text, "index": {"low": int(index.low), "shift": int(index.shift)},
        "estimation": {"model": "projection"},
    }  # fmt: skip
    manifest = describe_rows(extractor, by_type, len(ngrams.targets), BackoffModel.kind, how)
    writer.finish(manifest, threads)
