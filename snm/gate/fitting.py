"""Training the gate, which weighs the rows of an event, on held-out text.

The Poisson loss fits every row of M by itself: it ignores that the rows of an event are normalised together, and which
other rows there are. The gate is a network of one hidden layer. It sees which templates have a row, and the feature
count, the number of links and the sum of each row, and returns a factor exp(B_q) for each template q. Numerator and
denominator of Eq. prob are linear in these factors:

    P(j) = sum over q of exp(B_q) M_qj  /  sum over q of exp(B_q) (sum over u of M_qu)

So probabilities still sum to one, and the loss of an event needs no other words of the vocabulary. The text must be
held out: in the training text itself long contexts look certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from snm.layouts.gate import INPUTS, MAX_GATE, Gate, gate_size, row_inputs
from snm.progress import Advance, ignore

PASSES, RATE = 12, 2e-3
STEPS_PER_PASS, MIN_BATCH, MAX_BATCH = 256, 64, 2048
VALID_SHARE = 0.1  # of the held-out text, its end: not trained on, it shows whether the gate helps
REFIT_RATE, PULL = 5e-4, 100.0  # of a gate for another text
NEW_ROWS_PULL = 10.0  # of a gate that has new rows too, at the whole rate
OFFSETS = np.linspace(-8, 4, 25, dtype=np.float32)
MIN_EVENTS = 2000  # of held-out text, to learn a gate at all


@dataclass
class GateReport:
    """Perplexity of the valid part of the events, without a gate and after each pass over the rest."""

    events: int
    ungated: float
    perplexities: list[float]

    @property
    def helps(self) -> bool:
        return bool(self.perplexities) and min(self.perplexities) < self.ungated


class GateEvents:
    """The rows of held-out events: what the gate sees of them, and M of the target.

    The rows of `caches` caches stand after those of the templates. They count as templates here.
    """

    def __init__(
        self, code: np.ndarray, length: np.ndarray, row_sum: np.ndarray, weight: np.ndarray, caches: int = 0
    ) -> None:
        """Count codes, numbers of links, row sums (0 where there is no row) and M_qj. All (events, templates)."""
        self.templates, self.caches = code.shape[1], caches
        self.codes, self.lengths, self.sums, self.weights = code, length, row_sum, weight

    @classmethod
    def joined(cls, parts: Sequence[GateEvents]) -> GateEvents:
        """The events of several texts."""
        codes, lengths, sums, weights = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("codes", "lengths", "sums", "weights")
        )
        return cls(codes, lengths, sums, weights, parts[0].caches)

    @classmethod
    def empty(cls, events: int, templates: int, caches: int = 0) -> GateEvents:
        shape = events, templates
        length, row_sum, weight = (np.empty(shape, np.float32) for _ in range(3))
        return cls(np.empty(shape, np.uint8), length, row_sum, weight, caches)

    def first(self, n: int) -> GateEvents:
        return GateEvents(self.codes[:n], self.lengths[:n], self.sums[:n], self.weights[:n], self.caches)

    def add(self, found: Any, at: int) -> int:
        """Write the events of a block from event `at` on; return how many there are. `found`: `kernels.rows.Found`"""
        events = np.flatnonzero((found.row_sum[0] > 0) & found.weight.any(axis=0))
        here = slice(at, at + len(events))
        self.codes[here], self.lengths[here] = found.code.T[events], found.length.T[events]
        self.sums[here], self.weights[here] = found.row_sum.T[events], found.weight.T[events]
        return len(events)

    @staticmethod
    def bytes_needed(templates: int) -> int:
        """Bytes of one event."""
        return 13 * templates

    def __len__(self) -> int:
        return len(self.sums)

    def batch(self, chosen: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs (events, templates * INPUTS), M of the targets and row sums (events, templates), all float32.

        Inputs are computed for each batch: stored, they would take more memory than everything else.
        """
        sums = self.sums[chosen]
        inputs = row_inputs(self.codes[chosen], self.lengths[chosen], sums)
        return inputs.reshape(len(inputs), self.templates * INPUTS), self.weights[chosen], sums


class GateTrainer(Protocol):
    """A gate in training."""

    def step(self, chosen: np.ndarray, rate: float) -> None:
        """One step of Adam on the chosen events."""

    def loss(self, chosen: slice) -> float:
        """Summed loss of the chosen events, in nats."""

    def weights(self) -> np.ndarray:
        """A copy of the gate's flat array."""


def initial_gate(templates: int, units: int, random: np.random.Generator) -> np.ndarray:
    """A gate whose hidden layer is random, and which changes nothing yet, as a flat array."""
    flat = np.zeros(gate_size(templates, units), np.float32)
    gate, bound = Gate.of(flat, templates), 1 / math.sqrt(templates * INPUTS)
    gate.hidden[:] = random.uniform(-bound, bound, gate.hidden.shape)
    return flat


def fit(
    events: GateEvents, units: int, seed: int = 1, advance: Advance = ignore,
    trainer: Callable[[np.ndarray], GateTrainer] | None = None,
) -> tuple[np.ndarray, GateReport]:  # fmt: skip
    """The gate of the pass with the lowest perplexity on the valid part, as a flat array, and a report.

    `trainer` makes a trainer from the initial flat array; by default it is a NumpyGateTrainer.
    """
    random = np.random.default_rng(seed)
    flat = initial_gate(events.templates, units, random)
    make = partial(NumpyGateTrainer, events=events) if trainer is None else trainer
    training = make(flat)
    n = len(events) - int(len(events) * VALID_SHARE)

    def perplexity(trained: GateTrainer) -> float:
        starts = range(n, len(events), 4096)
        loss = sum(trained.loss(slice(start, min(start + 4096, len(events)))) for start in starts)
        return math.exp(loss / max(1, len(events) - n))

    report = GateReport(len(events), perplexity(make(_without_caches(flat, events))), [])
    best = flat.copy()
    batch = min(max(n // STEPS_PER_PASS, MIN_BATCH), MAX_BATCH)
    done, steps = 0, PASSES * -(-n // batch)
    with threadpool_limits(1, "blas"):  # for such small matrices more are no faster, and much slower on a busy machine
        for _ in range(PASSES):
            order = random.permutation(n)
            for start in range(0, n, batch):
                chosen = order[start : start + batch]
                done += 1
                training.step(chosen, RATE * _schedule(done / steps))
                advance(len(chosen))
            report.perplexities.append(perplexity(training))
            if report.perplexities[-1] == min(report.perplexities):
                best = training.weights()
    return best, report


def _without_caches(flat: np.ndarray, events: GateEvents) -> np.ndarray:
    """The gate with the least weights for caches: a model without a gate has none."""
    made = flat.copy()
    Gate.of(made, events.templates).offset[events.templates - events.caches :] = -MAX_GATE
    return made


def refit(
    events: GateEvents, start: np.ndarray, seed: int = 1, advance: Advance = ignore, rate: float = REFIT_RATE,
    pull: float = PULL,
) -> tuple[np.ndarray, GateReport]:  # fmt: skip
    """A gate for another text, from the gate `start`, and a report, whose perplexities are of the same events.

    The weights are pulled to those of `start` with the strength of `pull` events, so that little text changes little.
    None of the events is set aside: passes are not chosen by a part that may be a few words.
    """
    random, n = np.random.default_rng(seed), len(events)
    training = NumpyGateTrainer(start, events, pull / max(1, n))
    report = GateReport(n, math.exp(_mean_loss(training, n)), [])
    batch = min(max(n // STEPS_PER_PASS, MIN_BATCH), MAX_BATCH)
    done, steps = 0, PASSES * -(-n // batch)
    with threadpool_limits(1, "blas"):
        for _ in range(PASSES if n else 0):
            order = random.permutation(n)
            for begin in range(0, n, batch):
                done += 1
                training.step(order[begin : begin + batch], rate * _schedule(done / steps))
                advance(len(order[begin : begin + batch]))
        report.perplexities.append(math.exp(_mean_loss(training, n)))
    return training.weights(), report


def balance(events: GateEvents, flat: np.ndarray, groups: Sequence[tuple[int, int]]) -> np.ndarray:
    """The gate with one of OFFSETS added to the offsets of each group of templates [begin, end): the best one."""
    flat = flat.copy()
    offset = Gate.of(flat, events.templates).offset
    for begin, end in [*groups, *groups]:  # twice: the best for one group depends on the others
        own, losses = offset[begin:end].copy(), []
        for constant in OFFSETS:
            offset[begin:end] = own + constant
            losses.append(_mean_loss(NumpyGateTrainer(flat, events), len(events)))
        offset[begin:end] = own + OFFSETS[int(np.argmin(losses))]
    return flat


def _mean_loss(training: GateTrainer, events: int) -> float:
    parts = [slice(begin, min(begin + 4096, events)) for begin in range(0, events, 4096)]
    return sum(training.loss(part) for part in parts) / max(1, events)


def _schedule(done: float) -> float:
    """The factor of the learning rate: linear from 0 to 1 over the first tenth of the steps, then back to 0."""
    return min(done / 0.1, (1 - done) / 0.9) if done < 1 else 0.0


def loss_and_gradient(
    gate: Gate, inputs: np.ndarray, weights: np.ndarray, sums: np.ndarray, with_gradient: bool = True
) -> tuple[float, np.ndarray]:
    """Summed multinomial loss of a batch in nats, and the gradient of its mean as a flat array."""
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
    """Trains the gate with NumPy, by Adam (Kingma and Ba, 2015)."""

    def __init__(self, flat: np.ndarray, events: GateEvents, pull: float = 0.0) -> None:
        """`pull`: how strongly the weights are pulled to the initial ones: half of it times the squared distance."""
        self.flat, self.events, self.steps = flat.copy(), events, 0
        self._start, self._pull = flat.copy(), np.float32(pull)
        self.gate = Gate.of(self.flat, events.templates)
        self._mean, self._square = np.zeros_like(flat), np.zeros_like(flat)

    def step(self, chosen: np.ndarray, rate: float) -> None:
        _, gradient = loss_and_gradient(self.gate, *self.events.batch(chosen))
        if self._pull:
            gradient += self._pull * (self.flat - self._start)
        self.steps += 1
        self._mean += np.float32(0.1) * (gradient - self._mean)
        self._square += np.float32(0.001) * (gradient * gradient - self._square)
        rate *= math.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        self.flat -= np.float32(rate) * self._mean / (np.sqrt(self._square) + np.float32(1e-8))

    def loss(self, chosen: slice) -> float:
        return loss_and_gradient(self.gate, *self.events.batch(chosen), with_gradient=False)[0]

    def weights(self) -> np.ndarray:
        return self.flat.copy()
