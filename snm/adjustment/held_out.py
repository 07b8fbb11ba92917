"""Held-out text with the rows of C that its events touch: its perplexity while training, and the multinomial loss."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.adjustment.settings import TrainingSettings
from snm.features.extraction import Extractor
from snm.kernels import adjustment as adjustment_kernels
from snm.kernels import row_index as row_kernels
from snm.layouts.counts import Counts, RowIndex
from snm.text.encoding import Text


class HeldOut:
    """Held-out text with the whole rows of C that its events touch: sums over the vocabulary need them."""

    def __init__(self, text: Text, extractor: Extractor, counts: Counts, index: RowIndex) -> None:
        self.text, tokens = text, text.tokens
        found = np.empty((len(tokens), extractor.n_templates), np.int64)
        for start, stop in extractor.blocks(0, len(tokens)):
            row_kernels.find_rows(extractor.keys(tokens, start, stop), index, found[start:stop])
        used, renumbered = np.unique(found, return_inverse=True)
        absent = int(used[0] < 0)
        self.rows = (renumbered.reshape(found.shape) - absent).astype(np.int32)
        self.counts = _select_rows(counts, used[absent:])
        self.links = np.empty(self.rows.shape, np.int64)
        row_kernels.find_links(self.rows, tokens, self.counts.offsets, self.counts.targets, self.links)
        self.events = np.flatnonzero(self.rows[:, 0] >= 0)

    def perplexity(self, adjustment: AdjustmentFunction, threads: int = 1) -> float:
        """Perplexity of the text under the present weights."""
        weights, sums = adjustment.weigh(self.counts, threads)
        rows, links = self.rows[self.events], self.links[self.events]
        gradients = np.zeros(len(sums)), np.zeros(len(weights))
        loss = adjustment_kernels.multinomial_loss(rows, links, weights, sums, *gradients)
        return float(np.exp(loss / len(self.events)))

    def train(
        self, adjustment: Adjustment, settings: TrainingSettings, seed: int, advance: Callable[[int], None]
    ) -> float:
        """One pass of the multinomial loss over mini-batches in random order; returns the mean loss."""
        weights = np.zeros(len(self.counts.targets), np.float32)
        sums = np.zeros(len(self.counts.features), np.float32)
        gradient = np.zeros(len(adjustment.table), np.float32)
        order = np.random.default_rng(seed).permutation(self.events)
        loss = 0.0
        for start in range(0, len(order), settings.batch):
            batch = np.sort(order[start : start + settings.batch])
            loss += self._train_batch(batch, adjustment, settings.learning_rate(), weights, sums, gradient)
            advance(len(batch))
        return loss / max(1, len(order))

    def _train_batch(
        self, batch: np.ndarray, adjustment: Adjustment, rate: float,
        weights: np.ndarray, sums: np.ndarray, gradient: np.ndarray,
    ) -> float:  # fmt: skip
        rows, links, table = self.rows[batch], self.links[batch], adjustment.for_kernels
        order = np.empty(rows.size, np.int64)
        touched = order[: adjustment_kernels.mark_rows(rows, np.zeros(len(sums), bool), order)]
        adjustment_kernels.weigh_listed(touched, self.counts, table, weights, sums)
        row_gradients, link_gradients = np.zeros(len(sums)), np.zeros(len(weights))
        loss = adjustment_kernels.multinomial_loss(rows, links, weights, sums, row_gradients, link_gradients)
        for apply in (False, True) if rate else (False,):
            adjustment_kernels.multinomial_gradient(
                touched, row_gradients, link_gradients, weights, self.counts, table, gradient, apply, rate
            )
        return float(loss)


def _select_rows(counts: Counts, rows: np.ndarray) -> Counts:
    """The listed rows, as counts of their own."""
    starts, lengths = counts.offsets[rows], counts.offsets[rows + 1] - counts.offsets[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    links = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Counts(
        counts.features[rows], counts.feature_counts[rows], offsets, counts.targets[links], counts.link_counts[links]
    )
