"""Products in 16-bit integers: against NumPy's, and that a row's do not depend on the other rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snm.baselines.neural.layer import RecurrentLayer
from snm.baselines.neural.products import Rows, Weights
from snm.kernels.products import BLOCK, MAX_SUM, OUTPUTS, ROWS


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(weights: Weights, outputs: int, inputs: int) -> np.ndarray:
    """The integers of packed weights, as a plain matrix. (outputs, inputs)"""
    plain = weights.tiles.transpose(0, 2, 1, 3).reshape(-1, 2 * weights.tiles.shape[1])
    return plain[:outputs, :inputs].astype(np.int64)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2 * ROWS + 1), st.integers(1, 70), st.integers(1, 2 * OUTPUTS + 3), st.integers(0, 99))
def test_products_are_those_of_the_integers(n: int, inputs: int, outputs: int, seed: int) -> None:
    x, w, biases = numbers(seed, n, inputs), numbers(seed + 1, outputs, inputs), numbers(seed + 2, outputs)
    weights, rows = Weights(w, biases), Rows.of(x)
    exact = rows.numbers[:, :inputs].astype(np.int64) @ integers(weights, outputs, inputs).T
    factors = rows.scales[:, None].astype(np.float64) * weights.scales[:outputs]
    made = weights.products(rows)
    assert made == pytest.approx(exact * factors + biases, rel=1e-6, abs=1e-5)
    assert made == pytest.approx(x @ w.T + biases, abs=2e-3 * np.sqrt(inputs))


def test_a_row_does_not_depend_on_the_others() -> None:
    weights, x = Weights(numbers(1, 100, 48)), numbers(2, 2 * BLOCK + 5, 48)
    together = weights.products(x)
    for first, last in ((0, 1), (3, 5), (7, 13), (90, 101), (BLOCK, 2 * BLOCK + 5)):
        assert np.array_equal(weights.products(x[first:last]), together[first:last])


@pytest.mark.parametrize("inputs", [1, 2, 12, 128, 512, 2048])
def test_no_sum_overflows(inputs: int) -> None:
    """Of numbers that are all at their maximum, which are the largest sums."""
    x, w = np.ones((3, inputs), np.float32), np.full((4, inputs), 7.0, np.float32)
    weights, rows = Weights(w), Rows.of(x)
    assert int(np.abs(integers(weights, 4, inputs)).sum(axis=1).max()) * int(rows.numbers.max()) <= MAX_SUM
    assert weights.products(rows) == pytest.approx(np.full((3, 4), 7.0 * inputs), rel=2e-3)


def test_zeros_and_outputs_that_are_none() -> None:
    w = numbers(3, 5, 6)
    w[2] = 0
    weights = Weights(w, np.arange(5, dtype=np.float32), np.array([4, -1, 2]))
    padded = weights.padded(np.zeros((2, 6), np.float32))
    assert padded.shape == (2, OUTPUTS)
    assert padded[:, 0].tolist() == [4, 4]
    assert padded[:, 2].tolist() == [2, 2]
    assert np.isneginf(np.delete(padded[0], [0, 2])).all()


def layer_of(cell: str, hidden: int, embedding: int) -> tuple[RecurrentLayer, dict[str, np.ndarray]]:
    gates = {"rnn": 1, "lstm": 4}[cell] * hidden
    arrays = {
        "vectors.0": numbers(1, 9, embedding), "layer.weight_ih_l0": 0.3 * numbers(2, gates, embedding),
        "layer.weight_hh_l0": 0.1 * numbers(3, gates, hidden), "layer.bias_ih_l0": numbers(4, gates),
        "layer.bias_hh_l0": numbers(5, gates),
    }  # fmt: skip
    return RecurrentLayer({"hidden": hidden, "cell": cell}, arrays), arrays


def slow_states(cell: str, arrays: dict[str, np.ndarray], words: np.ndarray, hidden: int) -> np.ndarray:
    """The hidden states before each word of a sentence, in double precision."""
    h = c = np.zeros(hidden)
    states = [h]
    w = {name: array.astype(np.float64) for name, array in arrays.items()}
    for word in words[:-1]:
        z = w["layer.weight_ih_l0"] @ w["vectors.0"][word] + w["layer.weight_hh_l0"] @ h
        z += w["layer.bias_ih_l0"] + w["layer.bias_hh_l0"]
        if cell == "rnn":
            h = np.tanh(z)
        else:
            enter, forget, new, leave = np.split(z, 4)
            c = c / (1 + np.exp(-forget)) + np.tanh(new) / (1 + np.exp(-enter))
            h = np.tanh(c) / (1 + np.exp(-leave))
        states.append(h)
    return np.array(states)


@pytest.mark.parametrize("cell", ["rnn", "lstm"])
@pytest.mark.parametrize(("hidden", "embedding"), [(1, 1), (16, 5), (37, 20), (64, 64)])
def test_layers(cell: str, hidden: int, embedding: int) -> None:
    """A layer against double precision; and steps, of any rows, against whole sentences: the same bits."""
    layer, arrays = layer_of(cell, hidden, embedding)
    random = np.random.default_rng(7)
    lengths = random.integers(1, 12, 2 * ROWS + 3)
    begins = np.cumsum(lengths) - lengths
    tokens = random.integers(0, 9, lengths.sum()).astype(np.uint32)
    states = layer.run(tokens, begins, lengths)
    for begin, length in zip(begins, lengths, strict=True):
        here = slice(begin, begin + length)
        assert states[here] == pytest.approx(slow_states(cell, arrays, tokens[here], hidden), abs=2e-3)
    memory = layer.start(len(begins))
    for t in range(int(lengths.max()) - 1):
        memory = layer.step(tokens[np.minimum(begins + t, len(tokens) - 1)], memory)
        longer = np.flatnonzero(lengths > t + 1)
        assert np.array_equal(memory[0][longer], states[begins[longer] + t + 1])
