"""Counts in log2 buckets and in sixteen bits, over tensors: see `snm.kernels.counts`."""

from __future__ import annotations

import torch
from torch import Tensor

from snm.layouts.counts import PACKED_EXACTLY


def floor_log2(counts: Tensor) -> Tensor:
    """Floor of log2 of counts above zero. int64"""
    return torch.frexp(counts.double()).exponent.long() - 1


def pack_count(counts: Tensor) -> Tensor:
    """Counts as 16-bit floats, see `snm.kernels.counts.pack_count`. int64"""
    shift = (floor_log2(counts) + 2 - PACKED_EXACTLY.bit_length()).clamp(min=0)
    return (shift << 11) + (counts >> shift)


def unpack_count(packed: Tensor) -> Tensor:
    shift = ((packed >> 11) - 1).clamp(min=0)
    return (packed - (shift << 11)) << shift
