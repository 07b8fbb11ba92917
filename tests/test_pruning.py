"""Pruning: against the references, within the budget, exactly normalised; and every mistake in one line."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import snm
from snm.baselines.backoff.arpa import levels
from snm.baselines.backoff.model import BackoffModel
from snm.errors import SettingsError
from snm.layouts.tokens import BEGIN
from snm.pruning.backoff import PrunedBackoff
from snm.pruning.matrix import LIMITS, LOWEST, MatrixPruner
from snm.pruning.models import model_bytes, prune
from snm.reference import pruning as reference
from snm.scoring.model import RowModel, SnmModel
from snm.settings import Settings
from snm.storage import ModelWriter
from tests.conftest import random_text, train
from tests.test_backoff import write_text
from tests.test_cli import fails, ok
from tests.test_model import LanguageModelTests

NAMES = {0: "<s>", 1: "</s>", 2: "<unk>"}


def ngrams_of(model: BackoffModel) -> reference.Ngrams:
    """A model as its ARPA file has it."""
    words = [NAMES.get(i, word) for i, word in enumerate(model.vocabulary.words)]
    return {
        tuple(words[i] for i in ngram): (10.0**p, 10.0**backoff)
        for level in levels(model)
        for ngram, p, backoff in zip(level.words.tolist(), level.probabilities, level.backoffs, strict=True)
    }


@pytest.fixture(scope="session")
def small_backoff(tmp_path_factory: pytest.TempPathFactory) -> BackoffModel:
    folder = tmp_path_factory.mktemp("small-backoff")
    path = write_text(folder / "text", random_text(3, 60, 12, 9))
    model = train(path, folder / "kn", Settings(model="kn", order=3, min_count=1, threads=1))
    assert isinstance(model, BackoffModel)
    return model


@pytest.fixture(scope="session")
def held_out(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough text for a gate."""
    folder = tmp_path_factory.mktemp("held-out")
    other = write_text(folder / "other", random_text(6, 300, 200, 12))
    (folder / "dev.txt").write_text(corpus_file.read_text() + other.read_text())
    return folder / "dev.txt"


@pytest.fixture(scope="session")
def mixed_file(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, and random text of more words, for long rows."""
    folder = tmp_path_factory.mktemp("mixed")
    other = write_text(folder / "other", random_text(5, 500, 200, 12))
    (folder / "train.txt").write_text(corpus_file.read_text() + other.read_text())
    return folder / "train.txt"


class TestEntropyPruning:
    def test_worths_equal_the_reference(self, small_backoff: BackoffModel, tmp_path: Path) -> None:
        expected = reference.entropy_changes(ngrams_of(small_backoff))
        with ModelWriter(tmp_path / "m") as writer:
            pruned = PrunedBackoff.__new__(PrunedBackoff)
            pruned.model, pruned.writer, pruned.threads = small_backoff, writer, 1
            measured = measured_worths(small_backoff, writer)
        assert measured.keys() == expected.keys()
        assert len(expected) > 100
        for ngram, worth in expected.items():
            assert measured[ngram] == pytest.approx(worth, rel=1e-3, abs=1e-8), ngram

    @pytest.mark.parametrize("threshold", [1e-4, 1e-3, 1e-2])
    def test_the_pruned_model_is_the_references(
        self, small_backoff: BackoffModel, threshold: float, tmp_path: Path
    ) -> None:
        expected = reference.prune(ngrams_of(small_backoff), threshold)
        with ModelWriter(tmp_path / "m") as writer:
            PrunedBackoff(small_backoff, writer).write(threshold, {})
        found = ngrams_of(BackoffModel(tmp_path / "m"))
        assert found.keys() == expected.keys()
        assert 10 < len(found) < len(ngrams_of(small_backoff))
        for ngram, (p, backoff) in expected.items():
            assert found[ngram][0] == pytest.approx(p, rel=1e-5, abs=1e-90)
            assert found[ngram][1] == pytest.approx(backoff, rel=1e-3), ngram

    def test_the_estimated_loss_is_close_to_the_measured_one(self, corpus_file: Path, tmp_path: Path) -> None:
        model = train(corpus_file, tmp_path / "kn", Settings(model="kn", order=4, min_count=1))
        smaller = prune(model, tmp_path / "s", loss=0.05)
        assert smaller.manifest["links"] < model.manifest["links"]
        assert 0 < smaller.manifest["pruning"]["estimated_loss"] <= 0.05


def measured_worths(model: BackoffModel, writer: ModelWriter) -> dict[tuple[str, ...], float]:
    """The worth of every n-gram by the kernel, before n-grams that are contexts are kept."""
    keep, PrunedBackoff._keep_parents = PrunedBackoff._keep_parents, lambda self: None  # type: ignore[method-assign]
    try:
        pruned = PrunedBackoff(model, writer)
    finally:
        PrunedBackoff._keep_parents = keep  # type: ignore[method-assign]
    words = [NAMES.get(i, word) for i, word in enumerate(model.vocabulary.words)]
    contexts: dict[int, tuple[str, ...]] = {0: ()}
    found = {}
    for row in sorted(range(len(pruned.tree.levels)), key=lambda r: pruned.tree.levels[r]):
        if row not in contexts:
            assert pruned.tree.levels[row] == 1
            assert model.rows_of(np.array([[BEGIN]], np.uint32))[0] == row
            contexts[row] = ("<s>",)
        for link in range(int(model.offsets[row]), int(model.offsets[row + 1])):
            ngram = (*contexts[row], words[model.targets[link]])
            if pruned.tree.children[link] >= 0:
                contexts[int(pruned.tree.children[link])] = ngram
            if row:
                found[ngram] = float(pruned.worth[link])
    return found


@pytest.fixture(scope="session")
def whole(mixed_file: Path, held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    """An SNM with rows of every form: of features seen once, short, long; classes; a gate."""
    path = tmp_path_factory.mktemp("whole") / "m"
    made = train(mixed_file, path, Settings(features="small", min_count=1, classes=8, gate=8, threads=1), dev=held_out)
    assert isinstance(made, SnmModel)
    assert made.manifest["gate"] is not None
    return made


@pytest.fixture(scope="session")
def halved(whole: SnmModel, held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    made = prune(whole, tmp_path_factory.mktemp("halved") / "m", links=whole.manifest["links"] // 2, dev=str(held_out))
    assert isinstance(made, SnmModel)
    return made


@pytest.fixture(scope="session")
def whole_backoff(mixed_file: Path, tmp_path_factory: pytest.TempPathFactory) -> BackoffModel:
    made = train(mixed_file, tmp_path_factory.mktemp("whole-backoff") / "kn", Settings(model="kn", min_count=1))
    assert isinstance(made, BackoffModel)
    return made


@pytest.fixture(scope="session")
def halved_backoff(whole_backoff: BackoffModel, tmp_path_factory: pytest.TempPathFactory) -> snm.LanguageModel:
    folder = tmp_path_factory.mktemp("pruned-backoff")
    return prune(whole_backoff, folder / "m", links=whole_backoff.manifest["links"] // 2)


class TestPrunedSnm(LanguageModelTests):
    """A pruned SNM is a model as any other."""

    @pytest.fixture
    def model(self, halved: SnmModel) -> SnmModel:
        return halved


class TestPrunedBackoff(LanguageModelTests):
    @pytest.fixture
    def model(self, halved_backoff: snm.LanguageModel) -> snm.LanguageModel:
        return halved_backoff


def rows_of(model: SnmModel) -> dict[int, dict[int, float]]:
    """{cut key: {target: weight}}, by the reader that pruning uses."""
    pruner = MatrixPruner(model.matrix)
    rows, _ = pruner.read(0, pruner.pages)
    found = {}
    for i, key in enumerate(rows.keys.tolist()):
        part = slice(rows.offsets[i], rows.offsets[i + 1])
        once = rows.count_codes[i] == 0 and pruner.single_types
        weights = [-1.0] * (part.stop - part.start) if once else model.matrix.values[rows.codes[part]].tolist()
        found[key] = dict(zip(rows.targets[part].tolist(), weights, strict=True))
    return found


class TestMatrix:
    def test_everything_is_read(self, whole: SnmModel) -> None:
        found = rows_of(whole)
        words = int(np.count_nonzero(whole.matrix.unigrams))
        assert sum(map(len, found.values())) + words == whole.manifest["links"]
        assert len(found) + 1 == whole.manifest["rows"]

    def test_what_is_left_is_as_it_was(self, whole: SnmModel, halved: SnmModel) -> None:
        """Rows keep their best links, with the same weights."""
        before, after = rows_of(whole), rows_of(halved)
        mask = (1 << 64) - (1 << (int(whole.matrix.shift) - 24)) if halved.matrix.shift == whole.matrix.shift else None
        cut = int(halved.matrix.shift) - 24
        by_cut = {key >> cut: row for key, row in before.items()}
        assert mask is None or mask > 0
        assert 0 < len(after) < len(before)
        for key, row in after.items():
            old = by_cut[key >> cut]
            assert row.items() <= old.items()
            gone = [weight for target, weight in old.items() if target not in row]
            assert not gone or min(row.values()) >= max(gone)

    def test_nothing_leaves_without_a_limit(self, whole: SnmModel, tmp_path: Path) -> None:
        pruner = MatrixPruner(whole.matrix)
        kept = pruner.measure(np.full(LIMITS, LOWEST * 1e-9), lambda _: None)[0]
        assert kept.links + np.count_nonzero(whole.matrix.unigrams) == whole.manifest["links"]
        with ModelWriter(tmp_path / "m") as writer:
            pages = pruner.write(kept, writer, whole.manifest["pages"])
            for name in ("data", "long_links", "starts", "singles", "values", "unigrams"):
                assert np.array_equal(writer.load(name), np.asarray(whole._array(name))), name
        assert {**pages, "orphans": False} == {**whole.manifest["pages"], "orphans": False}

    def test_scores_do_not_need_parents(self, halved: SnmModel) -> None:
        """A row is found though the row of its shorter context has left."""
        assert not halved.matrix.parent_of_template.any()
        assert halved.manifest["requires"] == ["orphans"]

    def test_a_larger_budget_keeps_more(self, whole: SnmModel) -> None:
        measured = MatrixPruner(whole.matrix).measure(np.geomspace(1e-3, 1e2, LIMITS), lambda _: None)
        assert all(a.links >= b.links and a.bytes >= b.bytes for a, b in itertools.pairwise(measured))
        assert measured[0].links > measured[-1].links


@pytest.mark.parametrize("share", [0.8, 0.5])
@pytest.mark.parametrize("kind", ["snm", "kn"])
def test_the_folder_fits_the_size(
    share: float, kind: str, whole: SnmModel, whole_backoff: BackoffModel, held_out: Path, tmp_path: Path
) -> None:
    model: RowModel = whole if kind == "snm" else whole_backoff
    fixed = sum(
        entry["bytes"] for name, entry in model.manifest["files"].items()
        if name.split(".")[0] in ("vocabulary", "singles", "unigrams", "values", "gate", "classes")
    )  # fmt: skip
    size = fixed + 5000 + int(share * (model_bytes(model) - fixed))
    assert size < model_bytes(model)
    smaller = prune(model, tmp_path / "s", size=size, dev=held_out if kind == "snm" else None)
    assert model_bytes(smaller) <= size
    assert smaller.manifest["links"] < model.manifest["links"]
    snm.verify(tmp_path / "s", contexts=20)


def test_links_are_at_most_those_given(whole: SnmModel, tmp_path: Path) -> None:
    said: list[str] = []
    links = whole.manifest["links"] // 3
    smaller = prune(whole, tmp_path / "s", links=links, notify=said.append)
    assert 0.8 * links < smaller.manifest["links"] <= links
    assert any("gate stays as it is" in line for line in said)
    assert smaller.manifest["gate"] == whole.manifest["gate"]


def test_the_loss_is_measured(whole_backoff: BackoffModel, held_out: Path, tmp_path: Path) -> None:
    smaller = prune(whole_backoff, tmp_path / "s", loss=0.02, dev=held_out)
    assert smaller.manifest["links"] < whole_backoff.manifest["links"]
    assert smaller.perplexity(held_out).ppl <= 1.02 * whole_backoff.perplexity(held_out).ppl


def test_a_budget_above_the_model_copies_it(whole: SnmModel, tmp_path: Path) -> None:
    said: list[str] = []
    copy = prune(whole, tmp_path / "s", size=1 << 40, notify=said.append)
    assert "copied" in said[-1]
    assert copy.score("the cat sees fish") == whole.score("the cat sees fish")
    assert copy.manifest["files"] == whole.manifest["files"]


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ([], "expected one of --size, --links and --loss"),
            (["--size", "1M", "--links", "9"], "expected one of"),
            (["--links", "0"], "not in the range"),
            (["--size", "1K"], "the vocabulary, the unigrams and the gate alone take"),
            (["--links", "1"], "every word has one"),
            (["--loss", "1%"], "give --dev"),
            (["--loss", "much"], "expected a number such as 1% or 0.01"),
            (["--loss", "-3%"], "expected a share above 0"),
        ],
    )
    def test_one_line(self, options: list[str], message: str, whole: SnmModel, tmp_path: Path) -> None:
        assert message in fails("prune", whole.path, "-o", tmp_path / "s", *options)
        assert not (tmp_path / "s").exists()

    def test_a_mixture(self, whole: SnmModel, held_out: Path, tmp_path: Path) -> None:
        snm.mix([whole, whole], held_out, tmp_path / "mix")
        assert "prune its members" in fails("prune", tmp_path / "mix", "-o", tmp_path / "s", "--size", "1M")

    def test_an_empty_dev_text(self, whole: SnmModel, tmp_path: Path) -> None:
        (tmp_path / "empty").write_text("\n")
        assert "no words" in fails(
            "prune", whole.path, "-o", tmp_path / "s", "--links", "100", "--dev", tmp_path / "empty"
        )

    def test_a_dev_text_of_one_line(self, whole: SnmModel, tmp_path: Path) -> None:
        (tmp_path / "line").write_text("the cat\n")
        command = "prune", whole.path, "-o", tmp_path / "s", "--dev", tmp_path / "line"
        assert "3 tokens, too few to measure a loss on" in fails(*command, "--loss", "1%")
        ok(*command, "--links", whole.manifest["links"] // 2)  # the gate stays as it is
        assert snm.load(tmp_path / "s").manifest["gate"] == whole.manifest["gate"]

    def test_a_backoff_model_below_its_vocabulary(self, small_backoff: BackoffModel, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="the vocabulary and the unigrams alone take"):
            prune(small_backoff, tmp_path / "s", size=100)


def test_the_command(whole: SnmModel, tmp_path: Path) -> None:
    links = whole.manifest["links"] // 2
    made = json.loads(ok("prune", whole.path, "-o", tmp_path / "s", "--links", links, "--json"))
    assert made["links"] <= links
    assert made["bytes"] < model_bytes(whole)
    assert made["pruning"]["budget"] == {"links": links}
    assert math.isfinite(made["pruning"]["limit"])
