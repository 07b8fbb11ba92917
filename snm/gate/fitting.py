"""The gate: how much each row of an event counts, learned on held-out text.

The Poisson loss fits every row of M by itself and does not see that the rows of an event are normalised together,
nor which other rows are there. The gate does: a network of one hidden layer sees of every template whether its feature
has a row, the row's count, its diversity and its sum, and answers with one weight a template, exp(B_q). Numerator and
denominator of Eq. prob are both linear in those weights:

    P(j) = sum over q of exp(B_q) M_qj  /  sum over q of exp(B_q) (sum over u of M_qu)

so probabilities still sum to one, and the loss of an event costs nothing for the other words of the vocabulary.
It must be text that the counts have not seen: on the training text itself the long contexts look certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from snm.layouts.gate import INPUTS, MAX_GATE, Gate, gate_size, row_inputs

PASSES, RATE = 12, 2e-3
STEPS_PER_PASS, SMALLEST_BATCH, LARGEST_BATCH = 256, 64, 2048
CHECKED_SHARE = 0.1  # of the held-out text, to see whether the gate helps
MIN_EVENTS = 2000  # with less held-out text there is nothing to learn from


@dataclass
class GateReport:
    """Held-out perplexity of the part that was kept back, without the gate and after each pass over the rest."""

    events: int
    ungated: float
    perplexities: list[float]

    @property
    def helps(self) -> bool:
        return bool(self.perplexities) and min(self.perplexities) < self.ungated


class GateEvents:
    """Held-out events under a fixed M: what the gate sees of each template, M_qj of the target, and the row sum."""

    def __init__(self, code: np.ndarray, length: np.ndarray, row_sum: np.ndarray, weight: np.ndarray) -> None:
        """All (events, templates); a row sum of zero where there is no row."""
        self.templates = code.shape[1]
        self.codes, self.lengths, self.sums, self.weights = code, length, row_sum, weight

    @classmethod
    def empty(cls, events: int, templates: int) -> GateEvents:
        """Room for so many events."""
        return cls(*(np.empty((events, templates), kind) for kind in (np.uint8, np.float32, np.float32, np.float32)))

    def first(self, n: int) -> GateEvents:
        """The first n events."""
        return GateEvents(self.codes[:n], self.lengths[:n], self.sums[:n], self.weights[:n])

    @staticmethod
    def bytes_needed(templates: int) -> int:
        """Of one event."""
        return 13 * templates

    def __len__(self) -> int:
        return len(self.sums)

    def batch(self, chosen: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs (events, templates * INPUTS), M of the targets and row sums (events, templates).

        Inputs are made here: kept for all events they would take more memory than all the rest.
        """
        sums = self.sums[chosen]
        inputs = row_inputs(self.codes[chosen], self.lengths[chosen], sums)
        return inputs.reshape(len(inputs), -1), self.weights[chosen], sums


class GateTrainer(Protocol):
    """A gate that is being learned."""

    def step(self, chosen: np.ndarray, rate: float) -> None:
        """A step by these events."""

    def loss(self, chosen: slice) -> float:
        """Summed loss of events."""

    def weights(self) -> np.ndarray:
        """A copy of the gate's flat array."""


def fit(
    events: GateEvents, units: int, seed: int = 1, advance: Callable[[int], None] = lambda n: None,
    trainer: Callable[[np.ndarray], GateTrainer] | None = None,
) -> tuple[np.ndarray, GateReport]:  # fmt: skip
    """The gate's flat array of the best pass, and how it went. A tenth of the text, its end, judges.

    `trainer` makes what takes the steps from the flat array that they begin with: NumPy where nothing is said.
    """
    templates = events.templates
    random = np.random.default_rng(seed)
    flat = np.zeros(gate_size(templates, units), np.float32)
    gate = Gate.of(flat, templates)
    width = 1 / math.sqrt(templates * INPUTS)
    gate.hidden[:] = random.uniform(-width, width, gate.hidden.shape)
    made = NumpyGateTrainer(flat, events) if trainer is None else trainer(flat)
    n = len(events) - int(len(events) * CHECKED_SHARE)

    def perplexity() -> float:
        parts = range(n, len(events), 4096)
        total = sum(made.loss(slice(start, min(start + 4096, len(events)))) for start in parts)
        return math.exp(total / max(1, len(events) - n))

    report = GateReport(len(events), perplexity(), [])
    best = flat.copy()
    batch = min(max(n // STEPS_PER_PASS, SMALLEST_BATCH), LARGEST_BATCH)
    done, steps = 0, PASSES * -(-n // batch)
    with threadpool_limits(1, "blas"):  # matrices this small gain nothing from more, and lose much on a busy machine
        for _ in range(PASSES):
            order = random.permutation(n)
            for start in range(0, n, batch):
                chosen = order[start : start + batch]
                done += 1
                made.step(chosen, RATE * _schedule(done / steps))
                advance(len(chosen))
            report.perplexities.append(perplexity())
            if report.perplexities[-1] == min(report.perplexities):
                best = made.weights()
    return best, report


def _schedule(done: float) -> float:
    """The learning rate's share: up over the first tenth of the steps, then down to zero."""
    return min(done / 0.1, (1 - done) / 0.9) if done < 1 else 0.0


def loss_and_gradient(
    gate: Gate, inputs: np.ndarray, weights: np.ndarray, sums: np.ndarray, with_gradient: bool = True
) -> tuple[float, np.ndarray]:
    """Summed multinomial loss of a batch, and the gradient of its mean as a flat array."""
    templates, _, units = gate.hidden.shape
    first = gate.hidden.reshape(templates * INPUTS, units)
    hidden = np.maximum(inputs @ first + gate.bias, 0)
    b = hidden @ gate.output.T + gate.offset
    scale = np.exp(np.clip(b, -MAX_GATE, MAX_GATE))
    numerators, denominators = scale * weights, scale * sums
    numerator = numerators.sum(axis=1, keepdims=True)
    denominator = denominators.sum(axis=1, keepdims=True)
    loss = float((np.log(denominator) - np.log(numerator)).sum(dtype=np.float64))
    if not with_gradient:
        return loss, np.empty(0, np.float32)
    d_b = (denominators / denominator - numerators / numerator) / np.float32(len(inputs))
    d_b[np.abs(b) > MAX_GATE] = 0
    d_hidden = d_b @ gate.output
    d_hidden[hidden <= 0] = 0
    parts = inputs.T @ d_hidden, d_hidden.sum(axis=0), d_b.T @ hidden, d_b.sum(axis=0)
    return loss, np.concatenate([part.ravel() for part in parts])


class NumpyGateTrainer:
    """A gate that NumPy learns, by Kingma and Ba's optimiser, Adam."""

    def __init__(self, flat: np.ndarray, events: GateEvents) -> None:
        self.flat, self.events, self.steps = flat.copy(), events, 0
        self.gate = Gate.of(self.flat, events.templates)
        self._mean, self._square = np.zeros_like(flat), np.zeros_like(flat)

    def step(self, chosen: np.ndarray, rate: float) -> None:
        _, gradient = loss_and_gradient(self.gate, *self.events.batch(chosen))
        self.steps += 1
        self._mean += np.float32(0.1) * (gradient - self._mean)
        self._square += np.float32(0.001) * (gradient * gradient - self._square)
        rate *= math.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        self.flat -= np.float32(rate) * self._mean / (np.sqrt(self._square) + np.float32(1e-8))

    def loss(self, chosen: slice) -> float:
        return loss_and_gradient(self.gate, *self.events.batch(chosen), with_gradient=False)[0]

    def weights(self) -> np.ndarray:
        return self.flat.copy()
