"""A gate learned from all of the text, in folds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm import pipeline
from snm.adjustment.settings import TrainingSettings
from snm.errors import InputError, SettingsError
from snm.preparing import folds_for
from snm.scoring.model import SnmModel
from snm.settings import Settings
from snm.text.encoding import Text, encode_files
from snm.text.sampling import folds_of
from tests.conftest import random_text, train, write_bigrams

FOLDED = Settings(order=4, threads=1, gate=16, folds=3)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bigrams(tmp_path_factory.mktemp("folds") / "text.txt", 3, 1500, 200, 4)


@pytest.fixture(scope="module")
def folded(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    model = train([text_file], tmp_path_factory.mktemp("folded") / "m", FOLDED)
    assert isinstance(model, SnmModel)
    return model


@pytest.mark.parametrize("folds", [2, 3, 10, 40])
def test_folds_are_the_text_in_parts(folds: int) -> None:
    text = random_text(1, 40)
    parts = list(folds_of(text, folds))
    assert np.array_equal(np.concatenate([fold.tokens for _, fold in parts]), text.tokens)
    assert sum(fold.sentences for _, fold in parts) == text.sentences
    for rest, fold in parts:
        assert rest.sentences + fold.sentences == text.sentences
        assert sorted([*rest.tokens, *fold.tokens]) == sorted(text.tokens)
        assert (rest.tokens[0], rest.tokens[-1]) == (0, 1)


def test_documents_stay_whole_in_folds() -> None:
    tokens = np.array([0, 5, 1, 6, 1, 0, 7, 1, 0, 8, 1], np.uint32)
    folds = [fold for _, fold in folds_of(Text(tokens, 4, 3), 3)]
    assert [fold.tokens.tolist() for fold in folds] == [[0, 5, 1, 6, 1], [0, 7, 1], [0, 8, 1]]
    assert [(fold.sentences, fold.documents) for fold in folds] == [(2, 1), (1, 1), (1, 1)]


def test_the_gate_learns_from_every_event_and_the_counts_lose_none(
    folded: SnmModel, text_file: Path, tmp_path: Path
) -> None:
    text = encode_files([text_file], folded.vocabulary)
    assert folded.manifest["gate"]["events"] == text.events
    assert folded.manifest["gate"]["folds"] == 3
    assert folded.distribution(folded.context("w1 w2")).sum() == pytest.approx(1)
    ungated = train([text_file], tmp_path / "ungated", replace(FOLDED, gate=0, folds=None))
    assert ungated.manifest["links"] == folded.manifest["links"]
    for name in ("starts", "data", "values"):  # the adjustment is learned from all of the text too
        assert ungated.manifest["files"][f"{name}.npy"] == folded.manifest["files"][f"{name}.npy"]


def test_a_fold_is_seen_by_neither_counts_nor_weights(text_file: Path, tmp_path: Path) -> None:
    """The perplexity that training reports is that of held-out text: near that of new text, far from the text's own."""
    new = write_bigrams(tmp_path / "new.txt", 3, 3000, 200, 4)
    new.write_text("\n".join(new.read_text().split("\n")[1500:]))  # goes on where the text ends
    model = train([text_file], tmp_path / "m", FOLDED)
    held_out = min(model.manifest["gate"]["perplexities"])
    own, other = (model.perplexity(encode_files([path], model.vocabulary)).ppl for path in (text_file, new))
    assert held_out == pytest.approx(other, rel=0.1)
    assert held_out > 1.3 * own


def test_one_thread_gives_the_same_bits(folded: SnmModel, text_file: Path, tmp_path: Path) -> None:
    again = train([text_file], tmp_path / "again", FOLDED)
    assert again.manifest["files"] == folded.manifest["files"]


def test_a_cache_is_weighed_by_folds(tmp_path: Path) -> None:
    lines = write_bigrams(tmp_path / "lines", 5, 600, 60, 4).read_text().split("\n")
    text = tmp_path / "documents"
    text.write_text("\n\n".join("\n".join(lines[k : k + 10]) for k in range(0, 600, 10)))
    settings = Settings(features="ngram(0..1) + cache(a=0, words=50, half=20)", document=True, threads=1, folds=2)
    model = train([text], tmp_path / "m", settings)
    assert model.manifest["requires"] == ["cache"]
    assert model.manifest["gate"]["folds"] == 2


def test_resuming_keeps_the_gate(
    folded: SnmModel, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, calls, choose = replace(FOLDED, resume=True), [], pipeline.choose_events

    def fail(*arguments: Any) -> None:
        raise KeyboardInterrupt

    def fail_after_the_folds(*arguments: Any) -> Any:
        calls.append(arguments)
        return choose(*arguments) if len(calls) <= 3 else fail()

    with monkeypatch.context() as patch:
        patch.setattr("snm.pipeline.choose_events", fail_after_the_folds)
        with pytest.raises(KeyboardInterrupt):
            train([text_file], tmp_path / "m", settings)
    monkeypatch.setattr("snm.pipeline.fold_events", fail)
    model = train([text_file], tmp_path / "m", settings)
    assert model.manifest["files"] == folded.manifest["files"]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"folds": 1}, "expected 2 or more"),
        ({"folds": -1}, "folds"),
        ({"folds": 3, "gate": 0}, "leave out folds"),
        ({"folds": 3, "size": 1 << 30}, "leave out folds"),
        ({"folds": 3, "training": TrainingSettings(passes=2)}, "leave out folds"),
        ({"folds": 3, "training": TrainingSettings(loss="multinomial")}, "leave out folds"),
        ({"folds": 3, "model": "kn"}, "leave out folds"),
    ],
)
def test_folds_that_would_have_no_effect_are_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        Settings(**wrong)


def test_more_folds_than_sentences_and_dev_text_are_refused(text_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 sentences"):
        snm.train(iter(["a b", "c d"]), tmp_path / "m", replace(FOLDED, min_count=1))
    with pytest.raises(SettingsError, match="dev"):
        snm.train(text_file, tmp_path / "m", FOLDED, dev=[text_file])


def test_a_few_sentences_have_no_gate_and_a_message(tmp_path: Path) -> None:
    said: list[str] = []
    model = snm.train(iter(["a b", "c d"] * 20), tmp_path / "m", FOLDED, notify=said.append)
    assert model.manifest["gate"] is None
    assert any("too few" in message for message in said)


def test_little_text_is_folded_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    text, settings = write_bigrams(tmp_path / "text", 7, 4000, 300, 6), Settings(order=4, threads=1, gate=16)
    said: list[str] = []
    assert train([text], tmp_path / "m", settings, notify=said.append).manifest["gate"]["folds"] == 4
    assert any("4 parts of the text" in message for message in said)
    assert train([text], tmp_path / "n", replace(settings, folds=0)).manifest["gate"]["folds"] == 0
    assert train([text], tmp_path / "d", settings, dev=[text]).manifest["gate"]["folds"] == 0
    long = encode_files([text], snm.load(tmp_path / "m").vocabulary)
    assert [folds_for(settings, n, False) for n in (39_999, 40_000, 2_000_000, 2_000_001)] == [0, 4, 4, 0]
    assert long.events > 40_000


def test_a_document_or_two_are_too_few_to_fold(tmp_path: Path) -> None:
    text = write_bigrams(tmp_path / "text", 7, 4000, 50, 4)
    text.write_text("\n\n" + text.read_text().replace("\n", "\n", 1))
    model = train([text], tmp_path / "m", Settings(order=2, threads=1, gate=8, document=True))
    assert model.manifest["gate"] is None
