"""Which metafeatures the adjustment function sums over.

Elementary metafeatures are the feature's identity, its type, its count C_i*, the target and the link
count C_ij. A metafeature is a conjunction of any of them. A count enters by its bucket: `single` is the
floor of its log2; `double` is the floor and the ceiling, both weighted by closeness, each in conjunctions
of its own (2^5 - 1 conjunctions, 2^6 - 1 with one count doubled, 2^7 - 1 with both: the paper's); `half`
are half octaves, 1, 2, 3, 4-5, 6-7, 8-11, …, which cost one look-up and tell small counts apart.

The language of `MetafeatureSet.parse`, comma-separated:

    lean                       the four that bring most for their look-ups (docs/estimation.md)
    all                        every conjunction
    type+link-count            one conjunction
    -feature-count             take out every conjunction that holds this one (for ablations)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np

from snm.errors import SpecError

LEAN = "type+feature-count+link-count, type+target+link-count, feature, feature+target"
BUCKETINGS = ("single", "double", "half")
NAMES = ("feature", "type", "feature-count", "target", "link-count")
FEATURE, TYPE, FEATURE_COUNT, TARGET, LINK_COUNT, FEATURE_COUNT_2, LINK_COUNT_2 = range(7)
BUCKETS = 64  # log2 buckets of a 64-bit count


def _mask(*bits: int) -> int:
    return sum(1 << bit for bit in bits)


@dataclass(frozen=True)
class MetafeatureSet:
    """Conjunctions as sets of names, how counts are bucketed, and whether coinciding ones are merged.

    Given the feature, its type and its count are known: conjunctions that differ in those alone
    always take the same steps, so with `merged` they are one look-up counted as often as they are.
    (Under leave-one-out the count is one less, so at the edge of a bucket they do differ a little.)
    """

    conjunctions: frozenset[frozenset[str]]
    feature_buckets: str = "single"
    link_buckets: str = "half"
    merged: bool = True

    @classmethod
    def parse(
        cls, text: str = "lean", feature_buckets: str = "single", link_buckets: str = "half", merged: bool = True
    ) -> MetafeatureSet:
        chosen: set[frozenset[str]] = set()
        for part in (part.strip() for part in text.split(",")):
            if part == "all":
                chosen |= {frozenset(c) for n in range(1, 6) for c in combinations(NAMES, n)}
            elif part == "lean":
                chosen |= cls.parse(LEAN).conjunctions
            elif part.startswith("-"):
                name = _known(part[1:].strip(), text)
                chosen = {c for c in chosen if name not in c}
            else:
                chosen.add(frozenset(_known(name.strip(), text) for name in part.split("+")))
        if not chosen:
            raise SpecError(f"metafeatures {text!r}: none left; expected at least one conjunction")
        for what, buckets, known in (
            ("feature", feature_buckets, BUCKETINGS[:2]),
            ("link", link_buckets, BUCKETINGS),
        ):
            if buckets not in known:
                raise SpecError(f"{what} counts in {buckets!r} buckets; expected {' or '.join(known)}")
        return cls(frozenset(chosen), feature_buckets, link_buckets, merged)

    def __str__(self) -> str:
        return ", ".join("+".join(n for n in NAMES if n in c) for c in self._sorted())

    def _sorted(self) -> list[frozenset[str]]:
        return sorted(self.conjunctions, key=lambda c: sum(1 << NAMES.index(n) for n in c))

    def masks(self) -> dict[int, int]:
        """Conjunctions as bit masks over elementary metafeatures, each with its multiplicity."""
        masks: dict[int, int] = {}
        for conjunction in self._sorted():
            for mask in self._bucketed(conjunction):
                mask = self._merge(mask)
                masks[mask] = masks.get(mask, 0) + 1
        return masks

    def _bucketed(self, conjunction: frozenset[str]) -> list[int]:
        """One mask, or three for each doubled count: its floor, its ceiling, both."""
        masks = [_mask(*(NAMES.index(name) for name in conjunction))]
        for name, floor, ceiling, buckets in (
            ("feature-count", FEATURE_COUNT, FEATURE_COUNT_2, self.feature_buckets),
            ("link-count", LINK_COUNT, LINK_COUNT_2, self.link_buckets),
        ):
            if name in conjunction and buckets == "double":
                masks = [
                    m for mask in masks for m in (mask, mask ^ _mask(floor, ceiling), mask | _mask(ceiling))
                ]  # fmt: skip
        return masks

    def _merge(self, mask: int) -> int:
        if self.merged and mask & _mask(FEATURE):
            known = (TYPE,) if self.feature_buckets == "double" else (TYPE, FEATURE_COUNT)
            return mask & ~_mask(*known)
        return mask

    def plan(self) -> Plan:
        return Plan.of(self.masks())


def _known(name: str, text: str) -> str:
    if name not in NAMES:
        raise SpecError(
            f"metafeatures {text!r}: no metafeature {name!r}; expected lean, all, or some of {', '.join(NAMES)}"
        )
    return name


_LINK = _mask(LINK_COUNT, LINK_COUNT_2)
_COUNT = _mask(FEATURE_COUNT, FEATURE_COUNT_2)
_LINK_VARIANTS = (0, _mask(LINK_COUNT), _mask(LINK_COUNT_2), _LINK)
_COUNT_VARIANTS = (0, _mask(FEATURE_COUNT), _mask(FEATURE_COUNT_2), _COUNT)
NEAR_TARGET, NEAR_TYPE = 7, 8  # see `Nearness` and `near_types`
UNITS = (FEATURE, TYPE, FEATURE_COUNT, TARGET, FEATURE_COUNT_2, NEAR_TARGET, NEAR_TYPE)
"""What the hash of a conjunction is the XOR of; the link count has a place in a line instead.

In conjunctions with the feature's identity NEAR_TARGET stands for the target, and in others with the target NEAR_TYPE
for the type: weights that are wanted together lie near each other."""


def _units_of(mask: int) -> int:
    """The units of a conjunction, as a mask."""
    mask &= ~_LINK
    if mask & _mask(TARGET):
        if mask & _mask(FEATURE):
            return mask ^ _mask(TARGET, NEAR_TARGET)
        if mask & _mask(TYPE):
            return mask ^ _mask(TYPE, NEAR_TYPE)
    return mask


@dataclass(frozen=True)
class Plan:
    """The conjunctions in the order the kernels take them.

    A *base* is a conjunction without the link count: its parent and one more unit. Base 0 is the empty
    one; a base may be there only for others. *Conjunctions* name their bases: first those without the
    link count, then those with its floor bucket, with its ceiling, with both; `ends` says where
    each of the four groups ends. The kind of a conjunction is four times its group plus 0 to 3 for no
    feature count, its floor, its ceiling, both: all of one kind have the same weight.

    Indices are unsigned: Numba would look at each signed one whether it counts from the end.
    """

    parent: np.ndarray  # (bases,) uint8
    unit: np.ndarray  # (bases,) uint8: index into UNITS
    base: np.ndarray  # (conjunctions,) uint8
    kind: np.ndarray  # (conjunctions,) uint8
    multiplicity: np.ndarray  # (conjunctions,) float64
    ends: np.ndarray  # (4,) int64
    lexical: np.ndarray  # (conjunctions,) bool: holds the feature's identity

    @classmethod
    def of(cls, masks: dict[int, int]) -> Plan:
        bases = {0}
        for mask in map(_units_of, masks):
            while mask:
                bases.add(mask)
                mask &= ~(1 << _last_unit(mask))
        order = sorted(bases, key=lambda m: (m.bit_count(), m))
        groups = [[m for m in sorted(masks) if m & _LINK == variant] for variant in _LINK_VARIANTS]
        conjunctions = [mask for group in groups for mask in group]
        kinds = [4 * _LINK_VARIANTS.index(m & _LINK) + _COUNT_VARIANTS.index(m & _COUNT) for m in conjunctions]
        return cls(
            np.array([order.index(m & ~(1 << _last_unit(m))) if m else 0 for m in order], np.uint8),
            np.array([UNITS.index(_last_unit(m)) if m else 0 for m in order], np.uint8),
            np.array([order.index(_units_of(m)) for m in conjunctions], np.uint8),
            np.array(kinds, np.uint8),
            np.array([masks[m] for m in conjunctions], np.float64),
            np.cumsum([len(group) for group in groups]),
            np.array([bool(m & _mask(FEATURE)) for m in conjunctions]),
        )

    def units(self) -> tuple[int, ...]:
        """The units that each conjunction holds, as bits."""
        bases = [0]
        for parent, unit in zip(self.parent[1:].tolist(), self.unit[1:].tolist(), strict=True):
            bases.append(bases[parent] | 1 << unit)
        return tuple(bases[b] for b in self.base.tolist())

    def has_links_of_targets(self) -> bool:
        """Whether a conjunction holds feature, target and link count."""
        near = 1 << UNITS.index(NEAR_TARGET)
        return any(units & near for units in self.units()[self.ends[0] :])


def _last_unit(mask: int) -> int:
    return next(unit for unit in reversed(UNITS) if mask >> unit & 1)


# Where weights lie. The place of a hash in a table is the hash's share of 2^64: hashes that differ in low bits alone
# have places near each other. The weights of a feature with its targets lie near the feature's own, in a window that
# grows with the feature's count: that of a rare feature is a line of the cache. The weights of a target with the types
# lie in lines one after another.

NEAR = 2  # slots that a feature with its targets has for every time it was seen, at least
A_LINE = 8


class Nearness(NamedTuple):
    """How far from a feature's own weight those with its targets lie, in shares of 2^32.

    At least `least`, a slot, or a line where links have weights of their own there; and less than that and
    spans[k], with k the floor of log2 of the feature's count. Distances are multiples of `least`.
    """

    least: np.uint64
    spans: np.ndarray  # (BUCKETS,) uint64

    @classmethod
    def of(cls, slots: int, plan: Plan) -> Nearness:
        least = (A_LINE if plan.has_links_of_targets() else 1) << _bits_below(slots)
        windows = (max(NEAR << floor, A_LINE) * least for floor in range(BUCKETS))
        return cls(np.uint64(least), np.array([min(window, 1 << 32) - least for window in windows], np.uint64))


def near_types(slots: int, types: int) -> np.ndarray:
    """What each type adds to the hash of a target: the number of its line. uint64"""
    below = _bits_below(slots)
    return np.array([(kind + 1 << 35 + below) & 0xFFFFFFFFFFFFFFFF for kind in range(types)], np.uint64)


def _bits_below(slots: int) -> int:
    """How many bits of the upper half of a hash say nothing of its slot."""
    return 33 - slots.bit_length()


# Where the weights of a link count's buckets lie. All conjunctions that differ in the link count alone
# share a line of eight slots: the line is found by the hash of the others, and the slot inside it by a code
# of three bits; code 0 is the conjunction without the link count. A line holds the buckets of four powers of
# two, or seven half octaves; higher buckets go to further lines.
BUCKETS_A_LINE = {"single": 4, "double": 4, "half": 8}
FLOOR_CODES = (1, 2, 4, 3)  # of a bucket, modulo four
PAIR_CODES = (0, 6, 7, 5)  # of a bucket with the next; no count lies between 1 and 2, so 0 is free


def half_octave(count: int) -> int:
    """Twice the floor of log2, and one more in the upper half of the octave; 1 for a count of one, to leave 0 free."""
    floor = count.bit_length() - 1
    return 2 * floor + (count >> (floor - 1) & 1) if floor else 1
