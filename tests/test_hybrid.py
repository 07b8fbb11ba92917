"""Hybrids: the tests of every language model, and those of their own."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import snm
from snm.decoding import build_ctcdecoder
from snm.errors import FormatError, InputError, SettingsError
from snm.evaluation import verify
from snm.gate.events import gate_events
from snm.reference import decoding as reference
from snm.scoring.hybrid import HybridModel
from snm.scoring.members import events_of
from snm.settings import HYBRIDS, Settings
from snm.storage import sealed
from snm.text.encoding import encode_lines
from tests.channel import LABELS, logits_of
from tests.conftest import SMALL_SKIPS
from tests.test_cli import fails, ok
from tests.test_model import LanguageModelTests
from tests.test_sources import farm, write_lines

GOLDEN = Path(__file__).parent / "golden" / "format3"


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("dev") / "dev.txt", farm(600, 11))


@pytest.fixture(scope="module")
def parts(corpus_file: Path, model_path: Path) -> list[Path]:
    """An SNM, a Kneser-Ney model of the same text, and a smaller one with another vocabulary."""
    kn, other = corpus_file.parent / "hybrid-kn", corpus_file.parent / "hybrid-other"
    if not kn.exists():
        snm.train(corpus_file, kn, Settings(model="kn", order=3, threads=1))
        lines = [line for line in farm(80, 3) if "fish" not in line]
        snm.train(iter(lines), other, Settings(model="kn", order=2, threads=1))
    return [kn, model_path, other]


@pytest.fixture(scope="module")
def mixed(parts: list[Path], dev: Path, tmp_path_factory: pytest.TempPathFactory) -> HybridModel:
    return snm.mix_gated(parts[:2], dev, tmp_path_factory.mktemp("hybrid") / "m", units=8)


@pytest.fixture(scope="module")
def trained(corpus_file: Path, dev: Path, tmp_path_factory: pytest.TempPathFactory) -> HybridModel:
    pytest.importorskip("torch")
    network = snm.NetworkSettings(hidden=12, passes=3, rate=0.02, batch=128, dropout=0.1)
    settings = Settings(model="hybrid", features=SMALL_SKIPS, gate=8, network=network, threads=1, engine="cpu")
    model = snm.train(corpus_file, tmp_path_factory.mktemp("trained") / "m", settings, dev=dev)
    assert isinstance(model, HybridModel)
    return model


class HybridTests(LanguageModelTests):
    def test_explanations_add_up_by_member(self, model: HybridModel) -> None:
        explained, (scored,) = model.explain(self.SENTENCE), model.score_words([self.SENTENCE])
        for explanation, (word, logarithm) in zip(explained, scored, strict=True):
            assert explanation.word == word
            if np.isnan(logarithm):
                continue
            assert explanation.probability == pytest.approx(10**logarithm, rel=1e-6)
            assert sum(part.weight for part in explanation.parts) == pytest.approx(1, rel=1e-6)
            assert sum(explanation.sources.values()) == pytest.approx(explanation.probability)
            assert set(explanation.sources) == set(model.manifest["names"])

    def test_verify(self, model: HybridModel) -> None:
        assert verify(model.path, contexts=20).worst < 1e-6

    def test_copies(self, model: HybridModel) -> None:
        assert pickle.loads(pickle.dumps(model)).score("the cat") == model.score("the cat")

    def test_long_texts_are_scored_as_short_ones(self, model: HybridModel) -> None:
        lines = farm(700, 7)
        together = model.score_sentences(lines)
        assert together[::97] == pytest.approx([model.score(line) for line in lines[::97]], rel=1e-6)

    def test_adapting(self, model: HybridModel, tmp_path: Path) -> None:
        text = farm(400, 31)
        adapted = model.adapt(text, tmp_path / "a")
        assert isinstance(adapted, HybridModel)
        assert adapted.perplexity(text).ppl < 1.001 * model.perplexity(text).ppl
        assert adapted.manifest["names"] == model.manifest["names"]
        with pytest.raises(SettingsError, match="is a hybrid, which text cannot join"):
            snm.adapt(model, tmp_path / "b", text=iter(text))


class TestMixed(HybridTests):
    @pytest.fixture
    def model(self, mixed: HybridModel) -> HybridModel:
        return mixed

    def test_better_than_static_weights(self, model: HybridModel, parts: list[Path], dev: Path, tmp_path: Path) -> None:
        static = snm.mix(parts[:2], dev, tmp_path / "static")
        test = farm(600, 12)
        assert model.perplexity(test).ppl < 1.02 * static.perplexity(test).ppl

    def test_rows_of_events(self, model: HybridModel) -> None:
        """What the gate learns from: the rows of the SNM alone, and one more, whose sum is one."""
        text = encode_lines(farm(30, 5), model.vocabulary)
        (member,), (other,) = model.members, model.others
        found = events_of([member], text, [other])
        alone = gate_events(member.extractor, member.matrix, text)
        n = member.templates
        assert found.templates == n + 1
        assert (found.sums[:, n] == 1).all()
        assert np.array_equal(found.weights[:, :n], alone.weights)
        p = other.model.probabilities(text.tokens)
        assert found.weights[:, n] == pytest.approx(p[p > 0], rel=1e-6)


class TestVocabulariesThatDiffer(HybridTests):
    @pytest.fixture
    def model(self, parts: list[Path], dev: Path, tmp_path: Path) -> HybridModel:
        return snm.mix_gated(parts, dev, tmp_path / "m", units=8)


class TestClosed(HybridTests):
    @pytest.fixture
    def model(self, corpus_file: Path, dev: Path, tmp_path: Path) -> HybridModel:
        common = {"threads": 1, "closed": True}
        members = [
            snm.train(corpus_file, tmp_path / "s", Settings(features=SMALL_SKIPS, gate=0, **common)),  # type: ignore[arg-type]
            snm.train(corpus_file, tmp_path / "k", Settings(model="kn", order=3, **common)),  # type: ignore[arg-type]
        ]
        return snm.mix_gated(members, dev, tmp_path / "m", units=8)


class TestTrained(HybridTests):
    @pytest.fixture
    def model(self, trained: HybridModel) -> HybridModel:
        return trained

    def test_members(self, model: HybridModel) -> None:
        assert model.manifest["names"] == ["snm", "lstm"]
        assert model.spelling is not None
        test = farm(300, 13)
        alone = [member.perplexity(test).ppl for member in model.models]
        assert model.perplexity(test).ppl < 1.01 * min(alone)


def test_the_commands(parts: list[Path], dev: Path, tmp_path: Path, corpus_file: Path) -> None:
    out = tmp_path / "m"
    ok("mix", *parts[:2], "--gated", "--dev", dev, "-o", out)
    assert "members       hybrid-kn, small.model" in ok("info", out)
    assert "all words before" in ok("explain", out, "the cat sees fish")
    assert json.loads(ok("ppl", out, dev, "--json"))["ppl"] > 1
    assert "--gated needs -o" in fails("mix", *parts[:2], "--gated", "--dev", dev)
    assert "no member is an SNM" in fails("mix", parts[0], parts[2], "--gated", "--dev", dev, "-o", tmp_path / "n")
    assert not (tmp_path / "n").exists()
    for arguments, expected in (
        (("--preset", "hybrid", "--model", "kn"), "--preset hybrid is a hybrid; leave out --model kn"),
        (("--preset", "hybrid", "--document"), "--document would have no effect"),
        (("--preset", "hybrid", "--size", "1G"), "--size would have no effect"),
        (("--preset", "hybrid", "--order", "4"), "--order would have no effect"),
        (("--preset", "hybrid", "--gate", "0"), "gate=0 is not for hybrids"),
        (("--preset", "hybrid", "--loss", "multinomial"), "the multinomial loss is not for hybrids"),
        (("--preset", "hybrids"), "expected one of small, medium, large"),
    ):
        assert expected in fails("train", corpus_file, "-o", tmp_path / "n", *arguments)


def test_a_beam_search_with_a_network(trained: HybridModel) -> None:
    """The scores of the texts that are found are those that the model gives them word by word."""
    decoder, words = build_ctcdecoder(LABELS, trained), frozenset(trained.vocabulary.words[3:])
    oracle = reference.Search(LABELS, step=trained.step, begin=trained.start(), words=words, order=1 << 16, width=8)
    logits = logits_of("the cat sees fish", 0.3, np.random.default_rng(5))
    found, expected = decoder.decode_beams(logits, 8), reference.decode(logits.astype(np.float64), oracle)
    assert found[0].text == expected[0][0]
    assert [beam.lm_score for beam in found[:5]] == pytest.approx([total for *_, total in expected[:5]], abs=1e-4)


def test_presets_are_specifications() -> None:
    for features, units in HYBRIDS.values():
        assert Settings(model="hybrid", features=features, network=snm.NetworkSettings(hidden=units)).spec.types


def test_bad_input(parts: list[Path], tmp_path: Path, mixed: HybridModel) -> None:
    with pytest.raises(InputError, match="no words"):
        snm.mix_gated(parts, iter([""]), tmp_path / "m")
    with pytest.raises(SettingsError, match="units is 0"):
        snm.mix_gated(parts, iter(["the cat"]), tmp_path / "m", units=0)
    one = snm.mix_gated(parts, iter(["the cat sees fish"]), tmp_path / "one")
    assert one.distribution(one.context("the")).sum() == pytest.approx(1, abs=1e-6)
    cached = snm.train(iter(farm(300, 1)), tmp_path / "c", Settings(features="ngram(0..1) + cache()", threads=1))
    if cached.spec.caches:  # type: ignore[attr-defined]
        with pytest.raises(SettingsError, match="has a cache"):
            snm.mix_gated([parts[0], cached], iter(farm(30, 1)), tmp_path / "d")
    manifest = json.loads((one.path / "manifest.json").read_text())
    manifest["members"] = ["member0", "member2"]
    (one.path / "manifest.json").write_bytes(sealed(manifest))
    with pytest.raises(FormatError):
        snm.load(one.path)


def test_the_slow_reader_agrees(mixed: HybridModel, parts: list[Path], dev: Path, tmp_path: Path) -> None:
    from snm.reference.format import read_model

    for model in (mixed, snm.mix_gated(parts, dev, tmp_path / "m", units=8)):
        slow, context = read_model(model.path), model.context("the cat").tolist()
        found = [slow.probability(context, word) for word in range(len(model.vocabulary))]
        assert found == pytest.approx(model.distribution(model.context("the cat")).tolist(), rel=1e-5, abs=1e-12)
