"""Choosing settings by held-out text."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import snm
from snm.adjustment.metafeatures import MetafeatureSet
from snm.cli.main import main
from snm.errors import InputError, SettingsError
from snm.planning import tuning
from snm.planning.tuning import MIN_GAIN, NO_LINK_WEIGHTS, Trial, Tuning
from snm.settings import Settings
from tests.conftest import write_bigrams

SETTINGS = Settings(features="ngram(0..1) + class(r=1, a=0)", classes=16, threads=1, min_count=1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning")
    write_bigrams(folder / "text", 1, 300, 40, 8)
    write_bigrams(folder / "dev", 2, 300, 40, 8)
    return folder


@pytest.fixture(scope="module")
def tuned(texts: Path) -> tuple[Tuning, list[str]]:
    said: list[str] = []
    made = snm.tune(
        [str(texts / "text")], SETTINGS, seconds=600, keep=["metafeatures"], dev=[str(texts / "dev")],
        notify=said.append,
    )  # fmt: skip
    return made, said


def test_the_best_settings_are_kept(tuned: tuple[Tuning, list[str]]) -> None:
    made, said = tuned
    assert made.complete
    assert made.trials[0].setting == ""
    assert {trial.setting for trial in made.trials} == {"", "classes", "prune", "rate"}
    best = made.trials[0].perplexity
    for trial in made.trials[1:]:
        assert trial.kept == (
            trial.perplexity < best * (1 - tuning.MIN_GAINS.get((trial.setting, trial.value), MIN_GAIN))
        )
        best = trial.perplexity if trial.kept else best
    kept = {trial.setting: trial.value for trial in made.trials[1:] if trial.kept}
    assert made.chosen == {"metafeatures": "lean", "classes": 16, "prune": 2, "rate": 0.1} | kept
    s = made.settings
    assert (s.classes, s.prune) == (made.chosen["classes"], made.chosen["prune"])
    assert s.training.learning_rate() == made.chosen["rate"]
    assert len([line for line in said if line.startswith("tuning: ")]) == len(made.trials)


def test_the_manifest_says_how_settings_were_chosen(
    tuned: tuple[Tuning, list[str]], texts: Path, tmp_path: Path
) -> None:
    made, _ = tuned
    model = snm.train(texts / "text", tmp_path / "m", made.settings)
    entry = json.loads((tmp_path / "m" / "manifest.json").read_text())["tuning"]
    assert entry["chosen"] == made.chosen
    assert [Trial(**trial) for trial in entry["trials"]] == made.trials
    assert model.manifest["training"]["prune"] == made.chosen["prune"]


def test_metafeatures_that_are_tried() -> None:
    changed = tuning._with(SETTINGS, "metafeatures", "all")
    assert changed.training.metafeatures.conjunctions == MetafeatureSet.parse("all").conjunctions
    assert tuning._alternatives(SETTINGS, "metafeatures") == [NO_LINK_WEIGHTS, "all"]
    assert tuning._alternatives(changed, "metafeatures") == [NO_LINK_WEIGHTS]
    assert tuning._alternatives(Settings(features="snm2"), "classes") == []


def test_the_time_is_bounded(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every look takes a second: a second trial would end after the fourth."""
    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=count().__next__))
    made = snm.tune([str(texts / "text")], SETTINGS, seconds=3.5, dev=[str(texts / "dev")])
    assert not made.complete
    assert [trial.setting for trial in made.trials] == [""]
    assert made.settings.training == SETTINGS.training


def test_what_cannot_be_tuned(texts: Path, tmp_path: Path) -> None:
    text = [str(texts / "text")]
    for wrong, what in (
        ({"settings": Settings(model="kn")}, "tuning is for an SNM"),
        ({"seconds": 0}, "expected a number above 0"),
        ({"keep": ["gate"]}, "expected some of metafeatures, classes, prune, rate"),
    ):
        with pytest.raises(SettingsError, match=what):
            snm.tune(text, **wrong)
    for other in (True, "small", {}, object()):
        with pytest.raises(SettingsError, match=r"expected snm\.Settings"):
            snm.tune(text, other)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="give files"):
        snm.tune(iter(["a b"]), SETTINGS)  # type: ignore[arg-type]
    (tmp_path / "little").write_text("a b\n" * 100)
    with pytest.raises(InputError, match="too few to choose settings by"):
        snm.tune([str(tmp_path / "little")], SETTINGS)
    result = CliRunner().invoke(main, ["train", text[0], "-o", str(tmp_path / "m"), "--paper", "--tune", "5"])
    assert result.exit_code == 2
    assert "--tune would have no effect with --paper" in result.output


def test_the_command(texts: Path, tmp_path: Path) -> None:
    arguments = ["--features", "snm2", "--threads", "1", "--dev", str(texts / "dev"), "--rate", "0.2", "--tune", "0.1"]
    result = CliRunner().invoke(main, ["train", str(texts / "text"), "-o", str(tmp_path / "m"), *arguments])
    assert result.exit_code == 0, result.output
    assert "not everything was tried: --metafeatures lean --prune 2 --rate 0.2" in result.output
    assert snm.load(tmp_path / "m").manifest["tuning"]["complete"] is False
