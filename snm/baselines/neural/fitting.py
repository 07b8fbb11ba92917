"""Training a network: batches of sentences, the loop, checkpoints.

Nothing random is left to a global generator: the batches of a pass and the dropout of a step follow from the seed and
their numbers, so that a run that goes on from a checkpoint is the run that was not stopped.
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

from snm.baselines.neural.batches import SCORED, Piece, cut, group, score, take
from snm.baselines.neural.networks import Features, Network
from snm.errors import SettingsError
from snm.layouts.tokens import BEGIN
from snm.progress import Progress
from snm.text.encoding import Text

LONGEST = 256  # events; a longer sentence is trained on in pieces, each from an empty state
WARM_UP = 0.02  # of all steps, in which the rate rises
CLIP = 1.0  # largest norm of a gradient
SQUARES = 1.0  # what AdaGrad's sums of squares start at
PATIENCE = 2  # passes in a row without a gain on held-out text that end training
SCALE_STEPS = 20  # of L-BFGS


@dataclass(frozen=True)
class FitSettings:
    """How a network is trained. Features are let in for the last `feature_passes`, before that the layer is alone."""

    passes: int
    feature_passes: int
    batch: int
    rate: float
    feature_rate: float
    dropout: float
    seed: int


@dataclass
class FitReport:
    """How far training is, and how it went. `losses` are of the training text, in nats an event."""

    passes: int = 0
    steps: int = 0
    losses: list[float] = field(default_factory=list)
    perplexities: list[float] = field(default_factory=list)
    best_pass: int = 0
    loss: float = 0.0
    """Summed over the events of the pass that is under way."""


class Fit:
    """One training run of a network."""

    def __init__(self, network: Network, text: Text, dev: Text, how: FitSettings, progress: Progress) -> None:
        self.network, self.text, self.dev, self.how, self.progress = network, text, dev, how, progress
        self.tokens = torch.from_numpy(text.tokens.astype(np.int32)).to(network.device)
        self.pieces = cut(text.tokens, LONGEST)
        self.report = FitReport()
        self.best: dict[str, Tensor] = {}
        parameters = list(network.parameters()) if network.shape.hidden else []
        self.adam = torch.optim.Adam(parameters, how.rate, fused=network.device.type == "cuda") if parameters else None
        self.parameters = parameters
        self.squares: Tensor | None = None  # AdaGrad's, and its gradient: as large as the table, so made when needed
        self.gradient: Tensor | None = None

    def run(self, save: Callable[[], None] = lambda: None, every: float = math.inf) -> FitReport:
        """All passes that are left; `save` is called at least `every` seconds apart."""
        saved = time.monotonic()
        while self.report.passes < self.how.passes and not self._in_vain():
            number = self.report.passes
            groups = group(self.pieces, self.how.batch, np.random.default_rng([self.how.seed, number]))
            with self.progress(f"pass {number + 1}", self.text.events) as bar:
                bar(int(sum(part.lengths.sum() for part in groups[: self.report.steps])))
                summed = torch.tensor(self.report.loss, dtype=torch.float64, device=self.network.device)
                for step in range(self.report.steps, len(groups)):
                    summed += self._step(groups[step], number, step, len(groups))
                    self.report.steps = step + 1
                    bar(int(groups[step].lengths.sum()))
                    if time.monotonic() - saved > every:
                        self.report.loss = float(summed)
                        save()
                        saved = time.monotonic()
            self._end_pass(float(summed) / self.text.events)
        self._take_best()
        return self.report

    def _in_vain(self) -> bool:
        alone = self.how.passes - self.how.feature_passes
        if self.network.table is not None and self.report.passes <= alone:
            return False  # the features are yet to come
        return self.report.passes >= self.report.best_pass + PATIENCE

    def _end_pass(self, loss: float) -> None:
        r = self.report
        r.passes, r.steps, r.loss = r.passes + 1, 0, 0.0
        r.losses.append(loss)
        if self._features_in(r.passes - 1):
            fit_scales(self.network, self.dev.tokens)
        p = score(self.network, self.dev.tokens, self._features_in(r.passes - 1))
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

    def _features_in(self, number: int) -> bool:
        return self.network.table is not None and number >= self.how.passes - self.how.feature_passes

    def _adagrad(self) -> tuple[Tensor, Tensor]:
        """A table of zeros for gradients, and the sums of their squares."""
        table = self.network.table
        assert table is not None
        if self.gradient is None:
            self.gradient = torch.zeros_like(table)
        if self.squares is None:
            self.squares = torch.full_like(table, SQUARES)
        return self.gradient, self.squares

    def _step(self, part: Piece, number: int, step: int, steps: int) -> Tensor:
        """A step of both optimisers; the summed loss before it."""
        how, network = self.how, self.network
        inputs, targets = take(self.tokens, part, network.shape.never_a_target)
        random = torch.Generator(network.device).manual_seed(_seed(how.seed, number, step))
        features = Features(network, inputs) if self._features_in(number) else None
        with _autocast(network):
            states = network.states(inputs, how.dropout, random)
            losses = network.loss(inputs, targets, states, features)
        total = losses.sum()
        (total / int(part.lengths.sum())).backward()
        if self.adam is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
            self.adam.param_groups[0]["lr"] = how.rate * _slope((number + step / steps) / how.passes)
            self.adam.step()
        if features is not None:
            features.step(how.feature_rate, float(part.lengths.sum()), *self._adagrad())
        self.network.zero_grad(set_to_none=True)
        return total.detach().double()

    # -- checkpoints

    def state(self) -> dict[str, np.ndarray]:
        """Every array that the rest of the run depends on."""
        found = {f"now.{name}": value for name, value in self._weights().items()}
        found |= {f"best.{name}": value for name, value in self.best.items()}
        for name, p in self.network.named_parameters():
            for key, value in (self.adam.state[p] if self.adam is not None else {}).items():
                found[f"adam.{name}.{key}"] = value
        if self.squares is not None:
            found["squares"] = self.squares
        return {name: value.cpu().numpy() for name, value in found.items()}

    def restore(self, report: FitReport, arrays: dict[str, np.ndarray]) -> None:
        """Go on where another run was."""
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
    """One seed of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _slope(done: float) -> float:
    """The rate's part of the largest one: it rises for a little, then falls to nothing."""
    return min(done / WARM_UP, 1.0) * (1 - done) if done < 1 else 0.0


def _autocast(network: Network) -> AbstractContextManager[Any]:
    kind = network.device.type
    made: AbstractContextManager[Any] = torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")
    return made


def fit_scales(network: Network, tokens: np.ndarray) -> None:
    """Find the scales of the features of every order that are best on held-out text.

    The weights of long contexts are learned from few events each and say too much; how much too much, their own text
    does not tell. It is a logistic regression with as many parameters as there are orders.
    """
    whole = torch.from_numpy(tokens.astype(np.int32)).to(network.device)
    signs, scores, weights = [], [], []
    with torch.no_grad():
        for part in group(cut(tokens, len(tokens)), SCORED, None):
            inputs, targets = take(whole, part, network.shape.never_a_target)
            states = network.states(inputs)
            flat = None if states is None else states.reshape(-1, network.shape.hidden)
            features = Features(network, inputs, fixed=True)
            side, _, score, brought = network.decisions(targets.reshape(-1), flat, features)
            signs.append(2 * side - 1)
            scores.append(score)
            weights.append(brought)
    sign, score, brought = torch.cat(signs), torch.cat(scores), torch.cat(weights)
    scales = torch.full((network.shape.order,), 0.5, device=network.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([scales], max_iter=SCALE_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = torch.nn.functional.softplus(-sign * (score + brought @ scales)).mean()
        found.backward()
        return found

    optimiser.step(loss)
    network.scales.copy_(scales.detach())
