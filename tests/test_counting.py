"""The same bytes for any number of partitions and threads, inside the budget."""

from __future__ import annotations

import numpy as np
import pytest

from snm.counting import BYTES_A_LINK, Counter, unigram_counts
from tests.conftest import extractor_of, random_text, text_of
from tests.test_parity import all_counts


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
    counter = Counter(text, extractor, memory=2_000_000)
    parts = list(counter)
    assert 2 <= len(parts) == len(counter.ranges) < 1 << extractor.layout.bucket_bits
    assert max(int(part.counts.sum()) for part in parts) * BYTES_A_LINK <= 2_000_000
    assert len(list(Counter(text, extractor, memory=1))) == 1 << extractor.layout.bucket_bits, "one bucket at the least"


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


def test_one_word_and_features_that_never_fit() -> None:
    text = text_of([[3]])
    counts = all_counts(text, extractor_of("ngram(0) + skip(r=3, s=5, a=3)", text, 4))
    assert counts.features.tolist() == [1]
    assert counts.counts.tolist() == [1, 1, 1], "</S>, <UNK> and the word"
