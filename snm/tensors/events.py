"""The events that the adjustment is learned from, and the counts of their features, on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from snm.adjustment.settings import TrainingSettings
from snm.features.extraction import Extractor
from snm.layouts.counts import Counts
from snm.tensors.adjustment import Batch, TensorAdjustment
from snm.tensors.features import TokenBlocks
from snm.tensors.hashing import target_hash, widened
from snm.tensors.packing import unpack_count
from snm.tensors.steps import stepper_for

LARGEST_BATCHES = {"adagrad": 8192, "sgd": 256}  # events; plain steps by large sums would diverge
SMALLEST_BATCH, BATCH_SHARE = 32, 512  # a batch is at most this part of the events before it
MAX_SAMPLED = 1 << 20  # events whose features are counted for their mean
EVENTS_PREPARED = 1 << 18  # together, at least a batch


class TensorEvents:
    """The events that the adjustment is learned from, and the counts of their features, on a device.

    See `snm.training.AnnotatedEvents`.
    """

    def __init__(self, text: TokenBlocks, unigrams: Counts, chosen: np.ndarray | None) -> None:
        """`chosen`: of every token of the text whether its event is learned from; None for all."""
        device = text.device
        self._numbers: Tensor | None = None
        n = len(text)
        if chosen is not None:
            mask = torch.from_numpy(chosen).to(device)
            self._numbers = torch.where(mask, torch.cumsum(mask, 0) - 1, -1)
            n = int(mask.sum())
            self.tokens = TokenBlocks(text.host_tokens[chosen], text.extractor, device)
        else:
            self.tokens = text
        self.slots = text.extractor.n_templates - 1
        self.values = torch.zeros(n * self.slots + 1, dtype=torch.int32, device=device)  # the last is nobody's
        self._total = int(unigrams.feature_counts[0])
        self._counts = torch.zeros(len(text.extractor.vocabulary), dtype=torch.int64, device=device)
        self._counts[widened(unigrams.targets, device)] = widened(unigrams.link_counts, device)

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def bytes_needed(tokens: int, extractor: Extractor) -> int:
        return tokens * (extractor.n_templates - 1) * 4

    def origins(self, start: int, stop: int) -> Tensor:
        """Of the events at these places of the text, where the counts of their first feature go; -1 for nowhere."""
        if self._numbers is None:
            return torch.arange(start, stop, device=self.values.device) * self.slots
        numbers = self._numbers[start:stop]
        return torch.where(numbers < 0, -1, numbers * self.slots)

    def annotate(self, sources: Tensor, packed: Tensor) -> None:
        """Write the counts of links to where they came from; -1 is nobody's place."""
        self.values[sources] = packed

    def counts_of(self, keys: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """C_i* and C_ij of every slot of the events [start, stop), 0 where there is no feature. (slots, events)"""
        packed = self.values[start * self.slots : stop * self.slots].view(stop - start, self.slots)
        packed = packed.T.long() & 0xFFFFFFFF
        words = self.tokens.tokens[start:stop].long()
        there = keys[0] != 0
        totals = torch.cat([(there * self._total)[None], unpack_count(packed >> 16)])
        links = torch.cat([(there * self._counts[words])[None], unpack_count(packed & 0xFFFF)])
        return totals, links

    def mean_features(self, leave_one_out: bool) -> float:
        """See `AnnotatedEvents.mean_features`."""
        n = len(self.tokens)
        totals = (self.values[:-1].view(n, self.slots)[:: -(-n // MAX_SAMPLED)] >> 16) & 0xFFFF
        return 1.0 + int((totals > leave_one_out).sum()) / max(1, len(totals))

    def prepare(self, adjustment: TensorAdjustment, leave_one_out: bool, start: int, stop: int) -> Batch:
        """The features of the events [start, stop) that take part."""
        keys = self.tokens.keys(start, stop)
        totals, links = self.counts_of(keys, start, stop)
        taking = (links > 0) & (keys != 0)
        if leave_one_out:
            taking &= totals > 1
        events, slots = taking.T.nonzero(as_tuple=True)
        keys, seen, links = keys[slots, events], totals[slots, events], links[slots, events]
        totals = seen
        negative, links_p = torch.ones(len(keys), device=keys.device), links
        if leave_one_out:
            totals, links_p = seen - 1, links - 1
            negative = ((totals + 1 - links).double() / totals).float()
        positive = (links_p.double() / totals).float()
        targets = target_hash(self.tokens.tokens[start:stop].long())[events]
        ends = torch.zeros(stop - start + 1, dtype=torch.int64, device=keys.device)
        torch.cumsum(taking.sum(0), 0, out=ends[1:])
        return Batch(
            adjustment.links(keys, seen, totals, targets), negative, positive, adjustment.link_count(links),
            adjustment.link_count(links_p.clamp(min=1)), events, ends.cpu().numpy(),
        )  # fmt: skip

    def train(
        self, adjustment: TensorAdjustment, settings: TrainingSettings, threads: int, advance: Callable[[int], None]
    ) -> float:
        """One pass over all events in their order; returns the mean loss an event. `threads` are of no use here."""
        leave_one_out = settings.loss == "leave-one-out"
        stepper = stepper_for(adjustment, leave_one_out, settings.learning_rate())
        for start, stop, sizes in _schedule(len(self.tokens), LARGEST_BATCHES[settings.optimiser]):
            stepper.take(self.prepare(adjustment, leave_one_out, start, stop), sizes)
            advance(stop - start)
        events = int((self.tokens.tokens != self.tokens.extractor.vocabulary.begin).sum())
        return stepper.loss() / max(1, events)


def _schedule(n: int, largest: int) -> Iterator[tuple[int, int, list[int]]]:
    """Ranges of events that are prepared together, each with the sizes of its batches."""
    at = 0
    while at < n:
        start, sizes = at, []
        while at < n and at - start < EVENTS_PREPARED:
            sizes.append(min(max(SMALLEST_BATCH, at // BATCH_SHARE), largest, n - at))
            at += sizes[-1]
        yield start, at, sizes
