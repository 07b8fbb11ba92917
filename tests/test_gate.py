"""The gate: kernels against the reference, its gradient, its fitting, and gated models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from snm.evaluation import check_sums
from snm.gate.fitting import PASSES, GateEvents, GateReport, fit, loss_and_gradient
from snm.kernels import gate as gate_kernels
from snm.kernels.matrix import read_row
from snm.kernels.simd import TILE
from snm.layouts.gate import LANES, SCALE, Gate, gate_size, log_of_code
from snm.layouts.matrix import count_codes
from snm.loading import load
from snm.pipeline import train
from snm.reference import paper
from snm.scoring.model import SnmModel
from snm.settings import Settings
from snm.text.encoding import encode_files
from tests.conftest import entry_of, write_bigrams

TEMPLATES, UNITS = 4, 5


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bigrams(tmp_path_factory.mktemp("gate") / "text.txt", 3, 6000, 400, 6)


@pytest.fixture(scope="module")
def gated(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    model = train([text_file], tmp_path_factory.mktemp("gated") / "m", Settings(order=4, threads=1, gate=16, folds=0))
    assert isinstance(model, SnmModel)
    return model


def random_gate(seed: int = 1) -> tuple[np.ndarray, Gate]:
    flat = np.random.default_rng(seed).normal(0, 0.5, gate_size(TEMPLATES, UNITS)).astype(np.float32)
    return flat, Gate.of(flat, TEMPLATES)


def test_a_flat_array_is_split_into_the_parts_of_a_gate() -> None:
    flat, gate = random_gate()
    assert [part.shape for part in gate] == [(TEMPLATES, 4, UNITS), (UNITS,), (TEMPLATES, UNITS), (TEMPLATES,)]
    assert np.array_equal(np.concatenate([part.ravel() for part in gate]), flat)


def test_count_codes_are_exact_to_an_eighth_of_an_octave() -> None:
    counts = np.array([1, 2, 3, 1000, 2**31], np.uint64)
    found = np.exp(log_of_code()[count_codes(counts)] / SCALE)
    np.testing.assert_allclose(found, counts.astype(float), rtol=2 ** (1 / 16) - 1 + 1e-5)


@pytest.mark.parametrize("events", [1, gate_kernels.MAX_FEW, gate_kernels.MAX_FEW + 1, LANES + 1, TILE])
def test_kernel_weights_equal_the_reference(events: int) -> None:
    _, gate = random_gate()
    lengths = np.array([3, 1, 5])
    totals, sums = np.array([7, 1, 300], np.uint64), np.array([0.4, 0.01, 2.5], np.float32)
    kinds = np.array([[2, 0, -1, 1], [2, -1, -1, -1], [2, 1, 2, 0]], np.int64)
    rows = kinds[np.arange(events) % len(kinds)]
    folded = gate.folded(int(count_codes(totals)[2]), 5, 2.5)
    add_row = entry_of(gate_kernels.add_row)
    made, end = gate_kernels.make_rows(TEMPLATES, len(folded.bias)), 0
    for q in range(TEMPLATES):
        made.first[q] = end
        for event in np.flatnonzero(rows[:, q] >= 0):
            r = rows[event, q]
            end = add_row(made, end, event, count_codes(totals)[r], lengths[r], sums[r], np.float32(0))
        made.last[q] = end
    entry_of(gate_kernels.mix)(events, made, folded)
    scale = np.zeros(rows.shape, np.float32)
    for q in range(TEMPLATES):
        part = slice(made.first[q], made.last[q])
        scale[made.event[part], q] = made.scale[part]
    for found, event in zip(scale, rows, strict=True):
        known = [None if r < 0 else (int(totals[r]), int(lengths[r]), float(sums[r])) for r in event]
        assert found.tolist() == pytest.approx(paper.gate_weights(known, gate), rel=1e-5)


def random_events(n: int = 30) -> GateEvents:
    random = np.random.default_rng(7)
    shape = n, TEMPLATES
    here = random.random(shape) < 0.8
    here[:, 0] = True
    row_sum = np.where(here, random.uniform(0.1, 2, shape), 0).astype(np.float32)
    weight = row_sum * random.uniform(0.01, 0.1, shape).astype(np.float32)
    weight[:, 1:][random.random((n, TEMPLATES - 1)) < 0.3] = 0
    return GateEvents(random.integers(0, 80, shape).astype(np.uint8), random.integers(1, 5, shape), row_sum, weight)


def test_the_gradient_is_the_derivative_of_the_loss() -> None:
    flat, _ = random_gate()
    inputs, weights, sums = (part.astype(np.float64) for part in random_events().batch(slice(None)))
    flat = flat.astype(np.float64)
    _, gradient = loss_and_gradient(Gate.of(flat, TEMPLATES), inputs, weights, sums)
    for i in range(0, len(flat), 7):
        losses = []
        for step in (1e-5, -1e-5):
            moved = flat.copy()
            moved[i] += step
            losses.append(loss_and_gradient(Gate.of(moved, TEMPLATES), inputs, weights, sums)[0] / 30)
        assert gradient[i] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-7)


def test_fitting_lowers_the_training_loss() -> None:
    events = random_events(500)
    before = loss_and_gradient(
        Gate.of(np.zeros(gate_size(TEMPLATES, UNITS), np.float32), TEMPLATES), *events.batch(slice(0, 450))
    )[0]
    flat, report = fit(events, UNITS)
    assert report.events == 500
    assert len(report.perplexities) == PASSES
    assert loss_and_gradient(Gate.of(flat, TEMPLATES), *events.batch(slice(0, 450)))[0] < before
    assert fit(events, UNITS)[1] == report, "the same again"


def test_a_gate_that_does_not_help_is_reported() -> None:
    assert not GateReport(10, 50.0, [50.5, 51.0]).helps
    assert GateReport(10, 50.0, [50.5, 49.0]).helps


def test_a_gated_model_is_better_and_sums_to_one(gated: SnmModel, text_file: Path, tmp_path: Path) -> None:
    figures = gated.manifest["gate"]
    assert min(figures["perplexities"]) < figures["ungated"]
    text = encode_files([text_file], gated.vocabulary)
    assert check_sums(gated, text, 200).worst < 1e-6
    again = load(gated.path)
    assert again.perplexity(text).ppl == gated.perplexity(text).ppl


def test_scores_equal_the_reference_from_rows_and_gate(gated: SnmModel, text_file: Path) -> None:
    lines = text_file.read_text().split("\n")[:20]
    scored = gated.score_words(lines)
    for line, words in zip(lines, scored, strict=True):
        tokens = [*gated.context(line).tolist(), 1]
        for k in range(1, len(tokens)):
            keys = gated._keys(np.array(tokens[:k], np.uint32))
            found, _ = gated._look_up(keys, tokens[k], np.array(tokens[:k], np.uint32))
            matrix = gated.matrix
            known: list[tuple[float, int, float] | None] = [
                (2 ** (matrix.unigram_code / 8), int(matrix.unigram_links), float(matrix.unigram_sum))
            ]
            num = [float(matrix.unigrams[tokens[k]])]
            for q in range(1, len(keys)):
                targets, weights = read_row(q, keys[q, 0], matrix)
                known.append(
                    (2 ** (found.code[q, 0] / 8), len(targets), float(weights.sum())) if len(targets) else None
                )
                num.append(float(weights[targets == tokens[k]].sum()))
            scale = paper.gate_weights(known, gated.gate)
            den = sum(s * row[2] for s, row in zip(scale, known, strict=True) if row)
            expected = sum(s * n for s, n in zip(scale, num, strict=True)) / den
            assert 10 ** words[k - 1][1] == pytest.approx(expected, rel=1e-5)


def test_an_explanation_adds_up_and_shows_the_gate(gated: SnmModel) -> None:
    for explanation in gated.explain("w1 w2 w3"):
        assert sum(part.share for part in explanation.parts) == pytest.approx(explanation.probability)
        assert sum(part.weight for part in explanation.parts) == pytest.approx(1)
        assert len({part.gate for part in explanation.parts}) > 1


def test_the_held_out_slice_is_counted_in_the_end(gated: SnmModel, text_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    model = train([text_file], tmp_path / "again", Settings(order=4, threads=1, gate=16, folds=0), notify=said.append)
    assert any("held out" in message for message in said)
    assert any("counting again" in message for message in said)
    assert model.manifest["files"] == gated.manifest["files"], "the same, bit for bit"
    ungated = train([text_file], tmp_path / "ungated", Settings(order=4, threads=1, gate=0, folds=0))
    assert ungated.manifest["gate"] is None
    for name in ("starts",):
        assert ungated.manifest["files"][f"{name}.npy"] == model.manifest["files"][f"{name}.npy"]


def test_with_given_held_out_text_no_slice_is_held_out(text_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train([text_file], tmp_path / "m", Settings(threads=1, gate=8), dev=[text_file], notify=said.append)
    assert not any("held out" in message for message in said)
    assert any("gate" in message for message in said), "it was tried on the text that was given"


def test_too_little_text_has_no_gate_and_a_message(corpus_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    model = train([corpus_file], tmp_path / "m", Settings(threads=1), notify=said.append)
    assert model.manifest["gate"] is None
    assert any("too few" in message for message in said)
    short = tmp_path / "short"
    short.write_text("the cat sat on the mat\n" * 20)
    train([corpus_file], tmp_path / "n", Settings(threads=1), dev=[short], notify=said.append)
    assert any("140 held-out tokens are too few" in message for message in said)
