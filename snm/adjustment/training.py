"""The passes of training, and when to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from snm.adjustment.events import TrainingEvents
from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.adjustment.held_out import HeldOut
from snm.adjustment.settings import TrainingSettings
from snm.progress import Progress, silent


@dataclass
class TrainingReport:
    """The mean loss of each pass, and the held-out perplexity before the first pass and after each."""

    losses: list[float] = field(default_factory=list)
    perplexities: list[float] = field(default_factory=list)
    best_pass: int = 0
    course: list[float] = field(default_factory=list)
    """The mean loss of each part of the first pass, see `TrainingEvents.course`."""


def train_adjustment(
    adjustment: AdjustmentFunction,
    settings: TrainingSettings,
    events: TrainingEvents | None,
    fitted: HeldOut | None,
    dev: HeldOut | None,
    threads: int = 1,
    seed: int = 1,
    progress: Progress = silent,
) -> TrainingReport:
    """Run the passes, on `events` or, with the multinomial loss, on `fitted`.

    With `dev`, stop when its perplexity rises, and return to the best weights.
    """
    report = TrainingReport()
    if settings.start is None and events is not None:
        adjustment.start = -math.log(max(1.0, events.mean_features(settings.loss == "leave-one-out")))
    best: Any | None = None
    if dev is not None:
        report.perplexities.append(dev.perplexity(adjustment, threads))
    for number in range(1, settings.passes + 1):
        label = f"training {number}/{settings.passes}" if settings.passes > 1 else "training"
        if fitted is not None:
            with progress(label, fitted.events) as bar:
                assert isinstance(adjustment, Adjustment)  # the GPU's does not train on rows
                report.losses.append(fitted.train(adjustment, settings, seed + number, bar))
        elif events is not None:
            with progress(label, len(events)) as bar:
                report.losses.append(events.train(adjustment, settings, threads, bar))
            report.course = report.course or events.course
        if dev is None:
            report.best_pass = number
            continue
        report.perplexities.append(dev.perplexity(adjustment, threads))
        if not report.perplexities[-1] <= min(report.perplexities[:-1]):  # risen, or NaN
            break
        report.best_pass = number
        if number < settings.passes:
            best = adjustment.weights()
    if report.best_pass < len(report.losses):
        adjustment.restore(best)  # None: no pass improved on the initial weights
    return report
