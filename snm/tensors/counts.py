"""The counts C over tensors, partition by partition: the same rows as those of `snm.counts.counting.Counter`.

A partition's links are sorted by their sort keys and then, stably, by bucket; runs of equal links are counted. The
order of the sort leads back to the events, which are annotated with the counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from snm import parallel
from snm.counts.counting import partition_ranges
from snm.counts.store import Encoded, encode
from snm.layouts.counts import Counts
from snm.layouts.keys import KeyLayout
from snm.progress import Progress, silent
from snm.tensors import links
from snm.tensors.events import TensorEvents
from snm.tensors.features import TokenBlocks
from snm.tensors.hashing import SMALLEST, array_of, shift_right
from snm.tensors.packing import pack_count

BYTES_PER_LINK = 96  # while a partition is sorted and counted
LINKS_PER_PART = 1 << 20  # copied to the host and encoded at one time
MAX_LINKS = (1 << 31) - 1  # of a partition: the limit of PyTorch's `nonzero`


class TensorCounter:
    """Counts the links of a text within a memory budget, and annotates events. See `snm.counts.counting.Counting`."""

    def __init__(
        self, text: TokenBlocks, memory: int, partitions: int | None = None, progress: Progress = silent,
        prune: int = 1, events: TensorEvents | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        """`memory`: bytes for one partition. `events` are annotated. The rest as for `Counter`."""
        self.text, self.events, self.progress, self.threads = text, events, progress, threads
        self.layout = text.extractor.layout
        self._min_counts = torch.from_numpy(text.extractor.min_counts(prune)).to(text.device)
        self.bucket_sizes = self._measure_buckets()
        self.links = int(self.bucket_sizes.sum())
        memory = min(memory, MAX_LINKS * BYTES_PER_LINK)
        self.ranges = partition_ranges(BYTES_PER_LINK * self.bucket_sizes, memory, partitions)
        self.done = 0.0

    def _measure_buckets(self) -> np.ndarray:
        """Number of links of each bucket, with repeats. (buckets,) int64"""
        bits = self.layout.bucket_bits
        tally = links.tally
        if self.text.triton:
            from snm.tensors.triton_counts import tally
        sizes = torch.zeros(1 << bits, dtype=torch.int64, device=self.text.device)
        with self.progress("sizing", len(self.text)) as bar:
            for start, stop in self.text.blocks():
                tally(self.text.keys(start, stop)[1:], bits, sizes)
                bar(stop - start)
        on_host: np.ndarray = sizes.cpu().numpy()
        return on_host

    def __iter__(self) -> Iterator[Encoded]:
        """Parts of C in the order of their keys, encoded on the host."""
        for number, (first, last) in enumerate(self.ranges, 1):
            label = f"counting {number}/{len(self.ranges)}" if len(self.ranges) > 1 else "counting"
            rows = self.count(first, last, label)
            self.done += int(self.bucket_sizes[first:last].sum()) / max(1, self.links)
            yield from parallel.ordered(self._encode, _parts(rows, first, last, self.layout), self.threads)

    def _encode(self, part: tuple[int, int, Counts]) -> Encoded:
        first, last, rows = part
        return encode(rows, first, last, self.layout)

    def _collect(self, first: int, last: int, label: str) -> tuple[Tensor, Tensor, Tensor]:
        """Links, buckets and sources of the buckets [first, last), see `LinkBuffer`."""
        buffer_class: type[links.LinkBuffer] = links.LinkBuffer
        if self.text.triton:
            from snm.tensors.triton_counts import TritonLinkBuffer

            buffer_class = TritonLinkBuffer
        size = int(self.bucket_sizes[first:last].sum())
        buffer = buffer_class(self.layout, first, last, size, self.events is not None, self.text.device)
        with self.progress(label, len(self.text)) as bar:
            for start, stop in self.text.blocks():
                origins = None if self.events is None else self.events.origins(start, stop)
                buffer.add(self.text.keys(start, stop)[1:], self.text.tokens[start:stop], origins)
                bar(stop - start)
        return buffer.links, buffer.buckets, buffer.sources

    def count(self, first: int, last: int, label: str) -> tuple[Tensor, ...]:
        """The rows of the buckets [first, last), in the order of the fields of `Counts`."""
        links, buckets, sources = self._collect(first, last, label)
        size = len(links)
        links, order = torch.sort(links ^ SMALLEST)  # sort int64 as unsigned
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
        link_counts = _run_lengths(link_starts, size)
        feature_counts = _run_lengths(row_starts, size)
        features = self._features(links[row_starts], buckets[row_starts].long() + first)
        types = shift_right(features, self.layout.type_shift) & (len(self._min_counts) - 1)
        kept = feature_counts >= self._min_counts[types]
        first_of_row = new_row[link_starts]
        row_of_link = torch.cumsum(first_of_row, 0) - 1
        link_kept = kept[row_of_link]
        if self.events is not None:
            packed = torch.where(kept, pack_count(feature_counts) << 16, 0)[row_of_link] | pack_count(link_counts)
            packed = torch.where(link_kept, packed, 0).int()
            self.events.annotate(sources[order], torch.repeat_interleave(packed, link_counts))
        del sources, order
        lengths = _run_lengths(first_of_row.nonzero().squeeze(1), len(link_starts))[kept]
        targets = links[link_starts[link_kept]] & ((1 << self.layout.target_bits) - 1)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=self.text.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        return features[kept], feature_counts[kept].int(), offsets, targets.int(), link_counts[link_kept].int()

    def _features(self, links: Tensor, buckets: Tensor) -> Tensor:
        """Feature keys, from sort keys and buckets."""
        bits, target_bits = self.layout.bucket_bits, self.layout.target_bits
        return (buckets << (64 - bits)) | shift_right(shift_right(links, target_bits) << target_bits, bits) | 1


def _flags(changed: Tensor, size: int) -> Tensor:
    """`changed` behind a first True. (size,) bool"""
    flags = torch.ones(size, dtype=torch.bool, device=changed.device)
    flags[1:] = changed
    return flags


def _run_lengths(starts: Tensor, size: int) -> Tensor:
    return torch.diff(starts, append=torch.tensor([size], device=starts.device))


def _parts(rows: tuple[Tensor, ...], first: int, last: int, layout: KeyLayout) -> Iterator[tuple[int, int, Counts]]:
    """Ranges of the buckets [first, last) and their rows, on the host: about LINKS_PER_PART links at a time."""
    features, feature_counts, offsets, targets, link_counts = rows
    buckets = torch.arange(first, last, device=features.device)
    starts = torch.searchsorted(shift_right(features, 64 - layout.bucket_bits), buckets).tolist()
    row_edges = np.array([*starts, len(features)])  # of the buckets
    link_edges = offsets.cpu().numpy()[row_edges]
    n = max(1, -(-len(targets) // LINKS_PER_PART))
    cuts = np.searchsorted(link_edges, np.linspace(0, len(targets), n + 1)[1:-1])
    for a, b in parallel.between([0, *cuts.tolist(), last - first]):
        row, end, begin, stop = row_edges[a], row_edges[b], link_edges[a], link_edges[b]
        yield (
            first + a,
            first + b,
            Counts(
                array_of(features[row:end], "<u8"),
                array_of(feature_counts[row:end], "<u4").astype(np.int64),
                array_of(offsets[row : end + 1] - begin, "<i8"),
                array_of(targets[begin:stop], "<u4"),
                array_of(link_counts[begin:stop], "<u4").astype(np.int64),
            ),
        )
