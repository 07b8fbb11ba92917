"""The counts C on a device, partition by partition: the same rows as `snm.counting.Counter` makes.

A partition is a range of buckets, so it holds whole rows. Its links are sorted twice, by what their bucket does not say
of them and then, keeping that order, by bucket; runs of equal links are counted. Where each link came from goes along:
that is where its counts are written for the events that are learned from.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from snm.counts.counting import partition_ranges
from snm.layouts.counts import Counts
from snm.progress import Progress, silent
from snm.tensors import links
from snm.tensors.events import TensorEvents
from snm.tensors.features import TokenBlocks
from snm.tensors.hashing import SMALLEST, array_of, shift_right
from snm.tensors.packing import pack_count

BYTES_PER_LINK = 96  # of a partition while it is sorted and counted
LINKS_PER_PART = 1 << 24  # handed out together
MAX_LINKS = (1 << 31) - 1  # of a partition: PyTorch's `nonzero` takes no more


class TensorCounter:
    """Counts the links of a text inside the memory of a device."""

    def __init__(
        self, text: TokenBlocks, room: int, partitions: int | None = None, progress: Progress = silent,
        prune: int = 1, events: TensorEvents | None = None,
    ) -> None:  # fmt: skip
        """`room` bytes are for one partition; `events` receive the counts of their features. See `Counter`."""
        self.text, self.events, self.progress = text, events, progress
        self.layout = text.extractor.layout
        self._least = torch.from_numpy(text.extractor.min_counts(prune)).to(text.device)
        self.totals = self._sizes()
        self.links = int(self.totals.sum())
        room = min(room, MAX_LINKS * BYTES_PER_LINK)
        self.ranges = partition_ranges(BYTES_PER_LINK * self.totals, room, partitions)
        self.done = 0.0

    def _sizes(self) -> np.ndarray:
        """How many links each bucket has, repeats counted. (buckets,) int64"""
        bits = self.layout.bucket_bits
        tally = links.tally
        if self.text.triton:
            from snm.tensors.triton_counts import tally
        sizes = torch.zeros(1 << bits, dtype=torch.int64, device=self.text.device)
        with self.progress("sizing", len(self.text)) as bar:
            for start, stop in self.text.blocks():
                tally(self.text.keys(start, stop)[1:], bits, sizes)
                bar(stop - start)
        made: np.ndarray = sizes.cpu().numpy()
        return made

    def __iter__(self) -> Iterator[Counts]:
        """Parts of C in the order of their keys."""
        for number, (first, last) in enumerate(self.ranges, 1):
            label = f"counting {number}/{len(self.ranges)}" if len(self.ranges) > 1 else "counting"
            size = int(self.totals[first:last].sum())
            made = self.count(first, last, label)
            self.done += size / max(1, self.links)
            yield from _parts(made)

    def _collect(self, first: int, last: int, label: str) -> tuple[Tensor, Tensor, Tensor]:
        """The links of the buckets [first, last), as `LinkBuffer` has them."""
        kind: type[links.LinkBuffer] = links.LinkBuffer
        if self.text.triton:
            from snm.tensors.triton_counts import TritonLinkBuffer

            kind = TritonLinkBuffer
        size = int(self.totals[first:last].sum())
        buffer = kind(self.layout, first, last, size, self.events is not None, self.text.device)
        with self.progress(label, len(self.text)) as bar:
            for start, stop in self.text.blocks():
                origins = None if self.events is None else self.events.origins(start, stop)
                buffer.add(self.text.keys(start, stop)[1:], self.text.tokens[start:stop], origins)
                bar(stop - start)
        return buffer.links, buffer.buckets, buffer.sources

    def count(self, first: int, last: int, label: str) -> tuple[Tensor, ...]:
        """Features, totals, first links, targets and counts of the rows of the buckets [first, last) that are kept."""
        links, buckets, sources = self._collect(first, last, label)
        size = len(links)
        links, order = torch.sort(links ^ SMALLEST)  # the sort takes them for signed
        if last - first > 1:
            buckets, again = torch.sort(buckets[order], stable=True)
            links, order = links[again], order[again]
            del again
        links ^= SMALLEST
        new_bucket = buckets[1:] != buckets[:-1]
        changed = links[1:] ^ links[:-1]
        new_link = _flags(new_bucket | (changed != 0), size)
        new_row = _flags(new_bucket | (shift_right(changed, self.layout.target_bits) != 0), size)
        del changed, new_bucket
        link_starts = new_link.nonzero().squeeze(1)
        row_starts = new_row.nonzero().squeeze(1)
        counts = _run_lengths(link_starts, size)
        totals = _run_lengths(row_starts, size)
        features = self._features(links[row_starts], buckets[row_starts].long() + first)
        kept = totals >= self._least[shift_right(features, self.layout.type_shift) & (len(self._least) - 1)]
        first_of_row = new_row[link_starts]
        row_of_link = torch.cumsum(first_of_row, 0) - 1
        link_kept = kept[row_of_link]
        if self.events is not None:
            packed = torch.where(kept, pack_count(totals) << 16, 0)[row_of_link] | pack_count(counts)
            packed = torch.where(link_kept, packed, 0).int()
            self.events.annotate(sources[order], torch.repeat_interleave(packed, counts))
        del sources, order
        lengths = _run_lengths(first_of_row.nonzero().squeeze(1), len(link_starts))[kept]
        targets = links[link_starts[link_kept]] & ((1 << self.layout.target_bits) - 1)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=self.text.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return features[kept], totals[kept].int(), offsets, targets.int(), counts[link_kept].int()

    def _features(self, links: Tensor, buckets: Tensor) -> Tensor:
        """The features' keys, from sort keys and buckets."""
        bits, target_bits = self.layout.bucket_bits, self.layout.target_bits
        return (buckets << (64 - bits)) | shift_right(shift_right(links, target_bits) << target_bits, bits) | 1


def _flags(changed: Tensor, size: int) -> Tensor:
    """Whether each entry differs from the one before; the first does."""
    flags = torch.ones(size, dtype=torch.bool, device=changed.device)
    flags[1:] = changed
    return flags


def _run_lengths(starts: Tensor, size: int) -> Tensor:
    return torch.diff(starts, append=torch.tensor([size], device=starts.device))


def _parts(made: tuple[Tensor, ...]) -> Iterator[Counts]:
    """The rows of a partition, some at a time, in the memory of the host."""
    features, totals, offsets, targets, counts = made
    n = max(1, -(-len(targets) // LINKS_PER_PART))
    wanted = torch.linspace(0, len(targets), n + 1, dtype=torch.float64).long()[1:-1].to(offsets.device)
    cuts = torch.searchsorted(offsets, wanted).tolist()
    edges = sorted({0, *cuts, len(features)})
    for row, end in itertools.pairwise(edges):
        first, last = int(offsets[row]), int(offsets[end])
        yield Counts(
            array_of(features[row:end], "<u8"),
            array_of(totals[row:end], "<u4"),
            array_of(offsets[row : end + 1] - first, "<i8"),
            array_of(targets[first:last], "<u4"),
            array_of(counts[first:last], "<u4"),
        )
