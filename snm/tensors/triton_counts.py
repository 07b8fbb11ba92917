"""Triton kernels that collect the links of a partition, see `snm.tensors.links`.

PyTorch makes two dozen passes over memory to collect the links of a block; a kernel makes one. The order of the links
does not matter: they are sorted next.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from snm.tensors.links import LinkBuffer

BLOCK = 1024  # keys of a program


@triton.jit
def _load(keys, n, BLOCK: tl.constexpr):
    """A program's keys of one template, their events in the block, and which of them are features."""
    k = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + tl.program_id(1).to(tl.int64) * n + k, mask=k < n, other=0).to(tl.uint64, bitcast=True)
    return key, k, key != 0


@triton.jit
def _tally(keys, n, sizes, BITS: tl.constexpr, BLOCK: tl.constexpr):
    key, _, there = _load(keys, n, BLOCK)
    tl.atomic_add(sizes + (key >> (64 - BITS)).to(tl.int64), tl.full((BLOCK,), 1, tl.int64), there, sem="relaxed")


@triton.jit
def _collect(
    keys, n, targets, origins, first, last, cursor, links, buckets, sources,
    BITS: tl.constexpr, TARGET_BITS: tl.constexpr, WITH_SOURCES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    key, k, there = _load(keys, n, BLOCK)
    bucket = (key >> (64 - BITS)).to(tl.int64)
    here = there & (bucket >= first) & (bucket < last)
    rank = tl.cumsum(here.to(tl.int32), 0)
    at = tl.atomic_add(cursor, tl.sum(here.to(tl.int64)), sem="relaxed") + rank - 1
    target = tl.load(targets + k, mask=here, other=0).to(tl.uint64)
    link = ((((key ^ 1) << BITS) >> TARGET_BITS) << TARGET_BITS) | target
    tl.store(links + at, link.to(tl.int64, bitcast=True), mask=here)
    tl.store(buckets + at, bucket - first, mask=here)
    if WITH_SOURCES:
        origin = tl.load(origins + k, mask=here, other=0)
        source = tl.where(origin < 0, -1, origin + tl.program_id(1))
        tl.store(sources + at, source, mask=here)


def tally(keys: Tensor, bits: int, sizes: Tensor) -> None:
    """See `snm.tensors.links.tally`."""
    templates, n = keys.shape
    _tally[(-(-n // BLOCK), templates)](keys, n, sizes, BITS=bits, BLOCK=BLOCK)


class TritonLinkBuffer(LinkBuffer):
    """A `LinkBuffer` whose links are in random order."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=self.links.device)  # number of links so far

    def add(self, keys: Tensor, targets: Tensor, origins: Tensor | None) -> None:
        templates, n = keys.shape
        _collect[(-(-n // BLOCK), templates)](
            keys, n, targets, targets if origins is None else origins, self.first, self.last, self._cursor,
            self.links, self.buckets, self.sources, BITS=self.layout.bucket_bits,
            TARGET_BITS=self.layout.target_bits, WITH_SOURCES=origins is not None, BLOCK=BLOCK,
        )  # fmt: skip
