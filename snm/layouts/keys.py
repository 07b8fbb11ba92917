"""The one definition of a feature's key: 64 bits of hash, type, zeros and a lowest bit of 1.

With `mix64` the finaliser of splitmix64 and all arithmetic modulo 2^64:

    chain()         = 0
    chain(w, rest)  = y ^ (y >> 32),  y = (chain(rest) ^ mix64(w + 1)) * MULTIPLIER
    hash            = mix64(chain(adjacent) * REMOTE_MULTIPLIER ^ chain(remote) ^ salt of the type)
    key             = (hash & hash_mask) | type index << type_shift | 1

`snm.kernels.hashing`, `snm.tensors.hashing`, `snm.tensors.triton_features` and `snm.reference.paper` compute it in
Numba, PyTorch, Triton and plain Python; docs/format.md specifies it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MULTIPLIER = 0x9E3779B97F4A7C15  # of one more word in a chain
REMOTE_MULTIPLIER = 0xC2B2AE3D27D4EB4F  # tells adjacent words from remote ones
MIX_MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64's finaliser

ABSENT = np.uint64(0)  # no feature; every key has its lowest bit set
EMPTY_KEY = np.uint64(1)  # the empty feature's: the smallest key, so its row is row 0
FEATURE_SALT = np.uint64(1 << 63)  # of a feature's identity among metafeatures: a key is a hash already
TARGET_SALT = np.uint64(0xA0761D6478BD642F)

TEMPLATE = np.dtype(
    [
        ("remote", "<i8"),  # number of remote words
        ("skipped", "<i8"),
        ("adjacent", "<i8"),
        ("by_class", "<i8"),  # 1 where the remote words enter by their class
        ("salt", "<u8"),
        ("type_tag", "<u8"),  # type index << type_shift | 1
        ("first_of_type", "<i8"),  # the first template of the same type
    ]
)
"""A feature template as kernels take it."""


@dataclass(frozen=True)
class KeyLayout:
    """How many bits of a key are hash and type, and how keys are divided into buckets for sorting.

    A key is, from the top: `hash_bits` of hash, `type_bits` of type, zeros, and a lowest bit of 1. Hash and type have
    62 bits together, so keys depend on the features alone, and counts of several texts have the same keys. (In models
    of older versions they had less, as many as the number of buckets allowed.) The top `bucket_bits` of a key are the
    number of its bucket. Inside a bucket, key and target fit into 64 bits together, so links are sorted as plain
    integers. The number of buckets changes no result: rows come in the order of their keys.
    """

    target_bits: int
    type_bits: int
    bucket_bits: int

    @classmethod
    def for_work(cls, words: int, types: int, keys: int) -> KeyLayout:
        """The layout for a vocabulary of `words`, `types` feature types and about `keys` links."""
        target_bits = max(1, (words - 1).bit_length())
        type_bits = max(1, (types - 1).bit_length())
        by_size = max(0, (keys >> 16).bit_length())  # buckets of about 2^16 keys are sorted inside the cache
        return cls(target_bits, type_bits, max(by_size, target_bits - 2, 1))  # at least as many as 62 key bits need

    @property
    def is_valid(self) -> bool:
        """Whether these numbers of bits can be those of a layout: what comes from a file may be anything."""
        numbers = self.target_bits, self.type_bits, self.bucket_bits
        if not all(type(number) is int for number in numbers):
            return False
        return 1 <= self.target_bits <= 32 and 1 <= self.type_bits <= 16 and 0 <= self.bucket_bits <= 40

    @property
    def key_bits(self) -> int:
        return min(62, 64 - self.target_bits + self.bucket_bits)

    @property
    def hash_bits(self) -> int:
        return self.key_bits - self.type_bits

    @property
    def hash_mask(self) -> int:
        return ((1 << self.hash_bits) - 1) << (64 - self.hash_bits)

    @property
    def type_shift(self) -> int:
        return 64 - self.key_bits

    def type_tag(self, type_index: int) -> int:
        """The bits of a key that are not hash."""
        return (type_index << self.type_shift) | 1

    def type_of(self, keys: np.ndarray) -> np.ndarray:
        """Type index of each key. uint16"""
        mask = np.uint64((1 << self.type_bits) - 1)
        return ((keys >> np.uint64(self.type_shift)) & mask).astype(np.uint16)

    def expected_collisions(self, features_by_type: np.ndarray) -> float:
        """Expected number of pairs of features that share a key: n² / 2^(hash_bits + 1) for each type."""
        return float(np.sum(features_by_type.astype(np.float64) ** 2) / 2.0 ** (self.hash_bits + 1))
