"""Backoff models: estimates against the reference, and the tests of every language model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import snm
from snm import pipeline
from snm.baselines.backoff import orders
from snm.baselines.backoff.kneser_ney import last_by_plain_count
from snm.counts.index import IndexBuilder, build_row_index
from snm.counts.walks import Walk
from snm.errors import SettingsError
from snm.layouts.tokens import BEGIN
from snm.reference import backoff
from snm.reference.paper import events, to_sentences
from snm.scoring.model import RowModel
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.text.encoding import Text
from tests.conftest import extractor_of, random_text, shared_data, train
from tests.test_model import LanguageModelTests


def write_text(path: Path, text: Text) -> Path:
    """Write a text of word ids as a file of words whose ids are the same."""
    lines = [" ".join(f"w{token}" for token in s[1:-1]) for s in to_sentences(text.tokens)]
    path.write_text("\n".join(lines) + "\n")
    return path


def encoded(model: RowModel, path: Path) -> list[list[int]]:
    from snm.text.encoding import encode_files

    return to_sentences(encode_files(path, model.vocabulary).tokens)


def compare(model: RowModel, probability: backoff.Probability, sentences: list[list[int]]) -> None:
    """All words after all contexts of some sentences."""
    words = [w for w in range(1, len(model.vocabulary)) if w != model.vocabulary.never_a_target]
    compared = 0
    for context, _ in list(events(sentences))[:40]:
        found = model.distribution(np.array(context, np.uint32))
        expected = [probability(word, context) for word in words]
        assert found[words] == pytest.approx(expected, rel=1e-5)
        assert sum(expected) == pytest.approx(1)
        compared += 1
    assert compared > 5


@pytest.mark.parametrize("discounts", ["modified", "single"])
@pytest.mark.parametrize("order", [1, 2, 3, 5, 10])
def test_kneser_ney_equals_the_reference(order: int, discounts: str, tmp_path: Path) -> None:
    path = write_text(tmp_path / "text", random_text(1, 150, 30, 14))
    settings = Settings(model="kn", order=order, discounts=discounts, min_count=1, threads=2)
    model = train(path, tmp_path / "m", settings)
    other = write_text(tmp_path / "other", random_text(2, 20, 34, 14))
    probability, values = backoff.kneser_ney(
        encoded(model, path), order, len(model.vocabulary), discounts == "modified"
    )
    assert np.array(model.manifest["estimation"]["values"]) == pytest.approx(np.array(values))
    compare(model, probability, encoded(model, other))


def test_the_last_ngram_of_lmplz_has_its_plain_count_in_the_statistics() -> None:
    moved = 0
    for seed in range(100):
        text = random_text(seed, 30, 12, 10)
        sentences = to_sentences(text.tokens)
        counts = backoff.count_ngrams(sentences, 4)
        adjusted = [Counter[backoff.Ngram]() for _ in counts]
        for n in range(3):
            for ngram in counts[n + 1]:
                adjusted[n][ngram[1:]] += 1
            adjusted[n].update({g: c - adjusted[n][g] for g, c in counts[n].items() if g[0] == BEGIN})
        adjusted[3] = counts[3]
        slow = backoff._statistics(sentences, counts, adjusted)
        plain = [Counter(a.values()) for a in adjusted]
        for order, (continued, count) in enumerate(last_by_plain_count(text, 14, 4)):
            plain[order][continued] -= 1
            plain[order][count] += 1
            moved += continued != count
        assert [+values for values in plain] == [Counter(values) for values in slow]
    assert moved > 5


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", [1, 5])
@pytest.mark.parametrize("name", ["katz", "sbo"])
def test_katz_and_stupid_backoff_equal_the_reference(name: str, seed: int, order: int, tmp_path: Path) -> None:
    path = write_text(tmp_path / "text", random_text(seed, 150, 30, 14))
    model = train(path, tmp_path / "m", Settings(model=name, order=order, min_count=1, threads=2))
    other = write_text(tmp_path / "other", random_text(2, 4, 34, 14))
    slow = {"katz": backoff.katz, "sbo": backoff.stupid_backoff}[name]
    compare(model, slow(encoded(model, path), order, len(model.vocabulary)), encoded(model, other))


def test_katz_where_every_word_was_seen_after_a_context(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("a b\nb a\na a\nb b\n<unk> a\na <unk>\n" * 3 + "a\nb\n")
    model = train(path, tmp_path / "m", Settings(model="katz", order=2, min_count=1, threads=1))
    compare(model, backoff.katz(encoded(model, path), 2, len(model.vocabulary)), encoded(model, path))


def test_undefined_discounts_use_the_fallback_and_warn(tmp_path: Path) -> None:
    """KenLM calls such text 'small or artificial data'."""
    path = tmp_path / "text"
    path.write_text("a b c\n" * 50)
    said: list[str] = []
    model = train(path, tmp_path / "m", Settings(model="kn", order=3, threads=1), notify=said.append)
    assert any("discounts" in message and "0.5, 1, 1.5" in message for message in said)
    assert model.manifest["estimation"]["fallen_back"]
    assert model.distribution(model.context("a b")).sum() == pytest.approx(1)


@pytest.mark.parametrize("text", ["word", "a a a a", "one\ntwo"])
@pytest.mark.parametrize("name", ["kn", "katz", "sbo"])
def test_the_smallest_texts(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(text)
    model = train(path, tmp_path / "m", Settings(model=name, min_count=1, threads=1))
    assert model.distribution(model.context("a")).sum() == pytest.approx(1)


def test_held_out_text_is_refused(corpus_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not use it"):
        train(corpus_file, tmp_path / "m", Settings(model="kn"), dev=corpus_file)


def test_features_are_refused() -> None:
    with pytest.raises(SettingsError, match="features are for SNM"):
        Settings(model="kn", features="snm5-skip")
    with pytest.raises(SettingsError, match="not known"):
        Settings(model="lstm")


@pytest.fixture(scope="module", params=["kn", "katz", "sbo"])
def baseline(request: pytest.FixtureRequest, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> RowModel:
    settings = Settings(model=request.param, order=3, threads=1)
    return train(corpus_file, tmp_path_factory.mktemp(request.param) / "m", settings)


class TestBaselines(LanguageModelTests):
    @pytest.fixture
    def model(self, baseline: RowModel) -> RowModel:
        return baseline

    def test_it_can_be_opened(self, model: RowModel) -> None:
        assert snm.load(model.path).score("the cat") == model.score("the cat")

    def test_verify_finds_no_fault(self, model: RowModel) -> None:
        from snm.evaluation import verify

        assert verify(model.path, contexts=30).worst < 1e-6

    def test_explain_is_refused(self, model: RowModel) -> None:
        with pytest.raises(SettingsError, match="explained"):
            model.explain("the cat")


def test_kneser_ney_has_kenlms_perplexity(tmp_path: Path) -> None:
    """lmplz -o 5 on the same text: 239.98 and 224.81."""
    folder = shared_data("wikitext-2")
    model = train(folder / "train.txt.xz", tmp_path / "m", Settings(model="kn"))
    from snm.text.encoding import encode_files

    for part, expected in (("valid", 239.98), ("test", 224.81)):
        found = model.perplexity(encode_files(folder / f"{part}.txt.xz", model.vocabulary), threads=2).ppl
        assert found == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("name", ["kn", "katz", "sbo"])
def test_memory_threads_and_spilling_change_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path / "text", random_text(3, 10_000, 60, 20))
    settings = Settings(model=name, order=4, min_count=1, threads=1)
    expected = train(path, tmp_path / "expected", settings)
    said: list[str] = []
    for walks in (10**9, 0):  # walk over the tokens for each partition; write n-grams to disk
        for threads in (1, 3):
            monkeypatch.setattr(orders, "MAX_WALKS", walks)
            monkeypatch.setattr(pipeline, "partition_bytes", lambda *_: 3_000_000)
            model = train(path, tmp_path / "m", replace(settings, threads=threads), force=True, notify=said.append)
            for array in ("features", "offsets", "targets", "probabilities", "backoffs", "index"):
                file = f"{array}.npy"
                assert (model.path / file).read_bytes() == (expected.path / file).read_bytes(), (array, walks, threads)
    assert sum("of disk" in line for line in said) == 2, "n-grams were written to disk"


def test_a_pass_takes_several_partitions_and_runs(tmp_path: Path) -> None:
    """Where memory is small: else the test above would compare one partition with one partition."""
    text = random_text(3, 10_000, 60, 20)
    extractor = extractor_of("ngram(0..3)", text, 62)
    with ModelWriter(tmp_path / "m") as writer:
        made = orders.Orders(text, extractor, writer, lambda: 1_000_000)
        keys = orders.OrderKeys(extractor, 4, None)
        back = orders.Returned(np.zeros(len(text.tokens), np.uint64), writer, 200_000 // 8)
        links = Walk(text.tokens, keys, 1, run_tokens=back.run_tokens)
        back.begin(links)
        assert len(orders.Partitions(made, links, None, back).ranges) > 1
        assert len(links.runs) > 1


def test_a_directory_built_in_pieces_equals_its_definition() -> None:
    random = np.random.default_rng(1)
    for rows in (1, 2, 5, 1000):
        features = np.unique(random.integers(1, 1 << 62, rows, dtype=np.uint64))
        builder = IndexBuilder(int(features[0]), int(features[-1]), len(features))
        pieces = [builder.add(features[start : start + 7]) for start in range(0, len(features), 7)]
        directory = np.concatenate([*pieces, builder.finish()])
        entries = (features - features[0]) >> np.uint64(builder.shift)
        expected = [int(np.count_nonzero(entries < i)) for i in range(int(entries[-1]) + 2)]
        assert directory.tolist() == expected == build_row_index(features).directory.tolist()


def test_a_context_with_more_ngrams_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "partition_bytes", lambda *_: 1000)
    with pytest.raises(SettingsError, match="a context is so frequent"):
        train(iter(["a a a a"] * 1000), tmp_path / "m", Settings(model="kn"))
    assert not list(tmp_path.iterdir())
