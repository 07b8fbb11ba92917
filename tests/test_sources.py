"""Models of several sources, and adapted models: the tests of every language model, and those of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import snm
from snm.errors import FormatError, InputError, SettingsError
from snm.evaluation import verify
from snm.gate.fitting import GateEvents, NumpyGateTrainer, balance, refit
from snm.layouts.gate import Gate
from snm.scoring.model import SnmModel
from snm.scoring.sources import SourcesModel
from snm.settings import Settings
from snm.sources import named_sources
from snm.storage import sealed
from snm.text.encoding import encode_lines
from tests.conftest import SMALL_SKIPS
from tests.test_cli import fails, ok, run
from tests.test_model import LanguageModelTests

CLASSES = "ngram(0..2) + class(r=1..2, a=0..1)"


def lines_of(subjects: list[str], verbs: list[str], objects: list[str], n: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [f"{random.choice(subjects)} {random.choice(verbs)} {random.choice(objects)}" for _ in range(n)]


def farm(n: int, seed: int) -> list[str]:
    return lines_of(
        ["the cat", "a dog", "the old man"], ["sees", "likes", "eats"], ["fish", "the cat", "cake"], n, seed
    )


def ship(n: int, seed: int) -> list[str]:
    return lines_of(
        ["the captain", "a sailor", "the old man"], ["sees", "steers", "likes"], ["land", "the ship"], n, seed
    )


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("texts")
    mixed = np.random.default_rng(6).permutation(ship(500, 3) + farm(60, 4)).tolist()
    made = {"farm": farm(400, 1), "ship": ship(300, 2), "dev": mixed, "more": ship(80, 5)}
    return {name: write_lines(folder / f"{name}.txt", lines) for name, lines in made.items()}


def trained(texts: dict[str, Path], folder: Path, **how: object) -> SourcesModel:
    sources = {"farm": texts["farm"], "ship": texts["ship"]}
    settings = Settings(threads=1, gate=8, **{"features": SMALL_SKIPS, **how})  # type: ignore[arg-type]
    model = snm.train(sources, folder / "m", settings, dev=texts["dev"])
    assert isinstance(model, SourcesModel)
    return model


@pytest.fixture(scope="module")
def sources(texts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> SourcesModel:
    return trained(texts, tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def base(texts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    settings = Settings(threads=1, features=CLASSES, classes=8, gate=8)
    model = snm.train(texts["farm"], tmp_path_factory.mktemp("base") / "m", settings, dev=iter(farm(500, 21)))
    assert isinstance(model, SnmModel)
    return model


@pytest.fixture(scope="module")
def joined(base: SnmModel, texts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> SourcesModel:
    model = snm.adapt(base, tmp_path_factory.mktemp("joined") / "m", text=texts["more"], name="ship", threads=1)
    assert isinstance(model, SourcesModel)
    return model


class SourcesTests(LanguageModelTests):
    """Tests of every model of several sources."""

    def test_explanations_add_up_by_source(self, model: SourcesModel) -> None:
        explained, (scored,) = model.explain(self.SENTENCE), model.score_words([self.SENTENCE])
        for explanation, (word, logarithm) in zip(explained, scored, strict=True):
            assert explanation.word == word
            if np.isnan(logarithm):
                continue
            assert explanation.probability == pytest.approx(10**logarithm, rel=1e-6)
            assert sum(part.weight for part in explanation.parts) == pytest.approx(1, rel=1e-6)
            assert set(explanation.sources) <= set(model.manifest["names"])
            assert sum(explanation.sources.values()) == pytest.approx(explanation.probability)
        assert set(explained[0].sources) == set(model.manifest["names"]), "each has a row of the empty feature"

    def test_it_can_be_opened_and_verify_finds_no_fault(self, model: SourcesModel) -> None:
        assert snm.load(model.path).score("the cat") == model.score("the cat")
        assert verify(model.path, contexts=30).worst < 1e-6

    def test_long_texts_are_scored_as_short_ones(self, model: SourcesModel) -> None:
        lines = (farm(300, 7) + ship(300, 8)) * 2
        together = model.score_sentences(lines)
        assert together[::97] == pytest.approx([model.score(line) for line in lines[::97]], rel=1e-6)


class TestSources(SourcesTests):
    @pytest.fixture
    def model(self, sources: SourcesModel) -> SourcesModel:
        return sources

    def test_it_spells(self, model: SourcesModel, tmp_path: Path) -> None:
        """Words that no source has: one spelling model, of the rare words of all sources."""
        assert model.spelling is not None
        assert model.score("the zebra sees land", spelled=True) < model.score("the zebra sees land")
        text = write_lines(tmp_path / "text", ["the zebra sees land"])
        found = json.loads(ok("ppl", model.path, text, "--json"))
        assert found["ppl_spelled"] > found["ppl"]
        adapted = model.adapt(["the zebra sees land"] * 50, tmp_path / "adapted")
        assert adapted.spelling is not None
        assert adapted.spelling.words == model.spelling.words

    def test_the_dev_text_decides(self, model: SourcesModel) -> None:
        """The dev text is mostly of the second source, which the gate prefers, where its rows say something."""
        shares = model.explain("the old man steers the ship")[2].sources
        assert shares["ship"] > shares["farm"]
        assert min(model.manifest["gate"]["perplexities"]) < model.manifest["gate"]["ungated"]


@pytest.fixture(scope="module")
def closed(texts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> SourcesModel:
    return trained(texts, tmp_path_factory.mktemp("classes"), features=CLASSES, classes=8, closed=True)


class TestClasses(SourcesTests):
    """With word classes and a closed vocabulary."""

    @pytest.fixture
    def model(self, closed: SourcesModel) -> SourcesModel:
        return closed

    def test_all_sources_have_the_same_words_and_classes(self, model: SourcesModel) -> None:
        first, second = model.members
        assert first.model.vocabulary == second.model.vocabulary == model.vocabulary
        assert first.extractor.classes is not None
        assert second.extractor.classes is not None
        assert np.array_equal(first.extractor.classes, second.extractor.classes)


class TestJoined(SourcesTests):
    """A text that joined a finished model."""

    @pytest.fixture
    def model(self, joined: SourcesModel) -> SourcesModel:
        return joined

    def test_new_words_are_predicted(self, model: SourcesModel, base: SnmModel) -> None:
        assert "captain" not in base.vocabulary.ids
        assert dict(model.next_words("the", k=20))["captain"] > 0.01
        assert model.vocabulary.words[: len(base.vocabulary)] == base.vocabulary.words
        assert model.manifest["requires"] == ["union"]

    def test_it_spells(self, model: SourcesModel, base: SnmModel) -> None:
        """With the rare words of the model and those of the text that joined."""
        assert model.spelling is not None
        assert base.spelling is not None
        known = model.spelling.outside(model.vocabulary).known
        assert model.spelling.known == pytest.approx(known)
        assert model.score("the zebra sees land", spelled=True) < model.score("the zebra sees land")

    def test_the_new_domain_gains(self, model: SourcesModel, base: SnmModel) -> None:
        new = ship(100, 9)
        assert model.perplexity(new).ppl_no_oov < 0.5 * base.perplexity(new).ppl

    def test_the_old_files_are_shared(self, model: SourcesModel, base: SnmModel) -> None:
        assert os.path.samefile(model.path / "member0" / "data.npy", base.path / "data.npy")

    def test_another_text_can_join(self, model: SourcesModel, texts: dict[str, Path], tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="has a source ship already"):
            snm.adapt(model, tmp_path / "m", text=texts["more"], name="ship")
        more = [f"a whale eats {word}" for word in ("krill", "fish", "cake")] * 10
        wider = snm.adapt(model, tmp_path / "m", text=iter(more), dev=iter(more), name="sea", threads=1)
        assert wider.manifest["names"] == ["base", "ship", "sea"]
        assert wider.distribution(wider.context("the whale eats")).sum() == pytest.approx(1)


def test_a_closed_model_is_joined_exactly(texts: dict[str, Path], tmp_path: Path) -> None:
    closed = snm.train(texts["farm"], tmp_path / "closed", Settings(threads=1, order=3, closed=True))
    model = snm.adapt(closed, tmp_path / "m", text=texts["more"], threads=1)
    for words in ("", "the captain", "the old man unheard-of"):
        p = model.distribution(model.context(words))
        assert p.sum() == pytest.approx(1)
        assert p[snm.Vocabulary.unknown] == 0
    assert model.score("the captain sees land") > -10
    tokens = encode_lines(["a captain eats cake"], model.vocabulary).tokens
    p = model.probabilities(tokens)
    for k in range(1, len(tokens)):
        assert p[k] == pytest.approx(model.distribution(tokens[:k])[tokens[k]], rel=1e-6)


class TestAdaptedGate:
    def test_the_gate_learns_and_the_rest_is_shared(self, base: SnmModel, tmp_path: Path) -> None:
        new = [f"the old man eats {word}" for word in ("fish", "cake")] * 200
        adapted = base.adapt(new, tmp_path / "m")
        assert adapted.perplexity(new).ppl < base.perplexity(new).ppl
        assert os.path.samefile(adapted.path / "data.npy", base.path / "data.npy")
        assert not os.path.samefile(adapted.path / "gate.npy", base.path / "gate.npy")
        assert verify(adapted.path, contexts=20).worst < 1e-6

    def test_a_few_words_change_little(self, base: SnmModel, tmp_path: Path) -> None:
        adapted = base.adapt(["fish eats the old"], tmp_path / "m")
        assert adapted.score("the cat sees fish") == pytest.approx(base.score("the cat sees fish"), rel=0.02)

    def test_a_model_of_sources_adapts(self, sources: SourcesModel, tmp_path: Path) -> None:
        new = farm(300, 11)
        adapted = snm.adapt(sources, tmp_path / "m", dev=iter(new))
        assert isinstance(adapted, SourcesModel)
        assert adapted.perplexity(new).ppl < sources.perplexity(new).ppl

    def test_a_model_without_a_gate_gets_one(self, texts: dict[str, Path], tmp_path: Path) -> None:
        plain = snm.train(texts["farm"], tmp_path / "a", Settings(threads=1, order=3, gate=0))
        adapted = plain.adapt(texts["farm"], tmp_path / "b")
        assert adapted.manifest["gate"]["units"] == 64
        assert adapted.score("the cat sees fish") != plain.score("the cat sees fish")


def random_events(seed: int = 1) -> GateEvents:
    random, shape = np.random.default_rng(seed), (500, 4)
    sums = random.random(shape).astype(np.float32) + 0.1
    weights = (sums * random.random(shape) * [1, 0.2, 0.2, 0.9]).astype(np.float32)
    return GateEvents(random.integers(0, 200, shape).astype(np.uint8), np.ones(shape, np.float32), sums, weights)


def test_balance_finds_the_best_constant() -> None:
    events, flat = random_events(), np.zeros(4, np.float32)
    found = Gate.of(balance(events, flat, [(2, 4)]), 4).offset
    assert found[0] == found[1] == 0
    assert found[2] == found[3] != 0

    def loss(constant: float) -> float:
        return NumpyGateTrainer(np.array([0, 0, constant, constant], np.float32), events).loss(slice(None))

    assert loss(found[2]) == min(loss(constant) for constant in np.linspace(-8, 4, 25))


def test_refitting_pulls_to_the_start() -> None:
    start = np.random.default_rng(3).normal(0, 0.3, 4 * 4 * 3 + 3 + 4 * 3 + 4).astype(np.float32)
    changes = []
    for n in (5, 500):
        events = random_events().first(n)
        flat, report = refit(events, start)
        changes.append(float(np.abs(flat - start).max()))
        assert report.perplexities[0] <= report.ungated
    assert changes[0] < changes[1]


# ---------------------------------------------------------------------------------------------
# what users give


def test_names_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("real=name.txt").write_text("a\n")
    Path("a.txt").write_text("a\n")
    assert named_sources(["a.txt", "real=name.txt"]) == ["a.txt", "real=name.txt"]
    assert named_sources(["x=real=name.txt", "y=a.txt"]) == {"x": "real=name.txt", "y": "a.txt"}
    assert named_sources(["s3://bucket/a=b"]) == ["s3://bucket/a=b"]
    with pytest.raises(SettingsError, match="has no name, others have"):
        named_sources(["x=a.txt", "a.txt"])
    with pytest.raises(SettingsError, match="'x' is there twice"):
        named_sources(["x=a.txt", "x=b.txt"])
    for odd in ("a b=a.txt", "=a.txt", "é!=a.txt", ".=a.txt"):
        with pytest.raises(SettingsError, match="a source is named"):
            named_sources([odd])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": []}, "the source x has no text"),
        ({"x": iter([" ", ""]), "y": iter(["the cat"] * 9)}, "the source x .* has no words"),
        ({"y": iter(["the cat"] * 9), "x": iter([])}, "the source x .* has no words"),
        ({}, "no sources given"),
        ({"x": "-"}, "- can be read only once; the texts of sources are read several times: give files"),
        ({"x": "no-such-file"}, "no such file"),
        ({3: "a.txt"}, "a source is named 3"),
    ],
)
def test_wrong_sources_are_refused(given: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises((SettingsError, InputError), match=message):
        snm.train(given, tmp_path / "m", Settings(threads=1, order=2), dev=iter(["the cat"]))
    assert not (tmp_path / "m").exists()


def test_an_empty_source_is_noticed_before_the_work(texts: dict[str, Path], tmp_path: Path) -> None:
    empty = write_lines(tmp_path / "empty", [" ", ""])
    sources = [f"farm={texts['farm']}", f"none={empty}"]
    found = run("train", *sources, "--dev", texts["dev"], "-o", tmp_path / "m", "--preset", "snm2")
    assert found.exit_code == 2
    assert f"the source none ({empty}) has no words" in found.stderr
    assert "farm:" not in found.stderr


def test_a_dev_text_is_needed(texts: dict[str, Path], tmp_path: Path) -> None:
    error = fails("train", f"farm={texts['farm']}", f"ship={texts['ship']}", "-o", tmp_path / "m", "--preset", "snm2")
    assert "several sources need a dev text" in error
    for how in ({"model": "kn"}, {"resume": True}):
        with pytest.raises(SettingsError, match=r"is not for several sources|does not use it"):
            snm.train({"a": texts["farm"]}, tmp_path / "m", Settings(**how), dev=texts["dev"])


def test_a_dev_text_of_one_line_and_a_source_in_another_script(texts: dict[str, Path], tmp_path: Path) -> None:
    sources = {"farm": texts["farm"], "greek": iter(["η γάτα βλέπει ψάρι", "ένας σκύλος τρώει ψάρι"] * 20)}
    model = snm.train(sources, tmp_path / "m", Settings(threads=1, order=3), dev=iter(["a dog eats fish"]))
    for words in ("the cat", "η γάτα", "ψάρι cake"):
        assert model.distribution(model.context(words)).sum() == pytest.approx(1)
    assert model.score("a dog eats cake") > model.score("ένας σκύλος eats cake")


def test_wrong_adaptations_are_refused(base: SnmModel, corpus_file: Path, tmp_path: Path) -> None:
    kneser_ney = snm.train(corpus_file, tmp_path / "kn", Settings(model="kn", order=2, threads=1))
    with pytest.raises(SettingsError, match="has a gate that can adapt"):
        kneser_ney.adapt(["the cat"], tmp_path / "m")
    with pytest.raises(SettingsError, match="is no SNM"):
        snm.adapt(kneser_ney, tmp_path / "m", dev=corpus_file)
    with pytest.raises(InputError, match="no words to adapt to"):
        base.adapt([" "], tmp_path / "m")
    with pytest.raises(InputError, match="no text of the new domain"):
        snm.adapt(base, tmp_path / "m")
    with pytest.raises(InputError, match="a single line"):
        snm.adapt(base, tmp_path / "m", text=iter(["the captain sees land"]))
    with pytest.raises(SettingsError, match="a source is named"):
        snm.adapt(base, tmp_path / "m", text=iter(["the cat"] * 9), name="a/b")
    assert "expected --dev, --text, or both" in fails("adapt", base.path, "-o", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_damaged_members_are_noticed(sources: SourcesModel, texts: dict[str, Path], tmp_path: Path) -> None:
    made = trained(texts, tmp_path, order=2, features=None)
    path = made.path / "manifest.json"
    manifest = json.loads(path.read_text())
    for change in ({"names": ["one"]}, {"members": ["..", "member1"]}, {"gate": {"units": 3}}):
        path.write_bytes(sealed({**manifest, **change}))
        with pytest.raises(FormatError, match=r"damaged|the gate has"):
            snm.load(made.path)


def test_the_commands(texts: dict[str, Path], tmp_path: Path) -> None:
    sources = [f"farm={texts['farm']}", f"ship={texts['ship']}"]
    ok("train", *sources, "--dev", texts["dev"], "-o", tmp_path / "m", "--preset", "snm3", "--threads", "1")
    assert "from ship" in ok("explain", tmp_path / "m", "the captain sees land")
    assert "farm, ship" in ok("info", tmp_path / "m")
    ok("adapt", tmp_path / "m", "--dev", texts["more"], "-o", tmp_path / "a")
    more = ok("adapt", tmp_path / "m", "--text", texts["more"], "--name", "more", "-o", tmp_path / "b", "--json")
    assert json.loads(more)["kind"] == "sources"
    ok("verify", tmp_path / "b", texts["more"])
