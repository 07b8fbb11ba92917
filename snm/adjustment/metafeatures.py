"""Which metafeatures the adjustment function sums over.

Elementary metafeatures are the feature's identity, its type, its count C_i*, the target and the link count C_ij. A
metafeature is a conjunction of some of them. A count enters by its bucket: `single` is the floor of its log2; `double`
is the floor and the ceiling, both weighted by closeness, each in conjunctions of its own (2^5 - 1 conjunctions,
2^6 - 1 with one count doubled, 2^7 - 1 with both: the paper's); `half` are half octaves, 1, 2, 3, 4-5, 6-7, 8-11, ...,
which cost one look-up and tell small counts apart.

The language of `MetafeatureSet.parse`, comma-separated:

    lean                       the four that bring most for their look-ups (docs/estimation.md)
    all                        every conjunction of these five
    type+link-count            one conjunction
    -feature-count             remove every conjunction that contains this one (for ablations)
    type+diversity+link-count  further ones: how many targets the feature has; `continuation`: how many features of its
                               type the target follows; and those registered with `metafeature`
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from snm.adjustment.registered import registered
from snm.arguments import flag, shown
from snm.errors import SpecError
from snm.layouts.weights import (
    CLASSES,
    DIVERSITY,
    FEATURE,
    FEATURE_COUNT,
    FEATURE_COUNT_2,
    LINK_COUNT,
    LINK_COUNT_2,
    MAX_CLASSES,
    TARGET,
    TYPE,
    ConjunctionPlan,
    bits,
)

LEAN = "type+feature-count+link-count, type+target+link-count, feature, feature+target"
BUCKETINGS = ("single", "double", "half")
NAMES = ("feature", "type", "feature-count", "target", "link-count")
OF_COUNTS = ("diversity", "continuation")


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
        own = sorted({name for c in chosen for name in c} - {*NAMES, "diversity"})
        if len(own) > MAX_CLASSES:
            raise SpecError(f"metafeatures {shown(text)}: {len(own)} beyond the paper's; the most is {MAX_CLASSES}")
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
        return ", ".join("+".join(n for n in self._names if n in c) for c in self._sorted())

    @property
    def classes(self) -> list[str]:
        """The metafeatures that are classes of links by type and target: `continuation`, and those of the user's."""
        return sorted({name for c in self.conjunctions for name in c} - {*NAMES, "diversity"})

    @property
    def has_diversity(self) -> bool:
        return any("diversity" in c for c in self.conjunctions)

    @property
    def beyond_the_paper(self) -> list[str]:
        """Those that only the CPU engine can compute."""
        return [name for name in self._names if name not in NAMES and any(name in c for c in self.conjunctions)]

    @property
    def _names(self) -> list[str]:
        return [*NAMES, "diversity", *self.classes]

    def _bit(self, name: str) -> int:
        if name in NAMES:
            return NAMES.index(name)
        return DIVERSITY if name == "diversity" else CLASSES + self.classes.index(name)

    def _sorted(self) -> list[frozenset[str]]:
        return sorted(self.conjunctions, key=lambda c: sum(1 << self._bit(n) for n in c))

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
        masks = [bits(*(self._bit(name) for name in conjunction))]
        for name, floor, ceiling, buckets in (
            ("feature-count", FEATURE_COUNT, FEATURE_COUNT_2, self.feature_buckets),
            ("link-count", LINK_COUNT, LINK_COUNT_2, self.link_buckets),
        ):
            if name in conjunction and buckets == "double":
                masks = [m for mask in masks for m in (mask, mask ^ bits(floor, ceiling), mask | bits(ceiling))]
        return masks

    def _merged(self, mask: int) -> int:
        if not self.merge:
            return mask
        known: tuple[int, ...] = ()
        if mask & bits(FEATURE):
            known = (TYPE, DIVERSITY) if self.feature_buckets == "double" else (TYPE, DIVERSITY, FEATURE_COUNT)
        if mask & bits(TARGET) and mask & bits(TYPE, FEATURE):
            known += tuple(range(CLASSES, CLASSES + MAX_CLASSES))
        return mask & ~bits(*known)

    def plan(self) -> ConjunctionPlan:
        return ConjunctionPlan.of(self.masks())


def _known(name: str, text: str) -> str:
    known = [*NAMES, *OF_COUNTS, *registered()]
    if name not in known:
        raise SpecError(
            f"metafeatures {shown(text)}: no metafeature {shown(name)}; expected lean, all, or some of "
            f"{', '.join(known)}; one of your own is registered by the module that defines it (--import MODULE)"
        )
    return name
