"""The adjustment function over tensors: its table of weights, and rows of M computed from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import TrainingSettings
from snm.counts.store import StoredCounts
from snm.features.extraction import Extractor
from snm.layouts.counts import Counts
from snm.layouts.weights import (
    BUCKETS_PER_LINE,
    FLOOR_CODES,
    MAX_EXPONENT,
    PAIR_CODES,
    Window,
    bucket_hashes,
    line_hashes,
    type_offsets,
)
from snm.tensors.hashing import FEATURE_SALT, shift_right, slot_of, target_hash, tensor_of, widened
from snm.tensors.packing import floor_log2

LINKS_PER_PART = 1 << 22  # weighed at one time


class Conjunction(NamedTuple):
    """A conjunction of metafeatures, see `snm.layouts.weights.ConjunctionPlan`."""

    components: int  # mask
    group: int  # of the link count: none, its floor bucket, its ceiling bucket, both
    variant: int  # of the feature count: the same
    multiplicity: float
    lexical: bool  # contains the feature's identity

    @staticmethod
    def all_of(metafeatures: MetafeatureSet) -> list[Conjunction]:
        plan = metafeatures.plan()
        columns = plan.component_masks(), plan.weight_class.tolist(), plan.multiplicity.tolist(), plan.lexical.tolist()
        return [Conjunction(mask, c >> 2, c & 3, m, x) for mask, c, m, x in zip(*columns, strict=True)]


class LinkBuckets(NamedTuple):
    """The buckets of link counts: the part of a conjunction's slot and share that depends on the link count."""

    lines: Tensor  # (groups, links) int64: XORed into the hash; 0 for group 0
    codes: Tensor  # (groups, links) int64: slot in the line
    shares: Tensor | None  # (groups, links) float32, see `_shares`; None unless link counts are doubled

    def cut(self, begin: int, end: int) -> LinkBuckets:
        """The links [begin, end)."""
        shares = None if self.shares is None else self.shares[:, begin:end]
        return LinkBuckets(self.lines[:, begin:end], self.codes[:, begin:end], shares)


class Links(NamedTuple):
    """The part of a conjunction's slot and share that does not depend on the link count."""

    components: Tensor  # (7, links) int64: hashes, in the order of `snm.layouts.weights.COMPONENTS`
    count_shares: Tensor | None  # (4, links) float32, see `_shares`; None unless feature counts are doubled

    def cut(self, begin: int, end: int) -> Links:
        """The links [begin, end)."""
        shares = None if self.count_shares is None else self.count_shares[:, begin:end]
        return Links(self.components[:, begin:end], shares)


class Batch(NamedTuple):
    """The links of a range of events that training uses, in the order of the events."""

    links: Links
    negative: Tensor  # (links,) float32: factors of the negative and positive parts of the gradient
    positive: Tensor
    at_negative: LinkBuckets
    at_positive: LinkBuckets
    events: Tensor  # (links,) int64: event of each link
    ends: np.ndarray  # (events + 1,): the links of event k are ends[k]:ends[k + 1]


class TensorAdjustment:
    """A(i, j) over a table on a device, with the same slots as `snm.adjustment.function.Adjustment`."""

    def __init__(self, extractor: Extractor, settings: TrainingSettings, slots: int, device: torch.device) -> None:
        self.device, self.layout = device, extractor.layout
        self.conjunctions = Conjunction.all_of(settings.metafeatures)
        self.adagrad = settings.optimiser == "adagrad"
        self.table = torch.zeros((slots, 2 if self.adagrad else 1), device=device)
        if self.adagrad:
            self.table[:, 1] = settings.accumulator
        self.start = 0.0 if settings.start is None else settings.start
        self._singles_by_type = settings.loss == "leave-one-out"
        self._words = len(extractor.vocabulary)
        self._types = len(extractor.spec.types)
        buckets = settings.metafeatures
        self.count_doubled = buckets.feature_buckets == "double"
        self.link_doubled = buckets.link_buckets == "double"
        self._link_halved = buckets.link_buckets == "half"
        self._buckets_per_line = BUCKETS_PER_LINE[buckets.link_buckets]
        hashes = np.zeros((2, 1 << self.layout.type_bits), np.uint64)
        hashes[:, : self._types] = [t.salt for t in extractor.spec.types], type_offsets(slots, self._types)
        self._type_hashes, self._type_offsets = tensor_of(hashes, device)
        window = Window.of(slots, buckets.plan())
        self._window_step, self._window_spans = int(window.step), tensor_of(window.spans, device)
        self._count_hashes = tensor_of(bucket_hashes("feature-count"), device)
        self._line_hashes = tensor_of(line_hashes(), device)
        self._floor_codes = torch.tensor(FLOOR_CODES, device=device)
        self._pair_codes = torch.tensor(PAIR_CODES, device=device)

    # -- slots

    def type_indices(self, keys: Tensor) -> Tensor:
        return shift_right(keys, self.layout.type_shift) & (len(self._type_hashes) - 1)

    def links(self, keys: Tensor, feature_counts: Tensor, reduced: Tensor, target_hashes: Tensor) -> Links:
        """`reduced`: the feature counts, with leave-one-out one less. All arguments: (links,) int64"""
        floor, types = floor_log2(reduced), self.type_indices(keys)
        components = torch.stack(
            [
                keys ^ FEATURE_SALT,
                self._type_hashes[types],
                self._count_hashes[floor],
                target_hashes,
                self._count_hashes[floor + 1],
                self._target_offsets(target_hashes, feature_counts),
                self._type_offsets[types],
            ]
        )
        return Links(components, _shares(reduced, floor) if self.count_doubled else None)

    def _target_offsets(self, target_hashes: Tensor, feature_counts: Tensor) -> Tensor:
        """See `snm.kernels.adjustment.target_offset`."""
        span, step = self._window_spans[floor_log2(feature_counts)], self._window_step
        return ((step + shift_right(shift_right(target_hashes, 32) * span, 32)) & -step) << 32

    def link_buckets(self, link_counts: Tensor) -> LinkBuckets:
        floor = floor_log2(link_counts)
        zero = torch.zeros_like(floor)
        if self._link_halved:
            half = (link_counts >> (floor - 1).clamp(min=0)) & 1
            bucket = torch.where(floor > 0, 2 * floor + half, 1)
            line = self._line_hashes[bucket // self._buckets_per_line]
            return LinkBuckets(torch.stack([zero, line]), torch.stack([zero, bucket & 7]), None)
        line = self._line_hashes[floor // self._buckets_per_line]
        code = self._floor_codes[floor & 3]
        if not self.link_doubled:
            return LinkBuckets(torch.stack([zero, line]), torch.stack([zero, code]), None)
        above = self._line_hashes[(floor + 1) // self._buckets_per_line]
        codes = [zero, code, self._floor_codes[(floor + 1) & 3], self._pair_codes[floor & 3]]
        return LinkBuckets(torch.stack([zero, line, above, line]), torch.stack(codes), _shares(link_counts, floor))

    def slot(self, c: Conjunction, links: Links, buckets: LinkBuckets) -> Tensor:
        """The slot of conjunction c for each link. (links,) int64"""
        h = buckets.lines[c.group]
        for number, hashes in enumerate(links.components):
            if c.components >> number & 1:
                h = h ^ hashes
        return slot_of(h, len(self.table)) ^ buckets.codes[c.group]

    @staticmethod
    def share(c: Conjunction, links: Links, buckets: LinkBuckets) -> Tensor | float:
        """The factor of conjunction c's weight, where counts are doubled. (links,)"""
        share: Tensor | float = 1.0
        if buckets.shares is not None:
            share = buckets.shares[c.group]
        if links.count_shares is not None:
            share = share * links.count_shares[c.variant]
        return share

    def exponent(self, links: Links, buckets: LinkBuckets, lexical: bool = True) -> Tensor:
        """A(i, j), clamped; without `lexical`, of conjunctions without the feature's identity. (links,) float64"""
        total = torch.full_like(links.components[0], self.start, dtype=torch.float64)
        for c in self.conjunctions:
            if lexical or not c.lexical:
                theta = self.table[self.slot(c, links, buckets), 0].double()
                total += c.multiplicity * self.share(c, links, buckets) * theta
        return total.clamp(-MAX_EXPONENT, MAX_EXPONENT)

    # -- rows of M

    def measure(self, unigrams: Counts, counts: StoredCounts, threads: int = 1) -> None:
        """Nothing: metafeatures that need more of the counts are for the CPU."""

    def singles(self) -> np.ndarray:
        """See `AdjustmentFunction.singles`."""
        made = np.empty((self._types if self._singles_by_type else 0, self._words), np.float32)
        targets = target_hash(torch.arange(self._words, device=self.device))
        once = torch.ones_like(targets)
        for type_index, weights in enumerate(made):
            links = self.links(torch.full_like(targets, type_index << self.layout.type_shift), once, once, targets)
            weights[:] = self.exponent(links, self.link_buckets(once), lexical=False).exp().float().cpu().numpy()
        return made

    def weigh_rows(self, rows: RowTensors, singles: Tensor) -> Tensor:
        """M of the links of rows. `singles`: (types or 0, words). (links,) float32"""
        weights = torch.empty(len(rows.targets), device=self.device)
        for start in range(0, len(weights), LINKS_PER_PART):
            part = slice(start, start + LINKS_PER_PART)
            row, targets, link_counts = rows.row_of_link[part], rows.targets[part], rows.link_counts[part]
            keys, counts = rows.features[row], rows.feature_counts[row]
            links = self.links(keys, counts, counts, target_hash(targets))
            m = (link_counts.double() / counts) * self.exponent(links, self.link_buckets(link_counts)).exp()
            if len(singles):
                m = torch.where(counts == 1, singles[self.type_indices(keys), targets].double(), m)
            weights[part] = m.float()
        return weights

    def weigh(
        self, counts: Counts, threads: int = 1, singles: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `AdjustmentFunction.weigh`; `threads` is ignored."""
        rows = RowTensors.of(counts, self.device)
        singles = self.singles() if singles is None else singles
        weights = self.weigh_rows(rows, torch.from_numpy(singles).to(self.device))
        sums = torch.zeros(len(rows.features), dtype=torch.float64, device=self.device)
        sums.index_add_(0, rows.row_of_link, weights.double())
        return weights.cpu().numpy(), sums.float().cpu().numpy()

    # -- the weights of the best pass

    def weights(self) -> Tensor:
        return self.table[:, 0].clone()

    def restore(self, weights: Tensor | None) -> None:
        self.table[:, 0] = 0 if weights is None else weights


class RowTensors(NamedTuple):
    """Rows of C on a device."""

    features: Tensor  # (rows,) int64
    feature_counts: Tensor  # (rows,) int64
    offsets: Tensor  # (rows + 1,) int64
    targets: Tensor  # (links,) int64
    link_counts: Tensor  # (links,) int64
    row_of_link: Tensor  # (links,) int64

    @classmethod
    def of(cls, counts: Counts, device: torch.device) -> RowTensors:
        offsets = torch.from_numpy(np.asarray(counts.offsets, np.int64)).to(device)
        numbers = torch.arange(len(counts.features), device=device)
        return cls(
            tensor_of(counts.features, device),
            widened(counts.feature_counts, device),
            offsets,
            widened(counts.targets, device),
            widened(counts.link_counts, device),
            torch.repeat_interleave(numbers, torch.diff(offsets)),
        )


def _shares(counts: Tensor, floor: Tensor) -> Tensor:
    """Shares of doubled counts: of no bucket, of the floor's, of the ceiling's, of both. (4, links) float32"""
    above = (torch.log2(counts.double()) - floor).float()
    return torch.stack([torch.ones_like(above), 1 - above, above, above * (1 - above)])
