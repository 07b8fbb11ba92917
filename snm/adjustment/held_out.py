"""Held-out text with the rows of C that its events touch: its perplexity while training, and the multinomial loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.adjustment.settings import TrainingSettings
from snm.counts.store import StoredCounts
from snm.features.extraction import Extractor
from snm.kernels import adjustment as adjustment_kernels
from snm.kernels import row_index as row_kernels
from snm.layouts.counts import Counts
from snm.layouts.keys import ABSENT
from snm.text.encoding import Text


class TouchedRows(NamedTuple):
    """Events with the whole rows of C that they touch: sums over the vocabulary need them."""

    rows: np.ndarray  # (events, templates) int32: row of `counts`, -1 for none
    links: np.ndarray  # (events, templates) int64: link of the event's target in the row, -1 for none
    counts: Counts

    @classmethod
    def of(cls, rows: np.ndarray, words: np.ndarray, counts: Counts) -> TouchedRows:
        """From rows of larger counts, -1 for none, and the events' targets."""
        used, numbers = np.unique(rows, return_inverse=True)
        selected = counts.select(used[used >= 0])
        rows = (numbers.reshape(rows.shape) - np.count_nonzero(used < 0)).astype(np.int32)
        links = np.empty(rows.shape, np.int64)
        row_kernels.find_links(rows, words, selected.offsets, selected.targets, links)
        return cls(rows, links, selected)


class HeldOut:
    """The events of a held-out text."""

    def __init__(
        self, text: Text, extractor: Extractor, unigrams: Counts, counts: StoredCounts, threads: int = 1
    ) -> None:
        """`unigrams`: the row of the empty feature; `counts`: all others."""
        tokens = text.tokens
        keys = np.empty((extractor.n_templates, len(tokens)), np.uint64)
        for start, stop in extractor.blocks(0, len(tokens)):
            keys[:, start:stop] = extractor.keys(tokens, start, stop)
        events = np.flatnonzero(keys[0] != ABSENT)
        self.words, self.events = tokens[events], len(events)
        keys = keys.T[events]
        wanted = np.unique(keys[:, 1:])
        rows = Counts.joined([unigrams, counts.rows_for(wanted[wanted != ABSENT], threads)])
        found = np.searchsorted(rows.features, keys)
        found[rows.features[np.minimum(found, len(rows.features) - 1)] != keys] = -1
        self.touched = TouchedRows.of(found, self.words, rows)

    def perplexity(self, adjustment: AdjustmentFunction, threads: int = 1) -> float:
        """Perplexity of the text under the present weights."""
        weights, sums = adjustment.weigh(self.touched.counts, threads)
        gradients = np.zeros(len(sums)), np.zeros(len(weights))
        loss = adjustment_kernels.multinomial_loss(self.touched.rows, self.touched.links, weights, sums, *gradients)
        return float(np.exp(loss / self.events))

    def train(
        self, adjustment: Adjustment, settings: TrainingSettings, seed: int, advance: Callable[[int], None]
    ) -> float:
        """One pass of the multinomial loss over mini-batches in random order; returns the mean loss."""
        gradient = np.zeros(len(adjustment.table), np.float32)
        order = np.random.default_rng(seed).permutation(self.events)
        loss = 0.0
        for start in range(0, self.events, settings.batch):
            batch = np.sort(order[start : start + settings.batch])
            loss += self._train_batch(batch, adjustment, settings.learning_rate(), gradient)
            advance(len(batch))
        return loss / max(1, self.events)

    def _train_batch(self, batch: np.ndarray, adjustment: Adjustment, rate: float, gradient: np.ndarray) -> float:
        """Steps for the events `batch`; returns their summed loss."""
        rows, links, counts = TouchedRows.of(self.touched.rows[batch], self.words[batch], self.touched.counts)
        weights, sums = adjustment.weigh(counts)
        row_gradients, link_gradients = np.zeros(len(sums)), np.zeros(len(weights))
        loss = adjustment_kernels.multinomial_loss(rows, links, weights, sums, row_gradients, link_gradients)
        a = adjustment.for_kernels
        scratch = adjustment_kernels.make_scratch(1, a)
        for apply in (False, True) if rate else (False,):
            adjustment_kernels.multinomial_gradient(
                row_gradients, link_gradients, weights, counts, a, gradient, apply, rate, scratch
            )
        return float(loss)
