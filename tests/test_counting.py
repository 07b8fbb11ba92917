"""The same bytes for any number of partitions and threads, inside the budget."""

from __future__ import annotations

import numpy as np
import pytest

from snm.corpus import sample_sentences
from snm.counting import Counter, unigram_counts
from snm.kernels.counting import pack_count, unpack_count
from snm.metafeatures import half_octave
from snm.training import Annotations
from tests.conftest import SMALL_SKIPS, extractor_of, random_text, text_of
from tests.test_parity import all_counts, as_dictionary


@pytest.mark.parametrize("spec", ["ngram(0..4)", "snm10-skip"])
def test_counts_do_not_depend_on_partitions_and_threads(spec: str) -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of(spec, text, 202)
    expected = all_counts(text, extractor)
    assert (expected.features[1:] > expected.features[:-1]).all()
    for partitions, threads in ((1, 2), (2, 1), (3, 3), (40, 2)):
        found = all_counts(text, extractor, partitions=partitions, threads=threads)
        for name in ("features", "totals", "offsets", "targets", "counts"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_the_budget_decides_the_partitions() -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of("ngram(0..4)", text, 202)
    counter = Counter(text, extractor, memory=500_000)
    parts = list(counter)
    assert 2 <= len(parts) == len(counter.ranges) < 1 << extractor.layout.bucket_bits
    assert max(int(part.counts.sum()) for part in parts) * 8 <= 500_000
    assert counter.done == pytest.approx(1)
    assert len(list(Counter(text, extractor, memory=1))) == 1 << extractor.layout.bucket_bits, "one bucket at the least"


@pytest.mark.parametrize("threads", [1, 3])
def test_counts_on_their_way_stay_inside_the_budget(threads: int) -> None:
    text = random_text(1, 3000, 200, 40)
    extractor = extractor_of("snm10-skip", text, 202)
    budget = 3_000_000
    parts = list(Counter(text, extractor, 1 << 30, threads, on_their_way=budget))
    assert len(parts) > 10
    sizes = [sum(array.nbytes for array in part) for part in parts]
    assert max(sizes) * (2 * threads + 1) < 1.5 * budget, "parts are whole buckets"
    whole = all_counts(text, extractor)
    for name in ("features", "totals", "targets", "counts"):
        found = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(found, getattr(whole, name)[-len(found) :])


def test_unseen_words_count_once_and_unk_as_often_as_there_are_singletons() -> None:
    text = text_of([[4, 4, 5], [4, 6]])
    counts = unigram_counts(text, extractor_of("ngram(0)", text, 9))
    found = dict(zip(counts.targets.tolist(), counts.counts.tolist(), strict=True))
    assert found == {1: 2, 2: 2, 3: 1, 4: 3, 5: 1, 6: 1, 7: 1, 8: 1}
    assert counts.totals[0] == sum(found.values())


def test_in_a_closed_vocabulary_unk_has_no_row_entry() -> None:
    text = text_of([[4, 2, 5]])
    counts = unigram_counts(text, extractor_of("ngram(0)", text, 7, closed=True))
    assert counts.targets.tolist() == [1, 3, 4, 5, 6]


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("threads", [1, 2])
def test_events_are_annotated_with_their_counts(partitions: int, threads: int) -> None:
    text = random_text(29, 400, 30, 20)
    extractor = extractor_of(f"{SMALL_SKIPS} + ngram(5..6)", text, 32)
    for sample in (text, sample_sentences(text, 700, 1)):
        made = Annotations(sample, extractor, unigram_counts(text, extractor), lambda shape: np.zeros(shape, np.uint32))
        counter = Counter(text, extractor, 1 << 30, threads, partitions, prune=2, annotations=made)
        totals: dict[int, int] = {}
        links: dict[tuple[int, int], float] = {}
        for part in counter:
            totals |= dict(zip(part.features.tolist(), part.totals.tolist(), strict=True))
            links |= as_dictionary(part, part.counts)
        keys = extractor.keys(sample.tokens, 0, len(sample.tokens))[1:]
        annotated = 0
        for k, word in enumerate(sample.tokens.tolist()):
            for q, key in enumerate(keys[:, k].tolist()):
                expected = totals[key] << 16 | int(links[key, word]) if key in totals else 0
                assert made.values[k, q] == expected
                annotated += expected > 0
        assert annotated > 1000


def test_large_counts_keep_twelve_bits() -> None:
    for count in (1, 2, 4095, 4096, 4097, 6143, 6144, 123_456, 2**31 + 12345, 2**32 - 1):
        found = unpack_count(pack_count(count))
        assert found <= count < found * (1 + 2**-11)
        assert found == count or count >= 4096
        assert half_octave(found) == half_octave(count)


def test_one_word_and_features_that_never_fit() -> None:
    text = text_of([[3]])
    counts = all_counts(text, extractor_of("ngram(0) + skip(r=3, s=5, a=3)", text, 4))
    assert counts.features.tolist() == [1]
    assert counts.counts.tolist() == [1, 1, 1], "</S>, <UNK> and the word"


def test_pruning_leaves_out_rows_seen_too_seldom_and_nothing_else() -> None:
    text = random_text(23, 300, 12, 20)
    extractor = extractor_of("ngram(0..6) + skip(r=1..2, s=1..2, words=1..3)", text, 14)
    kinds = extractor.spec.types
    whole = next(iter(Counter(text, extractor, 1 << 30)))
    for partitions in (1, 4):
        parts = list(Counter(text, extractor, 1 << 30, partitions=partitions, prune=3))
        features = np.concatenate([part.features for part in parts])
        exempt = np.array([kinds[t].is_ngram and kinds[t].a < 5 for t in extractor.layout.type_of(whole.features)])
        kept = (whole.totals >= 3) | exempt
        assert 0 < kept.sum() < len(kept)
        assert np.array_equal(features, whole.features[kept])
        assert np.array_equal(np.concatenate([part.totals for part in parts]), whole.totals[kept])
        links = np.repeat(kept, np.diff(whole.offsets))
        assert np.array_equal(np.concatenate([part.targets for part in parts]), whole.targets[links])
        assert np.array_equal(np.concatenate([part.counts for part in parts]), whole.counts[links])
