"""Metafeatures beyond the paper's: diversity, continuation counts, and metafeatures of the user's own."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.adjustment.function import Adjustment
from snm.adjustment.held_out import HeldOut
from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import TrainingSettings
from snm.counts.counting import unigram_counts
from snm.errors import SettingsError, SpecError
from snm.features.extraction import Extractor
from snm.kernels.adjustment import GROUP_EVENTS
from snm.reference import paper
from snm.settings import Settings
from snm.text.encoding import Text
from tests.conftest import SMALL_SKIPS, extractor_of, random_text, store_of, train
from tests.test_parity import (
    WORDS,
    all_counts,
    annotated,
    as_dictionary,
    first_template,
    kernel_gradients,
    key,
    reference_adjustment,
    reference_counts,
)


@snm.metafeature("ending")
def ending(vocabulary, types):  # type: ignore[no-untyped-def]
    """The last letter of the target."""
    return np.array([zlib.crc32(word[-1:].encode()) for word in vocabulary.words])


@snm.metafeature("distance")
def distance(vocabulary, types):  # type: ignore[no-untyped-def]
    """Whether the feature skips words before a target with an even number."""
    even = np.arange(len(vocabulary)) % 2
    return np.array([even * (t.s != 0) for t in types])


METAFEATURES = [
    "lean, type+diversity+link-count",
    "lean, type+continuation",
    "lean, type+ending+link-count, ending",
    "type+feature-count+diversity+link-count, distance+link-count, feature+ending, diversity+continuation+ending",
]


def measured(text: Text, extractor: Extractor, settings: TrainingSettings, folder: Path) -> Adjustment:
    """An adjustment with random weights that has seen the counts of a text."""
    made = Adjustment(extractor, settings, settings.table_slots(0))
    made.table[:, 0] = np.random.default_rng(3).normal(0, 0.1, len(made.table))
    made.measure(unigram_counts(text, extractor), store_of(text, extractor, folder))
    return made


@pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
@pytest.mark.parametrize("names", METAFEATURES)
def test_gradients_and_weights_equal_the_reference(names: str, loss: str, tmp_path: Path) -> None:
    text = random_text(5)
    extractor, metafeatures = extractor_of(SMALL_SKIPS, text, WORDS), MetafeatureSet.parse(names)
    made = measured(text, extractor, TrainingSettings(metafeatures=metafeatures, loss=loss), tmp_path / "counts")
    counts = reference_counts(text, extractor)
    reference = reference_adjustment(extractor, metafeatures, made.table, counts)
    found, _ = kernel_gradients(text, extractor, made, loss == "leave-one-out")
    compared = 0
    for k, (context, target) in enumerate(paper.events(paper.to_sentences(text.tokens))):
        parts = paper.gradients(extractor.spec, counts, reference, context, target, loss == "leave-one-out")
        expected = {key(extractor, feature): pair for feature, pair in parts.items()}
        assert found[k].keys() == expected.keys()
        for feature, pair in expected.items():
            assert found[k][feature] == pytest.approx(pair, rel=1e-6)
            compared += 1
    assert compared > 1000

    whole = all_counts(text, extractor)
    weights, _ = made.weigh(whole, threads=2)
    m = paper.matrix(counts, reference, loss == "leave-one-out")
    expected_weights = {(key(extractor, f), j): v for f, row in m.items() for j, v in row.items()}
    assert as_dictionary(whole, weights) == pytest.approx(expected_weights, rel=1e-6)


@pytest.mark.parametrize("optimiser", ["adagrad", "sgd"])
@pytest.mark.parametrize("names", METAFEATURES)
def test_steps_equal_the_reference(names: str, optimiser: str, tmp_path: Path) -> None:
    text, metafeatures = random_text(11, 12), MetafeatureSet.parse(names)
    extractor = extractor_of("ngram(0..2) + skip(r=1, s=1..3, a=0, tied)", text, WORDS)
    settings = TrainingSettings(optimiser=optimiser, rate=0.05, metafeatures=metafeatures, slots=1 << 22)
    made = Adjustment(extractor, settings, settings.slots or 0)
    made.measure(unigram_counts(text, extractor), store_of(text, extractor, tmp_path / "counts"))
    counts = reference_counts(text, extractor)
    reference = reference_adjustment(extractor, metafeatures, made.table.copy(), counts)
    annotated(text, extractor).train(made, settings, 1, lambda n: None)
    groups: dict[int, list[tuple[paper.Sentence, int, list[paper.Feature]]]] = {}
    events = paper.events(paper.to_sentences(text.tokens))
    for k, (context, target) in zip(np.flatnonzero(text.tokens != 0).tolist(), events, strict=True):
        templates = {f: first_template(extractor, context, f) for f in paper.features_of(extractor.spec, context)}
        groups.setdefault(k // GROUP_EVENTS, []).append((context, target, sorted(templates, key=templates.__getitem__)))
    for group in groups.values():
        paper.train_group(extractor.spec, counts, reference, group, 0.05)
    assert np.count_nonzero(reference.table[:, 0]) > 200
    np.testing.assert_allclose(made.table, reference.table, rtol=1e-5, atol=1e-6)


def test_the_loss_is_that_of_counts_without_the_event(tmp_path: Path) -> None:
    """Diversities are exact under leave-one-out: the summed loss is that of predictions from counts without the event.

    The text has every word of the vocabulary. The row of the empty feature has no diversity of its own here: a word
    that only the vocabulary has counts once.
    """
    text = random_text(19, 30, 8, 8)
    extractor, metafeatures = extractor_of("ngram(1..2)", text, 10), MetafeatureSet.parse(METAFEATURES[0])
    made = measured(text, extractor, TrainingSettings(metafeatures=metafeatures), tmp_path / "counts")
    counts = reference_counts(text, extractor)
    reference = reference_adjustment(extractor, metafeatures, made.table, counts)
    expected, seen = 0.0, set(text.tokens.tolist())
    assert seen == set(range(10))
    for context, target in paper.events(paper.to_sentences(text.tokens)):
        y = paper.left_out_prediction(extractor.spec, counts, reference, context, target)
        expected += paper.poisson_loss(y, target)
    _, loss = kernel_gradients(text, extractor, made, True)
    assert loss == pytest.approx(expected, rel=1e-6)


def test_held_out_perplexity_equals_the_reference(tmp_path: Path) -> None:
    text, other = random_text(13, 25), random_text(17, 10)
    extractor, metafeatures = extractor_of(SMALL_SKIPS, text, WORDS), MetafeatureSet.parse(METAFEATURES[3])
    made = measured(text, extractor, TrainingSettings(metafeatures=metafeatures), tmp_path / "counts")
    counts = reference_counts(text, extractor)
    m = paper.matrix(counts, reference_adjustment(extractor, metafeatures, made.table, counts), True)
    unigrams, store = unigram_counts(text, extractor), store_of(text, extractor, tmp_path / "more")
    expected = paper.perplexity(extractor.spec, m, paper.to_sentences(other.tokens))
    assert HeldOut(other, extractor, unigrams, store).perplexity(made) == pytest.approx(expected, rel=1e-6)


def settings_with(names: str, **more: Any) -> Settings:
    how = TrainingSettings(metafeatures=MetafeatureSet.parse(names), **more)
    return Settings(features=SMALL_SKIPS, threads=1, training=how, engine="cpu")


@pytest.mark.parametrize("loss", ["leave-one-out", "multinomial"])
@pytest.mark.parametrize("names", METAFEATURES[::3])
def test_a_model_sums_to_one_and_opens_without_its_metafeatures(
    names: str, loss: str, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = train([corpus_file], tmp_path / "m", settings_with(names, loss=loss))
    assert made.manifest["training"]["metafeatures"] == str(MetafeatureSet.parse(names))
    monkeypatch.setattr("snm.adjustment.registered._registered", {})
    with snm.load(tmp_path / "m") as model:
        assert model.distribution(model.context("the cat")).sum() == pytest.approx(1)
        assert model.score("the cat sees fish") == made.score("the cat sees fish")
    with pytest.raises(SpecError, match="distance" if "distance" in names else "expected"):
        MetafeatureSet.parse(names + ", unknown")


def test_resuming_and_threads_take_them(corpus_file: Path, tmp_path: Path) -> None:
    plain = train([corpus_file], tmp_path / "a", settings_with(METAFEATURES[3]))
    kept = Settings(**{**vars(settings_with(METAFEATURES[3])), "resume": True, "threads": 2})
    again = train([corpus_file], tmp_path / "b", kept)
    assert again.score("a dog eats cake") == pytest.approx(plain.score("a dog eats cake"), rel=1e-6)


@pytest.mark.parametrize("engine", ["gpu", "ray", "tasks"])
def test_other_engines_refuse_them_in_one_line(engine: str) -> None:
    how = TrainingSettings(metafeatures=MetafeatureSet.parse("lean, type+diversity, ending"))
    with pytest.raises(SettingsError, match="diversity, ending") as error:
        Settings(training=how, engine=engine, work="w")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "made", [np.zeros(3), np.zeros((2, 2), int), np.array(["a"]), -np.ones(6, int), [1 << 32] * 6, None]
)
def test_a_metafeature_that_returns_a_wrong_array_is_refused(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snm.adjustment.registered._registered", {})
    snm.metafeature("wrong")(lambda vocabulary, types: made)
    extractor = extractor_of("ngram(0..2)", random_text(1, 3, 3), 6)
    with pytest.raises(SpecError, match=r"'wrong' returned .*; expected"):
        Adjustment(extractor, TrainingSettings(metafeatures=MetafeatureSet.parse("lean, wrong")), 1 << 12)


@pytest.mark.parametrize("name", ["", "Upper", "type", "lean", "diversity", "a b", 3, None])
def test_a_metafeature_needs_a_plain_name_of_its_own(name: Any) -> None:
    with pytest.raises(SpecError, match="expected lower-case letters"):
        snm.metafeature(name)


def test_coinciding_conjunctions_are_merged() -> None:
    """The feature determines its diversity; type and target determine every class of links."""
    masks = MetafeatureSet.parse("feature, feature+diversity, type+target+ending, type+target").masks()
    assert sorted(masks.values()) == [2, 2]
    assert len(MetafeatureSet.parse("feature, feature+diversity, type+target+ending", merge=False).masks()) == 3


def test_more_classes_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snm.adjustment.registered._registered", dict.fromkeys("abcdefgh"))
    assert len(MetafeatureSet.parse(", ".join("abcdefgh")).classes) == 8
    with pytest.raises(SpecError, match="the most is 8"):
        MetafeatureSet.parse(", ".join("abcdefgh") + ", continuation")
