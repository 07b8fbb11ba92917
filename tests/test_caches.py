"""Caches: their rows against a slow twin, their language, and when a model has none."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import snm
from snm.errors import SettingsError, SpecError
from snm.features.cache_rows import CacheReader
from snm.features.caches import Cache
from snm.features.specification import FeatureSpec
from snm.layouts.tokens import BEGIN, UNKNOWN
from snm.settings import Settings
from snm.text.encoding import encode_lines
from tests.conftest import train

TOKENS = st.lists(st.integers(0, 6), min_size=1, max_size=60)
CACHES = st.lists(st.builds(Cache, st.integers(0, 3), st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=3)


def slow_row(segment: list[int], k: int, cache: Cache, never: int) -> tuple[int, float, float]:
    """(words, their weight, the share of the target's) of the event of token k of a segment."""
    weights: Counter[int] = Counter()
    words, before = 0, segment[k - cache.adjacent : k] if cache.adjacent <= k else None
    for j in range(max(1, k - cache.words, cache.adjacent), k):
        if segment[j] != never and segment[j - cache.adjacent : j] == before:
            weights[segment[j]] += 0.5 ** ((k - j) / cache.half)
            words += 1
    mass = sum(weights.values())
    return words, mass, 0.0 if segment[k] == never or not words else weights[segment[k]] / mass


@given(TOKENS, CACHES, st.sampled_from([BEGIN, UNKNOWN]))
def test_rows_are_those_of_the_slow_twin(drawn: list[int], caches: list[Cache], never: int) -> None:
    tokens = np.array([BEGIN, *drawn], np.uint32)
    reader = CacheReader(caches, 7, never)
    code, length, row_sum, weight = reader.rows(tokens, 0, len(tokens))
    begin = 0
    for k, token in enumerate(tokens.tolist()):
        begin = k if token == BEGIN else begin
        for q, cache in enumerate(caches):
            if token == BEGIN:
                assert row_sum[q, k] == 0
                continue
            words, mass, share = slow_row(tokens[begin : k + 1].tolist(), k - begin, cache, never)
            assert row_sum[q, k] == (words > 0)
            if words:
                assert code[q, k] == round(8 * np.log2(words))
                assert (length[q, k], weight[q, k]) == pytest.approx((mass, share), rel=1e-6)


@given(TOKENS, CACHES, st.data())
def test_rows_of_a_part_are_those_of_the_whole(drawn: list[int], caches: list[Cache], data: st.DataObject) -> None:
    tokens = np.array([BEGIN, *drawn], np.uint32)
    start = data.draw(st.integers(0, len(tokens) - 1))
    stop = data.draw(st.integers(start, len(tokens)))
    reader = CacheReader(caches, 7, UNKNOWN)
    whole = reader.rows(tokens, 0, len(tokens))
    assert reader.rows(tokens, start, stop) == pytest.approx(whole[:, :, start:stop], rel=1e-6)


def test_the_language_of_caches() -> None:
    spec = FeatureSpec("snm2 + cache(a=0..1, words=100) + cache(words=100,a=1) + cache()")
    assert spec.text == (
        "ngram(0..1) + cache(a=0..1, words=100, half=500) + cache(a=1, words=100, half=500) + "
        "cache(a=0..2, words=2000, half=500)"
    )
    assert FeatureSpec(spec.text) == spec
    assert spec.caches == [
        Cache(0, 100, 500), Cache(1, 100, 500), Cache(0, 2000, 500), Cache(1, 2000, 500), Cache(2, 2000, 500),
    ]  # fmt: skip
    assert len(spec.templates) == 2, "a cache has no features"
    for wrong, what in (
        ("cache(words=0)", "cannot read 'words=0'"),
        ("cache(words=99999)", "number from 1 to 16384"),
        ("cache(r=1)", "cannot read 'r=1'"),
        ("cache(a=2..1)", "is empty"),
        ("cache(words=2000, half=10)", "half=84 or more, or words=240 or less"),
    ):
        with pytest.raises(SpecError, match=what):
            FeatureSpec(wrong)


def test_a_cache_needs_a_gate(corpus_file: Path, tmp_path: Path) -> None:
    settings = Settings(features="snm2 + cache(words=50, half=50)", threads=1)
    with pytest.raises(SettingsError, match="no weight without a gate"):
        train(corpus_file, tmp_path / "m", replace(settings, gate=0))
    said: list[str] = []
    model = train(
        iter(["the cat sees the cat"] * 10), tmp_path / "m", replace(settings, min_count=1), notify=said.append
    )
    assert "the model has no cache, because it has no gate that would weigh it" in said
    assert model.manifest["gate"] is None
    assert "[cache]" not in [part.feature for part in model.explain("the cat sees the cat")[4].parts]
    assert snm.verify(model.path, contexts=20).worst < 1e-6


def test_a_cache_has_the_words_of_the_document(corpus_file: Path, tmp_path: Path) -> None:
    lines = sorted(corpus_file.read_text().splitlines() * 2)  # enough words for a gate
    (tmp_path / "text").write_text("\n\n".join("\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)))
    settings = Settings(features="snm2 + cache(words=50, half=50)", document=True, threads=1)
    model = train(tmp_path / "text", tmp_path / "m", settings, dev=tmp_path / "text")
    gate = model.manifest["gate"]
    assert min(gate["perplexities"]) < gate["ungated"]
    seen, not_seen = (
        model.probabilities(encode_lines([first, "the purple fish"], model.vocabulary).tokens)[-2]
        for first in ("purple fish", "the cat")
    )
    assert seen > not_seen
    alone, after = model.score("the purple fish"), model.score_sentences(["purple fish", "the purple fish"])[1]
    assert after == pytest.approx(alone, rel=1e-6), "each sentence is scored as a document"
