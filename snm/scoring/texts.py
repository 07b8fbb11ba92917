"""Scoring text with an SNM, many events at a time. See `snm.kernels.scoring`."""

from __future__ import annotations

from typing import Any

import numpy as np

from snm import parallel
from snm.features.cache_rows import CacheReader
from snm.features.extraction import Extractor
from snm.kernels import scoring as scoring_kernels
from snm.kernels.scoring import BUCKET_BITS, MEMO_NUMBERS, Scratch
from snm.kernels.simd import TILE
from snm.layouts.gate import Gate
from snm.layouts.matrix import ARRAYS, Matrix
from snm.memory import zeros
from snm.storage import prefault

LONG_TEXT = 1 << 17  # tokens: it touches most pages of a model
MAX_EVENTS = 1 << 17  # at a time
MAX_BYTES = 1 << 27  # of scratch memory of a thread
KEPT_BYTES = 1 << 25  # of scratch memory kept between calls: clearing it takes some percent of a fast model's time


class TextScorer:
    """Scores texts."""

    def __init__(self, extractor: Extractor, matrix: Matrix, gate: Gate, prune: int, caches: CacheReader) -> None:
        """`gate` as `Gate.folded` makes it; `prune` as the model was trained."""
        self.extractor, self.matrix, self.gate, self.caches = extractor, matrix, gate, caches
        min_counts = extractor.min_counts(prune)
        first = matrix.parent_of_template
        second = extractor.spec.second_parents(min_counts) if first.any() else np.zeros_like(first)
        parents = np.array([first, second])
        parents = np.where(parents, parents, parents[::-1])  # a template with one parent has it twice
        self._parents = np.ascontiguousarray(parents.T)
        self._min_counts = min_counts[[template.type_index for template in extractor.spec.templates]]
        level = np.zeros(extractor.n_templates, np.int64)  # of a template: one more than its parents'
        for _ in level:
            level[1:] = 1 + level[self._parents[1:]].max(axis=1)
        self._order = np.argsort(level, kind="stable")[1:]
        self._rounds = np.searchsorted(level[self._order], np.arange(1, level.max() + 2))
        self._longest_round = int(np.diff(self._rounds).max(initial=0))
        self._prefaulted = False
        self._idle: dict[int, list[Any]] = {}  # scratch memory for so many blocks of events

    def probabilities(self, tokens: np.ndarray, threads: int = 1) -> np.ndarray:
        """P(tokens[k] | tokens before k) for every token; 0 where there is no event. (tokens,) float64"""
        if len(tokens) >= LONG_TEXT and not self._prefaulted:
            prefault(getattr(self.matrix, name) for name in ARRAYS)
            self._prefaulted = True
        probabilities = np.zeros(len(tokens), np.float64)
        most = min(MAX_EVENTS, MAX_BYTES // self.bytes_per_event())
        size = min(most, -(-len(tokens) // max(1, threads)))
        blocks = -(-size // self.extractor.block)
        kept = blocks <= 1 or (size == most and most * self.bytes_per_event() <= KEPT_BYTES)
        idle = self._idle.setdefault(blocks, []) if kept else []
        size = blocks * self.extractor.block if blocks > 1 else max(1, size)

        def score(part: tuple[int, int]) -> None:
            scratch = self._take_scratch(idle, blocks)
            self.write_keys(tokens, part, scratch)
            here = slice(*part)
            cached = self.caches.rows(tokens, *part)
            scoring_kernels.score(tokens[here], self.matrix, self.gate, cached, scratch, probabilities[here])
            idle.append(scratch)

        parallel.run(score, [(k, min(k + size, len(tokens))) for k in range(0, len(tokens), size)], threads)
        return probabilities

    def write_keys(self, tokens: np.ndarray, part: tuple[int, int], scratch: Any) -> None:
        """Write the keys of the events whose targets are tokens[slice(*part)] to the scratch memory."""
        for keys, (start, stop) in zip(scratch.keys, self.extractor.blocks(*part), strict=False):
            if stop - start == self.extractor.block:
                self.extractor.keys(tokens, start, stop, keys)
            else:
                keys[:, : stop - start] = self.extractor.keys(tokens, start, stop)

    def bytes_per_event(self) -> int:
        n = self.extractor.n_templates
        return 9 * n + 20 * (n - 1) + 24 * self._longest_round + 16 * len(self.caches)

    def _take_scratch(self, idle: list[Any], blocks: int) -> Any:
        """Scratch memory that no other thread uses."""
        try:
            return idle.pop()
        except IndexError:
            return self.make_scratch(max(1, blocks))

    def make_scratch(self, blocks: int) -> Any:
        """Scratch memory for so many of the extractor's blocks of events."""
        n, events = self.extractor.n_templates, blocks * self.extractor.block
        return Scratch(
            parents=self._parents,
            min_counts=self._min_counts,
            order=self._order,
            rounds=self._rounds,
            keys=zeros((blocks, n, self.extractor.block), np.uint64),
            status=zeros((events * n,), np.uint8),
            first=zeros((len(self._rounds) - 1, events // TILE + 1), np.int64),
            owners=zeros((events * (n - 1) + 1,), np.uint32),
            found=zeros((2 * events * (n - 1),), np.uint64),
            item_keys=zeros((events * self._longest_round + 1,), np.uint64),
            items=zeros((2 * events * self._longest_round,), np.uint64),
            ends=zeros((1 << BUCKET_BITS,), np.int64),
            memo=zeros((MEMO_NUMBERS << events.bit_length(),), np.uint64),
        )
