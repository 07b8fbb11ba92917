"""Models that earlier versions wrote, in `tests/golden`: all later versions must give the same probabilities.

Each folder `formatN` was written by the code that introduced the format, with that code's probabilities. The last bits
may differ between processors, because their fused operations and vector widths differ.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import snm
from snm.baselines.neural.settings import OUTPUTS
from snm.evaluation import verify
from snm.manifest import ENTRIES, EXTENSIONS
from snm.text.encoding import encode_lines

GOLDEN = Path(__file__).parent / "golden"
MODELS = sorted(path.with_suffix("") for path in GOLDEN.glob("format*/*.json"))


def test_there_is_a_golden_model_of_every_kind() -> None:
    assert {snm.load(path).manifest["kind"] for path in MODELS} == set(ENTRIES)


def test_there_is_a_golden_model_of_every_part_of_the_format() -> None:
    manifests = [json.loads(path.read_text()) for path in GOLDEN.glob("format*/**/manifest.json")]
    assert {name for manifest in manifests for name in manifest.get("requires", [])} == set(EXTENSIONS)
    assert {manifest["network"]["softmax"] for manifest in manifests if "network" in manifest} == {*OUTPUTS}
    assert any("spelling" in manifest for manifest in manifests)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_golden_model_gives_the_same_probabilities(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    model = snm.load(path)
    tokens = encode_lines(expected["scored"], model.vocabulary).tokens
    assert model.probabilities(tokens) == pytest.approx(np.array(expected["probabilities"]), rel=1e-5, abs=0)
    found = model.distribution(model.context(expected["context"]))
    assert found == pytest.approx(np.array(expected["distribution"]), rel=1e-5, abs=0)
    if "spelled" in expected:
        scores = model.score_sentences(expected["scored"], spelled=True)
        assert scores == pytest.approx(expected["spelled"], rel=1e-5, abs=0)
    assert verify(path, contexts=20).worst < 1e-5
