"""The keys of `snm.tensors.extraction` in one kernel for a GPU, in Triton.

A program makes the keys of one slot for a block of events. It hashes the words anew for every slot: that is cheaper
than the dozen of passes over memory that PyTorch makes for one.
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
    """The chain of the n words before k, nearest first."""
    chain = tl.zeros(k.shape, tl.uint64)
    for i in range(1, n + 1):
        word = tl.load(words + k - i, mask=there & (k >= i), other=0).to(tl.uint64) + 1
        chain = (chain ^ _mix64(word)) * _MULTIPLIER
        chain ^= chain >> 32
    return chain


@triton.jit
def _key(near, words, k, there, position, r, skip, a, salt, tag, hash_mask):
    """The key of a feature of r words, then `skip` words, then those of the chain `near`; 0 where it is not there."""
    mixed = _mix64(near * _REMOTE_MULTIPLIER ^ _chain(words, k - skip - a, r, there) ^ salt)
    needed = tl.maximum(r + skip + a, 1)
    return tl.where(position >= needed, (mixed & hash_mask) | tag, tl.zeros(k.shape, tl.uint64))


@triton.jit
def _extract(tokens, by_class, positions, slots, start, stop, hash_mask, keys, BLOCK: tl.constexpr):
    q = tl.program_id(1)
    k = start + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = k < stop
    slot = slots + 7 * q
    r, skip, a = tl.load(slot), tl.load(slot + 1), tl.load(slot + 2)
    salt, tag = tl.load(slot + 4).to(tl.uint64, bitcast=True), tl.load(slot + 5).to(tl.uint64, bitcast=True)
    group = tl.load(slot + 6)
    words = tokens
    if tl.load(slot + 3) != 0:
        words = by_class
    mask = hash_mask.to(tl.int64).to(tl.uint64, bitcast=True)
    if r + a == 0:
        mask = mask & 0
    position = tl.load(positions + k, mask=there, other=-1)
    near = _chain(tokens, k, a, there)
    key = _key(near, words, k, there, position, r, skip, a, salt, tag, mask)
    for p in range(group, q):  # features of a tied type that coincide are one
        other = _key(near, words, k, there, position, r, tl.load(slots + 7 * p + 1), a, salt, tag, mask)
        key = tl.where(key == other, tl.zeros(k.shape, tl.uint64), key)
    tl.store(keys + q.to(tl.int64) * (stop - start) + (k - start), key.to(tl.int64, bitcast=True), mask=there)


def extract(
    tokens: Tensor, by_class: Tensor, positions: Tensor, slots: Tensor, start: int, stop: int, hash_mask: int,
    keys: Tensor,
) -> None:  # fmt: skip
    """Fill keys[slot, event] for the events [start, stop). `slots`: rows of `Extractor.template_table`."""
    grid = (-(-(stop - start) // BLOCK), len(slots))
    _extract[grid](tokens, by_class, positions, slots, start, stop, hash_mask, keys, BLOCK=BLOCK)
