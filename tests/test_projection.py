"""ARPA files of any model: the SNM's own probabilities, exact sums, sizes, and kenlm's opinion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import snm
from snm.baselines.backoff.arpa import import_arpa
from snm.baselines.backoff.model import BackoffModel
from snm.layouts.tokens import BEGIN, END
from snm.projection import ngram_order
from snm.scoring.model import SnmModel
from snm.settings import Settings
from tests.conftest import random_text, train
from tests.test_backoff import write_text
from tests.test_cli import fails, ok


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("projection") / "text", random_text(11, 300, 20, 10))


@pytest.fixture(scope="session")
def ngrams(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    """An SNM of n-grams alone."""
    path = tmp_path_factory.mktemp("ngrams") / "m"
    made = train(text_file, path, Settings(features="snm3", min_count=1, gate=8, threads=1), dev=text_file)
    assert isinstance(made, SnmModel)
    return made


@pytest.fixture(scope="session")
def skips(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    """An SNM with features that no n-gram model has."""
    path = tmp_path_factory.mktemp("skips") / "m"
    features = "ngram(0..2) + skip(r=1, s=1..5, words=1..2, tied)"
    made = train(text_file, path, Settings(features=features, min_count=1, gate=0, threads=1))
    assert isinstance(made, SnmModel)
    return made


@pytest.fixture(scope="session")
def exported(ngrams: SnmModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "m.arpa"
    snm.export_arpa(ngrams, path)
    return path


def sums_of(model: snm.LanguageModel) -> list[float]:
    contexts = ["", "w3", "w3 w4", "w5 w5 w3", "w9 w4 w3 w8"]
    return [float(model.distribution(model.context(context)).sum()) for context in contexts]


class TestNgrams:
    def test_listed_ngrams_have_the_models_probability(self, ngrams: SnmModel, exported: Path, tmp_path: Path) -> None:
        """Of the longest order: lower ones depend on what comes before."""
        model = import_arpa(exported, tmp_path / "m")
        order, compared = ngram_order(ngrams), 0
        assert order == 3
        for a in range(3, 12):
            for b in range(3, 12):
                (row,) = model.rows_of(np.array([[a, b]], np.uint32))
                if row < 0:
                    continue
                ids = np.array([ngrams.vocabulary.ids[model.vocabulary.words[i]] for i in (a, b)])
                p = ngrams.distribution(np.concatenate([[BEGIN], [ids[0]], ids]).astype(np.uint32))
                for target, found in zip(*model.row(int(row)), strict=True):
                    name = model.vocabulary.words[target]
                    assert found == pytest.approx(p[ngrams.vocabulary.ids[name]], rel=1e-4)
                    compared += 1
        assert compared > 100

    def test_every_ngram_is_there(self, ngrams: SnmModel, exported: Path) -> None:
        header = [int(line.split("=")[1]) for line in exported.read_text().split("\n") if line.startswith("ngram ")]
        assert len(header) == 3
        assert sum(header) == ngrams.manifest["links"] + 1  # and <s>

    def test_sums(self, exported: Path, tmp_path: Path) -> None:
        assert sums_of(import_arpa(exported, tmp_path / "m")) == pytest.approx([1] * 5, abs=1e-5)

    def test_the_perplexity_is_close(self, ngrams: SnmModel, exported: Path, text_file: Path, tmp_path: Path) -> None:
        found = import_arpa(exported, tmp_path / "m").perplexity(text_file).ppl
        assert found == pytest.approx(ngrams.perplexity(text_file).ppl, rel=0.03)

    def test_kenlm_agrees(self, exported: Path, text_file: Path, tmp_path: Path) -> None:
        kenlm = pytest.importorskip("kenlm")
        other, model = kenlm.Model(str(exported)), import_arpa(exported, tmp_path / "m")
        for line in text_file.read_text().split("\n")[:20]:
            if line:
                known = " ".join(word if word in model.vocabulary.ids else "<unk>" for word in line.split())
                assert other.score(known) == pytest.approx(model.score(known), abs=1e-3)

    def test_a_lower_order(self, ngrams: SnmModel, tmp_path: Path) -> None:
        snm.export_arpa(ngrams, tmp_path / "m.arpa", order=2)
        assert sums_of(import_arpa(tmp_path / "m.arpa", tmp_path / "m")) == pytest.approx([1] * 5, abs=1e-5)
        assert "\\3-grams:" not in (tmp_path / "m.arpa").read_text()


class TestText:
    """Projections on the n-grams of a text."""

    def check(self, model: snm.LanguageModel, text: Path, folder: Path) -> BackoffModel:
        ok("export", model.path, folder / "m.arpa", "--text", text, "--order", 3)
        made = import_arpa(folder / "m.arpa", folder / "m")
        assert sums_of(made) == pytest.approx([1] * 5, abs=1e-5)
        return made

    def test_skip_grams(self, skips: SnmModel, text_file: Path, tmp_path: Path) -> None:
        made = self.check(skips, text_file, tmp_path)
        assert made.perplexity(text_file).ppl < 1.3 * skips.perplexity(text_file).ppl

    def test_a_mixture(self, skips: SnmModel, ngrams: SnmModel, text_file: Path, tmp_path: Path) -> None:
        few = tmp_path / "few"
        few.write_text("\n".join(text_file.read_text().split("\n")[:30]) + "\n")
        mixed = snm.mix([skips, ngrams], few, tmp_path / "mix")
        made = self.check(mixed, few, tmp_path)
        assert made.perplexity(few).ppl < 2 * mixed.perplexity(few).ppl

    def test_probabilities_are_means_over_places(self, skips: SnmModel, text_file: Path, tmp_path: Path) -> None:
        """A context that the text has once: the probability of a mixture there."""
        text = tmp_path / "one"
        text.write_text("w3 w4 w5 w3 w7\n")
        made = self.check(snm.mix([skips, skips], text_file, tmp_path / "mix"), text, tmp_path)
        ids, other = skips.vocabulary.ids, made.vocabulary.ids
        expected = skips.distribution(skips.context("w3 w4"))
        row = int(made.rows_of(np.array([[other["w3"], other["w4"]]], np.uint32))[0])
        targets, p = made.row(row)
        assert [made.vocabulary.words[t] for t in targets] == ["w5"]
        assert p[0] == pytest.approx(expected[ids["w5"]], rel=1e-4)

    def test_the_end_of_a_sentence_is_a_word(self, skips: SnmModel, text_file: Path, tmp_path: Path) -> None:
        made = self.check(skips, text_file, tmp_path)
        assert made.distribution(made.context("w3 w3"))[END] > 0


def test_the_file_fits_the_size(exported: Path, ngrams: SnmModel, tmp_path: Path) -> None:
    size = exported.stat().st_size * 2 // 3
    ok("export", ngrams.path, tmp_path / "m.arpa", "--size", size)
    assert 0.6 * size < (tmp_path / "m.arpa").stat().st_size <= size
    assert sums_of(import_arpa(tmp_path / "m.arpa", tmp_path / "m")) == pytest.approx([1] * 5, abs=1e-5)


def test_training_to_a_size(text_file: Path, tmp_path: Path) -> None:
    """SNM and backoff models of a given size, from one command."""
    whole = train(text_file, tmp_path / "whole", Settings(features="snm5", min_count=1, gate=8, threads=1))
    fixed = 12_000
    for kind, size in (("snm", fixed + 8000), ("kn", fixed + 20_000)):
        features = ["--preset", "snm5", "--gate", "8"] if kind == "snm" else ["--model", "kn"]
        ok("train", text_file, "-o", tmp_path / kind, *features, "--min-count", 1, "--size", size, "--quiet")
        made = snm.load(tmp_path / kind)
        assert sum(entry["bytes"] for entry in made.manifest["files"].values()) <= size
        assert made.manifest["links"] < whole.manifest["links"]
        snm.verify(tmp_path / kind, contexts=20)


class TestMistakes:
    def test_exporting(self, skips: SnmModel, exported: Path, text_file: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.arpa"
        assert "too small: the lines of the single words" in fails("export", skips.path, out, "--size", 100)
        assert "leave out the order" in fails("export", exported, out, "--order", 2)
        (tmp_path / "empty").write_text("\n")
        assert "no words" in fails("export", skips.path, out, "--text", tmp_path / "empty")
        mixed = snm.mix([skips, skips], text_file, tmp_path / "mix")
        assert "give the text whose n-grams" in fails("export", mixed.path, out)
        assert not out.exists()

    def test_training_below_the_vocabulary(self, text_file: Path, tmp_path: Path) -> None:
        for options in (["--preset", "snm3"], ["--model", "kn"]):
            line = fails("train", text_file, "-o", tmp_path / "m", *options, "--size", 300, "--quiet")
            assert "too small" in line
        assert not (tmp_path / "m").exists()
