"""From tokens to feature keys, block by block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from copy import copy

import numpy as np

from snm.errors import SpecError
from snm.features.cache_rows import CacheReader
from snm.features.families import Family, FamilyKeys, family_named
from snm.features.specification import FeatureSpec, FeatureType
from snm.kernels import features as feature_kernels
from snm.layouts.keys import EMPTY_KEY, TEMPLATE, KeyLayout
from snm.text.vocabulary import Vocabulary

FIELD_REACH = 1 << 15  # tokens of a line that its fields belong to
PRUNED_ABOVE = 5  # n-grams of up to this many words, target included, are never pruned


class Extractor:
    """Computes the feature keys of a text's events."""

    def __init__(
        self, spec: FeatureSpec, layout: KeyLayout, vocabulary: Vocabulary, classes: np.ndarray | None = None
    ) -> None:
        """`classes`: the class of every word, where the features use classes. (words,) uint16"""
        if spec.has_classes and (classes is None or len(classes) != len(vocabulary)):
            raise SpecError(f"features {spec.text!r} use classes; expected one for each of {len(vocabulary):,} words")
        self.spec, self.layout, self.vocabulary, self.classes = spec, layout, vocabulary, classes
        self.span = max(1, spec.span)  # at least 1, to see the <S> before the first target of a block
        self.state_width = max(self.span, *(cache.words + cache.adjacent for cache in spec.caches), 0)
        """Words before a target that the features and caches of its event depend on."""
        self.fixed = 1 + len(vocabulary.fields) if vocabulary.fields else 0
        """Words at the beginning of a state that stay there: `<S>` and the values of fields."""
        self.state_width += self.fixed
        self.templates = self._make_templates()
        self._families, self._sides = self._make_families(), self._make_sides()
        self.needs_text = bool(self._families or self.fixed)
        """Whether kernels that have a state alone cannot compute all keys."""
        adjacent = max((kind.a for _, _, kind, _ in self._sides), default=0)
        self._orders = int(max(self.templates["remote"].max(), self.templates["adjacent"].max(), adjacent)) + 1
        self._left_out = 0  # templates of the specification that stand before those of families, and are not used
        self.n_templates = len(spec.templates)
        self.type_indices = np.array([t.type_index for t in spec.templates])
        """The type of each template's features. (templates,)"""
        # events of a block, whose keys stay in the cache: an odd multiple of 64, so that the keys of one event are not
        # all in the same few sets of the first-level cache
        self.block = max(17, (1 << 9) // self.n_templates | 1) * 64

    def cache_reader(self, used: bool = True) -> CacheReader:
        """What computes the rows of the specification's caches; of none where they are not used."""
        return CacheReader(self.spec.caches if used else [], len(self.vocabulary), self.vocabulary.never_a_target)

    def _make_templates(self) -> np.ndarray:
        """The templates that are not of families, as records of TEMPLATE."""
        types = self.spec.types
        own = [t for t in self.spec.templates if types[t.type_index].family is types[t.type_index].side is None]
        indices = [t.type_index for t in own]
        made = []
        for t in own:
            kind, first = self.spec.types[t.type_index], indices.index(t.type_index)
            made.append((t.r, t.s, t.a, kind.classes, kind.salt, self.layout.type_tag(t.type_index), first))
        return np.array(made, TEMPLATE)

    def _make_families(self) -> list[tuple[Family, FamilyKeys, int]]:
        """Each family with its function and the type index of its first column."""
        made = []
        for name in self.spec.families:
            family = family_named(name)
            first = next(i for i, t in enumerate(self.spec.types) if t.family == name)
            made.append((family, family.make(self.vocabulary), first))
        return made

    def _make_sides(self) -> list[tuple[int, int, FeatureType, np.uint64]]:
        """Template, number of the field, type and tag of each feature with a field's value."""
        made, fields = [], self.vocabulary.fields
        for q, template in enumerate(self.spec.templates):
            kind = self.spec.types[template.type_index]
            if kind.side is not None:
                if kind.side not in fields:
                    raise SpecError(
                        f"features {self.spec.text!r} use the field {kind.side!r}; the text has the fields "
                        f"{', '.join(fields) or 'none'} (--fields)"
                    )
                tag = np.uint64(self.layout.type_tag(template.type_index))
                made.append((q, fields.index(kind.side), kind, tag))
        return made

    def with_templates(self, chosen: list[int]) -> Extractor:
        """The same keys, of some templates only: neither of families nor tied."""
        made = copy(self)
        made.templates, made._families, made._sides = self.templates[chosen], [], []
        made.templates["first_of_type"] = np.arange(len(chosen))
        made._orders, made.n_templates = int(made.templates["adjacent"].max()) + 1, len(chosen)
        made.type_indices = self.type_indices[chosen]
        return made

    def part(self, by_class: bool) -> Extractor:
        """The same keys, of the features that use classes, or of those that do not; and the empty feature.

        The features without classes need none.
        """
        chosen = np.flatnonzero((self.templates["by_class"] == by_class) | (np.arange(len(self.templates)) == 0))
        made = copy(self)
        made.templates, made._families = self.templates[chosen], [] if by_class else self._families
        made.templates["first_of_type"] = np.searchsorted(chosen, made.templates["first_of_type"])
        made._left_out = len(self.templates) - len(chosen)
        made.n_templates = len(chosen) + sum(family.columns for family, _, _ in made._families)
        made.type_indices = np.append(self.type_indices[chosen], self.type_indices[len(self.templates) :])
        made.type_indices = made.type_indices[: made.n_templates]
        made.needs_text = bool(made._families)
        made.classes = self.classes if by_class else None
        return made

    @property
    def _hash_mask(self) -> np.uint64:
        return np.uint64(self.layout.hash_mask)

    def min_counts(self, prune: int) -> np.ndarray:
        """How often features of each type must be seen to be kept. (2 ** type_bits,) int64"""
        types = self.spec.types
        counts = np.ones(1 << self.layout.type_bits, np.int64)
        counts[: len(types)] = [1 if t.is_ngram and t.a < PRUNED_ABOVE else prune for t in types]
        return counts

    def blocks(self, start: int, stop: int, together: int = 1) -> Iterator[tuple[int, int]]:
        """[start, stop) cut into ranges whose keys stay in the cache, or into ranges of so many of these."""
        size = self.block * together
        return ((k, min(k + size, stop)) for k in range(start, stop, size))

    def keys(self, tokens: np.ndarray, start: int, stop: int, into: np.ndarray | None = None) -> np.ndarray:
        """Keys of the events whose targets are tokens[start:stop]. (templates, stop - start) uint64

        0 where a template has no feature, and everywhere for `<S>`, which is no target. `into`: an array to write to.
        """
        begin = max(0, start - self.span)
        block, first = self._without_fields(tokens[begin:stop]), start - begin
        position = np.empty(len(block), np.int32)
        feature_kernels.locate_events(block, first, self.vocabulary.begin, self.vocabulary.never_a_target, position)
        chains = np.empty((self._orders, len(block)), np.uint64)
        feature_kernels.hash_contexts(block, chains)
        class_chains = chains
        if self.spec.has_classes and self.classes is not None:
            class_chains = np.empty_like(chains)
            feature_kernels.hash_contexts(self.classes[block].astype(np.uint32), class_chains)
        keys = np.empty((self.n_templates, stop - start), np.uint64) if into is None else into
        own = keys[: len(self.templates)]
        feature_kernels.extract_keys(chains, class_chains, position, first, self.templates, self._hash_mask, own)
        for family, function, index in self._families:
            self._family_keys(family, function, index, block, position, first, keys)
        if self._sides:
            self._side_keys(tokens, start, stop, chains[:, first:], position[first:], keys)
        return keys

    def _without_fields(self, block: np.ndarray) -> np.ndarray:
        """The tokens as other features see them: `<S>` in place of the values of fields."""
        if not self.fixed:
            return block
        return np.where(block >= self.vocabulary.first_field, np.uint32(self.vocabulary.begin), block)

    def _side_keys(
        self, tokens: np.ndarray, start: int, stop: int, chains: np.ndarray, position: np.ndarray, keys: np.ndarray
    ) -> None:
        v, fields = self.vocabulary, len(self.vocabulary.fields)
        values, last = np.empty((fields, stop - start), np.uint32), np.empty(fields, np.uint32)
        feature_kernels.find_fields(tokens, start, FIELD_REACH, v.first_field, v.field_of, v.begin, last, values)
        for q, field, kind, tag in self._sides:
            at = values[field], np.ascontiguousarray(chains[kind.a]), position, kind.a
            feature_kernels.side_keys(*at, np.uint64(kind.salt), self._hash_mask, tag, keys[q])

    def context_keys(self, contexts: np.ndarray) -> np.ndarray:
        """Keys of n-gram contexts, given as word ids from left to right. (n, words) to (n,)"""
        length = contexts.shape[1]
        if length == 0:
            return np.full(len(contexts), EMPTY_KEY)
        index = self.spec.types.index(FeatureType(0, 0, length))
        salt, tag = np.uint64(self.spec.types[index].salt), np.uint64(self.layout.type_tag(index))
        keys = np.empty(len(contexts), np.uint64)
        feature_kernels.context_keys(contexts, salt, self._hash_mask, tag, keys)
        return keys

    def _family_keys(
        self, family: Family, function: FamilyKeys, index: int,
        block: np.ndarray, position: np.ndarray, first: int, keys: np.ndarray,
    ) -> None:  # fmt: skip
        values = np.ascontiguousarray(np.atleast_2d(function(block, position)))
        if values.shape != (family.columns, len(block)) or values.dtype != np.uint64:
            raise SpecError(
                f"family {family.name!r} returned {values.dtype} of shape {values.shape}; "
                f"expected uint64 of shape ({family.columns}, {len(block)})"
            )
        for column in range(family.columns):
            type_index = index + column
            template = next(q for q, t in enumerate(self.spec.templates) if t.type_index == type_index)
            salt, tag = np.uint64(self.spec.types[type_index].salt), np.uint64(self.layout.type_tag(type_index))
            feature_kernels.family_keys(
                values[column, first:], position[first:], salt, self._hash_mask, tag, keys[template - self._left_out]
            )

    def check_families(self, tokens: np.ndarray) -> None:
        """Raise an error if a family reads the target or tokens after it, or more tokens than its span.

        Checked on up to fifty targets at the beginning of the text.
        """
        if not self._families:
            return
        sample = self._without_fields(tokens[:2000])
        position = np.empty(len(sample), np.int32)
        feature_kernels.locate_events(sample, 0, self.vocabulary.begin, self.vocabulary.never_a_target, position)
        events = np.flatnonzero(position > 0)
        for family, function, _ in self._families:
            before = np.atleast_2d(function(sample, position))
            for k in events[:: max(1, len(events) // 50)]:
                changed = sample.copy()
                changed[k:] = self.vocabulary.unknown if sample[k] != self.vocabulary.unknown else self.vocabulary.end
                after = np.atleast_2d(function(changed, position))
                if not np.array_equal(before[:, : k + 1], after[:, : k + 1]):
                    raise SpecError(
                        f"family {family.name!r} reads the target or tokens after it; "
                        f"entry k may depend on tokens before k only"
                    )
                near = slice(max(0, k - family.span), k + 1)
                if not np.array_equal(np.atleast_2d(function(sample[near], position[near]))[:, -1], before[:, k]):
                    raise SpecError(
                        f"family {family.name!r} reads more than the {family.span} tokens before the target; "
                        f"register it with a larger span"
                    )

    def family_digests(self) -> dict[str, str]:
        """A digest of each family's values on a fixed random text, which shows whether it is still the same family."""
        words = np.random.Generator(np.random.PCG64(1)).integers(2, len(self.vocabulary), 500)
        position = np.arange(501, dtype=np.int32)
        position[0] = -1
        tokens = np.concatenate([[self.vocabulary.begin], words]).astype(np.uint32)
        return {
            family.name: hashlib.sha256(function(tokens, position).astype("<u8").tobytes()).hexdigest()
            for family, function, _ in self._families
        }
