"""The events that the adjustment is learned from, annotated with the counts of their features.

Training needs only an event's features and their counts (C_i*, C_ij). Events are annotated with them while each
partition of C is in memory; then training streams the annotated events and never reads C again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from snm import parallel
from snm.adjustment.function import Adjustment
from snm.adjustment.settings import TrainingSettings
from snm.adjustment.threads import AdjustmentTrainer
from snm.features.extraction import Extractor
from snm.layouts.counts import Counts, Unigrams
from snm.text.encoding import Text


class TrainingEvents(Protocol):
    """Events with the counts of their features, on a CPU or a GPU."""

    @property
    def events(self) -> int:
        """How many."""

    def mean_features(self, leave_one_out: bool) -> float:
        """Mean number of features of an event that training uses."""

    def train(self, adjustment: Any, settings: TrainingSettings, threads: int, advance: Callable[[int], None]) -> float:
        """One pass over all events in their order; returns the mean loss of an event."""

    def __len__(self) -> int:
        """Tokens, the unit of `advance`."""


class AnnotatedEvents:
    """The counts of the features of every event of a text, except the empty feature's. (tokens, templates - 1) uint32

    (C_i*, C_ij) in sixteen bits each, see `kernels.counts.pack_counts`; 0 where there is no feature. `Counter` fills
    them in.
    """

    def __init__(
        self, text: Text, extractor: Extractor, unigrams: Counts, storage: Callable[[tuple[int, ...]], np.ndarray]
    ) -> None:
        """`storage` makes a zeroed uint32 array of a given shape, in memory or on disk."""
        self.text, self.extractor = text, extractor
        self.values = storage((len(text.tokens), extractor.n_templates - 1))
        self.flat = self.values.reshape(-1)
        self.origin_type = np.dtype(np.uint32 if self.flat.size < 1 << 32 else np.uint64)
        self._total = int(unigrams.feature_counts[0])
        self._counts = np.zeros(len(extractor.vocabulary), np.uint32)
        self._counts[unigrams.targets] = unigrams.link_counts

    @staticmethod
    def bytes_needed(text: Text, extractor: Extractor) -> int:
        return len(text.tokens) * (extractor.n_templates - 1) * 4

    def __len__(self) -> int:
        return len(self.text.tokens)

    @property
    def events(self) -> int:
        return self.text.events

    @property
    def unigrams(self) -> Unigrams:
        return Unigrams(np.int64(self._total), self._counts)

    def mean_features(self, leave_one_out: bool, most: int = 1 << 20) -> float:
        """Mean number of features of an event that training uses, over about `most` tokens or all there are."""
        chosen = self.values[:: -(-len(self.values) // most)]
        parts = (chosen[start : start + self.extractor.block] for start in range(0, len(chosen), self.extractor.block))
        features = sum(int(np.count_nonzero(part >> np.uint32(16) > leave_one_out)) for part in parts)
        return 1.0 + features / max(1, len(chosen))

    def train(
        self, adjustment: Adjustment, settings: TrainingSettings, threads: int, advance: Callable[[int], None]
    ) -> float:
        tokens, threads = self.text.tokens, min(threads, adjustment.threads)
        trainer = AdjustmentTrainer(
            adjustment, self.extractor.n_templates, self.unigrams, settings.loss == "leave-one-out",
            settings.learning_rate(), threads,
        )  # fmt: skip
        losses: list[float] = []

        def work(block: tuple[int, int]) -> None:
            start, stop = block
            keys = self.extractor.keys(tokens, start, stop)
            losses.append(trainer.train(keys, tokens[start:stop], self.values[start:stop]))
            advance(stop - start)

        parallel.run(work, self.extractor.blocks(0, len(tokens)), threads)
        trainer.finish()
        return sum(losses) / max(1, self.text.events)
