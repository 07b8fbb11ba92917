"""ARPA files of any model: the SNM's own probabilities, exact sums, sizes, and kenlm's opinion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import snm
from snm.baselines.backoff.arpa import import_arpa
from snm.baselines.backoff.model import BackoffModel
from snm.gate.fitting import loss_and_gradient
from snm.layouts.gate import Gate
from snm.layouts.tokens import BEGIN, END
from snm.projection.continuations import Continuations, count_continuations
from snm.projection.gates import GateLearner
from snm.projection.ngrams import Ngrams, write_rows
from snm.projection.own import ngram_order, own_ngrams
from snm.projection.rows import probabilities_of
from snm.projection.sampling import sample_tokens
from snm.scoring.mixture import MixtureModel
from snm.scoring.model import SnmModel
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.text.encoding import encode_files
from tests.conftest import random_text, train
from tests.test_backoff import write_text
from tests.test_cli import fails, ok


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("projection") / "text", random_text(11, 300, 20, 10))


@pytest.fixture(scope="session")
def other_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that no model was trained on."""
    return write_text(tmp_path_factory.mktemp("projection") / "other", random_text(12, 600, 20, 10))


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


def parts_of(model: SnmModel, order: int = 3) -> tuple[Ngrams, np.ndarray, Continuations]:
    """The n-grams of a model, their parents and continuation rows."""
    ngrams = own_ngrams(model, order)
    parents = ngrams.parents()
    return ngrams, parents, count_continuations(ngrams, parents)


class TestGates:
    def test_the_gates_see_the_likelihood_of_the_backoff_model(
        self, skips: SnmModel, other_text: Path, tmp_path: Path
    ) -> None:
        """Summed over all lengths of contexts, what the gates are learned on is log P of the text."""
        ngrams, parents, continuations = parts_of(skips)
        text = encode_files(other_text, skips.vocabulary)
        learner = GateLearner(skips, ngrams, continuations, text.tokens)
        gates, loss = learner.learn(), 0.0
        listed = [learner._listed(level) for level in range(4)]
        for level, gate in enumerate(gates):
            events = learner._level_events(level, listed[level], listed[level + 1])
            columns = learner.columns(level)
            part = Gate(gate.hidden[columns], gate.bias, gate.output[columns], gate.offset[columns])
            loss += loss_and_gradient(part, *events.batch(slice(None)), with_gradient=False)[0]
        p = probabilities_of(skips, ngrams, continuations, gates)
        with ModelWriter(tmp_path / "m") as writer:
            write_rows(writer, ngrams, p, parents, dict(skips.manifest["text"]))
        assert loss == pytest.approx(np.log(BackoffModel(tmp_path / "m").perplexity(text).ppl) * text.events, rel=1e-4)

    def test_held_out_text_makes_it_better(self, skips: SnmModel, other_text: Path, tmp_path: Path) -> None:
        found = []
        for i, options in enumerate([[], ["--dev", other_text]]):
            ok("export", skips.path, tmp_path / f"{i}.arpa", *options)
            model = import_arpa(tmp_path / f"{i}.arpa", tmp_path / str(i))
            assert sums_of(model) == pytest.approx([1] * 5, abs=1e-5)
            found.append(model.perplexity(other_text).ppl)
        assert found[1] < found[0] < 1.3 * skips.perplexity(other_text).ppl

    def test_little_held_out_text(self, skips: SnmModel, tmp_path: Path) -> None:
        (tmp_path / "line").write_text("w3 w4 w5\n")
        said: list[str] = []
        snm.export_arpa(skips, tmp_path / "m.arpa", dev=tmp_path / "line", notify=said.append)
        assert "4 tokens, too few to learn from: the model generates text" in said[0]
        (tmp_path / "empty").write_text("\n")
        assert "no words" in fails("export", skips.path, tmp_path / "m.arpa", "--dev", tmp_path / "empty")

    def test_continuations(self, skips: SnmModel) -> None:
        """Each word of a row with the number of longer contexts that it follows."""
        ngrams, parents, made = parts_of(skips)
        following: dict[tuple[int, ...], dict[int, int]] = {}
        for words, rows in ngrams.pieces():
            for context, row in zip(words.tolist(), rows.tolist(), strict=True):
                assert parents[row] == (ngrams.rows_of(np.array([context[1:]], np.uint32))[0] if context else -1)
                for target in ngrams.targets[ngrams.offsets[row] : ngrams.offsets[row + 1]].tolist() if context else []:
                    counts = following.setdefault(tuple(context[1:]), {})
                    counts[target] = counts.get(target, 0) + 1
        assert len(following) > 10
        for context, counts in following.items():
            (row,) = ngrams.rows_of(np.array([context], np.uint32).reshape(1, -1))
            here = slice(ngrams.offsets[row], ngrams.offsets[row + 1])
            wanted = [max(counts.get(t, 0) - 0.75, 0) / sum(counts.values()) for t in ngrams.targets[here].tolist()]
            assert made.weights[here] == pytest.approx(wanted, rel=1e-5)
            assert made.sums[row] == pytest.approx(sum(wanted), rel=1e-5)
            assert made.lengths[row] == len(counts)

    def test_generated_text_is_the_models(self, skips: SnmModel) -> None:
        tokens = sample_tokens(skips, 30_000)
        after = np.flatnonzero(tokens == BEGIN) + 1
        first = np.bincount(tokens[after[after < len(tokens)]], minlength=len(skips.vocabulary)).astype(float)
        p = skips.distribution(np.array([BEGIN], np.uint32))
        assert first / first.sum() == pytest.approx(p, abs=4 * np.sqrt(0.1 / first.sum()))
        assert tokens[0] == BEGIN
        assert ((tokens[:-1] == END) == (tokens[1:] == BEGIN)).mean() > 0.95  # the ends of 400 lines are cut
        assert np.array_equal(tokens, sample_tokens(skips, 30_000))


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

    def test_an_iterator_is_read_twice(self, skips: SnmModel, tmp_path: Path) -> None:
        lines = ["w3 w4 w5 w3 w7", "w4 w5"]
        (tmp_path / "text").write_text("\n".join(lines) + "\n")
        for name, text in (("a", iter(lines)), ("b", tmp_path / "text")):
            snm.export_arpa(skips, tmp_path / name, text=text, order=2, threads=1)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

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

    def test_ngrams_of_a_mixture(self, skips: SnmModel, ngrams: SnmModel, text_file: Path, tmp_path: Path) -> None:
        """Those of its members, with the probabilities of these, mixed; the members may have different words."""
        few = tmp_path / "few"
        few.write_text("\n".join([*text_file.read_text().split("\n")[:60], "new words", "new words", "new"]) + "\n")
        ok("train", few, "-o", tmp_path / "kn", "--model", "kn", "--order", 2, "--min-count", 1)
        ok("export", ngrams.path, tmp_path / "ngrams.arpa")
        mixed = snm.mix([tmp_path / "kn", ngrams.path], few, tmp_path / "mix")
        expected = snm.mix([tmp_path / "kn", tmp_path / "ngrams.arpa"], few, tmp_path / "expected")
        ok("export", mixed.path, tmp_path / "m.arpa")
        made = import_arpa(tmp_path / "m.arpa", tmp_path / "m")
        assert sums_of(made) == pytest.approx([1] * 5, abs=1e-5)
        assert isinstance(mixed, MixtureModel)
        assert isinstance(expected, MixtureModel)
        expected.weights = mixed.weights
        for words in ["w3 w4 w5", "new words w3", "w7 w7"]:
            kept = made.vocabulary.words
            for target, p in zip(*made.row(int(made.rows_of(made.context(words)[None, -2:])[0])), strict=True):
                wanted = expected.distribution(expected.context(words))[expected.vocabulary.ids[kept[target]]]
                assert p == pytest.approx(wanted, rel=1e-4)

    def test_ngrams_of_several_sources(self, text_file: Path, other_text: Path, tmp_path: Path) -> None:
        """Those of all sources, weighed by held-out text."""
        settings = Settings(features="snm3", min_count=1, gate=8, threads=1)
        model = snm.train({"a": text_file, "b": iter(["w3 new words"] * 30)}, tmp_path / "m", settings, dev=text_file)
        assert "give it (--dev)" in fails("export", model.path, tmp_path / "m.arpa")
        ok("export", model.path, tmp_path / "m.arpa", "--dev", other_text)
        made = import_arpa(tmp_path / "m.arpa", tmp_path / "arpa")
        assert sums_of(made) == pytest.approx([1] * 5, abs=1e-5)
        assert made.perplexity(other_text).ppl < 1.2 * model.perplexity(other_text).ppl
        assert made.score("w3 new words") > made.score("new w3 words")

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
        assert not out.exists()
        ok("export", mixed.path, out)
        out.unlink()
        assert not out.exists()

    def test_training_below_the_vocabulary(self, text_file: Path, tmp_path: Path) -> None:
        for options in (["--preset", "snm3"], ["--model", "kn"]):
            line = fails("train", text_file, "-o", tmp_path / "m", *options, "--size", 300, "--quiet")
            assert "too small" in line
        assert not (tmp_path / "m").exists()
