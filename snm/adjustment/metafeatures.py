"""Which metafeatures the adjustment function sums over.

Elementary metafeatures are the feature's identity, its type, its count C_i*, the target and the link count C_ij. A
metafeature is a conjunction of some of them. A count enters by its bucket: `single` is the floor of its log2; `double`
is the floor and the ceiling, both weighted by closeness, each in conjunctions of its own (2^5 - 1 conjunctions,
2^6 - 1 with one count doubled, 2^7 - 1 with both: the paper's); `half` are half octaves, 1, 2, 3, 4-5, 6-7, 8-11, ...,
which cost one look-up and tell small counts apart.

The language of `MetafeatureSet.parse`, comma-separated:

    lean                       the four that bring most for their look-ups (docs/estimation.md)
    all                        every conjunction
    type+link-count            one conjunction
    -feature-count             remove every conjunction that contains this one (for ablations)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from snm.arguments import flag, shown
from snm.errors import SpecError
from snm.layouts.weights import (
    FEATURE,
    FEATURE_COUNT,
    FEATURE_COUNT_2,
    LINK_COUNT,
    LINK_COUNT_2,
    TYPE,
    ConjunctionPlan,
    bits,
)

LEAN = "type+feature-count+link-count, type+target+link-count, feature, feature+target"
BUCKETINGS = ("single", "double", "half")
NAMES = ("feature", "type", "feature-count", "target", "link-count")


@dataclass(frozen=True)
class MetafeatureSet:
    """Conjunctions as sets of names, how counts are bucketed, and whether coinciding conjunctions are merged.

    Given the feature, its type and its count are known: conjunctions that differ in those alone always take the same
    steps, so with `merge` they are one look-up with a multiplicity. (Under leave-one-out the count is one less, so at
    the edge of a bucket they do differ a little.)
    """

    conjunctions: frozenset[frozenset[str]]
    feature_buckets: str = "single"
    link_buckets: str = "half"
    merge: bool = True

    @classmethod
    def parse(
        cls, text: str = "lean", *, feature_buckets: str = "single", link_buckets: str = "half", merge: bool = True
    ) -> MetafeatureSet:
        """The metafeatures that a text lists."""
        if not isinstance(text, str):
            raise SpecError(f"metafeatures is {shown(text)}; expected a string, such as 'all' or 'lean'")
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
            raise SpecError(f"metafeatures {shown(text)}: none left; expected at least one conjunction")
        for what, buckets, known in (
            ("feature", feature_buckets, BUCKETINGS[:2]),
            ("link", link_buckets, BUCKETINGS),
        ):
            if not isinstance(buckets, str) or buckets not in known:
                raise SpecError(f"{what} counts in {shown(buckets)} buckets; expected {' or '.join(known)}")
        return cls(frozenset(chosen), feature_buckets, link_buckets, flag("merge", merge))

    def __str__(self) -> str:
        return ", ".join("+".join(n for n in NAMES if n in c) for c in self._sorted())

    def _sorted(self) -> list[frozenset[str]]:
        return sorted(self.conjunctions, key=lambda c: sum(1 << NAMES.index(n) for n in c))

    def masks(self) -> dict[int, int]:
        """Conjunctions as bit masks over elementary metafeatures, each with its multiplicity."""
        masks: dict[int, int] = {}
        for conjunction in self._sorted():
            for mask in self._bucketed(conjunction):
                mask = self._merged(mask)
                masks[mask] = masks.get(mask, 0) + 1
        return masks

    def _bucketed(self, conjunction: frozenset[str]) -> list[int]:
        """One mask, or three for each doubled count: its floor, its ceiling, both."""
        masks = [bits(*(NAMES.index(name) for name in conjunction))]
        for name, floor, ceiling, buckets in (
            ("feature-count", FEATURE_COUNT, FEATURE_COUNT_2, self.feature_buckets),
            ("link-count", LINK_COUNT, LINK_COUNT_2, self.link_buckets),
        ):
            if name in conjunction and buckets == "double":
                masks = [m for mask in masks for m in (mask, mask ^ bits(floor, ceiling), mask | bits(ceiling))]
        return masks

    def _merged(self, mask: int) -> int:
        if self.merge and mask & bits(FEATURE):
            known = (TYPE,) if self.feature_buckets == "double" else (TYPE, FEATURE_COUNT)
            return mask & ~bits(*known)
        return mask

    def plan(self) -> ConjunctionPlan:
        return ConjunctionPlan.of(self.masks())


def _known(name: str, text: str) -> str:
    if name not in NAMES:
        raise SpecError(
            f"metafeatures {shown(text)}: no metafeature {shown(name)}; expected lean, all, or some of "
            f"{', '.join(NAMES)}"
        )
    return name
