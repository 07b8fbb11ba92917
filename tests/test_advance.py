"""Scores of all words after many states on a device, beside those of the CPU's kernels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.errors import SettingsError
from snm.settings import Settings
from tests.conftest import SMALL_SKIPS, train, write_bigrams

torch = pytest.importorskip("torch")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
FEATURES = {
    "n-grams": "snm5",
    "skips and classes": f"{SMALL_SKIPS} + class(r=1..2, s=0..1, words=1..2)",
    "medium": "medium",
}


@pytest.fixture(scope="module", params=FEATURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> snm.SnmModel:
    folder = tmp_path_factory.mktemp("advance")
    text = write_bigrams(folder / "text.txt", 3, 3000, 60, 4)
    found: Any = train([text], folder / "a.model", Settings(features=FEATURES[request.param], threads=1))
    return found  # type: ignore[no-any-return]


def states_of(model: snm.SnmModel, n: int = 50) -> np.ndarray:
    """States after random beginnings of sentences, some of them of unknown words."""
    random, state = np.random.default_rng(1), model.start()
    found = [state]
    while len(found) < n:
        word = int(random.integers(2, len(model.vocabulary)))
        state = model.start() if random.random() < 0.1 else model.step(state, word)[1]
        found.append(state)
    return model.state_array(found)


@pytest.mark.parametrize("device", DEVICES)
def test_the_scores_are_those_of_the_cpu(model: snm.SnmModel, device: str) -> None:
    states = states_of(model)
    words = np.arange(len(model.vocabulary), dtype=np.uint32)
    expected = model.expand(states, words) * math.log(10)
    moved = model.to(device)
    ids = torch.from_numpy((states ^ np.uint32(model.vocabulary.tag)).astype(np.int64)).to(device)
    scores, after = moved.advance(ids)
    found = scores.double().cpu().numpy()
    known = ~np.isnan(expected)
    np.testing.assert_allclose(found[known], expected[known], atol=1e-4)
    assert np.isneginf(found[~known]).all()
    np.testing.assert_allclose(np.exp(found).sum(1), 1.0, atol=1e-4)
    np.testing.assert_allclose(moved.get_final(ids).cpu(), expected[:, 1], atol=1e-4)
    beams, chosen = np.array([0, 3, 3, 49]), np.array([4, 5, 6, 4])
    following = model.follow(states, words, beams * len(words) + chosen) ^ np.uint32(model.vocabulary.tag)
    assert (after[torch.from_numpy(beams), torch.from_numpy(chosen)].cpu().numpy() == following).all()
    assert after.shape == (50, len(words), model.state_width)


def test_a_beginning_and_a_step(model: snm.SnmModel) -> None:
    moved = model.to("cpu")
    states = moved.get_init_states(2)
    scores, after = moved.advance(states)
    first = model.step(model.start(), "w1")
    assert float(scores[0, model.vocabulary.ids["w1"]]) == pytest.approx(first[0] * math.log(10), abs=1e-4)
    column = torch.tensor([model.vocabulary.ids["w1"], model.vocabulary.ids["w2"]])
    states = moved.follow(states, column)
    assert (states == after[torch.arange(2), column]).all()
    second = model.step(first[1], "w7")[0] * math.log(10)
    assert float(moved.advance(states)[0][0, model.vocabulary.ids["w7"]]) == pytest.approx(second, abs=1e-4)
    assert torch.isfinite(moved.advance(moved.get_init_states(1, bos=False))[0][0, 1:]).all()


def test_columns_are_labels(model: snm.SnmModel) -> None:
    moved, labelled = model.to("cpu"), model.to("cpu", labels=["w5", "nowhere", "w2"])
    states = moved.get_init_states(1)
    ids = model.vocabulary.ids
    expected = moved.advance(states)[0][0, [ids["w5"], ids["<UNK>"], ids["w2"]]]
    scores, after = labelled.advance(states)
    assert torch.equal(scores[0], expected)
    assert int(after[torch.tensor([0]), torch.tensor([2])][0, -1]) == ids["w2"]
    assert int(labelled.follow(states, torch.tensor([0]))[0, -1]) == ids["w5"]


def test_errors_are_one_line(model: snm.SnmModel, tmp_path: Path) -> None:
    moved = model.to("cpu")
    wrong: list[Any] = [
        lambda: model.to("nowhere"),
        lambda: model.to("cpu", labels=["zebra"]),
        lambda: model.to("cpu", labels="abc"),
        lambda: moved.advance(torch.zeros((2, 1), dtype=torch.int64)),
        lambda: moved.advance(torch.zeros((2, moved.width))),
        lambda: moved.get_init_states(0),
        lambda: moved.advance(moved.get_init_states(1))[1][0],
        lambda: snm.load(Path(__file__).parent / "golden" / "kneser-ney.arpa").to("cpu"),
    ]
    for call in wrong:
        with pytest.raises(SettingsError) as error:
            call()
        assert "\n" not in str(error.value)
