"""The links of a partition on their way to being sorted, over tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from snm.layouts.keys import KeyLayout
from snm.tensors.hashing import shift_right


class LinkBuffer:
    """The links of a partition, the buckets [first, last), on their way to being sorted.

    links: sort keys, what the bucket does not say of a key and its target. (size,) int64
    buckets: less the first. (size,) int16 where that holds them, else int32
    sources: where the counts of each link go, see `TensorEvents`; none without events. (size,) int64
    """

    def __init__(
        self, layout: KeyLayout, first: int, last: int, size: int, with_sources: bool, device: torch.device
    ) -> None:
        self.layout, self.first, self.last = layout, first, last
        narrow = last - first <= 1 << 15  # half as many passes of the sort
        self.links = torch.empty(size, dtype=torch.int64, device=device)
        self.buckets = torch.empty(size, dtype=torch.int16 if narrow else torch.int32, device=device)
        self.sources = torch.empty(size if with_sources else 0, dtype=torch.int64, device=device)
        self._filled = 0

    def add(self, keys: Tensor, targets: Tensor, origins: Tensor | None) -> None:
        """Add those links of a block of events that belong here. keys: (slots, events); targets, origins: (events,)"""
        bits, target_bits = self.layout.bucket_bits, self.layout.target_bits
        buckets = _buckets(keys, bits)
        slots, events = ((keys != 0) & (buckets >= self.first) & (buckets < self.last)).nonzero(as_tuple=True)
        part = slice(self._filled, self._filled + len(slots))
        self._filled = part.stop
        self.links[part] = (((keys[slots, events] ^ 1) << bits) & -(1 << target_bits)) | targets[events]
        self.buckets[part] = (buckets[slots, events] - self.first).to(self.buckets.dtype)
        if origins is not None:
            self.sources[part] = torch.where(origins[events] < 0, -1, origins[events] + slots)


def _buckets(keys: Tensor, bits: int) -> Tensor:
    return shift_right(keys, 64 - bits)


def tally(keys: Tensor, bits: int, sizes: Tensor) -> None:
    """Add to `sizes` how many keys there are in each bucket. keys: (slots, events)"""
    sizes += torch.bincount(_buckets(keys[keys != 0], bits), minlength=len(sizes))
