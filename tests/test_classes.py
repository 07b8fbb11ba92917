"""Word classes: learning them, and models that use them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from snm.errors import SettingsError, SpecError
from snm.evaluation import check_sums
from snm.features.specification import FeatureSpec
from snm.loading import load
from snm.pipeline import train
from snm.scoring.model import SnmModel
from snm.settings import Settings
from snm.text.classes import default_classes, learn_classes
from snm.text.encoding import Text
from tests.conftest import extractor_of, random_text, text_of

FEATURES = "ngram(0..2) + class(r=1..2, a=0..1)"


def grammar(sentences: int = 2000) -> Text:
    """Nouns, verbs and adjectives of ten words each, always in the order adjective noun verb."""
    random = np.random.default_rng(4)
    return text_of([(3 + random.integers(0, 10, 3) + np.array([0, 10, 20])).tolist() for _ in range(sentences)])


def likelihood(text: Text, classes: np.ndarray) -> float:
    """Log likelihood of the classes of a text under their own bigram model, less that of words in classes."""
    seen = classes[text.tokens].tolist()
    pairs, singles = Counter(itertools.pairwise(seen)), Counter(seen)
    log = sum(n * math.log(n) for n in pairs.values())
    return log - 2 * sum(n * math.log(n) for n in singles.values())


def test_words_of_one_part_of_speech_share_a_class() -> None:
    classes = learn_classes(grammar(), 33, 6)
    assert classes.dtype == np.uint16
    assert classes[:3].tolist() == [0, 1, 2]
    for start in (3, 13, 23):
        assert len(set(classes[start : start + 10].tolist())) == 1
    assert len(set(classes.tolist())) == 6


def test_classes_beat_random_ones_and_are_reproducible() -> None:
    text = random_text(2, 400, 30, 20)
    found = learn_classes(text, 32, 8)
    assert np.array_equal(found, learn_classes(text, 32, 8))
    random = np.random.default_rng(1)
    for _ in range(20):
        other = np.concatenate([[0, 1, 2], random.integers(3, 8, 29)])
        assert likelihood(text, found) > likelihood(text, other)


def test_more_classes_than_words_and_words_that_never_occur() -> None:
    classes = learn_classes(text_of([[3, 4]]), 6, 100)
    assert len(classes) == 6
    assert len(set(classes[:5].tolist())) == 5


@pytest.mark.parametrize("wrong", [3, 1 << 17])
def test_too_few_or_too_many_classes_are_refused(wrong: int) -> None:
    with pytest.raises(SettingsError, match="expected"):
        learn_classes(grammar(10), 33, wrong)


@pytest.mark.parametrize("text", ["class(r=0, a=1)", "class(a=1..2, r=0..1)", "class(s=0)", "class(r=1, s=1..*, a=0)"])
def test_invalid_class_features_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        FeatureSpec(text)


def test_a_class_specification_is_parsed() -> None:
    spec = FeatureSpec("class(r=1..2, a=0) + class(r=1, s=1..3, a=1, tied)")
    assert FeatureSpec(spec.text) == spec
    assert [str(t) for t in spec.types] == ["1-gram", "class (1, 0, 0)", "class (2, 0, 0)", "class (1, *, 1)"]


def test_features_by_class_need_classes() -> None:
    with pytest.raises(SpecError, match="use classes"):
        extractor_of(FEATURES, grammar(5), 33)


def test_a_model_with_classes(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(33)]
    text = tmp_path / "text"
    tokens = grammar(800).tokens.tolist()
    text.write_text(" ".join("\n" if t == 1 else words[t] for t in tokens if t != 0))
    settings = Settings(features=FEATURES, threads=1, classes=6, prune=1)
    model = train([text], tmp_path / "m", settings)
    assert isinstance(model, SnmModel)
    again = load(model.path)
    assert again.score("w3 w14 w25") == model.score("w3 w14 w25")
    assert check_sums(model, random_text(3, 20, 30), 50).worst < 1e-6
    parts = model.explain("w3 w14")[1].parts
    assert "[~w3]" in [part.feature for part in parts]
    assert "[~<S> w3]" in [part.feature for part in parts]
    plain = train([text], tmp_path / "plain", Settings(order=1, threads=1))
    assert model.score("w3 w14 w25") > plain.score("w3 w14 w25")


def test_a_little_text_has_few_classes() -> None:
    assert [default_classes(tokens) for tokens in (1, 2_000_000, 2_000_001)] == [64, 64, 256]
