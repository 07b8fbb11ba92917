"""The table of metafeature weights theta: which conjunctions there are, and in which slot each weight lies.

A *conjunction* combines elementary metafeatures. Its hash is the XOR of the hashes of its *components*, and the hash
chooses a slot. Three rules keep weights that are read together close to each other in memory:

- Conjunctions that differ in the link count alone share a line of SLOTS_PER_LINE slots. The hash of the other
  components chooses the line, the bucket of the link count the slot in it.
- The weights of a feature with its targets lie in a window after the feature's own weight. The window grows with the
  feature's count; that of a rare feature is one cache line.
- The weights of a target with the feature types lie in consecutive lines.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

FEATURE, TYPE, FEATURE_COUNT, TARGET, LINK_COUNT, FEATURE_COUNT_2, LINK_COUNT_2 = range(7)
"""Elementary metafeatures, as bits of a conjunction. The last two are the second buckets of doubled counts."""
TARGET_OFFSET, TYPE_OFFSET = 7, 8
DIVERSITY, CLASSES, MAX_CLASSES = 9, 10, 8
"""Further elementary metafeatures: how many targets a feature has, and classes of links by type and target: bits from
CLASSES on."""
COMPONENTS: tuple[int, ...] = (
    FEATURE, TYPE, FEATURE_COUNT, TARGET, FEATURE_COUNT_2, TARGET_OFFSET, TYPE_OFFSET, DIVERSITY,
    *range(CLASSES, CLASSES + MAX_CLASSES),
)  # fmt: skip
"""What a hash is the XOR of; the link count chooses a slot inside a line instead. Beside the feature's identity
TARGET_OFFSET takes the place of TARGET; beside the target alone TYPE_OFFSET takes the place of TYPE."""
HAS_FEATURE, HAS_TYPE, HAS_FEATURE_COUNT, HAS_TARGET, _, HAS_TARGET_OFFSET, HAS_TYPE_OFFSET, HAS_DIVERSITY = (
    1 << i for i in range(8)
)
"""Masks of components, in the order of COMPONENTS."""

BUCKETS = 64  # log2 buckets of a 64-bit count
MAX_EXPONENT = 30.0  # |A(i, j)| is clamped to this: beyond it M would leave the range of float32
SLOTS_PER_LINE = 8
SLOTS_PER_COUNT = 2  # slots of a feature's window for each time that the feature was seen, at least one line

# Slots of a link count's buckets in their line; code 0 is the conjunction without the link count. A line holds the
# buckets of four powers of two, or seven half octaves; higher buckets go to further lines.
BUCKETS_PER_LINE = {"single": 4, "double": 4, "half": 8}
FLOOR_CODES = (1, 2, 4, 3)  # of a bucket, modulo four
PAIR_CODES = (0, 6, 7, 5)  # of a bucket with the next; no count lies between 1 and 2, so 0 is not needed


def bits(*numbers: int) -> int:
    """A mask of these bits."""
    return sum(1 << number for number in numbers)


_LINK = bits(LINK_COUNT, LINK_COUNT_2)
_COUNT = bits(FEATURE_COUNT, FEATURE_COUNT_2)
_LINK_VARIANTS = (0, bits(LINK_COUNT), bits(LINK_COUNT_2), _LINK)
_COUNT_VARIANTS = (0, bits(FEATURE_COUNT), bits(FEATURE_COUNT_2), _COUNT)


def _components_of(conjunction: int) -> int:
    """The components of a conjunction of elementary metafeatures, as a mask of their numbers."""
    conjunction &= ~_LINK
    if conjunction & bits(TARGET):
        if conjunction & bits(FEATURE):
            return conjunction ^ bits(TARGET, TARGET_OFFSET)
        if conjunction & bits(TYPE):
            return conjunction ^ bits(TYPE, TYPE_OFFSET)
    return conjunction


def _last_component(mask: int) -> int:
    return next(component for component in reversed(COMPONENTS) if mask >> component & 1)


@dataclass(frozen=True)
class ConjunctionPlan:
    """The conjunctions in the order in which kernels compute them.

    A *base* is a conjunction without the link count: its parent base and one more component. Base 0 is empty; a base
    may exist only as a parent. Conjunctions refer to their bases: first those without the link count, then those with
    its floor bucket, with its ceiling bucket, with both; `ends` says where each of the four groups ends. The weight
    class of a conjunction is four times its group plus 0 to 3 for no feature count, its floor bucket, its ceiling
    bucket, both.

    Indices are unsigned because Numba checks every signed one for counting from the end.
    """

    parent: np.ndarray  # (bases,) uint8
    component: np.ndarray  # (bases,) uint8: index into COMPONENTS
    base: np.ndarray  # (conjunctions,) uint8
    weight_class: np.ndarray  # (conjunctions,) uint8
    multiplicity: np.ndarray  # (conjunctions,) float64
    ends: np.ndarray  # (4,) int64
    lexical: np.ndarray  # (conjunctions,) bool: contains the feature's identity

    @classmethod
    def of(cls, conjunctions: dict[int, int]) -> ConjunctionPlan:
        """Of masks of elementary metafeatures, each with its multiplicity."""
        bases = {0}
        for mask in map(_components_of, conjunctions):
            while mask:
                bases.add(mask)
                mask &= ~(1 << _last_component(mask))
        order = sorted(bases, key=lambda m: (m.bit_count(), m))
        groups = [[m for m in sorted(conjunctions) if m & _LINK == variant] for variant in _LINK_VARIANTS]
        masks = [mask for group in groups for mask in group]
        classes = [4 * _LINK_VARIANTS.index(m & _LINK) + _COUNT_VARIANTS.index(m & _COUNT) for m in masks]
        return cls(
            np.array([order.index(m & ~(1 << _last_component(m))) if m else 0 for m in order], np.uint8),
            np.array([COMPONENTS.index(_last_component(m)) if m else 0 for m in order], np.uint8),
            np.array([order.index(_components_of(m)) for m in masks], np.uint8),
            np.array(classes, np.uint8),
            np.array([conjunctions[m] for m in masks], np.float64),
            np.cumsum([len(group) for group in groups]),
            np.array([bool(m & bits(FEATURE)) for m in masks]),
        )

    def component_masks(self) -> tuple[int, ...]:
        """The components of each conjunction, by the HAS_ masks."""
        bases = [0]
        for parent, component in zip(self.parent[1:].tolist(), self.component[1:].tolist(), strict=True):
            bases.append(bases[parent] | 1 << component)
        return tuple(bases[b] for b in self.base.tolist())

    @property
    def has_diversity(self) -> bool:
        return any(mask & HAS_DIVERSITY for mask in self.component_masks())

    def has_links_of_targets(self) -> bool:
        """Whether a conjunction contains feature, target and link count."""
        return any(mask & HAS_TARGET_OFFSET for mask in self.component_masks()[self.ends[0] :])


class FastPlan(NamedTuple):
    """The conjunctions for the fast trainer: component masks and multiplicities, without and with a link count.

    Tuples of Python numbers are constants to LLVM, which unrolls all loops over them.
    """

    bare: tuple[int, ...]
    bare_times: tuple[float, ...]
    linked: tuple[int, ...]
    linked_times: tuple[float, ...]

    @classmethod
    def of(cls, plan: ConjunctionPlan) -> FastPlan | None:
        """None for the plain trainer: conjunctions are weighted or have further metafeatures, or all or none of them
        have a link count."""
        bare, masks, times = int(plan.ends[0]), plan.component_masks(), tuple(plan.multiplicity.tolist())
        weighted = plan.ends[1] < plan.ends[3] or any(c & 2 for c in plan.weight_class.tolist())
        further = any(mask >= HAS_DIVERSITY for mask in masks)
        if weighted or further or not 0 < bare < len(masks):
            return None
        return cls(masks[:bare], times[:bare], masks[bare:], times[bare:])

    def private_rows(self, types: int) -> int:
        """Rows of the table that a thread needs for its private copies, see `snm.adjustment.threads`.

        First BUCKETS of the empty feature for each conjunction; then BUCKETS for each type and bucket of the feature
        count, for each conjunction without feature and target.
        """
        masks = self.bare + self.linked
        shared = sum(not mask & (HAS_FEATURE | HAS_TARGET) for mask in masks)
        return (len(masks) + shared * types * COUNT_ROWS) * BUCKETS


COUNT_ROWS = BUCKETS + 1  # feature count buckets of a type among private rows; odd, so that types share no cache set


class PrivateWeights(NamedTuple):
    """The weights of which a thread has private copies."""

    first: np.int64  # row of the table at which the copies begin
    rows: np.ndarray  # (copies,) int64: row of each copy, from `first` on
    slots: np.ndarray  # (copies,) int64: slot of the shared weight
    before: np.ndarray  # (copies, 1 or 2) float32: the shared weight at the last exchange


class Window(NamedTuple):
    """How far after a feature's own weight the weights with its targets lie, in units of 2^-32 of the table.

    At least `step`, a slot, or a line where links have weights of their own; less than step + spans[k], with k the
    floor of log2 of the feature's count. Distances are multiples of `step`.
    """

    step: np.uint64
    spans: np.ndarray  # (BUCKETS,) uint64

    @classmethod
    def of(cls, slots: int, plan: ConjunctionPlan) -> Window:
        step = (SLOTS_PER_LINE if plan.has_links_of_targets() else 1) << _bits_below_slot(slots)
        sizes = (max(SLOTS_PER_COUNT << floor, SLOTS_PER_LINE) * step for floor in range(BUCKETS))
        return cls(np.uint64(step), np.array([min(size, 1 << 32) - step for size in sizes], np.uint64))


def type_offsets(slots: int, types: int) -> np.ndarray:
    """The hash of TYPE_OFFSET for each type: its number of lines. (types,) uint64"""
    below = _bits_below_slot(slots)
    return np.array([(number + 1 << 35 + below) & 0xFFFFFFFFFFFFFFFF for number in range(types)], np.uint64)


def _bits_below_slot(slots: int) -> int:
    """How many bits of the upper half of a hash lie below those that choose the slot."""
    return 33 - slots.bit_length()


def half_octave(count: int) -> int:
    """The half-octave bucket of a count: 1 | 2 | 3 | 4-5 | 6-7 | 8-11 | ...; the first is 1, so that 0 stays free."""
    floor = count.bit_length() - 1
    return 2 * floor + (count >> (floor - 1) & 1) if floor else 1


@cache
def bucket_hashes(name: str) -> np.ndarray:
    """A random 64-bit hash for each log2 bucket of a count. (BUCKETS + 1,) uint64"""
    digests = (hashlib.blake2b(f"{name} {b}".encode(), digest_size=8).digest() for b in range(BUCKETS + 1))
    hashes = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    hashes.flags.writeable = False
    return hashes


def line_hashes() -> np.ndarray:
    """What the line of a link count's bucket adds to the hash: nothing for the first line, which is the base's own."""
    hashes = bucket_hashes("link-count").copy()
    hashes[0] = 0
    return hashes


class LinkClasses(NamedTuple):
    """Classes of links by type and target: continuation counts, and metafeatures of the user's own."""

    rows: np.ndarray  # (metafeatures, types) int64: row of `values`
    values: np.ndarray  # (rows, words) uint32
    salts: np.ndarray  # (metafeatures,) uint64

    @classmethod
    def of(cls, tables: dict[str, np.ndarray], types: int) -> LinkClasses:
        """By the names of metafeatures: (types, words), or (1, words) where all types have the same. uint32"""
        rows, first = np.zeros((len(tables), types), np.int64), 0
        for number, table in enumerate(tables.values()):
            rows[number] = first + np.arange(types) % len(table)
            first += len(table)
        values = np.concatenate([np.empty((0, 1), np.uint32)] if not tables else list(tables.values()))
        return cls(rows, values, np.array([class_salt(name) for name in tables], np.uint64))


def class_salt(name: str) -> int:
    """64 bits that depend on the name of a metafeature alone."""
    return int.from_bytes(hashlib.blake2b(f"class {name}".encode(), digest_size=8).digest(), "little")


class AdjustmentTable(NamedTuple):
    """All that kernels need to compute an adjustment A(i, j)."""

    type_shift: np.uint64  # of a key to its type
    type_mask: np.uint64
    type_hashes: np.ndarray  # (types,) uint64
    count_hashes: np.ndarray  # (buckets,) uint64: of the buckets of a feature count
    line_hashes: np.ndarray  # (lines,) uint64: of the lines of a link count
    window: Window
    type_offsets: np.ndarray  # (types,) uint64
    count_doubled: bool
    link_doubled: bool
    link_halved: bool  # buckets of half an octave
    line_shift: np.int64  # of a link count's bucket to its line
    has_diversity: bool
    diversity_hashes: np.ndarray  # (buckets,) uint64: of half octaves
    classes: LinkClasses
    start: float  # initial value of every A(i, j)
    # the ConjunctionPlan
    parent: np.ndarray
    component: np.ndarray
    base: np.ndarray
    weight_class: np.ndarray
    multiplicity: np.ndarray
    ends: np.ndarray
    lexical: np.ndarray
    slots: np.uint64
    table: np.ndarray  # (slots + private rows, 1 or 2) float32: theta and, for AdaGrad, its sum of squared gradients
