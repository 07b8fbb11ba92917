"""Annotated events on a device: see `snm.adjustment.events`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from snm.adjustment.settings import TrainingSettings
from snm.features.extraction import Extractor
from snm.layouts.counts import Counts
from snm.progress import Advance
from snm.tensors.adjustment import Batch, TensorAdjustment
from snm.tensors.features import TokenBlocks
from snm.tensors.hashing import target_hash, widened
from snm.tensors.packing import unpack_count
from snm.tensors.steps import stepper_for

MAX_BATCH = {"adagrad": 8192, "sgd": 256}  # events; SGD would diverge with larger sums
MIN_BATCH, BATCH_SHARE = 32, 512  # a batch is at most 1/512 of the events before it: the first weights change fast
MAX_SAMPLED = 1 << 20  # events from which the mean number of features is computed
MIN_PREPARED = 1 << 18  # events prepared at one time


class TensorEvents:
    """Events with the packed counts of their features, except the empty feature's, see `AnnotatedEvents`.

    values: (tokens * n + 1,) int32, for n = templates - 1; the last entry receives the counts of all other events.
    """

    on_disk, bytes_in_memory = False, 0  # the counts are in the memory of the GPU

    def __init__(self, text: TokenBlocks, unigrams: Counts, chosen: np.ndarray | None) -> None:
        """`chosen`: mask of the tokens whose events are used; None for all. (tokens,) bool"""
        device = text.device
        self.course: list[float] = []  # asking the GPU for them would make it wait
        self._numbers: Tensor | None = None
        n = len(text)
        if chosen is not None:
            mask = torch.from_numpy(chosen).to(device)
            self._numbers = torch.where(mask, torch.cumsum(mask, 0) - 1, -1)
            n = int(mask.sum())
            self.tokens = TokenBlocks(text.host_tokens[chosen], text.extractor, device)
        else:
            self.tokens = text
        self.templates = text.extractor.n_templates - 1  # without the empty feature's
        self.values = torch.zeros(n * self.templates + 1, dtype=torch.int32, device=device)
        self._total = int(unigrams.feature_counts[0])
        self._counts = torch.zeros(len(text.extractor.vocabulary), dtype=torch.int64, device=device)
        self._counts[widened(unigrams.targets, device)] = widened(unigrams.link_counts, device)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def events(self) -> int:
        return int((self.tokens.tokens != self.tokens.extractor.vocabulary.begin).sum())

    @staticmethod
    def bytes_needed(tokens: int, extractor: Extractor) -> int:
        return tokens * (extractor.n_templates - 1) * 4

    def origins(self, start: int, stop: int) -> Tensor:
        """Index in `values` of the first feature of the text's events [start, stop); -1 for events not used."""
        if self._numbers is None:
            return torch.arange(start, stop, device=self.values.device) * self.templates
        numbers = self._numbers[start:stop]
        return torch.where(numbers < 0, -1, numbers * self.templates)

    def annotate(self, sources: Tensor, packed: Tensor) -> None:
        """Write the packed counts of links to the indices `sources`; -1 is the last entry."""
        self.values[sources] = packed

    def counts_of(self, keys: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """C_i* and C_ij of the features of the events [start, stop), 0 for no feature. (templates, events) int64"""
        packed = self.values[start * self.templates : stop * self.templates].view(stop - start, self.templates)
        packed = packed.T.long() & 0xFFFFFFFF
        words = self.tokens.tokens[start:stop].long()
        is_event = keys[0] != 0
        feature_counts = torch.cat([(is_event * self._total)[None], unpack_count(packed >> 16)])
        link_counts = torch.cat([(is_event * self._counts[words])[None], unpack_count(packed & 0xFFFF)])
        return feature_counts, link_counts

    def mean_features(self, leave_one_out: bool) -> float:
        """See `AnnotatedEvents.mean_features`."""
        n = len(self.tokens)
        packed = (self.values[:-1].view(n, self.templates)[:: -(-n // MAX_SAMPLED)] >> 16) & 0xFFFF
        return 1.0 + int((packed > leave_one_out).sum()) / max(1, len(packed))

    def prepare(self, adjustment: TensorAdjustment, leave_one_out: bool, start: int, stop: int) -> Batch:
        """The features of the events [start, stop) that training uses."""
        keys = self.tokens.keys(start, stop)
        feature_counts, link_counts = self.counts_of(keys, start, stop)
        used = (link_counts > 0) & (keys != 0)
        if leave_one_out:
            used &= feature_counts > 1
        events, templates = used.T.nonzero(as_tuple=True)
        keys, counts, links_n = (x[templates, events] for x in (keys, feature_counts, link_counts))
        reduced, links_p, negative = counts, links_n, torch.ones(len(keys), device=keys.device)
        if leave_one_out:
            reduced, links_p = counts - 1, links_n - 1
            negative = ((reduced + 1 - links_n).double() / reduced).float()
        positive = (links_p.double() / reduced).float()
        targets = target_hash(self.tokens.tokens[start:stop].long())[events]
        ends = torch.zeros(stop - start + 1, dtype=torch.int64, device=keys.device)
        torch.cumsum(used.sum(0), 0, out=ends[1:])
        return Batch(
            adjustment.links(keys, counts, reduced, targets), negative, positive, adjustment.link_buckets(links_n),
            adjustment.link_buckets(links_p.clamp(min=1)), events, ends.cpu().numpy(),
        )  # fmt: skip

    def train(self, adjustment: TensorAdjustment, settings: TrainingSettings, threads: int, advance: Advance) -> float:
        """See `TrainingEvents.train`; `threads` is ignored."""
        leave_one_out = settings.loss == "leave-one-out"
        stepper = stepper_for(adjustment, leave_one_out, settings.learning_rate())
        for start, stop, sizes in _schedule(len(self.tokens), MAX_BATCH[settings.optimiser]):
            stepper.take(self.prepare(adjustment, leave_one_out, start, stop), sizes)
            advance(stop - start)
        return stepper.loss() / max(1, self.events)


def _schedule(n: int, largest: int) -> Iterator[tuple[int, int, list[int]]]:
    """Ranges of events to prepare at one time, each with the sizes of its batches."""
    stop = 0
    while stop < n:
        start, sizes = stop, []
        while stop < n and stop - start < MIN_PREPARED:
            sizes.append(min(max(MIN_BATCH, stop // BATCH_SHARE), largest, n - stop))
            stop += sizes[-1]
        yield start, stop, sizes
