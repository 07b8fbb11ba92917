"""Scoring text with rows in pages, many events at a time. See `snm.kernels.scoring`."""

from __future__ import annotations

from typing import Any

import numpy as np

from snm import parallel
from snm.features.extraction import Extractor
from snm.kernels import scoring as scoring_kernels
from snm.kernels.scoring import MEMO, PART_BITS, Work
from snm.kernels.simd import TILE
from snm.layouts.gate import Gate
from snm.layouts.matrix import ARRAYS, Matrix
from snm.memory import zeros
from snm.storage import map_whole

LONG_TEXT = 1 << 17  # tokens: it needs most pages of a model
MAX_EVENTS = 1 << 17  # at a time
MAX_BYTES = 1 << 27  # of working memory for each thread


class TextScorer:
    """Looks for the rows of events, and scores them."""

    def __init__(self, extractor: Extractor, pages: Matrix, gate: Gate, prune: int) -> None:
        """`gate` as `Gate.folded` makes it; `prune` as the model was trained."""
        self.extractor, self.pages, self.gate = extractor, pages, gate
        least = extractor.min_counts(prune)
        parts = np.array([extractor.spec.parents, extractor.spec.second_parents(least)])
        parts = np.where(parts, parts, parts[::-1])  # of those with one part, it twice
        self._parts = np.ascontiguousarray(parts.T)
        self._least = least[[slot.type_index for slot in extractor.spec.templates]]
        # slots are looked for in rounds: after those whose features are part of theirs
        level = np.zeros(extractor.n_templates, np.int64)
        for _ in level:
            level[1:] = 1 + level[self._parts[1:]].max(axis=1)
        self._slots = np.argsort(level, kind="stable")[1:]
        self._rounds = np.searchsorted(level[self._slots], np.arange(1, level.max() + 2))
        self._longest = int(np.diff(self._rounds).max(initial=0))
        self._mapped = False
        self._unused: list[Any] = []  # working memory for a block of events

    def probabilities(self, tokens: np.ndarray, threads: int = 1) -> np.ndarray:
        """P(tokens[k] | tokens before k) for every token; 0 where there is no event. (tokens,) float64"""

        if len(tokens) >= LONG_TEXT and not self._mapped:
            map_whole(getattr(self.pages, name) for name in ARRAYS)
            self._mapped = True
        probabilities = np.zeros(len(tokens), np.float64)
        size = min(MAX_EVENTS, MAX_BYTES // self._bytes_an_event(), -(-len(tokens) // max(1, threads)))
        blocks = -(-size // self.extractor.block)
        size = blocks * self.extractor.block if blocks > 1 else max(1, size)
        unused = self._unused if blocks <= 1 else []

        def score(part: tuple[int, int]) -> None:
            work = self._take(unused, blocks)
            for keys, (start, stop) in zip(work.keys, self.extractor.blocks(*part), strict=False):
                if stop - start == self.extractor.block:
                    self.extractor.keys(tokens, start, stop, keys)
                else:
                    keys[:, : stop - start] = self.extractor.keys(tokens, start, stop)
            here = slice(*part)
            scoring_kernels.score(tokens[here], self.pages, self.gate, work, probabilities[here])
            unused.append(work)

        parallel.run(score, [(k, min(k + size, len(tokens))) for k in range(0, len(tokens), size)], threads)
        return probabilities

    def find(self, keys: np.ndarray, words: np.ndarray) -> Any:
        """What the rows of a block of events say of themselves and of the events' words.

        See `snm.kernels.scoring.Found`.
        """

        work = self._take(self._unused, 1)
        work.keys[0, :, : len(words)] = keys
        found = scoring_kernels.find(words, self.pages, self.gate, work)
        self._unused.append(work)
        return found

    def _bytes_an_event(self) -> int:
        slots = self.extractor.n_templates
        return 9 * slots + 20 * (slots - 1) + 24 * self._longest

    def _take(self, unused: list[Any], blocks: int) -> Any:
        """Working memory that no other thread has."""
        try:
            return unused.pop()
        except IndexError:
            return self._make_work(max(1, blocks))

    def _make_work(self, blocks: int) -> Any:

        slots, events = self.extractor.n_templates, blocks * self.extractor.block
        return Work(
            parts=self._parts,
            least=self._least,
            slots=self._slots,
            rounds=self._rounds,
            keys=zeros((blocks, slots, self.extractor.block), np.uint64),
            state=zeros((events * slots,), np.uint8),
            first=zeros((len(self._rounds) - 1, events // TILE + 1), np.int64),
            whose=zeros((events * (slots - 1) + 1,), np.uint32),
            found=zeros((2 * events * (slots - 1),), np.uint64),
            listed=zeros((events * self._longest + 1,), np.uint64),
            items=zeros((2 * events * self._longest,), np.uint64),
            ends=zeros((1 << PART_BITS,), np.int64),
            memo=zeros((MEMO << events.bit_length(),), np.uint64),
        )
