"""The adjustment function on a device: its table, the events that it is learned from, and rows of M.

`snm.kernels.adjustment` takes the steps of sixteen events one after another. A device takes a batch of events at once:
their gradients are added up slot by slot, and each slot takes one step by its sum. Batches are small at first, so that
what all events share is learned from the first thousands of them, as it is on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import TrainingSettings
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

LINKS_WEIGHED = 1 << 22  # together


class Conjunction(NamedTuple):
    """A conjunction of metafeatures. See `snm.metafeatures.Plan`, whose indices these are."""

    components: int  # as bits
    group: int
    variant: int
    multiplicity: float
    lexical: bool

    @staticmethod
    def all_of(metafeatures: MetafeatureSet) -> list[Conjunction]:
        plan = metafeatures.plan()
        columns = plan.component_masks(), plan.weight_class.tolist(), plan.multiplicity.tolist(), plan.lexical.tolist()
        return [Conjunction(mask, c >> 2, c & 3, m, x) for mask, c, m, x in zip(*columns, strict=True)]


class LinkCount(NamedTuple):
    """What the link counts of links add to the places of their conjunctions, and how much those weigh."""

    lines: Tensor  # (groups, links) int64: what each group of conjunctions adds to the hash; nothing for group 0
    codes: Tensor  # (groups, links) int64: … and to the place
    shares: Tensor | None  # (groups, links) float32: weights of the groups where counts are doubled


class Links(NamedTuple):
    """Links on their way to places of the table."""

    components: (
        Tensor  # (7, links) int64: what the hashes of conjunctions are made of, see `snm.metafeatures.COMPONENTS`
    )
    count_shares: Tensor | None  # (4, links) float32: weights by how the feature count takes part, where it is doubled


class Batch(NamedTuple):
    """The features of a range of events that take part in a step, in the order of the events."""

    links: Links
    negative: Tensor  # (links,) float32: factors of the two parts of the gradient, see `place_event` of the kernels
    positive: Tensor
    at_negative: LinkCount
    at_positive: LinkCount
    events: Tensor  # (links,) int64: of which event
    ends: np.ndarray  # (events + 1,): where the links of each event begin


class TensorAdjustment:
    """A(i, j) on a device. The same table, for the same weights, as `snm.training.Adjustment`."""

    def __init__(self, extractor: Extractor, settings: TrainingSettings, slots: int, device: torch.device) -> None:
        self.device, self.layout = device, extractor.layout
        self.conjunctions = Conjunction.all_of(settings.metafeatures)
        self.adagrad = settings.optimiser == "adagrad"
        self.table = torch.zeros((slots, 2 if self.adagrad else 1), device=device)
        if self.adagrad:
            self.table[:, 1] = settings.accumulator
        self.start = 0.0 if settings.start is None else settings.start
        self._single_alike = settings.loss == "leave-one-out"
        self._words = len(extractor.vocabulary)
        self._types = len(extractor.spec.types)
        buckets = settings.metafeatures
        self.count_doubled = buckets.feature_buckets == "double"
        self.link_doubled = buckets.link_buckets == "double"
        self._link_halved = buckets.link_buckets == "half"
        self._buckets_a_line = BUCKETS_PER_LINE[buckets.link_buckets]
        hashes = np.zeros((2, 1 << self.layout.type_bits), np.uint64)
        hashes[:, : self._types] = [t.salt for t in extractor.spec.types], type_offsets(slots, self._types)
        self._type_hashes, self._type_offsets = tensor_of(hashes, device)
        least, spans = Window.of(slots, buckets.plan())
        self._window_step, self._window_spans = int(least), tensor_of(spans, device)
        self._count_hashes = tensor_of(bucket_hashes("feature-count"), device)
        self._line_hashes = tensor_of(line_hashes(), device)
        self._floor_codes = torch.tensor(FLOOR_CODES, device=device)
        self._pair_codes = torch.tensor(PAIR_CODES, device=device)

    # -- places

    def links(self, keys: Tensor, seen: Tensor, totals: Tensor, targets: Tensor) -> Links:
        """Of features that were `seen` so often (with leave-one-out `totals` are one less); `targets` are hashes."""
        floor = floor_log2(totals)
        kinds = shift_right(keys, self.layout.type_shift) & (len(self._type_hashes) - 1)
        components = torch.stack(
            [
                keys ^ FEATURE_SALT,
                self._type_hashes[kinds],
                self._count_hashes[floor],
                targets,
                self._count_hashes[floor + 1],
                self._target_offsets(targets, seen),
                self._type_offsets[kinds],
            ]
        )
        return Links(components, _shares(totals, floor) if self.count_doubled else None)

    def _target_offsets(self, targets: Tensor, seen: Tensor) -> Tensor:
        """`snm.kernels.adjustment.target_offset` of every link."""
        span, least = self._window_spans[floor_log2(seen)], self._window_step
        return ((least + shift_right(shift_right(targets, 32) * span, 32)) & -least) << 32

    def link_count(self, counts: Tensor) -> LinkCount:
        floor = floor_log2(counts)
        nothing = torch.zeros_like(floor)
        if self._link_halved:
            half = (counts >> (floor - 1).clamp(min=0)) & 1
            bucket = torch.where(floor > 0, 2 * floor + half, 1)
            line = self._line_hashes[bucket // self._buckets_a_line]
            return LinkCount(torch.stack([nothing, line]), torch.stack([nothing, bucket & 7]), None)
        line = self._line_hashes[floor // self._buckets_a_line]
        code = self._floor_codes[floor & 3]
        if not self.link_doubled:
            return LinkCount(torch.stack([nothing, line]), torch.stack([nothing, code]), None)
        above = self._line_hashes[(floor + 1) // self._buckets_a_line]
        codes = [nothing, code, self._floor_codes[(floor + 1) & 3], self._pair_codes[floor & 3]]
        return LinkCount(torch.stack([nothing, line, above, line]), torch.stack(codes), _shares(counts, floor))

    def place(self, c: Conjunction, links: Links, count: LinkCount) -> Tensor:
        """Where the weight of conjunction c of each link lies."""
        hashed = count.lines[c.group]
        for number, hashes in enumerate(links.components):
            if c.components >> number & 1:
                hashed = hashed ^ hashes
        return slot_of(hashed, len(self.table)) ^ count.codes[c.group]

    @staticmethod
    def share(c: Conjunction, links: Links, count: LinkCount) -> Tensor | float:
        """How much conjunction c weighs."""
        share: Tensor | float = 1.0
        if count.shares is not None:
            share = count.shares[c.group]
        if links.count_shares is not None:
            share = share * links.count_shares[c.variant]
        return share

    def exponent(self, links: Links, count: LinkCount, lexical: bool = True) -> Tensor:
        """A(i, j) of links, within the bounds of what is raised to. float64"""
        total = torch.full_like(links.components[0], self.start, dtype=torch.float64)
        for c in self.conjunctions:
            if lexical or not c.lexical:
                theta = self.table[self.place(c, links, count), 0].double()
                total += c.multiplicity * self.share(c, links, count) * theta
        return total.clamp(-MAX_EXPONENT, MAX_EXPONENT)

    # -- rows of M

    def singles(self) -> np.ndarray:
        """See `Adjustment.singles`."""
        made = np.empty((self._types if self._single_alike else 0, self._words), np.float32)
        targets = target_hash(torch.arange(self._words, device=self.device))
        once = torch.ones_like(targets)
        for kind, weights in enumerate(made):
            links = self.links(torch.full_like(targets, kind << self.layout.type_shift), once, once, targets)
            weights[:] = self.exponent(links, self.link_count(once), lexical=False).exp().float().cpu().numpy()
        return made

    def weigh_rows(self, rows: RowTensors, singles: Tensor) -> Tensor:
        """M of the links of rows. (links,) float32"""
        weights = torch.empty(len(rows.targets), device=self.device)
        for start in range(0, len(weights), LINKS_WEIGHED):
            part = slice(start, start + LINKS_WEIGHED)
            of_row, targets, counts = rows.of_link[part], rows.targets[part], rows.link_counts[part]
            keys, totals = rows.features[of_row], rows.feature_counts[of_row]
            exponent = self.exponent(self.links(keys, totals, totals, target_hash(targets)), self.link_count(counts))
            made = (counts.double() / totals) * exponent.exp()
            if len(singles):
                kinds = shift_right(keys, self.layout.type_shift) & (len(self._type_hashes) - 1)
                made = torch.where(totals == 1, singles[kinds, targets].double(), made)
            weights[part] = made.float()
        return weights

    def weigh(
        self, counts: Counts, threads: int = 1, singles: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Adjustment.weigh`; `threads` are of no use here."""
        rows = RowTensors.of(counts, self.device)
        singles = self.singles() if singles is None else singles
        weights = self.weigh_rows(rows, torch.from_numpy(singles).to(self.device))
        sums = torch.zeros(len(rows.features), dtype=torch.float64, device=self.device)
        sums.index_add_(0, rows.of_link, weights.double())
        return weights.cpu().numpy(), sums.float().cpu().numpy()

    # -- the weights of the best pass

    def weights(self) -> Tensor:
        """A copy of all weights, for `restore`."""
        return self.table[:, 0].clone()

    def restore(self, weights: Tensor | None) -> None:
        """Go back to these weights, None for those that training begins with."""
        self.table[:, 0] = 0 if weights is None else weights


class RowTensors(NamedTuple):
    """Rows of C on a device."""

    features: Tensor  # (rows,) int64
    feature_counts: Tensor  # (rows,) int64
    offsets: Tensor  # (rows + 1,) int64
    targets: Tensor  # (links,) int64
    link_counts: Tensor  # (links,) int64
    of_link: Tensor  # (links,) int64: the row of each link

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
    """Weights of no bucket, the floor's, the ceiling's and both, by what the floor of log2 lost of counts."""
    lost = (torch.log2(counts.double()) - floor).float()
    return torch.stack([torch.ones_like(lost), 1 - lost, lost, lost * (1 - lost)])
