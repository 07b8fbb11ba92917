"""Adding up the links of the rows of a step, in Triton: without knowing their number on the CPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256


@triton.jit
def _add(sums, starts, lengths, single, scale, targets, weights, templates, words, BLOCK: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + pair)
    start = tl.load(starts + pair)
    alone = tl.load(single + pair)
    factor = tl.load(scale + pair)
    base = sums + (pair // templates) * words
    for first in range(0, length, BLOCK):
        link = first + tl.arange(0, BLOCK)
        here = link < length
        target = tl.load(targets + start + link, mask=here, other=0)
        weight = tl.load(weights + start + link, mask=here, other=0.0)
        weight = tl.where(alone > 0, alone, weight) * factor
        tl.atomic_add(base + target, weight, mask=here, sem="relaxed")


def add_links(
    sums: Tensor, starts: Tensor, lengths: Tensor, single: Tensor, scale: Tensor, targets: Tensor, weights: Tensor
) -> None:
    """See `TensorModel._add_links`. (states, words) and (states, templates)"""
    pairs = [part.contiguous() for part in (starts, lengths, single, scale)]
    grid = (lengths.numel(),)
    with torch.cuda.device(sums.device) if sums.is_cuda else torch.no_grad():
        _add[grid](sums, *pairs, targets, weights, lengths.shape[1], sums.shape[1], BLOCK=_BLOCK)
