"""The gate: against its slow twin, its gradient, what it does to a model."""

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
from tests.conftest import write_bigrams

SLOTS, COMPONENTS = 4, 5


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bigrams(tmp_path_factory.mktemp("gate") / "text.txt", 3, 6000, 400, 6)


@pytest.fixture(scope="module")
def gated(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> SnmModel:
    model = train([text_file], tmp_path_factory.mktemp("gated") / "m", Settings(order=4, threads=1, gate=16))
    assert isinstance(model, SnmModel)
    return model


def random_gate(seed: int = 1) -> tuple[np.ndarray, Gate]:
    flat = np.random.default_rng(seed).normal(0, 0.5, gate_size(SLOTS, COMPONENTS)).astype(np.float32)
    return flat, Gate.of(flat, SLOTS)


def test_a_flat_array_is_cut_into_the_gates_parts() -> None:
    flat, gate = random_gate()
    assert [part.shape for part in gate] == [(SLOTS, 4, COMPONENTS), (COMPONENTS,), (SLOTS, COMPONENTS), (SLOTS,)]
    assert np.array_equal(np.concatenate([part.ravel() for part in gate]), flat)


def test_counts_are_kept_to_an_eighth_of_an_octave() -> None:
    counts = np.array([1, 2, 3, 1000, 2**31], np.uint64)
    found = np.exp(log_of_code()[count_codes(counts)] / SCALE)
    np.testing.assert_allclose(found, counts.astype(float), rtol=2 ** (1 / 16) - 1 + 1e-5)


@pytest.mark.parametrize("events", [1, gate_kernels.FEW, gate_kernels.FEW + 1, LANES + 1, TILE])
def test_the_kernels_weights_are_the_oracles(events: int) -> None:
    _, gate = random_gate()
    lengths = np.array([3, 1, 5])
    totals, sums = np.array([7, 1, 300], np.uint64), np.array([0.4, 0.01, 2.5], np.float32)
    kinds = np.array([[2, 0, -1, 1], [2, -1, -1, -1], [2, 1, 2, 0]], np.int64)
    rows = kinds[np.arange(events) % len(kinds)]
    folded = gate.folded(int(count_codes(totals)[2]), 5, 2.5)
    made, end = gate_kernels.make_rows(SLOTS, len(folded.bias)), 0
    for q in range(SLOTS):
        made.first[q] = end
        for event in np.flatnonzero(rows[:, q] >= 0):
            r = rows[event, q]
            end = gate_kernels.add_row(made, end, event, count_codes(totals)[r], lengths[r], sums[r], np.float32(0))
        made.last[q] = end
    gate_kernels.mix(events, made, folded)
    scale = np.zeros(rows.shape, np.float32)
    for q in range(SLOTS):
        part = slice(made.first[q], made.last[q])
        scale[made.event[part], q] = made.scale[part]
    for found, event in zip(scale, rows, strict=True):
        known = [None if r < 0 else (int(totals[r]), int(lengths[r]), float(sums[r])) for r in event]
        assert found.tolist() == pytest.approx(paper.gate_weights(known, gate), rel=1e-5)


def random_events(n: int = 30) -> GateEvents:
    random = np.random.default_rng(7)
    shape = n, SLOTS
    here = random.random(shape) < 0.8
    here[:, 0] = True
    row_sum = np.where(here, random.uniform(0.1, 2, shape), 0).astype(np.float32)
    weight = row_sum * random.uniform(0.01, 0.1, shape).astype(np.float32)
    weight[:, 1:][random.random((n, SLOTS - 1)) < 0.3] = 0
    return GateEvents(random.integers(0, 80, shape).astype(np.uint8), random.integers(1, 5, shape), row_sum, weight)


def test_the_gradient_is_that_of_the_loss() -> None:
    flat, _ = random_gate()
    inputs, weights, sums = (part.astype(np.float64) for part in random_events().batch(slice(None)))
    flat = flat.astype(np.float64)
    _, gradient = loss_and_gradient(Gate.of(flat, SLOTS), inputs, weights, sums)
    for i in range(0, len(flat), 7):
        losses = []
        for step in (1e-5, -1e-5):
            moved = flat.copy()
            moved[i] += step
            losses.append(loss_and_gradient(Gate.of(moved, SLOTS), inputs, weights, sums)[0] / 30)
        assert gradient[i] == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-4, abs=1e-7)


def test_fitting_lowers_the_loss_of_what_it_sees() -> None:
    events = random_events(500)
    before = loss_and_gradient(
        Gate.of(np.zeros(gate_size(SLOTS, COMPONENTS), np.float32), SLOTS), *events.batch(slice(0, 450))
    )[0]
    flat, report = fit(events, COMPONENTS)
    assert report.events == 500
    assert len(report.perplexities) == PASSES
    assert loss_and_gradient(Gate.of(flat, SLOTS), *events.batch(slice(0, 450)))[0] < before
    assert fit(events, COMPONENTS)[1] == report, "the same again"


def test_a_gate_that_does_not_help_is_told_apart() -> None:
    assert not GateReport(10, 50.0, [50.5, 51.0]).helps
    assert GateReport(10, 50.0, [50.5, 49.0]).helps


def test_a_gated_model_is_better_and_sums_to_one(gated: SnmModel, text_file: Path, tmp_path: Path) -> None:
    figures = gated.manifest["gate"]
    assert min(figures["perplexities"]) < figures["ungated"]
    text = encode_files([text_file], gated.vocabulary)
    assert check_sums(gated, text, 200).worst < 1e-6
    again = load(gated.path)
    assert again.perplexity(text).ppl == gated.perplexity(text).ppl


def test_scores_are_what_the_oracle_makes_of_rows_and_gate(gated: SnmModel, text_file: Path) -> None:
    lines = text_file.read_text().split("\n")[:20]
    scored = gated.score_words(lines)
    for line, words in zip(lines, scored, strict=True):
        tokens = [*gated.context(line).tolist(), 1]
        for k in range(1, len(tokens)):
            keys = gated._keys(np.array(tokens[:k], np.uint32))
            found, _ = gated._look_up(keys, tokens[k])
            pages = gated.matrix
            known: list[tuple[float, int, float] | None] = [
                (2 ** (pages.unigram_code / 8), int(pages.unigram_links), float(pages.unigram_sum))
            ]
            num = [float(pages.unigrams[tokens[k]])]
            for q in range(1, len(keys)):
                targets, weights = read_row(q, keys[q, 0], pages)
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


def test_the_slice_set_aside_is_counted_in_the_end(gated: SnmModel, text_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    model = train([text_file], tmp_path / "again", Settings(order=4, threads=1, gate=16), notify=said.append)
    assert any("held out" in message for message in said)
    assert any("counting again" in message for message in said)
    assert model.manifest["files"] == gated.manifest["files"], "the same, bit for bit"
    ungated = train([text_file], tmp_path / "ungated", Settings(order=4, threads=1, gate=0))
    assert ungated.manifest["gate"] is None
    for name in ("starts",):
        assert ungated.manifest["files"][f"{name}.npy"] == model.manifest["files"][f"{name}.npy"]


def test_given_held_out_text_nothing_is_set_aside(text_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train([text_file], tmp_path / "m", Settings(threads=1, gate=8), dev=[text_file], notify=said.append)
    assert not any("held out" in message for message in said)
    assert any("gate" in message for message in said), "it was tried on the text that was given"


def test_too_little_text_has_no_gate_and_says_so(corpus_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    model = train([corpus_file], tmp_path / "m", Settings(threads=1), notify=said.append)
    assert model.manifest["gate"] is None
    assert any("too few" in message for message in said)
    short = tmp_path / "short"
    short.write_text("the cat sat on the mat\n" * 20)
    train([corpus_file], tmp_path / "n", Settings(threads=1), dev=[short], notify=said.append)
    assert any("140 held-out tokens are too few" in message for message in said)
