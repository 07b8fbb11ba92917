"""Which features a model has: the specification language, presets, feature types and templates.

A feature (r, s, a) of an event is made of r remote words, then s skipped words, then a adjacent words before the
target; r = 0 is an n-gram context of a words, and r = a = 0 the empty feature of the unigram. Its *type* is (r, s, a),
or (r, *, a) where the skip length is tied. A *template* is a pattern that gives an event at most one feature: one for
each type, and for a tied type one for each skip length.

The specification language is a sum of terms:

    ngram(0..4)                                 contexts of 0 to 4 words
    skip(r=1..3, s=1..3, words=1..4)            r remote, s skipped, words = r + a
    skip(r=1, s=4..*, a=0..2, tied, cap=20)     skip length not part of the feature; * ends at cap
    class(r=1..3, s=0, a=0..1)                  like skip, the r remote words by their class; s may be 0
    family(name)                                a family registered with `feature_family`
    side(speaker, a=0..1)                       the value of a field of the line, then a words, see `snm.text.fields`
    cache(a=0..2, words=2000, half=500)         words of the segment so far, see `snm.features.caches`
    snm5-skip                                   a preset, alone or in a sum
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

import numpy as np

from snm.arguments import shown
from snm.errors import SpecError
from snm.features.caches import DEFAULT_ADJACENT, DEFAULT_HALF, DEFAULT_WORDS, MAX_CACHE_WORDS, MAX_HALVES, Cache
from snm.features.families import family_named
from snm.text.fields import field_names

DEFAULT_CAP = 20  # where the skip length of `*` ends
MAX_WORDS = 32  # most remote or adjacent words of one feature
MAX_SPAN = 1000  # most words between the farthest word of a feature and its target
MAX_TEMPLATES = 1024
MAX_TERMS = 256
MAX_CACHES = 64
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


@dataclass(frozen=True)
class FeatureType:
    """(r, s, a), with s = None where the skip length is tied; or one column of a family."""

    r: int
    s: int | None
    a: int
    family: str | None = None
    column: int = 0
    classes: bool = False  # the remote words enter by their class
    side: str | None = None  # a field whose value is part of the feature

    def __str__(self) -> str:
        if self.family is not None:
            return f"{self.family}:{self.column}"
        if self.side is not None:
            return f"{self.side} ({self.a})"
        if self.classes:
            return f"class ({self.r}, {'*' if self.s is None else self.s}, {self.a})"
        if self.r == 0:
            return f"{self.a + 1}-gram"
        return f"({self.r}, {'*' if self.s is None else self.s}, {self.a})"

    @property
    def is_ngram(self) -> bool:
        return self.r == 0 and self.family is None and self.side is None

    @property
    def salt(self) -> int:
        """64 bits that depend on the type alone, the same in every specification."""
        name = f"{self.r},{'*' if self.s is None else self.s},{self.a},{self.family or ''},{self.column}"
        name += ",class" if self.classes else ""
        name += f",side {self.side}" if self.side is not None else ""
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Template:
    """A pattern that gives an event at most one feature, of type `types[type_index]`."""

    type_index: int
    r: int
    s: int
    a: int

    @property
    def word_mask(self) -> int:
        """The words of the feature as a bit mask: bit i is the i-th word before the target."""
        return ((1 << self.a) - 1) << 1 | ((1 << self.r) - 1) << (self.a + self.s + 1)


@dataclass(frozen=True)
class Range:
    """Integers from low to high; a high of None is `*`."""

    low: int
    high: int | None

    def __str__(self) -> str:
        high = "*" if self.high is None else str(self.high)
        return high if high == str(self.low) else f"{self.low}..{high}"

    def upto(self, cap: int) -> range:
        return range(self.low, (cap if self.high is None else self.high) + 1)


DEFAULT_SIDE = Range(0, 1)  # words beside the value of a field


@dataclass(frozen=True)
class Term:
    """One term of a specification."""

    kind: str  # ngram, skip, class, family, side or cache
    words: Range
    r: Range
    s: Range
    a: Range
    tied: bool = False
    cap: int = DEFAULT_CAP
    family: str = ""
    half: int = 0
    side: str = ""

    def __str__(self) -> str:
        if self.kind == "cache":
            return f"cache(a={self.a}, words={self.words}, half={self.half})"
        if self.kind == "family":
            return f"family({self.family})"
        if self.kind == "side":
            return f"side({self.side}, a={self.a})"
        if self.kind == "ngram":
            return f"ngram({self.words})"
        parts = [f"r={self.r}", f"s={self.s}", f"a={self.a}", f"words={self.words}"]
        if self.tied:
            parts.append("tied")
        if self.s.high is None:
            parts.append(f"cap={self.cap}")
        return f"{self.kind}({', '.join(parts)})"


class FeatureSpec:
    """The features of a model: its types and templates. Template 0 is always the empty feature.

    The empty feature is added where the text leaves it out: it gives every word a probability above zero.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise SpecError(f"features is {shown(text)}; expected a specification: a string")
        self.terms = _parse(text)
        self.types, self.templates = _expand(self.terms, text)
        self.text = " + ".join(str(term) for term in self.terms)

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FeatureSpec) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def span(self) -> int:
        """Number of tokens before a target that features depend on."""
        own = max((t.r + t.s + t.a for t in self.templates), default=0)
        return max([own, *(family_named(name).span for name in self.families)])

    @property
    def parents(self) -> list[int]:
        """For each template, an earlier one whose feature is contained in its own.

        One remote word less at the same distance, one adjacent word less, or template 0. Every stored feature's parent
        is stored too, so a feature whose parent was not found need not be looked up.
        """
        return [self._parent(q) for q in range(len(self.templates))]

    def _parent(self, q: int) -> int:
        template, own_type = self.templates[q], self.types[self.templates[q].type_index]
        if own_type.family is not None or template.r + template.a == 0:
            return 0
        if own_type.side is not None:
            return next((p for p in range(q) if self._type(p) == replace(own_type, a=template.a - 1)), 0)
        if template.r > 1:
            shorter = replace(own_type, r=template.r - 1)
        else:
            shorter = FeatureType(0, 0, template.a if template.r else template.a - 1)
        candidates = (p for p in range(q) if self._type(p) == shorter)
        return next((p for p in candidates if not shorter.r or self.templates[p].s == template.s), 0)

    def _type(self, q: int) -> FeatureType:
        return self.types[self.templates[q].type_index]

    def second_parents(self, min_counts: np.ndarray) -> list[int]:
        """For each template, another one whose feature is contained in its own but not in its parent; 0 for none.

        min_counts: pruning limit of each type. A parent's limit must not be higher than the template's own. Templates
        of tied types have none: the same feature also occurs at other skip lengths, where the context may be too short
        for the parent's feature.
        """
        parents, types = [], [self.types[template.type_index] for template in self.templates]
        limits = [min_counts[template.type_index] for template in self.templates]
        masks = [
            0 if t.family or t.classes or t.side else q.word_mask for q, t in zip(self.templates, types, strict=True)
        ]
        for q, first in enumerate(self.parents):
            own = 0 if types[q].s is None else masks[q]
            contained = (p for p, m in enumerate(masks) if m & ~masks[first] and not m & ~own and m != own)
            allowed = (p for p in contained if limits[p] <= limits[q])
            parents.append(max(allowed, key=lambda p: masks[p].bit_count(), default=0))
        return parents

    @property
    def has_classes(self) -> bool:
        return any(term.kind == "class" for term in self.terms)

    @property
    def caches(self) -> list[Cache]:
        """The caches, each once. They have no features, so no types and no templates."""
        found = (term for term in self.terms if term.kind == "cache")
        made = (Cache(a, term.words.low, term.half) for term in found for a in term.a.upto(MAX_WORDS))
        return list(dict.fromkeys(made))

    @property
    def sides(self) -> list[str]:
        """The fields that features use."""
        return list(dict.fromkeys(term.side for term in self.terms if term.kind == "side"))

    @property
    def families(self) -> list[str]:
        return [term.family for term in self.terms if term.kind == "family"]


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
    if len(pieces) > MAX_TERMS:
        raise SpecError(f"features {shown(text)}: {len(pieces)} terms; the most is {MAX_TERMS}")
    if not all(pieces):
        raise SpecError(
            f"features {shown(text)}: an empty term; expected a sum such as 'ngram(0..4) + skip(r=1, s=1, a=1)'"
        )
    return pieces


def _ngram(words: Range) -> Term:
    return Term("ngram", words, Range(0, 0), Range(0, 0), words)


def _parse_term(piece: str, text: str) -> Term:
    match = re.fullmatch(r"(ngram|skip|class|family|cache|side)\s*\((.*)\)", piece)
    if match is None:
        raise SpecError(
            f"features {shown(text)}: cannot read {shown(piece)}; expected ngram(...), skip(...), class(...), "
            f"family(name), side(field), cache(...) or a preset ({', '.join(PRESETS)})"
        )
    kind, arguments = match.group(1), [part.strip() for part in match.group(2).split(",")]
    if kind == "family":
        family_named(arguments[0])
        none = Range(0, 0)
        return Term("family", none, none, none, none, family=arguments[0])
    if kind == "ngram":
        if len(arguments) != 1:
            raise SpecError(f"{shown(piece)}: ngram takes one range of context words, such as ngram(0..4)")
        return _ngram(_parse_range(arguments[0], piece, "words", MAX_WORDS))
    if kind == "cache":
        return _parse_cache(piece, arguments)
    if kind == "side":
        return _parse_side(piece, arguments)
    return _parse_skip(piece, arguments, kind)


def _parse_cache(piece: str, arguments: list[str]) -> Term:
    a, numbers = Range(*DEFAULT_ADJACENT), {"words": DEFAULT_WORDS, "half": DEFAULT_HALF}
    for argument in filter(None, arguments):
        name, _, value = (part.strip() for part in argument.partition("="))
        if name == "a":
            a = _parse_range(value, piece, name, MAX_WORDS)
        elif name in numbers and value.isdigit() and 1 <= int(value) <= MAX_CACHE_WORDS:
            numbers[name] = int(value)
        else:
            raise SpecError(
                f"{shown(piece)}: cannot read {shown(argument)}; expected a= with a range, words= or half= with a "
                f"number from 1 to {MAX_CACHE_WORDS}"
            )
    words, half = numbers["words"], numbers["half"]
    if words > MAX_HALVES * half:
        raise SpecError(
            f"{shown(piece)}: half={half} is too short for {words} words; give half={-(-words // MAX_HALVES)} or more, "
            f"or words={MAX_HALVES * half} or less"
        )
    return Term("cache", Range(words, words), Range(0, 0), Range(0, 0), a, half=half)


def _parse_side(piece: str, arguments: list[str]) -> Term:
    (field,), none, a = field_names(arguments[0]), Range(0, 0), DEFAULT_SIDE
    for argument in arguments[1:]:
        name, _, value = (part.strip() for part in argument.partition("="))
        if name != "a":
            raise SpecError(f"{shown(piece)}: cannot read {shown(argument)}; expected a field, and a= with a range")
        a = _parse_range(value, piece, name, MAX_WORDS)
    return Term("side", none, none, none, a, side=field)


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
                f"{shown(piece)}: cannot read {shown(argument)}; expected r=, s=, a=, words= with a range, tied, "
                f"or cap= with a number from 1 to {MAX_SPAN}"
            )
    if "s" not in given:
        raise SpecError(f"{shown(piece)}: the skip length is missing; add for instance s=1..3")
    if "words" not in given and "a" not in given:
        raise SpecError(f"{shown(piece)}: no limit on the words; add for instance words=1..4 (remote plus adjacent)")
    most = min(given["words"].high or MAX_WORDS, MAX_WORDS) if "words" in given else MAX_WORDS
    r = given.get("r", Range(1, most))
    a = given.get("a", Range(0, most))
    if kind == "class" and r.low < 1:
        raise SpecError(f"{shown(piece)}: a class feature has at least one remote word: r >= 1")
    if kind == "skip" and (r.low < 1 or given["s"].low < 1):
        raise SpecError(
            f"{shown(piece)}: a skip-gram has at least one remote word and skips at least one: r >= 1, s >= 1"
        )
    if given["s"].high is None and not tied:
        raise SpecError(f"{shown(piece)}: s=..* needs 'tied'; without it every length would be a type of its own")
    if given["s"].high is None and cap < given["s"].low:
        raise SpecError(f"{shown(piece)}: cap={cap} lies below the smallest skip {given['s'].low}")
    words = given.get("words", Range(r.low + a.low, (r.high or 0) + (a.high or 0)))
    return Term(kind, words, r, given["s"], a, tied, cap)


def _parse_range(text: str, piece: str, name: str, most: int) -> Range:
    match = re.fullmatch(r"(\d+)(?:\s*\.\.\s*(\d+|\*))?", text)
    if match is None:
        raise SpecError(
            f"{shown(piece)}: cannot read the range {shown(text)}; expected a number, low..high, or s=low..*"
        )
    low = int(match.group(1))
    if match.group(2) == "*":
        if name != "s":
            raise SpecError(f"{shown(piece)}: only the skip length s can run to *; give {name} a number")
        return Range(low, None)
    high = int(match.group(2) or low)
    if high < low:
        raise SpecError(f"{shown(piece)}: the range {text} is empty; expected low..high with low <= high")
    if high > most:
        raise SpecError(f"{shown(piece)}: {name}={high} is too large; the most is {most}")
    return Range(low, high)


def _expand(terms: list[Term], text: str) -> tuple[list[FeatureType], list[Template]]:
    """All types and templates of a specification, each once, in a fixed order."""
    skips: dict[FeatureType, set[int]] = {}  # skip lengths of each type
    caches = 0
    for term in dict.fromkeys(terms):
        if term.kind in ("skip", "class") and not _shapes(term):
            raise SpecError(f"{term}: no feature meets all these limits; words must be r + a")
        if term.kind == "family":
            for column in range(family_named(term.family).columns):
                skips.setdefault(FeatureType(0, 0, 0, term.family, column), {0})
            continue
        if term.kind == "cache":
            caches += len(term.a.upto(MAX_WORDS))
            if caches > MAX_CACHES:
                raise SpecError(f"features {shown(text)}: {caches} caches; the most is {MAX_CACHES}")
            continue
        if term.kind == "side":
            for a in term.a.upto(MAX_WORDS):
                skips.setdefault(FeatureType(0, 0, a, side=term.side), {0})
            continue
        for r, a in _shapes(term):
            for s in term.s.upto(term.cap):
                made = FeatureType(r, None if term.tied else s, a, classes=term.kind == "class")
                skips.setdefault(made, set()).add(s)
            if sum(map(len, skips.values())) > MAX_TEMPLATES:
                raise SpecError(f"features {shown(text)}: too many templates; the most is {MAX_TEMPLATES}")

    def place(t: FeatureType) -> tuple[str | int, ...]:
        return t.family or "", t.side or "", t.classes, t.r > 0, t.s is None, t.r, t.s or 0, t.a, t.column

    types = sorted(skips, key=place)
    templates = [Template(i, t.r, s, t.a) for i, t in enumerate(types) for s in sorted(skips[t])]
    if len(templates) > MAX_TEMPLATES:
        raise SpecError(f"features {shown(text)}: {len(templates)} templates; the most is {MAX_TEMPLATES}")
    if any(template.r + template.s + template.a > MAX_SPAN for template in templates):
        raise SpecError(f"features {shown(text)}: a feature reaches past {MAX_SPAN} words")
    return types, templates


def _shapes(term: Term) -> list[tuple[int, int]]:
    """All (r, a) within the limits of a term."""
    words = term.words.upto(2 * MAX_WORDS)
    return [(r, a) for r in term.r.upto(MAX_WORDS) for a in term.a.upto(MAX_WORDS) if r + a in words]
