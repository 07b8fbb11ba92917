"""Mixtures: their weights, and the tests of every language model."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import snm
from snm.errors import InputError, SettingsError
from snm.evaluation import verify
from snm.mixing import find_weights, mix, weigh
from snm.scoring.mixture import MixtureModel
from snm.scoring.model import RowModel
from snm.settings import Settings
from snm.text.encoding import encode_files
from tests.conftest import train
from tests.test_cli import fails, ok
from tests.test_model import LanguageModelTests


@pytest.fixture(scope="module")
def members(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[RowModel]:
    folder = tmp_path_factory.mktemp("members")
    kinds = {"kn": {"model": "kn", "order": 2}, "snm": {"order": 3}, "sbo": {"model": "sbo", "order": 3}}
    return [
        train(corpus_file, folder / name, Settings(threads=1, **how))  # type: ignore[arg-type]
        for name, how in kinds.items()
    ]


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dev") / "dev.txt"
    path.write_text("the cat eats cake\na dog sees a purple fish\nthe old man likes the cat\nfish sees fish\n")
    return path


@pytest.fixture(scope="module")
def mixture(members: list[RowModel], dev: Path, tmp_path_factory: pytest.TempPathFactory) -> MixtureModel:
    return mix([m.path for m in members], dev, tmp_path_factory.mktemp("mixture") / "m")


class TestMixture(LanguageModelTests):
    @pytest.fixture
    def model(self, mixture: MixtureModel) -> MixtureModel:
        return mixture

    def test_it_can_be_opened_and_verify_finds_no_fault(self, model: MixtureModel) -> None:
        assert snm.load(model.path).score("the cat") == model.score("the cat")
        assert verify(model.path, contexts=30).worst < 1e-6


def test_no_grid_search_beats_em(members: list[RowModel], dev: Path) -> None:
    tokens = encode_files(dev, members[0].vocabulary).tokens
    p = np.array([m.probabilities(tokens)[tokens != 0] for m in members])
    best = np.log(find_weights(p) @ p).mean()
    grid = [w for w in product(np.linspace(0, 1, 51), repeat=3) if abs(sum(w) - 1) < 1e-9]
    assert len(grid) > 1000
    assert best >= max(np.log(np.maximum(np.array(w) @ p, 1e-300)).mean() for w in grid) - 1e-9


def test_a_mixture_is_never_worse_than_its_best_member(
    members: list[RowModel], mixture: MixtureModel, dev: Path
) -> None:
    text = encode_files(dev, mixture.vocabulary)
    alone = [member.perplexity(text).ppl for member in members]
    mixed = mixture.perplexity(text).ppl
    assert mixed <= min(alone) + 1e-9
    assert mixture.manifest["dev_perplexity"] == pytest.approx(mixed)
    assert mixture.manifest["dev_perplexities"] == pytest.approx(alone)
    assert sum(mixture.weights) == pytest.approx(1)


def test_a_useless_member_gets_no_weight() -> None:
    p = np.array([[0.5, 0.4, 0.3], [0.05, 0.04, 0.03]])
    assert find_weights(p) == pytest.approx([1, 0], abs=1e-3)


def test_a_slightly_worse_member_gets_no_weight() -> None:
    """EM alone would stop before its weight is 0."""
    random = np.random.default_rng(1)
    best = random.random(1000)
    members = np.stack([best * (1 - 1e-5 * random.random(1000)), best, best * (1 - 1e-3 * random.random(1000))])
    assert find_weights(members).tolist() == [0, 1, 0]


def test_a_mixture_does_not_need_the_folders_of_its_members(members: list[RowModel], dev: Path, tmp_path: Path) -> None:
    import shutil

    copies = [Path(shutil.copytree(m.path, tmp_path / str(i))) for i, m in enumerate(members[:2])]
    mixed = mix(copies, dev, tmp_path / "m")
    expected = mixed.score("the cat")
    for copy in copies:
        shutil.rmtree(copy)
    assert snm.load(tmp_path / "m").score("the cat") == expected


def test_mixtures_can_be_mixed(mixture: MixtureModel, members: list[RowModel], dev: Path, tmp_path: Path) -> None:
    again = mix([mixture.path, members[0].path], dev, tmp_path / "m")
    assert again.distribution(again.context("the")).sum() == pytest.approx(1)


def test_an_arpa_file_can_be_a_member(members: list[RowModel], dev: Path, tmp_path: Path) -> None:
    ok("export", members[0].path, tmp_path / "kn.arpa")
    mixed = mix([tmp_path / "kn.arpa", members[1].path], dev, tmp_path / "m")
    same = mix([members[0].path, members[1].path], dev, tmp_path / "n")
    assert mixed.weights == pytest.approx(same.weights, abs=1e-4)
    assert mixed.score("the cat sees") == pytest.approx(same.score("the cat sees"), abs=1e-4)


def test_the_same_words_in_another_order_are_mapped(corpus_file: Path, dev: Path, tmp_path: Path) -> None:
    first = train(corpus_file, tmp_path / "a", Settings(threads=1, order=2))
    words = tmp_path / "words"
    words.write_text("\n".join(reversed(first.vocabulary.words[3:])))
    second = train(corpus_file, tmp_path / "b", Settings(threads=1, order=2, vocab=words, model="kn"))
    assert first.vocabulary.words != second.vocabulary.words
    mixed = mix([first.path, second.path], dev, tmp_path / "m")
    context = "the cat"
    expected = sum(
        w * dict(m.next_words(context, k=100))["sees"] for w, m in zip(mixed.weights, (first, second), strict=True)
    )
    assert dict(mixed.next_words(context, k=100))["sees"] == pytest.approx(expected)


@pytest.fixture(scope="module")
def union(members: list[RowModel], dev: Path, tmp_path_factory: pytest.TempPathFactory) -> MixtureModel:
    """A mixture of a model with few words, one with others, and a closed one."""
    folder, other = tmp_path_factory.mktemp("union"), ["the green cat sees a ship", "a green ship likes fish"] * 40
    few = train(iter(["the cat sees fish", "fish eats cake"] * 60), folder / "few", Settings(threads=1, max_words=4))
    ship = train(iter(other), folder / "ship", Settings(threads=1, model="kn", order=3))
    closed = train(iter(other), folder / "closed", Settings(threads=1, order=2, closed=True))
    return mix([few.path, members[1].path, ship.path, closed.path], dev, folder / "m")


class TestUnion(LanguageModelTests):
    """Members of different vocabularies, open and closed."""

    @pytest.fixture
    def model(self, union: MixtureModel) -> MixtureModel:
        return union

    def test_the_words_are_those_of_all_members(self, model: MixtureModel) -> None:
        assert set(model.vocabulary.words) == {word for member in model.members for word in member.vocabulary.words}
        assert not model.vocabulary.closed
        assert model.manifest["requires"] == ["union"]
        assert verify(model.path, contexts=30).worst < 1e-6

    def test_what_a_member_gives_to_words_that_it_lacks(self, model: MixtureModel) -> None:
        """The rule of docs/sources.md, word by word."""
        few, closed = model.members[0], model.members[3]
        for member, share in ((few, model.manifest["shares"][0]), (closed, model.manifest["shares"][3])):
            own = member.distribution(member.context("the cat"))
            lacking = [word for word in model.vocabulary.words if word not in member.vocabulary.words]
            lacking += ["<UNK>"] * member.vocabulary.closed
            words = model._maps[model.members.index(member)]
            p = words.shared(own[words.ids], np.arange(len(model.vocabulary)))
            assert p.sum() == pytest.approx(1)
            given = 1.0 if member.vocabulary.closed else own[2]
            for word, found in zip(model.vocabulary.words, p, strict=True):
                if word in lacking:
                    assert found == pytest.approx(given * share / len(lacking))
                elif word == "<UNK>":
                    assert found == pytest.approx(own[2] * (1 - share))
                else:
                    factor = 1 - share if member.vocabulary.closed else 1
                    assert found == pytest.approx(factor * own[member.vocabulary.id_of(word)])

    def test_the_share_is_that_of_the_held_out_text(self, model: MixtureModel, dev: Path) -> None:
        tokens = [word for line in dev.read_text().splitlines() for word in line.split()]
        few = model.members[0].vocabulary.words
        outside = [word for word in tokens if word not in few]
        found = [word for word in outside if word in model.vocabulary.words]
        assert model.manifest["shares"][0] == pytest.approx((len(found) + 1) / (len(outside) + 2))


def test_closed_models_make_a_closed_mixture(dev: Path, tmp_path: Path) -> None:
    texts = ["the cat sees fish", "a dog eats cake"], ["the old man likes fish", "the cat eats cake"]
    paths = [tmp_path / name for name in "ab"]
    for path, text in zip(paths, texts, strict=True):
        train(iter(text * 20), path, Settings(threads=1, order=2, closed=True))
    mixed = mix(paths, dev, tmp_path / "m")
    p = mixed.distribution(mixed.context("the"))
    assert mixed.vocabulary.closed
    assert p.sum() == pytest.approx(1)
    assert p[2] == 0
    assert (p[3:] > 0).all()


def test_documents_and_sentences_are_refused(
    corpus_file: Path, members: list[RowModel], dev: Path, tmp_path: Path
) -> None:
    other = train(corpus_file, tmp_path / "documents", Settings(threads=1, order=2, document=True))
    with pytest.raises(SettingsError, match="one model reads documents"):
        mix([members[0].path, other.path], dev, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_one_model_or_no_text_is_refused(members: list[RowModel], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(SettingsError, match="two models"):
        mix([members[0].path], empty, tmp_path / "m")
    with pytest.raises(InputError, match="no words"):
        mix([m.path for m in members], empty, tmp_path / "m")


def test_the_mix_command(members: list[RowModel], dev: Path, tmp_path: Path) -> None:
    paths = [m.path for m in members]
    report = json.loads(ok("mix", *paths, "--dev", dev, "-o", tmp_path / "m", "--json"))
    assert sum(report["weights"]) == pytest.approx(1)
    assert "weight" in ok("info", tmp_path / "m")
    assert "perplexity" in ok("ppl", tmp_path / "m", dev)
    assert "differs from 1 by at most" in ok("verify", tmp_path / "m", dev, "--contexts", "20")
    assert ok("next", tmp_path / "m", "the")
    assert "exists already" in fails("mix", *paths, "--dev", dev, "-o", tmp_path / "m")
    assert "explained" in fails("explain", tmp_path / "m", "the cat")


class TestFilesOfProbabilities:
    """Files with another program's probabilities, one for each token."""

    @pytest.fixture
    def written(self, members: list[RowModel], dev: Path, tmp_path: Path) -> Path:
        tokens = encode_files(dev, members[0].vocabulary).tokens
        p = members[2].probabilities(tokens)[tokens != 0]
        path = tmp_path / "others.txt"
        path.write_text("\n".join(map(str, p.tolist())))
        return path

    def test_probabilities_of_a_model_give_its_weights(self, members: list[RowModel], dev: Path, written: Path) -> None:
        as_models = weigh([members[0].path, members[2].path], dev)
        as_file = weigh([written, members[0].path], dev, test=dev, test_files=[written])
        assert as_file.weights == pytest.approx(as_models.weights[::-1], abs=1e-5)
        assert as_file.dev_perplexity == pytest.approx(as_models.dev_perplexity)
        assert as_file.dev_perplexities == pytest.approx(as_models.dev_perplexities[::-1])
        assert as_file.test_perplexity == pytest.approx(as_file.dev_perplexity)

    def test_log10_probabilities_are_accepted(
        self, members: list[RowModel], dev: Path, written: Path, tmp_path: Path
    ) -> None:
        logs = tmp_path / "logs.txt"
        logs.write_text(" ".join(str(np.log10(float(p))) for p in written.read_text().split()))
        one, other = (weigh([members[0].path, file], dev).dev_perplexity for file in (written, logs))
        assert one == pytest.approx(other)

    def test_the_mix_command_prints_weights(self, members: list[RowModel], dev: Path, written: Path) -> None:
        out = ok("mix", members[0].path, written, "--dev", dev, "--test", dev, "--test-file", written, "--json")
        found = json.loads(out)
        assert sum(found["weights"]) == pytest.approx(1)
        assert found["test_perplexity"] == pytest.approx(found["dev_perplexity"])

    def test_invalid_files_are_refused(self, members: list[RowModel], dev: Path, written: Path, tmp_path: Path) -> None:
        model = members[0].path
        assert "leave out -o" in fails("mix", model, written, "--dev", dev, "-o", tmp_path / "m")
        assert "give one of each" in fails("mix", model, written, "--dev", dev, "--test", dev)
        assert "add at least one model" in fails("mix", written, written, "--dev", dev)
        numbers = written.read_text().split()
        for wrong, said in (
            (numbers[1:], "expected one for each"),
            ([*numbers[1:], "1.5"], "above 0 and up to 1"),
            ([*numbers[1:], "-0.5"], "above 0 and up to 1"),
            ([*numbers[1:], "nan"], "above 0 and up to 1"),
            ([*numbers[1:], "word"], "expected one number for every word"),
        ):
            (tmp_path / "wrong").write_text(" ".join(wrong))
            assert said in fails("mix", model, tmp_path / "wrong", "--dev", dev)
