"""The 64-bit hash from which feature keys and the slots of metafeature weights are made.

All arithmetic is in uint64: a single int64 in an expression would turn it into float64.
`snm.reference.paper` has the same functions over Python integers, `snm.tensors.hashing` over PyTorch's.
"""

import numpy as np

from snm.kernels.compile import helper
from snm.layouts import keys

MULTIPLIER = np.uint64(keys.MULTIPLIER)
REMOTE_MULTIPLIER = np.uint64(keys.REMOTE_MULTIPLIER)
_M1, _M2 = (np.uint64(m) for m in keys.MIX_MULTIPLIERS)
_27, _30, _31, _32 = (np.uint64(n) for n in (27, 30, 31, 32))


@helper
def mix64(x):
    """The finaliser of splitmix64: a bijection of uint64 in which every input bit affects every output bit."""
    x = (x ^ (x >> _30)) * _M1
    x = (x ^ (x >> _27)) * _M2
    return x ^ (x >> _31)


@helper
def extend(chain, word):
    """The chain of a context extended by the hash of one more word to its left."""
    chain = (chain ^ word) * MULTIPLIER
    return chain ^ (chain >> _32)


@helper
def feature_key(adjacent, remote, salt, hash_mask, type_tag):
    """The key of a feature, from the chains of its adjacent and remote words, and its type."""
    return (mix64(adjacent * REMOTE_MULTIPLIER ^ remote ^ salt) & hash_mask) | type_tag


@helper
def slot_of(x, slots):
    """The slot of hash `x` in a table of `slots` slots (at most 2^32)."""
    return ((x >> _32) * slots) >> _32
