"""Collecting the links of a partition, before they are sorted."""

from __future__ import annotations

import torch
from torch import Tensor

from snm.layouts.keys import KeyLayout
from snm.tensors.hashing import shift_right


class LinkBuffer:
    """The links of a partition, the buckets [first, last).

    links: sort keys, the target below the bits of the key that follow the bucket's number. (size,) int64
    buckets: bucket of each link, minus `first`. (size,) int16 if that is enough, else int32
    sources: index in `TensorEvents.values` for the counts of each link; empty without events. (size,) int64
    """

    def __init__(
        self, layout: KeyLayout, first: int, last: int, size: int, with_sources: bool, device: torch.device
    ) -> None:
        self.layout, self.first, self.last = layout, first, last
        narrow = last - first <= 1 << 15  # int16 halves the passes of the radix sort
        self.links = torch.empty(size, dtype=torch.int64, device=device)
        self.buckets = torch.empty(size, dtype=torch.int16 if narrow else torch.int32, device=device)
        self.sources = torch.empty(size if with_sources else 0, dtype=torch.int64, device=device)
        self._filled = 0

    def add(self, keys: Tensor, targets: Tensor, origins: Tensor | None) -> None:
        """Add the links of a block of events that lie in [first, last).

        keys: (templates, events); targets: (events,); origins: (events,), see `TensorEvents.origins`
        """
        bits, target_bits = self.layout.bucket_bits, self.layout.target_bits
        buckets = _buckets(keys, bits)
        templates, events = ((keys != 0) & (buckets >= self.first) & (buckets < self.last)).nonzero(as_tuple=True)
        part = slice(self._filled, self._filled + len(templates))
        self._filled = part.stop
        self.links[part] = (((keys[templates, events] ^ 1) << bits) & -(1 << target_bits)) | targets[events]
        self.buckets[part] = (buckets[templates, events] - self.first).to(self.buckets.dtype)
        if origins is not None:
            self.sources[part] = torch.where(origins[events] < 0, -1, origins[events] + templates)


def _buckets(keys: Tensor, bits: int) -> Tensor:
    return shift_right(keys, 64 - bits)


def tally(keys: Tensor, bits: int, sizes: Tensor) -> None:
    """Add the number of keys in each bucket to `sizes`. keys: (templates, events); sizes: (buckets,) int64"""
    sizes += torch.bincount(_buckets(keys[keys != 0], bits), minlength=len(sizes))
