"""Features: the specification language, presets, keys, parents, and families."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snm.counts.counting import Counter
from snm.errors import SpecError
from snm.features.families import feature_family
from snm.features.specification import PRESETS, FeatureSpec
from snm.layouts.keys import KeyLayout
from snm.text.vocabulary import Vocabulary
from tests.conftest import SMALL_SKIPS, extractor_of, parts_of, random_text, text_of


def types(text: str) -> set[str]:
    return {str(t) for t in FeatureSpec(text).types}


def test_ngrams() -> None:
    assert types("ngram(0..2)") == {"1-gram", "2-gram", "3-gram"}
    assert types("ngram(2)") == {"1-gram", "3-gram"}, "the empty feature is always in"


def test_skip_features_respect_all_limits() -> None:
    assert types("skip(r=1..2, s=1..2, words=1..2)") == {
        "1-gram", "(1, 1, 0)", "(1, 1, 1)", "(2, 1, 0)", "(1, 2, 0)", "(1, 2, 1)", "(2, 2, 0)",
    }  # fmt: skip
    assert types("skip(r=1, s=3, a=1..2)") == {"1-gram", "(1, 3, 1)", "(1, 3, 2)"}
    assert types("skip(r=2, s=1..3, a=0, tied)") == {"1-gram", "(2, *, 0)"}


def test_presets_have_the_papers_features() -> None:
    assert len(FeatureSpec(PRESETS["snm5"]).types) == 5
    ten = FeatureSpec("snm10-skip")
    assert (len(ten.types), len(ten.templates)) == (10 + 15 + 4, 10 + 15 + 40)
    five = FeatureSpec("snm5-skip")
    assert len(five.types) == 5 + 27 + 7
    only = {str(t) for t in FeatureSpec("snm5-skip-only").types}
    assert only == {str(t) for t in five.types} - {f"{n}-gram" for n in range(2, 6)}
    star = max(slot.s for slot in five.templates)
    assert star == 20, "where * ends"


@pytest.mark.parametrize(
    "text",
    [
        *PRESETS,
        "skip(s=1, a=1)",
        "skip(r=1..20, s=1, a=0..20)",
        "ngram(1..3) + skip(r=1, s=2..*, a=0, tied, cap=9)",
        "snm3 + ngram(5)",
    ],
)
def test_the_text_of_a_specification_parses_to_the_same(text: str) -> None:
    spec = FeatureSpec(text)
    again = FeatureSpec(spec.text)
    assert again == spec
    assert again.templates == spec.templates


def test_overlapping_terms_give_each_template_once() -> None:
    once = FeatureSpec("ngram(0..3)")
    assert FeatureSpec("ngram(0..3) + ngram(2..3) + snm3").templates == once.templates


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty term"),
        ("ngram(0..2) +", "empty term"),
        ("ngram", "cannot read 'ngram'"),
        ("bigram(2)", "cannot read 'bigram(2)'"),
        ("ngram(3..1)", "range 3..1 is empty"),
        ("ngram(0..99)", "too large"),
        ("ngram(0..*)", "only the skip length"),
        ("ngram(1, 2)", "takes one range"),
        ("skip(r=1)", "skip length is missing"),
        ("skip(r=1, s=1)", "no limit on the words"),
        ("skip(r=0, s=1, a=1)", "at least one remote word"),
        ("skip(r=1, s=1..*, a=1)", "needs 'tied'"),
        ("skip(r=1, s=9..*, a=1, tied, cap=3)", "cap=3 lies below"),
        ("skip(r=1, s=1, a=1, loose)", "cannot read 'loose'"),
        ("skip(r=1..32, s=1..40, words=1..32)", "templates; the most is"),
        ("family(nowhere)", "not registered"),
    ],
)
def test_an_invalid_specification_is_refused(text: str, what: str) -> None:
    with pytest.raises(SpecError) as caught:
        FeatureSpec(text)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)


def test_contexts_do_not_reach_past_the_sentence() -> None:
    text = text_of([[3, 4], [3, 4]])
    extractor = extractor_of("ngram(0..4)", text, 6)
    keys = extractor.keys(text.tokens, 0, len(text.tokens))
    half = len(text.tokens) // 2
    assert np.array_equal(keys[:, :half], keys[:, half:])
    assert (keys != 0).sum(axis=0).tolist() == [0, 2, 3, 4] * 2


def test_keys_do_not_depend_on_the_blocks() -> None:
    text = random_text(2, 60, 10, 40)
    extractor = extractor_of("snm10-skip", text, 12)
    whole = extractor.keys(text.tokens, 0, len(text.tokens))
    for size in (1, 7, 64):
        pieces = [
            extractor.keys(text.tokens, k, min(k + size, len(text.tokens))) for k in range(0, len(text.tokens), size)
        ]
        assert np.array_equal(np.concatenate(pieces, axis=1), whole)


def test_tied_features_that_coincide_are_one() -> None:
    text = text_of([[3, 3, 3, 3, 4]])
    extractor = extractor_of("skip(r=1, s=1..3, a=0, tied)", text, 6)
    last = extractor.keys(text.tokens, 5, 6)[:, 0]
    assert (last != 0).sum() == 1 + 1, "the empty feature and [w0 skip-*]"


def test_in_a_closed_vocabulary_unknown_words_are_no_targets() -> None:
    text = text_of([[3, 2, 4]])
    keys = extractor_of("ngram(0..1)", text, 6, closed=True).keys(text.tokens, 0, 5)
    assert (keys != 0).sum(axis=0).tolist() == [0, 2, 0, 2, 2]


@given(words=st.integers(4, 1 << 24), types_=st.integers(1, 200), keys=st.integers(1, 1 << 36))
def test_keys_have_62_bits(words: int, types_: int, keys: int) -> None:
    layout = KeyLayout.for_work(words, types_, keys)
    assert layout.hash_bits + layout.type_bits == layout.key_bits == 62
    assert 1 << layout.target_bits >= words
    assert 1 << layout.type_bits >= types_
    assert layout.key_bits <= 64 - layout.target_bits + layout.bucket_bits, "a link fits into 64 bits inside its bucket"


# -- families


@feature_family("suffix_pair", span=2)
def suffix_pair(vocabulary: Vocabulary):  # type: ignore[no-untyped-def]
    """The last two letters of the two words before the target: the example of docs/features.md."""
    ending = np.array([zlib.crc32(word[-2:].encode()) for word in vocabulary.words], np.uint64)

    def keys(tokens: np.ndarray, position: np.ndarray) -> np.ndarray:
        found = np.zeros(len(tokens), np.uint64)
        found[2:] = ending[tokens[:-2]] * np.uint64(1 << 32) + ending[tokens[1:-1]]
        return np.where(position >= 2, found, np.uint64(0))

    return keys


def test_a_family_defined_by_a_user() -> None:
    text = random_text(4, 30, 10)
    extractor = extractor_of("ngram(0..1) + family(suffix_pair)", text, 12)
    extractor.check_families(text.tokens)
    whole = extractor.keys(text.tokens, 0, len(text.tokens))
    assert whole.shape[0] == 3
    seconds = whole[2]
    ending = [word[-2:] for word in extractor.vocabulary.words]
    by_context: dict[tuple[str, str], int] = {}
    position = 0
    for k, token in enumerate(text.tokens):
        position = 0 if token == 0 else position + 1
        if position < 2:
            assert seconds[k] == 0
            continue
        context = ending[text.tokens[k - 2]], ending[text.tokens[k - 1]]
        assert by_context.setdefault(context, int(seconds[k])) == seconds[k] != 0
    assert len(set(by_context.values())) == len(by_context)
    pieces = [extractor.keys(text.tokens, k, min(k + 5, len(text.tokens))) for k in range(0, len(text.tokens), 5)]
    assert np.array_equal(np.concatenate(pieces, axis=1), whole)


def test_a_family_that_reads_the_target_is_refused() -> None:
    @feature_family("cheat")
    def cheat(vocabulary: Vocabulary):  # type: ignore[no-untyped-def]
        return lambda tokens, position: tokens.astype(np.uint64) + np.uint64(1)

    for text in (random_text(4), text_of([[3, 4, 5, 6]] * 60), text_of([[3]]), text_of([[2]])):
        with pytest.raises(SpecError, match="reads the target"):
            extractor_of("family(cheat)", text, 14).check_families(text.tokens)


def test_a_family_that_reads_the_target_late_in_a_sentence_is_refused() -> None:
    @feature_family("late_cheat")
    def late_cheat(vocabulary: Vocabulary):  # type: ignore[no-untyped-def]
        return lambda tokens, position: np.where(position >= 3, tokens + np.uint64(1), np.uint64(0))

    text = random_text(4)
    with pytest.raises(SpecError, match="reads the target"):
        extractor_of("family(late_cheat)", text, 14).check_families(text.tokens)


def test_a_family_that_reads_beyond_its_span_is_refused() -> None:
    @feature_family("far", span=1)
    def far(vocabulary: Vocabulary):  # type: ignore[no-untyped-def]
        def keys(tokens: np.ndarray, position: np.ndarray) -> np.ndarray:
            found = np.zeros(len(tokens), np.uint64)
            found[3:] = tokens[:-3] + np.uint64(1)
            return np.where(position >= 3, found, np.uint64(0))

        return keys

    text = random_text(4)
    with pytest.raises(SpecError, match="larger span"):
        extractor_of("family(far)", text, 14).check_families(text.tokens)


def test_a_family_that_returns_a_wrong_array_is_refused() -> None:
    @feature_family("wrong")
    def wrong(vocabulary: Vocabulary):  # type: ignore[no-untyped-def]
        return lambda tokens, position: tokens[:-1]

    text = random_text(4)
    with pytest.raises(SpecError, match="expected uint64 of shape"):
        extractor_of("family(wrong)", text, 14).keys(text.tokens, 0, 5)


def test_a_family_needs_a_plain_name() -> None:
    with pytest.raises(SpecError, match="family name"):
        feature_family("My Family")


def test_the_parent_of_a_feature_is_contained_in_it() -> None:
    spec = FeatureSpec("ngram(0..3) + skip(r=1..2, s=1..2, words=1..3) + skip(r=2, s=3..4, a=1) + class(r=1..2, a=0)")
    shapes = [(s.r, s.s, s.a, spec.types[s.type_index].classes) for s in spec.templates]
    parents = {shape: shapes[p] for shape, p in zip(shapes, spec.parents, strict=True)}
    empty = (0, 0, 0, False)
    assert parents[empty] == parents[0, 0, 1, False] == parents[1, 2, 0, False] == parents[1, 0, 0, True] == empty
    assert parents[0, 0, 3, False] == parents[1, 1, 2, False] == (0, 0, 2, False)
    assert parents[2, 2, 1, False] == (1, 2, 1, False)
    assert parents[2, 4, 1, False] == empty, "no template is contained in it"
    assert parents[2, 0, 0, True] == (1, 0, 0, True)
    for name in PRESETS:
        assert all(p < q or q == 0 for q, p in enumerate(FeatureSpec(name).parents))


def test_a_second_parent_has_a_word_that_the_parent_lacks() -> None:
    spec = FeatureSpec("ngram(0..6) + skip(r=1..2, s=1, words=1..3) + skip(r=1, s=2..3, a=0..1, tied)")
    shapes = [(s.r, s.s, s.a) for s in spec.templates]
    kept = np.array([1 if kind.is_ngram and kind.a < 5 else 2 for kind in spec.types])
    seconds = {shape: shapes[p] for shape, p in zip(shapes, spec.second_parents(kept), strict=True)}
    assert seconds[1, 1, 2] == (1, 2, 1), "without the adjacent word farthest from the target"
    assert seconds[2, 1, 1] == (1, 2, 1)
    assert seconds[2, 1, 0] == (1, 2, 0)
    assert seconds[0, 0, 4] == (0, 0, 0), "the skip features are pruned more than this n-gram"
    assert seconds[0, 0, 5] != (0, 0, 0)
    assert seconds[1, 2, 1] == seconds[1, 3, 1] == (0, 0, 0), "tied: it may have been seen with the longest skip"
    alike = dict(zip(shapes, spec.second_parents(np.ones_like(kept)), strict=True))
    assert shapes[alike[0, 0, 4]] == (1, 1, 2), "as many words as possible"


@pytest.mark.parametrize("prune", [1, 2])
@pytest.mark.parametrize("spec", ["snm5", "snm10-skip", SMALL_SKIPS])
def test_parents_of_stored_features_are_stored(spec: str, prune: int) -> None:
    text = random_text(31, 200, 20, 25)
    extractor = extractor_of(spec, text, 22)
    rows: dict[int, int] = {}
    for counts in parts_of(Counter(text, extractor, 1 << 30, prune=prune)):
        rows |= dict(zip(counts.features.tolist(), counts.feature_counts.tolist(), strict=True))
    keys = extractor.keys(text.tokens, 0, len(text.tokens)).tolist()
    kept = extractor.min_counts(prune)
    for parts, least in ((extractor.spec.parents, 100), (extractor.spec.second_parents(kept), 100 * (spec != "snm5"))):
        checked = 0
        for q, parent in enumerate(parts):
            for child, part in zip(keys[q], keys[parent], strict=True):
                if child in rows and parent and part:
                    assert rows[part] >= rows[child]
                    checked += 1
        assert checked >= least
