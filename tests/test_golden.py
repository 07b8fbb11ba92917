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
from snm.evaluation import verify
from snm.text.encoding import encode_lines

GOLDEN = Path(__file__).parent / "golden"
MODELS = sorted(path.with_suffix("") for path in GOLDEN.glob("format*/*.json"))


def test_there_is_a_golden_model_of_every_kind() -> None:
    kinds = {"snm", "backoff", "hsme", "rnn", "mixture", "sources"}
    assert {snm.load(path).manifest["kind"] for path in MODELS} == kinds


@pytest.mark.parametrize("path", MODELS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_golden_model_gives_the_same_probabilities(path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    model = snm.load(path)
    tokens = encode_lines(expected["scored"], model.vocabulary).tokens
    assert model.probabilities(tokens) == pytest.approx(np.array(expected["probabilities"]), rel=1e-5, abs=0)
    found = model.distribution(model.context(expected["context"]))
    assert found == pytest.approx(np.array(expected["distribution"]), rel=1e-5, abs=0)
    assert verify(path, contexts=20).worst < 1e-5
