"""A Triton kernel that computes feature keys, see `snm.tensors.features`.

A program computes the keys of one template for a block of events. It hashes the words again for each template: that is
faster than the dozen passes over memory that PyTorch needs for one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from snm.layouts import keys as layout

BLOCK = 1024  # events of a program
_MULTIPLIER = tl.constexpr(layout.MULTIPLIER)
_REMOTE_MULTIPLIER = tl.constexpr(layout.REMOTE_MULTIPLIER)
_M1, _M2 = tl.constexpr(layout.MIX_MULTIPLIERS[0]), tl.constexpr(layout.MIX_MULTIPLIERS[1])


@triton.jit
def _mix64(x):
    x = (x ^ (x >> 30)) * _M1
    x = (x ^ (x >> 27)) * _M2
    return x ^ (x >> 31)


@triton.jit
def _chain(words, k, n, there):
    """The chain of the n words before k, see `snm.layouts.keys`."""
    chain = tl.zeros(k.shape, tl.uint64)
    for i in range(1, n + 1):
        word = tl.load(words + k - i, mask=there & (k >= i), other=0).to(tl.uint64) + 1
        chain = (chain ^ _mix64(word)) * _MULTIPLIER
        chain ^= chain >> 32
    return chain


@triton.jit
def _key(adjacent, words, k, there, position, r, skip, a, salt, tag, hash_mask):
    """The key of r remote words, `skip` skipped words and the chain of adjacent words; 0 where there is no feature."""
    mixed = _mix64(adjacent * _REMOTE_MULTIPLIER ^ _chain(words, k - skip - a, r, there) ^ salt)
    needed = tl.maximum(r + skip + a, 1)
    return tl.where(position >= needed, (mixed & hash_mask) | tag, tl.zeros(k.shape, tl.uint64))


@triton.jit
def _extract(tokens, by_class, positions, templates, start, stop, hash_mask, keys, BLOCK: tl.constexpr):
    q = tl.program_id(1)
    k = start + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = k < stop
    template = templates + 7 * q
    r, skip, a = tl.load(template), tl.load(template + 1), tl.load(template + 2)
    salt, tag = tl.load(template + 4).to(tl.uint64, bitcast=True), tl.load(template + 5).to(tl.uint64, bitcast=True)
    first_of_type = tl.load(template + 6)
    words = tokens
    if tl.load(template + 3) != 0:
        words = by_class
    mask = hash_mask.to(tl.int64).to(tl.uint64, bitcast=True)
    if r + a == 0:
        mask = mask & 0
    position = tl.load(positions + k, mask=there, other=-1)
    adjacent = _chain(tokens, k, a, there)
    key = _key(adjacent, words, k, there, position, r, skip, a, salt, tag, mask)
    for p in range(first_of_type, q):  # equal features of a tied type are one
        other = _key(adjacent, words, k, there, position, r, tl.load(templates + 7 * p + 1), a, salt, tag, mask)
        key = tl.where(key == other, tl.zeros(k.shape, tl.uint64), key)
    tl.store(keys + q.to(tl.int64) * (stop - start) + (k - start), key.to(tl.int64, bitcast=True), mask=there)


def extract(
    tokens: Tensor, by_class: Tensor, positions: Tensor, templates: Tensor, start: int, stop: int, hash_mask: int,
    keys: Tensor,
) -> None:  # fmt: skip
    """Fill keys[template, event] for the events [start, stop). `templates`: records of TEMPLATE as rows of int64."""
    grid = (-(-(stop - start) // BLOCK), len(templates))
    _extract[grid](tokens, by_class, positions, templates, start, stop, hash_mask, keys, BLOCK=BLOCK)
