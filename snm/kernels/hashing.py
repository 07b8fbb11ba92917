"""The 64-bit hash from which feature keys and metafeature slots are made.

All arithmetic is in uint64: a single int64 in an expression would turn it into float64.
`snm.reference` holds the same functions over Python integers.
"""

import numpy as np
from numba import njit

from snm import features

# Helpers are put into their callers by LLVM, without Numba's reference counts on their arguments: an array
# handed to a plain njit function costs two atomic operations; without them rows of M are built three times faster.
# Nothing divides by zero in them, and nothing looks whether it does.
_HOW = {"nogil": True, "_nrt": False, "forceinline": True, "cache": True, "error_model": "numpy"}
helper = njit(**_HOW)
# The same where a product and a sum may be one operation.
fusing_helper = njit(**_HOW, fastmath={"contract"})
# The same for sums of many products, which may be added up in any order: eight at a time instead of one by one.
summing_helper = njit(**_HOW, fastmath={"reassoc", "contract"})

STEP = np.uint64(features.STEP)  # multiplier of one more word in a chain
REMOTE = np.uint64(features.REMOTE)  # multiplier that tells the remote words from the adjacent
FEATURE_SALT = np.uint64(1 << 63)  # a key is a hash already; neighbours stay neighbours
TARGET_SALT = np.uint64(0xA0761D6478BD642F)

_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_27 = np.uint64(27)
_30 = np.uint64(30)
_31 = np.uint64(31)
_32 = np.uint64(32)


@njit(nogil=True, cache=True)
def mix64(x):
    """The finaliser of splitmix64: a bijection of uint64 in which every bit moves every bit."""
    x = (x ^ (x >> _30)) * _M1
    x = (x ^ (x >> _27)) * _M2
    return x ^ (x >> _31)


@njit(nogil=True, cache=True)
def extend(chain, word):
    """The chain of a context extended by the mixed hash of one more word to its left."""
    chain = (chain ^ word) * STEP
    return chain ^ (chain >> _32)


@njit(nogil=True, cache=True)
def feature_hash(adjacent, remote, salt):
    """One feature: the chain of its adjacent words, of its remote words, and its type."""
    return mix64(adjacent * REMOTE ^ remote ^ salt)


@njit(nogil=True, cache=True)
def slot_of(x, slots):
    """The place of hash `x` in a table of `slots` places (at most 2^32)."""
    return ((x >> _32) * slots) >> _32
