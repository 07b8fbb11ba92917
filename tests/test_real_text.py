"""Models of real text; skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from snm.evaluation import check_sums
from snm.features.specification import PRESETS
from snm.pipeline import train
from snm.settings import Settings
from snm.text.encoding import encode_files
from snm.text.sampling import sample_sentences
from tests.conftest import shared_data


@pytest.fixture(scope="module")
def wikitext() -> Path:
    return shared_data("wikitext-2")


@pytest.mark.parametrize(("preset", "ratio"), [("snm5", 0.98), ("small", 0.86)])
def test_better_than_kneser_ney(preset: str, ratio: float, wikitext: Path, tmp_path: Path) -> None:
    """Against modified Kneser-Ney of order 5 (KenLM: 224.81 on the test text), with the training text alone."""
    model = train([wikitext / "train.txt.xz"], tmp_path / "m", Settings(features=preset))
    report = model.perplexity(encode_files([wikitext / "test.txt.xz"], model.vocabulary), threads=2)
    assert report.ppl < ratio * 224.81


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_sums_to_one_on_real_contexts(preset: str, wikitext: Path, tmp_path: Path) -> None:
    """Trained on little text, so the test text has many unknown words."""
    model = train([wikitext / "valid.txt.xz"], tmp_path / "m", Settings(features=preset, folds=0))
    text = sample_sentences(encode_files([wikitext / "test.txt.xz"], model.vocabulary), 20_000, 1)
    report = check_sums(model, text, 1000)
    assert report.contexts == 1000
    assert report.at_start >= 90
    assert report.with_unknown >= 100
    assert report.worst < 1e-5
