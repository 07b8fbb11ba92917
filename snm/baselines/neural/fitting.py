"""Training a network: passes, steps, and the state that a checkpoint saves.

Every random number depends on the seed and on the numbers of pass and step alone, never on a global generator. So a run
that resumes from a checkpoint gives the same model as a run without interruption.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snm.baselines.neural.batches import (
    SCORING_BATCH,
    Pieces,
    cut_sentences,
    inputs_and_targets,
    make_batches,
    score,
)
from snm.baselines.neural.networks import Features, Network
from snm.errors import SettingsError
from snm.layouts.tokens import BEGIN
from snm.progress import Progress
from snm.text.encoding import Text

MAX_PIECE = 256  # events; longer sentences are trained on in pieces, each with an empty initial state
WARM_UP = 0.02  # part of all steps in which the rate rises
MAX_NORM = 1.0  # of a gradient
INITIAL_SQUARES = 1.0  # of AdaGrad
PATIENCE = 2  # training stops after this many passes in a row without a better held-out perplexity
SCALE_STEPS = 20  # of L-BFGS


@dataclass(frozen=True)
class FitSettings:
    """Settings of a run. The hashed features are used in the last `feature_passes` only. `batch` is in events."""

    passes: int
    feature_passes: int
    batch: int
    rate: float
    feature_rate: float
    dropout: float
    seed: int


@dataclass
class FitReport:
    """Progress and figures of a run."""

    passes: int = 0  # finished
    steps: int = 0  # of the current pass
    losses: list[float] = field(default_factory=list)  # on the training text, in nats an event
    perplexities: list[float] = field(default_factory=list)  # on the held-out text
    best_pass: int = 0
    loss: float = 0.0  # sum over the events of the current pass


class Fit:
    """One training run of a network."""

    def __init__(self, network: Network, text: Text, dev: Text, how: FitSettings, progress: Progress) -> None:
        self.network, self.text, self.dev, self.how, self.progress = network, text, dev, how, progress
        self.tokens = torch.from_numpy(text.tokens.astype(np.int32)).to(network.device)
        self.pieces = cut_sentences(text.tokens, MAX_PIECE)
        self.report = FitReport()
        self.best: dict[str, Tensor] = {}
        parameters = list(network.parameters()) if network.shape.hidden else []
        self.adam = torch.optim.Adam(parameters, how.rate, fused=True) if parameters else None
        self.parameters = parameters
        self.squares: Tensor | None = None  # of AdaGrad; like its gradient as large as the table, so made when needed
        self.gradient: Tensor | None = None

    def run(self, save: Callable[[], None] = lambda: None, every: float = math.inf) -> FitReport:
        """Run the remaining passes and return to the best weights; call `save` at most once in `every` seconds."""
        saved = time.monotonic()
        while self.report.passes < self.how.passes and not self._should_stop():
            number = self.report.passes
            batches = make_batches(self.pieces, self.how.batch, np.random.default_rng([self.how.seed, number]))
            with self.progress(f"pass {number + 1}", self.text.events) as bar:
                bar(int(sum(batch.lengths.sum() for batch in batches[: self.report.steps])))
                summed = torch.tensor(self.report.loss, dtype=torch.float64, device=self.network.device)
                for step in range(self.report.steps, len(batches)):
                    summed += self._step(batches[step], number, step, len(batches))
                    self.report.steps = step + 1
                    bar(int(batches[step].lengths.sum()))
                    if time.monotonic() - saved > every:
                        self.report.loss = float(summed)
                        save()
                        saved = time.monotonic()
            self._end_pass(float(summed) / self.text.events)
        self._take_best()
        return self.report

    def _should_stop(self) -> bool:
        if self.network.table is not None and self.report.passes <= self.how.passes - self.how.feature_passes:
            return False  # no pass with features yet
        return self.report.passes >= self.report.best_pass + PATIENCE

    def _end_pass(self, loss: float) -> None:
        r = self.report
        r.passes, r.steps, r.loss = r.passes + 1, 0, 0.0
        r.losses.append(loss)
        has_features = self._has_features(r.passes - 1)
        if has_features:
            fit_scales(self.network, self.dev.tokens)
        p = score(self.network, self.dev.tokens, has_features)
        predicted = ~np.isin(self.dev.tokens, (BEGIN, self.network.shape.never_a_target))
        with np.errstate(divide="ignore"):
            r.perplexities.append(float(np.exp(-np.log(p[predicted]).mean())))
        if not math.isfinite(loss) or not math.isfinite(r.perplexities[-1]):
            raise SettingsError(f"training diverged: its loss is {loss:.3g} an event; lower --rate")
        if r.perplexities[-1] <= min(r.perplexities):
            r.best_pass = r.passes
            self.best = {} if r.passes == self.how.passes else {k: v.clone() for k, v in self._weights().items()}

    def _take_best(self) -> None:
        weights = self._weights()
        for name, value in self.best.items():
            weights[name].copy_(value)

    def _weights(self) -> dict[str, Tensor]:
        return {**{name: p.detach() for name, p in self.network.named_parameters()}, **self.network.tables()}

    def _has_features(self, number: int) -> bool:
        """Whether pass `number`, counted from 0, trains the hashed features."""
        return self.network.table is not None and number >= self.how.passes - self.how.feature_passes

    def _adagrad(self) -> tuple[Tensor, Tensor]:
        """A table of zeros for gradients, and the sums of squared gradients. (slots,) each"""
        table = self.network.table
        assert table is not None
        if self.gradient is None:
            self.gradient = torch.zeros_like(table)
        if self.squares is None:
            self.squares = torch.full_like(table, INITIAL_SQUARES)
        return self.gradient, self.squares

    def _step(self, batch: Pieces, number: int, step: int, steps: int) -> Tensor:
        """Take a step with both optimisers; return the batch's summed loss before it."""
        how, network = self.how, self.network
        inputs, targets = inputs_and_targets(self.tokens, batch, network.shape.never_a_target)
        random = torch.Generator(network.device).manual_seed(_seed(how.seed, number, step))
        features = Features(network, inputs) if self._has_features(number) else None
        with _autocast(network):
            states = network.states(inputs, how.dropout, random)
            losses = network.loss(inputs, targets, states, features)
        total = losses.sum()
        (total / int(batch.lengths.sum())).backward()
        if self.adam is not None:
            for p in self.parameters:
                if p.grad is not None and p.grad.is_sparse:
                    p.grad = p.grad.to_dense()  # once a step, where each look-up would make a dense one
            torch.nn.utils.clip_grad_norm_(self.parameters, MAX_NORM)
            self.adam.param_groups[0]["lr"] = how.rate * _rate_factor((number + step / steps) / how.passes)
            self.adam.step()
        if features is not None:
            features.step(how.feature_rate, float(batch.lengths.sum()), *self._adagrad())
        self.network.zero_grad(set_to_none=True)
        return total.detach().double()

    # -- checkpoints

    def state(self) -> dict[str, np.ndarray]:
        """The arrays that the rest of the run depends on."""
        found = {f"now.{name}": value for name, value in self._weights().items()}
        found |= {f"best.{name}": value for name, value in self.best.items()}
        for name, p in self.network.named_parameters():
            for key, value in (self.adam.state[p] if self.adam is not None else {}).items():
                found[f"adam.{name}.{key}"] = value
        if self.squares is not None:
            found["squares"] = self.squares
        return {name: value.cpu().numpy() for name, value in found.items()}

    def restore(self, report: FitReport, arrays: dict[str, np.ndarray]) -> None:
        """Resume from the report and the `state` of an interrupted run."""
        sizes = {name: tuple(value.shape) for name, value in self._weights().items()}
        for name, value in arrays.items():
            kind, _, weight = name.partition(".")
            weight, _, moment = weight.rpartition(".") if kind == "adam" else (weight, "", "")
            expected = () if moment == "step" else sizes["table" if kind == "squares" else weight]
            if value.shape != expected or value.dtype != np.float32:
                raise ValueError(
                    f"{name} is {value.dtype} of shape {value.shape}; expected float32 of shape {expected}"
                )
        self.report = report
        tensors = {name: torch.from_numpy(np.array(value)).to(self.network.device) for name, value in arrays.items()}
        for name, value in self._weights().items():
            value.copy_(tensors[f"now.{name}"])
        self.best = {name[5:]: value for name, value in tensors.items() if name.startswith("best.")}
        for name, p in self.network.named_parameters():
            keys = ("step", "exp_avg", "exp_avg_sq")
            if self.adam is not None and f"adam.{name}.step" in tensors:
                self.adam.state[p] = {key: tensors[f"adam.{name}.{key}"] for key in keys}
                if self.network.device.type == "cpu":
                    self.adam.state[p]["step"] = self.adam.state[p]["step"].cpu()
        self.squares = tensors.get("squares")


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _rate_factor(done: float) -> float:
    """The learning rate in relation to the largest, after the part `done` of all steps: warm-up, then linear decay."""
    return min(done / WARM_UP, 1.0) * (1 - done) if done < 1 else 0.0


def _autocast(network: Network) -> AbstractContextManager[Any]:
    kind = network.device.type
    made: AbstractContextManager[Any] = torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")
    return made


def fit_scales(network: Network, tokens: np.ndarray) -> None:
    """Fit a scale for the feature weights of each order to held-out text, by logistic regression.

    The weights of long contexts overfit, because each is learned from few events.
    """
    whole = torch.from_numpy(tokens.astype(np.int32)).to(network.device)
    parts = []
    with torch.no_grad():
        for batch in make_batches(cut_sentences(tokens, len(tokens)), SCORING_BATCH, None):
            inputs, targets = inputs_and_targets(whole, batch, network.shape.never_a_target)
            states = network.states(inputs)
            flat = None if states is None else states.reshape(-1, network.shape.hidden)
            features = Features(network, inputs, scaled=True)
            side, _, score, weights = network.decisions(targets.reshape(-1), flat, features)
            parts.append((2 * side - 1, score, weights))
    sign, score, weights = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    scales = torch.full((network.shape.order,), 0.5, device=network.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([scales], max_iter=SCALE_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = torch.nn.functional.softplus(-sign * (score + weights @ scales)).mean()
        found.backward()
        return found

    optimiser.step(loss)
    network.scales.copy_(scales.detach())
