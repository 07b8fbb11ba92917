"""The one definition of what a feature is.

A feature (r, s, a) of an event is made of r remote words, then s skipped words, then a adjacent
words before the target; r = 0 is a plain n-gram context of a words, a = 0 the empty feature of the
unigram. Its *type* is (r, s, a), or (r, *, a) where the length of the skip is tied. A *slot* is a
place of an event at which a feature may stand: one a type, but one a skip length for tied types.

The specification language is a sum of terms:

    ngram(0..4)                                 contexts of 0 to 4 words
    skip(r=1..3, s=1..3, words=1..4)            r remote, s skipped, words = r + a in all
    skip(r=1, s=4..*, a=0..2, tied, cap=20)     skip length not part of the feature; * ends at cap
    class(r=1..3, s=0, a=0..1)                  like skip, the r remote words by their class; s may be 0
    family(name)                                a family registered with `feature_family`
    snm5-skip                                   a preset, alone or in a sum
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from snm.errors import SpecError

if TYPE_CHECKING:
    from snm.vocabulary import Vocabulary

DEFAULT_CAP = 20  # where the skip length of `*` ends
MAX_WORDS = 32  # most remote or adjacent words of one feature
MAX_SPAN = 1000  # most words between the farthest word of a feature and its target
MAX_SLOTS = 1024
STEP, REMOTE = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F  # multipliers of the hash, see snm.kernels.hashing

PRESETS: dict[str, str] = {
    "small": "ngram(0..4) + class(r=1..4, a=0)",
    "medium": "ngram(0..4) + skip(r=1..2, s=1, words=1..3) + skip(r=1, s=1..10, words=1..2, tied) "
    "+ class(r=1..4, a=0) + class(r=1..2, a=1)",
    "large": "ngram(0..5) + skip(r=1..2, s=1, words=1..3) + skip(r=1, s=1..20, words=1..2, tied) "
    "+ class(r=1..5, a=0) + class(r=1..3, a=1)",
    **{f"snm{n}": f"ngram(0..{n - 1})" for n in range(2, 11)},
    "snm5-skip": "ngram(0..4) + skip(r=1..3, s=1..3, words=1..4) + skip(r=1..2, s=4..*, words=1..4, tied)",
    "snm5-skip-only": "ngram(0) + skip(r=1..3, s=1..3, words=1..4) + skip(r=1..2, s=4..*, words=1..4, tied)",
    "snm10-skip": "ngram(0..9) + skip(s=1, words=1..5) + skip(r=1, s=1..10, words=1..4, tied)",
}

DEFAULT_PRESET = "small"

FamilyKeys = Callable[[np.ndarray, np.ndarray], np.ndarray]
FamilyMaker = Callable[["Vocabulary"], FamilyKeys]


@dataclass(frozen=True)
class Family:
    """A feature family of the user's own; see `feature_family`."""

    name: str
    make: FamilyMaker
    columns: int
    span: int


_families: dict[str, Family] = {}


def feature_family(name: str, *, columns: int = 1, span: int = 16) -> Callable[[FamilyMaker], FamilyMaker]:
    """Register a feature family under `name`, to be used as `family(name)` in a specification.

    The decorated function takes the vocabulary and returns `keys(tokens, position)`. That one gets
    a block of token ids (uint32) and each token's distance to its `<S>` (int32, -1 where the token
    is no event) and returns uint64 keys of shape (tokens,) or (columns, tokens): entry k names the
    feature of the event whose target is tokens[k], 0 says that it has none. It may look only at
    tokens before k, at most `span` of them, and must be deterministic across processes.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise SpecError(f"family name {name!r}: expected lower-case letters, digits and _, a letter first")

    def register(make: FamilyMaker) -> FamilyMaker:
        _families[name] = Family(name, make, columns, span)
        return make

    return register


@dataclass(frozen=True)
class FeatureType:
    """(r, s, a), s = None where the skip is tied; or one column of a family."""

    r: int
    s: int | None
    a: int
    family: str | None = None
    column: int = 0
    classes: bool = False  # the remote words enter by their class

    def __str__(self) -> str:
        if self.family is not None:
            return f"{self.family}:{self.column}"
        if self.classes:
            return f"class ({self.r}, {'*' if self.s is None else self.s}, {self.a})"
        if self.r == 0:
            return f"{self.a + 1}-gram"
        return f"({self.r}, {'*' if self.s is None else self.s}, {self.a})"

    @property
    def is_ngram(self) -> bool:
        return self.r == 0 and self.family is None

    @property
    def salt(self) -> int:
        """64 bits that depend on the type alone, the same in every specification."""
        name = f"{self.r},{'*' if self.s is None else self.s},{self.a},{self.family or ''},{self.column}"
        name += ",class" if self.classes else ""
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Slot:
    """A place of an event where a feature of type `types[type_index]` may stand."""

    type_index: int
    r: int
    s: int
    a: int

    @property
    def places(self) -> int:
        """Of its words: bit i stands for the i-th before the target."""
        return ((1 << self.a) - 1) << 1 | ((1 << self.r) - 1) << (self.a + self.s + 1)


@dataclass(frozen=True)
class Range:
    """Whole numbers from low to high; high None is `*`."""

    low: int
    high: int | None

    def __str__(self) -> str:
        high = "*" if self.high is None else str(self.high)
        return high if high == str(self.low) else f"{self.low}..{high}"

    def upto(self, cap: int) -> range:
        return range(self.low, (cap if self.high is None else self.high) + 1)


@dataclass(frozen=True)
class Term:
    """One term of a specification, as written."""

    kind: str  # ngram, skip, class or family
    words: Range
    r: Range
    s: Range
    a: Range
    tied: bool = False
    cap: int = DEFAULT_CAP
    family: str = ""

    def __str__(self) -> str:
        if self.kind == "family":
            return f"family({self.family})"
        if self.kind == "ngram":
            return f"ngram({self.words})"
        parts = [f"r={self.r}", f"s={self.s}", f"a={self.a}", f"words={self.words}"]
        if self.tied:
            parts.append("tied")
        if self.s.high is None:
            parts.append(f"cap={self.cap}")
        return f"{self.kind}({', '.join(parts)})"


class FeatureSpec:
    """The features of a model: its types and slots. Slot 0 is always the empty feature.

    The empty feature is added where the text leaves it out: without it a word could be left
    with no probability at all.
    """

    def __init__(self, text: str) -> None:
        self.terms = _parse(text)
        self.types, self.slots = _expand(self.terms, text)
        self.text = " + ".join(str(term) for term in self.terms)

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureSpec) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def span(self) -> int:
        """How many tokens before a target any feature looks at."""
        own = max((slot.r + slot.s + slot.a for slot in self.slots), default=0)
        return max([own, *(family_named(name).span for name in self.families)])

    @property
    def parents(self) -> list[int]:
        """Of every slot an earlier one whose feature is part of its own: where that was never seen, this was not.

        One remote word less at the same distance, one adjacent word less, or the empty feature.
        """
        return [self._parent(q) for q in range(len(self.slots))]

    def _parent(self, q: int) -> int:
        slot, kind = self.slots[q], self.types[self.slots[q].type_index]
        if kind.family is not None or slot.r + slot.a == 0:
            return 0
        shorter = replace(kind, r=slot.r - 1) if slot.r > 1 else FeatureType(0, 0, slot.a if slot.r else slot.a - 1)
        same = (p for p in range(q) if self.types[self.slots[p].type_index] == shorter)
        return next((p for p in same if not shorter.r or self.slots[p].s == slot.s), 0)

    def second_parents(self, least: np.ndarray) -> list[int]:
        """Of every slot another one whose feature is part of its own, though not of its parent; 0 for none.

        least: how often features of each type were seen at the least, to be kept. The type of a feature that is part
        of another must not ask for more. Where the skip is tied there is none: the same feature was seen at other
        places of events, where there may have been no room for another part of it.
        """
        made, kinds = [], [self.types[slot.type_index] for slot in self.slots]
        places = [0 if k.family or k.classes else slot.places for slot, k in zip(self.slots, kinds, strict=True)]
        for q, first in enumerate(self.parents):
            whole, most = 0 if kinds[q].s is None else places[q], least[self.slots[q].type_index]
            parts = (
                p for p, part in enumerate(places) if part & ~places[first] and not part & ~whole and part != whole
            )
            allowed = (p for p in parts if least[self.slots[p].type_index] <= most)
            made.append(max(allowed, key=lambda p: places[p].bit_count(), default=0))
        return made

    @property
    def has_classes(self) -> bool:
        return any(term.kind == "class" for term in self.terms)

    @property
    def families(self) -> list[str]:
        return [term.family for term in self.terms if term.kind == "family"]


def family_named(name: str) -> Family:
    if name not in _families:
        known = ", ".join(sorted(_families)) or "none"
        raise SpecError(
            f"the feature family {name!r} is not registered (registered: {known}); "
            f"import the module that registers it first (on the command line: --import MODULE)"
        )
    return _families[name]


# ---------------------------------------------------------------------------------------------
# the language


def _parse(text: str) -> list[Term]:
    terms: list[Term] = []
    for piece in _split_terms(text):
        if piece in PRESETS:
            terms.extend(_parse(PRESETS[piece]))
        else:
            terms.append(_parse_term(piece, text))
    if not any(term.kind == "ngram" and term.words.low == 0 for term in terms):
        terms.insert(0, _ngram(Range(0, 0)))
    return terms


def _split_terms(text: str) -> list[str]:
    pieces = [piece.strip() for piece in text.split("+")]
    if not all(pieces):
        raise SpecError(f"features {text!r}: an empty term; expected a sum such as 'ngram(0..4) + skip(r=1, s=1, a=1)'")
    return pieces


def _ngram(words: Range) -> Term:
    return Term("ngram", words, Range(0, 0), Range(0, 0), words)


def _parse_term(piece: str, text: str) -> Term:
    match = re.fullmatch(r"(ngram|skip|class|family)\s*\((.*)\)", piece)
    if match is None:
        raise SpecError(
            f"features {text!r}: cannot read {piece!r}; expected ngram(...), skip(...), class(...), family(name) "
            f"or a preset ({', '.join(PRESETS)})"
        )
    kind, arguments = match.group(1), [part.strip() for part in match.group(2).split(",")]
    if kind == "family":
        family_named(arguments[0])
        none = Range(0, 0)
        return Term("family", none, none, none, none, family=arguments[0])
    if kind == "ngram":
        if len(arguments) != 1:
            raise SpecError(f"{piece!r}: ngram takes one range of context words, such as ngram(0..4)")
        return _ngram(_parse_range(arguments[0], piece, "words", MAX_WORDS))
    return _parse_skip(piece, arguments, kind)


def _parse_skip(piece: str, arguments: list[str], kind: str) -> Term:
    given: dict[str, Range] = {"s": Range(0, 0)} if kind == "class" else {}
    tied, cap = False, DEFAULT_CAP
    for argument in arguments:
        name, _, value = (part.strip() for part in argument.partition("="))
        if argument == "tied":
            tied = True
        elif name == "cap" and value.isdigit() and 1 <= int(value) <= MAX_SPAN:
            cap = int(value)
        elif name in ("r", "s", "a", "words"):
            most = {"s": MAX_SPAN, "words": 2 * MAX_WORDS}.get(name, MAX_WORDS)
            given[name] = _parse_range(value, piece, name, most)
        else:
            raise SpecError(
                f"{piece!r}: cannot read {argument!r}; expected r=, s=, a=, words= with a range, tied, "
                f"or cap= with a number from 1 to {MAX_SPAN}"
            )
    if "s" not in given:
        raise SpecError(f"{piece!r}: the skip length is missing; add for instance s=1..3")
    if "words" not in given and "a" not in given:
        raise SpecError(f"{piece!r}: no limit on the words; add for instance words=1..4 (remote plus adjacent)")
    most = min(given["words"].high or MAX_WORDS, MAX_WORDS) if "words" in given else MAX_WORDS
    r = given.get("r", Range(1, most))
    a = given.get("a", Range(0, most))
    if kind == "class" and r.low < 1:
        raise SpecError(f"{piece!r}: a class feature has at least one remote word: r >= 1")
    if kind == "skip" and (r.low < 1 or given["s"].low < 1):
        raise SpecError(f"{piece!r}: a skip-gram has at least one remote word and skips at least one: r >= 1, s >= 1")
    if given["s"].high is None and not tied:
        raise SpecError(f"{piece!r}: s=..* needs 'tied', or every length would be a type of its own")
    if given["s"].high is None and cap < given["s"].low:
        raise SpecError(f"{piece!r}: cap={cap} lies below the smallest skip {given['s'].low}")
    words = given.get("words", Range(r.low + a.low, (r.high or 0) + (a.high or 0)))
    return Term(kind, words, r, given["s"], a, tied, cap)


def _parse_range(text: str, piece: str, name: str, most: int) -> Range:
    match = re.fullmatch(r"(\d+)(?:\s*\.\.\s*(\d+|\*))?", text)
    if match is None:
        raise SpecError(f"{piece!r}: cannot read the range {text!r}; expected a number, low..high, or s=low..*")
    low = int(match.group(1))
    if match.group(2) == "*":
        if name != "s":
            raise SpecError(f"{piece!r}: only the skip length s can run to *; give {name} a number")
        return Range(low, None)
    high = int(match.group(2) or low)
    if high < low:
        raise SpecError(f"{piece!r}: the range {text} is empty; expected low..high with low <= high")
    if high > most:
        raise SpecError(f"{piece!r}: {name}={high} is too large; the most is {most}")
    return Range(low, high)


def _expand(terms: list[Term], text: str) -> tuple[list[FeatureType], list[Slot]]:
    """All types in a fixed order and their slots, each once."""
    wanted: dict[FeatureType, set[int]] = {}
    for term in terms:
        if term.kind in ("skip", "class") and not _shapes(term):
            raise SpecError(f"{term}: no feature meets all these limits; words is r + a")
        if term.kind == "family":
            for column in range(family_named(term.family).columns):
                wanted.setdefault(FeatureType(0, 0, 0, term.family, column), {0})
            continue
        for r, a in _shapes(term):
            for s in term.s.upto(term.cap):
                kind = FeatureType(r, None if term.tied else s, a, classes=term.kind == "class")
                wanted.setdefault(kind, set()).add(s)
    order = sorted(
        wanted, key=lambda t: (t.family or "", t.classes, t.r > 0, t.s is None, t.r, t.s or 0, t.a, t.column)
    )
    slots = [Slot(i, t.r, s, t.a) for i, t in enumerate(order) for s in sorted(wanted[t])]
    if len(slots) > MAX_SLOTS:
        raise SpecError(f"features {text!r}: {len(slots)} features an event; the most is {MAX_SLOTS}")
    if any(slot.r + slot.s + slot.a > MAX_SPAN for slot in slots):
        raise SpecError(f"features {text!r}: a feature reaches past {MAX_SPAN} words")
    return order, slots


def _shapes(term: Term) -> list[tuple[int, int]]:
    """All (r, a) that meet the limits of a term."""
    words = term.words.upto(2 * MAX_WORDS)
    return [(r, a) for r in term.r.upto(MAX_WORDS) for a in term.a.upto(MAX_WORDS) if r + a in words]


# ---------------------------------------------------------------------------------------------
# keys


@dataclass(frozen=True)
class KeyLayout:
    """How a feature becomes 64 bits, and how those are shared out for sorting.

    A key is, from the top: `hash_bits` of hash, `type_bits` of type, zeros, and a lowest bit of 1.
    Its top `bucket_bits` name the bucket it is sorted in. Inside a bucket, key and target fit in
    64 bits together, so links are sorted as plain integers. The layout depends on the amount of
    work alone, never on memory or threads, so the same text gives the same keys everywhere.
    """

    target_bits: int
    type_bits: int
    bucket_bits: int

    @classmethod
    def for_work(cls, words: int, types: int, keys: int) -> KeyLayout:
        """The layout for a vocabulary of `words`, `types` feature types and about `keys` links."""
        target_bits = max(1, (words - 1).bit_length())
        type_bits = max(1, (types - 1).bit_length())
        by_size = max(0, (keys >> 16).bit_length())  # buckets of about 2^16 keys sort inside the cache
        by_hash = target_bits + type_bits - 12  # at least 52 bits of hash
        return cls(target_bits, type_bits, max(by_size, by_hash, 1))

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

    def type_of(self, keys: np.ndarray) -> np.ndarray:
        """Type index of each key."""
        mask = np.uint64((1 << self.type_bits) - 1)
        return ((keys >> np.uint64(self.type_shift)) & mask).astype(np.uint16)

    def expected_collisions(self, features_by_type: np.ndarray) -> float:
        """Expected number of pairs of features that share a key: n² / 2^(hash_bits + 1) a type."""
        return float(np.sum(features_by_type.astype(np.float64) ** 2) / 2.0 ** (self.hash_bits + 1))


class Extractor:
    """Turns tokens into feature keys, block by block."""

    def __init__(
        self, spec: FeatureSpec, layout: KeyLayout, vocabulary: Vocabulary, classes: np.ndarray | None = None
    ) -> None:
        """`classes`: of every word of the vocabulary its class, where the features use them. (words,) uint16"""
        if spec.has_classes and (classes is None or len(classes) != len(vocabulary)):
            raise SpecError(f"features {spec.text!r} use classes; expected one for each of {len(vocabulary):,} words")
        self.spec, self.layout, self.vocabulary, self.classes = spec, layout, vocabulary, classes
        self.span = max(1, spec.span)  # to see the <S> before the first target of a block
        own = [slot for slot in spec.slots if spec.types[slot.type_index].family is None]
        self._remote = np.array([slot.r for slot in own], np.int64)
        self._skip = np.array([slot.s for slot in own], np.int64)
        self._adjacent = np.array([slot.a for slot in own], np.int64)
        indices = [slot.type_index for slot in own]
        self._salt = np.array([spec.types[i].salt for i in indices], np.uint64)
        self._type_bits = np.array([self._tag(i) for i in indices], np.uint64)
        self._by_class = np.array([spec.types[i].classes for i in indices], bool)
        self._group = np.array([indices.index(i) for i in indices], np.int64)
        self._orders = int(max(self._remote.max(), self._adjacent.max())) + 1
        self._families = self._make_families()
        self.has_families = bool(self._families)
        self.n_slots = len(spec.slots)
        # events whose keys stay in the cache: an odd multiple of `snm.kernels.vectors.TOGETHER`, so that the keys of
        # one event do not all fall on the same few lines of the first cache
        self.block = max(17, (1 << 9) // self.n_slots | 1) * 64

    @property
    def slot_table(self) -> np.ndarray:
        """What makes the key of a slot, a row each: r, s, a, by class, salt, type, first slot of the type. uint64"""
        columns = self._remote, self._skip, self._adjacent, self._by_class, self._salt, self._type_bits, self._group
        return np.column_stack([column.astype(np.uint64) for column in columns])

    def _tag(self, type_index: int) -> int:
        return (type_index << self.layout.type_shift) | 1

    def _make_families(self) -> list[tuple[Family, FamilyKeys, int]]:
        """Each family with its function and the type index of its first column."""
        made = []
        for name in self.spec.families:
            family = family_named(name)
            first = next(i for i, t in enumerate(self.spec.types) if t.family == name)
            made.append((family, family.make(self.vocabulary), first))
        return made

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """[start, stop) cut into ranges whose keys stay in the cache."""
        return ((k, min(k + self.block, stop)) for k in range(start, stop, self.block))

    def keys(self, tokens: np.ndarray, start: int, stop: int, into: np.ndarray | None = None) -> np.ndarray:
        """Keys of the events whose targets are tokens[start:stop]. (slots, stop - start) uint64

        0 where a slot holds no feature, and everywhere for `<S>`, which is no target. `into`: an array to write to.
        """
        from snm.kernels import extraction

        begin = max(0, start - self.span)
        block, first = tokens[begin:stop], start - begin
        position = np.empty(len(block), np.int32)
        extraction.locate_events(block, first, self.vocabulary.begin, self.vocabulary.never_a_target, position)
        chains = np.empty((self._orders, len(block)), np.uint64)
        extraction.hash_contexts(block, chains)
        class_chains = chains
        if self.spec.has_classes and self.classes is not None:
            class_chains = np.empty_like(chains)
            extraction.hash_contexts(self.classes[block].astype(np.uint32), class_chains)
        keys = np.empty((self.n_slots, stop - start), np.uint64) if into is None else into
        own = keys[: len(self._remote)]
        extraction.extract_keys(
            chains, class_chains, position, first, self._remote, self._skip, self._adjacent, self._by_class,
            self._salt, self._type_bits, self._group, np.uint64(self.layout.hash_mask), own,
        )  # fmt: skip
        for family, function, index in self._families:
            self._family_keys(family, function, index, block, position, first, keys)
        return keys

    def context_keys(self, contexts: np.ndarray) -> np.ndarray:
        """Keys of plain n-gram contexts, given as word ids from left to right. (n, words) to (n,)"""
        length = contexts.shape[1]
        if length == 0:
            return np.ones(len(contexts), np.uint64)
        chain = np.zeros(len(contexts), np.uint64)
        for j in reversed(range(length)):
            chain = (chain ^ _mix64_array(contexts[:, j].astype(np.uint64) + np.uint64(1))) * np.uint64(STEP)
            chain ^= chain >> np.uint64(32)
        type_index = self.spec.types.index(FeatureType(0, 0, length))
        mixed = _mix64_array(chain * np.uint64(REMOTE) ^ np.uint64(self.spec.types[type_index].salt))
        keys: np.ndarray = (mixed & np.uint64(self.layout.hash_mask)) | np.uint64(self._tag(type_index))
        return keys

    def _family_keys(
        self, family: Family, function: FamilyKeys, index: int,
        block: np.ndarray, position: np.ndarray, first: int, keys: np.ndarray,
    ) -> None:  # fmt: skip
        raw = np.atleast_2d(function(block, position))
        if raw.shape != (family.columns, len(block)) or raw.dtype != np.uint64:
            raise SpecError(
                f"family {family.name!r} returned {raw.dtype} of shape {raw.shape}; "
                f"expected uint64 of shape ({family.columns}, {len(block)})"
            )
        for column in range(family.columns):
            type_index = index + column
            slot = next(q for q, s in enumerate(self.spec.slots) if s.type_index == type_index)
            values = raw[column, first:]
            mixed = _mix64_array(values ^ np.uint64(self.spec.types[type_index].salt))
            made = (mixed & np.uint64(self.layout.hash_mask)) | np.uint64(self._tag(type_index))
            keys[slot] = np.where((values != 0) & (position[first:] > 0), made, np.uint64(0))

    def check_families(self, tokens: np.ndarray) -> None:
        """Refuse a family whose features change when the target and what follows it change.

        Tried on up to fifty targets at the beginning of the text, one after another.
        """
        from snm.kernels import extraction

        if not self._families:
            return
        sample = tokens[:2000]
        position = np.empty(len(sample), np.int32)
        extraction.locate_events(sample, 0, self.vocabulary.begin, self.vocabulary.never_a_target, position)
        events = np.flatnonzero(position > 0)
        for family, function, _ in self._families:
            before = np.atleast_2d(function(sample, position))
            for k in events[:: max(1, len(events) // 50)]:
                changed = sample.copy()
                changed[k:] = self.vocabulary.unknown if sample[k] != self.vocabulary.unknown else self.vocabulary.end
                after = np.atleast_2d(function(changed, position))
                if not np.array_equal(before[:, : k + 1], after[:, : k + 1]):
                    raise SpecError(
                        f"family {family.name!r} looks at the target or past it: "
                        f"entry k may depend on tokens before k only"
                    )
                near = slice(max(0, k - family.span), k + 1)
                if not np.array_equal(np.atleast_2d(function(sample[near], position[near]))[:, -1], before[:, k]):
                    raise SpecError(
                        f"family {family.name!r} looks at more than the {family.span} tokens before the target; "
                        f"register it with a larger span"
                    )

    def family_digests(self) -> dict[str, str]:
        """Of each family a digest of its keys on a made-up text: it tells whether it is still the same family."""
        words = np.random.Generator(np.random.PCG64(1)).integers(2, len(self.vocabulary), 500)
        position = np.arange(501, dtype=np.int32)
        position[0] = -1
        tokens = np.concatenate([[self.vocabulary.begin], words]).astype(np.uint32)
        return {
            family.name: hashlib.sha256(function(tokens, position).astype("<u8").tobytes()).hexdigest()
            for family, function, _ in self._families
        }


def _mix64_array(x: np.ndarray) -> np.ndarray:
    """`snm.kernels.hashing.mix64` of every entry."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
