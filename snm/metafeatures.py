"""Which metafeatures the adjustment function sums over.

Elementary metafeatures are the feature's identity, its type, its count C_i*, the target and the link
count C_ij. A metafeature is a conjunction of any of them. A count enters by the floor of its log2
(its bucket); when a count is *doubled*, also by the ceiling, both weighted by closeness, and each
stands in conjunctions of its own: 2^5 - 1 conjunctions, 2^6 - 1 with one count doubled, 2^7 - 1 with both.

The language of `MetafeatureSet.parse`, comma-separated:

    all                        every conjunction
    type+link-count            one conjunction
    -feature-count             take out every conjunction that holds this one (for ablations)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from snm.errors import SpecError

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
    feature_buckets: int = 1
    link_buckets: int = 2
    merged: bool = True

    @classmethod
    def parse(
        cls, text: str = "all", feature_buckets: int = 1, link_buckets: int = 2, merged: bool = True
    ) -> MetafeatureSet:
        chosen: set[frozenset[str]] = set()
        for part in (part.strip() for part in text.split(",")):
            if part == "all":
                chosen |= {frozenset(c) for n in range(1, 6) for c in combinations(NAMES, n)}
            elif part.startswith("-"):
                name = _known(part[1:].strip(), text)
                chosen = {c for c in chosen if name not in c}
            else:
                chosen.add(frozenset(_known(name.strip(), text) for name in part.split("+")))
        if not chosen:
            raise SpecError(f"metafeatures {text!r}: none left; expected at least one conjunction")
        for what, buckets in (("feature count", feature_buckets), ("link count", link_buckets)):
            if buckets not in (1, 2):
                raise SpecError(f"{what} in {buckets} buckets; expected 1 or 2")
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
            if name in conjunction and buckets == 2:
                masks = [
                    m for mask in masks for m in (mask, mask ^ _mask(floor, ceiling), mask | _mask(ceiling))
                ]  # fmt: skip
        return masks

    def _merge(self, mask: int) -> int:
        if self.merged and mask & _mask(FEATURE):
            known = (TYPE,) if self.feature_buckets == 2 else (TYPE, FEATURE_COUNT)
            return mask & ~_mask(*known)
        return mask

    def plan(self) -> Plan:
        return Plan.of(self.masks())


def _known(name: str, text: str) -> str:
    if name not in NAMES:
        raise SpecError(f"metafeatures {text!r}: no metafeature {name!r}; expected all or some of {', '.join(NAMES)}")
    return name


@dataclass(frozen=True)
class Plan:
    """The conjunctions in the order the kernels take them.

    *Base* conjunctions hold no link count. Each is its parent and one more elementary metafeature; entry 0
    is the empty one, entries up to `n_row` depend on the feature alone, the rest on the target too.
    Multiplicity 0 marks an entry that is there only for others. *Link* conjunctions are a base one with
    the link count's floor bucket, its ceiling, or both, in this order.
    """

    parent: np.ndarray  # (bases,) int64
    bit: np.ndarray  # (bases,) int64
    multiplicity: np.ndarray  # (bases,) float64
    n_row: int
    link_base: np.ndarray  # (links,) int64: index of the base conjunction
    link_multiplicity: np.ndarray  # (links,) float64
    variant_ends: np.ndarray  # (3,) int64: where the floors, ceilings and boths end

    @classmethod
    def of(cls, masks: dict[int, int]) -> Plan:
        wanted = {0}
        for mask in masks:
            mask &= ~_LINK
            while mask:
                wanted.add(mask)
                mask ^= 1 << _last_bit(mask)
        order = sorted(wanted, key=lambda m: (m >> TARGET & 1, m.bit_count(), m))
        index = {mask: i for i, mask in enumerate(order)}
        bits = [_last_bit(m) if m else 0 for m in order]
        links = [[m for m in masks if m & _LINK == variant] for variant in _VARIANTS]
        flat = [m for variant in links for m in variant]
        return cls(
            np.array([index[m ^ (1 << b)] if m else 0 for m, b in zip(order, bits, strict=True)], np.int64),
            np.array(bits, np.int64),
            np.array([masks.get(m, 0) for m in order], np.float64),
            sum(not m >> TARGET & 1 for m in order),
            np.array([index[m & ~_LINK] for m in flat], np.int64),
            np.array([masks[m] for m in flat], np.float64),
            np.cumsum([len(variant) for variant in links]),
        )


_LINK = _mask(LINK_COUNT, LINK_COUNT_2)
_VARIANTS = (_mask(LINK_COUNT), _mask(LINK_COUNT_2), _LINK)
_ORDER = (TARGET, FEATURE_COUNT_2, FEATURE_COUNT, TYPE, FEATURE)


def _last_bit(mask: int) -> int:
    """The elementary metafeature that is known last."""
    return next(bit for bit in _ORDER if mask >> bit & 1)


# Where the weights of a link count's buckets lie. All conjunctions that differ in the link count alone
# share a line of eight slots: the line is found by the hash of the others, and the slot inside it by a code
# of three bits. A line holds the buckets of four powers of two; higher buckets go to further lines.
BUCKETS_A_LINE = 4
FLOOR_CODES = (1, 2, 4, 3)  # of a bucket, modulo four
PAIR_CODES = (0, 6, 7, 5)  # of a bucket with the next; no count lies between 1 and 2, so 0 is free
