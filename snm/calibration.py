"""The gate: how much each row of an event counts, learned on held-out text.

The Poisson loss fits every row of M by itself and does not see that the rows of an event are normalised together,
nor which other rows are there. The gate does: a network of one hidden layer sees of every slot whether its feature
has a row, the row's count, its diversity and its sum, and answers with one weight a slot, exp(B_q). Numerator and
denominator of Eq. prob are both linear in those weights:

    P(j) = sum over q of exp(B_q) M_qj  /  sum over q of exp(B_q) (sum over u of M_qu)

so probabilities still sum to one, and the loss of an event costs nothing for the other words of the vocabulary.
It must be text that the counts have not seen: on the training text itself the long contexts look certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

INPUTS = 4  # of a slot: log C_i*, log of distinct targets over C_i*, log of the row sum, and 1 where there is a row
SCALE = 0.2  # of the logarithms, which so come near 1
CODES_AN_OCTAVE = 8  # C_i* is kept to an eighth of an octave: a byte a row
LARGEST = 15.0  # of |B|
SMALLEST = np.finfo(np.float32).tiny
LANES = 16  # units that the kernels take together
PASSES, RATE = 12, 2e-3
STEPS_A_PASS, SMALLEST_BATCH, LARGEST_BATCH = 256, 64, 2048
CHECKED_SHARE = 0.1  # of the held-out text, to see whether the gate helps
LEAST_EVENTS = 2000  # with less held-out text there is nothing to learn from


class Gate(NamedTuple):
    """The network's weights, as the kernels take them; one flat array on disk."""

    hidden: np.ndarray  # (slots, INPUTS, units) float32
    bias: np.ndarray  # (units,)
    output: np.ndarray  # (slots, units)
    offset: np.ndarray  # (slots,)

    @classmethod
    def of(cls, flat: np.ndarray, slots: int) -> Gate:
        """Views of a flat array; the gate of an array of `slots` zeros has no units and changes nothing."""
        units = (len(flat) - slots) // (slots * INPUTS + 1 + slots)
        ends = np.cumsum([slots * INPUTS * units, units, slots * units])
        hidden, bias, output, offset = np.split(flat, ends)
        return cls(hidden.reshape(slots, INPUTS, units), bias, output.reshape(slots, units), offset)

    def folded(self, code: int, links: float, row_sum: float) -> Gate:
        """The same gate where slot 0 always has this row, the empty feature's: what it adds is part of the bias.

        It is what the kernels take; they do not look at the inputs of slot 0. Units without weights fill up the
        LANES that the kernels take together.
        """
        inputs = row_inputs(np.array([code], np.uint8), np.array([links]), np.array([row_sum]))[0]
        bias = self.bias + inputs @ self.hidden[0]
        missing = -len(bias) % LANES

        def filled(part: np.ndarray) -> np.ndarray:
            return np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, missing)]).astype(np.float32)

        return Gate(filled(self.hidden), filled(bias), filled(self.output), self.offset)


def size(slots: int, units: int) -> int:
    """Numbers in the flat array of a gate."""
    return slots * INPUTS * units + units + slots * units + slots


def count_codes(totals: np.ndarray) -> np.ndarray:
    """C_i* as a byte: eighths of an octave. (rows,) uint8"""
    codes: np.ndarray = np.rint(CODES_AN_OCTAVE * np.log2(totals.astype(np.float64))).astype(np.uint8)
    return codes


def log_of_code() -> np.ndarray:
    """SCALE times the logarithm of the count that a code stands for. (256,) float32"""
    return (np.arange(256) / CODES_AN_OCTAVE * (math.log(2) * SCALE)).astype(np.float32)


@dataclass
class GateReport:
    """Held-out perplexity of the part that was kept back, without the gate and after each pass over the rest."""

    events: int
    ungated: float
    perplexities: list[float]

    @property
    def helps(self) -> bool:
        return bool(self.perplexities) and min(self.perplexities) < self.ungated


class Events:
    """Held-out events under a fixed M: what the gate sees of each slot, M_qj of the target, and the row sum."""

    def __init__(self, code: np.ndarray, length: np.ndarray, row_sum: np.ndarray, weight: np.ndarray) -> None:
        """All (events, slots); a row sum of zero where there is no row."""
        self.slots = code.shape[1]
        self.codes, self.lengths, self.sums, self.weights = code, length, row_sum, weight

    @classmethod
    def empty(cls, events: int, slots: int) -> Events:
        """Room for so many events."""
        return cls(*(np.empty((events, slots), kind) for kind in (np.uint8, np.float32, np.float32, np.float32)))

    def first(self, n: int) -> Events:
        """The first n events."""
        return Events(self.codes[:n], self.lengths[:n], self.sums[:n], self.weights[:n])

    @staticmethod
    def bytes_needed(slots: int) -> int:
        """Of one event."""
        return 13 * slots

    def __len__(self) -> int:
        return len(self.sums)

    def batch(self, chosen: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs (events, slots * INPUTS), M of the targets and row sums (events, slots).

        Inputs are made here: kept for all events they would take more memory than all the rest.
        """
        sums = self.sums[chosen]
        inputs = row_inputs(self.codes[chosen], self.lengths[chosen], sums)
        return inputs.reshape(len(inputs), -1), self.weights[chosen], sums


def row_inputs(codes: np.ndarray, lengths: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """What the gate sees of rows, all zero where the row sum is. (..., INPUTS) float32"""
    here = (sums > 0).astype(np.float32)  # to be multiplied by, which is faster than to choose
    inputs = np.empty((*sums.shape, INPUTS), np.float32)
    inputs[..., 0] = log_totals = here * np.take(log_of_code(), codes)
    inputs[..., 1] = here * (SCALE * np.log(np.maximum(lengths, 1))) - log_totals
    inputs[..., 2] = here * (SCALE * np.log(np.maximum(sums, SMALLEST)))
    inputs[..., 3] = here
    return inputs


class Learner(Protocol):
    """A gate that is being learned."""

    def step(self, chosen: np.ndarray, rate: float) -> None:
        """A step by these events."""

    def loss(self, chosen: slice) -> float:
        """Summed loss of events."""

    def weights(self) -> np.ndarray:
        """A copy of the gate's flat array."""


def fit(
    events: Events, units: int, seed: int = 1, advance: Callable[[int], None] = lambda n: None,
    learner: Callable[[np.ndarray], Learner] | None = None,
) -> tuple[np.ndarray, GateReport]:  # fmt: skip
    """The gate's flat array of the best pass, and how it went. A tenth of the text, its end, judges.

    `learner` makes what takes the steps from the flat array that they begin with: NumPy where nothing is said.
    """
    slots = events.slots
    random = np.random.default_rng(seed)
    flat = np.zeros(size(slots, units), np.float32)
    gate = Gate.of(flat, slots)
    width = 1 / math.sqrt(slots * INPUTS)
    gate.hidden[:] = random.uniform(-width, width, gate.hidden.shape)
    made = ArrayLearner(flat, events) if learner is None else learner(flat)
    n = len(events) - int(len(events) * CHECKED_SHARE)

    def perplexity() -> float:
        parts = range(n, len(events), 4096)
        total = sum(made.loss(slice(start, min(start + 4096, len(events)))) for start in parts)
        return math.exp(total / max(1, len(events) - n))

    report = GateReport(len(events), perplexity(), [])
    best = flat.copy()
    batch = min(max(n // STEPS_A_PASS, SMALLEST_BATCH), LARGEST_BATCH)
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
    slots, _, units = gate.hidden.shape
    first = gate.hidden.reshape(slots * INPUTS, units)
    hidden = np.maximum(inputs @ first + gate.bias, 0)
    b = hidden @ gate.output.T + gate.offset
    scale = np.exp(np.clip(b, -LARGEST, LARGEST))
    numerators, denominators = scale * weights, scale * sums
    numerator = numerators.sum(axis=1, keepdims=True)
    denominator = denominators.sum(axis=1, keepdims=True)
    loss = float((np.log(denominator) - np.log(numerator)).sum(dtype=np.float64))
    if not with_gradient:
        return loss, np.empty(0, np.float32)
    d_b = (denominators / denominator - numerators / numerator) / np.float32(len(inputs))
    d_b[np.abs(b) > LARGEST] = 0
    d_hidden = d_b @ gate.output
    d_hidden[hidden <= 0] = 0
    parts = inputs.T @ d_hidden, d_hidden.sum(axis=0), d_b.T @ hidden, d_b.sum(axis=0)
    return loss, np.concatenate([part.ravel() for part in parts])


class ArrayLearner:
    """A gate that NumPy learns, by Kingma and Ba's optimiser, Adam."""

    def __init__(self, flat: np.ndarray, events: Events) -> None:
        self.flat, self.events, self.steps = flat.copy(), events, 0
        self.gate = Gate.of(self.flat, events.slots)
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
