"""The adjustment function on a device: its table, the events that it is learned from, and rows of M.

`snm.kernels.adjustment` takes the steps of sixteen events one after another. A device takes a batch of events at once:
their gradients are added up slot by slot, and each slot takes one step by its sum. Batches are small at first, so that
what all events share is learned from the first thousands of them, as it is on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from snm.counting import Counts
from snm.features import Extractor
from snm.kernels.adjustment import LARGEST_EXPONENT
from snm.metafeatures import BUCKETS_A_LINE, FLOOR_CODES, PAIR_CODES, MetafeatureSet, Nearness, near_types
from snm.tensors.counting import floor_log2, unpack_count
from snm.tensors.extraction import TokenBlocks
from snm.tensors.hashing import FEATURE_SALT, shift_right, slot_of, target_hash, tensor_of, widened
from snm.training import TrainingSettings, bucket_hashes, line_hashes

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_BATCHES = {"adagrad": 8192, "sgd": 256}  # events; plain steps by large sums would diverge
SMALLEST_BATCH, BATCH_SHARE = 32, 512  # a batch is at most this part of the events seen before it
MOST_LOOKED_AT = 1 << 20  # events, to say how many features they have
LINKS_WEIGHED = 1 << 22  # together
EVENTS_PREPARED = 1 << 18  # together, at least a batch


class Conjunction(NamedTuple):
    """A conjunction of metafeatures. See `snm.metafeatures.Plan`, whose indices these are."""

    units: int  # as bits
    group: int
    variant: int
    multiplicity: float
    lexical: bool

    @staticmethod
    def all_of(metafeatures: MetafeatureSet) -> list[Conjunction]:
        plan = metafeatures.plan()
        columns = plan.units(), plan.kind.tolist(), plan.multiplicity.tolist(), plan.lexical.tolist()
        return [Conjunction(units, kind >> 2, kind & 3, m, x) for units, kind, m, x in zip(*columns, strict=True)]


class LinkCount(NamedTuple):
    """What the link counts of links add to the places of their conjunctions, and how much those weigh."""

    lines: Tensor  # (groups, links) int64: what each group of conjunctions adds to the hash; nothing for group 0
    codes: Tensor  # (groups, links) int64: … and to the place
    shares: Tensor | None  # (groups, links) float32: weights of the groups where counts are doubled


class Links(NamedTuple):
    """Links on their way to places of the table."""

    units: Tensor  # (7, links) int64: what the hashes of conjunctions are made of, see `snm.metafeatures.UNITS`
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
        self._buckets_a_line = BUCKETS_A_LINE[buckets.link_buckets]
        hashes = np.zeros((2, 1 << self.layout.type_bits), np.uint64)
        hashes[:, : self._types] = [t.salt for t in extractor.spec.types], near_types(slots, self._types)
        self._type_hashes, self._near_types = tensor_of(hashes, device)
        least, spans = Nearness.of(slots, buckets.plan())
        self._near_least, self._near_spans = int(least), tensor_of(spans, device)
        self._count_hashes = tensor_of(bucket_hashes("feature-count"), device)
        self._line_hashes = tensor_of(line_hashes(), device)
        self._floor_codes = torch.tensor(FLOOR_CODES, device=device)
        self._pair_codes = torch.tensor(PAIR_CODES, device=device)

    # -- places

    def links(self, keys: Tensor, seen: Tensor, totals: Tensor, targets: Tensor) -> Links:
        """Of features that were `seen` so often (with leave-one-out `totals` are one less); `targets` are hashes."""
        floor = floor_log2(totals)
        kinds = shift_right(keys, self.layout.type_shift) & (len(self._type_hashes) - 1)
        units = torch.stack(
            [
                keys ^ FEATURE_SALT,
                self._type_hashes[kinds],
                self._count_hashes[floor],
                targets,
                self._count_hashes[floor + 1],
                self._near_targets(targets, seen),
                self._near_types[kinds],
            ]
        )
        return Links(units, _shares(totals, floor) if self.count_doubled else None)

    def _near_targets(self, targets: Tensor, seen: Tensor) -> Tensor:
        """`snm.kernels.adjustment.near_target` of every link."""
        span, least = self._near_spans[floor_log2(seen)], self._near_least
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
        for unit, hashes in enumerate(links.units):
            if c.units >> unit & 1:
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
        total = torch.full_like(links.units[0], self.start, dtype=torch.float64)
        for c in self.conjunctions:
            if lexical or not c.lexical:
                theta = self.table[self.place(c, links, count), 0].double()
                total += c.multiplicity * self.share(c, links, count) * theta
        return total.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)

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

    def weigh_rows(self, rows: Rows, singles: Tensor) -> Tensor:
        """M of the links of rows. (links,) float32"""
        weights = torch.empty(len(rows.targets), device=self.device)
        for start in range(0, len(weights), LINKS_WEIGHED):
            part = slice(start, start + LINKS_WEIGHED)
            of_row, targets, counts = rows.of_link[part], rows.targets[part], rows.counts[part]
            keys, totals = rows.features[of_row], rows.totals[of_row]
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
        rows = Rows.of(counts, self.device)
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


class Rows(NamedTuple):
    """Rows of C on a device."""

    features: Tensor  # (rows,) int64
    totals: Tensor  # (rows,) int64
    offsets: Tensor  # (rows + 1,) int64
    targets: Tensor  # (links,) int64
    counts: Tensor  # (links,) int64
    of_link: Tensor  # (links,) int64: the row of each link

    @classmethod
    def of(cls, counts: Counts, device: torch.device) -> Rows:
        offsets = torch.from_numpy(np.asarray(counts.offsets, np.int64)).to(device)
        numbers = torch.arange(len(counts.features), device=device)
        return cls(
            tensor_of(counts.features, device),
            widened(counts.totals, device),
            offsets,
            widened(counts.targets, device),
            widened(counts.counts, device),
            torch.repeat_interleave(numbers, torch.diff(offsets)),
        )


def _shares(counts: Tensor, floor: Tensor) -> Tensor:
    """Weights of no bucket, the floor's, the ceiling's and both, by what the floor of log2 lost of counts."""
    lost = (torch.log2(counts.double()) - floor).float()
    return torch.stack([torch.ones_like(lost), 1 - lost, lost, lost * (1 - lost)])


class EventCounts:
    """The events that the adjustment is learned from, and the counts of their features, on a device.

    See `snm.training.Annotations`.
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
        self.slots = text.extractor.n_slots - 1
        self.values = torch.zeros(n * self.slots + 1, dtype=torch.int32, device=device)  # the last is nobody's
        self._total = int(unigrams.totals[0])
        self._counts = torch.zeros(len(text.extractor.vocabulary), dtype=torch.int64, device=device)
        self._counts[widened(unigrams.targets, device)] = widened(unigrams.counts, device)

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def bytes_needed(tokens: int, extractor: Extractor) -> int:
        return tokens * (extractor.n_slots - 1) * 4

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
        """See `Annotations.mean_features`."""
        n = len(self.tokens)
        totals = (self.values[:-1].view(n, self.slots)[:: -(-n // MOST_LOOKED_AT)] >> 16) & 0xFFFF
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
        from snm.tensors.stepping import stepper_for

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
