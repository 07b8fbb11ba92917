"""Where the steps from tokens to a model run: the threads of this machine, or a GPU.

An engine counts a text, learns the adjustment function from it, makes the pages of M, and learns the gate. Engines make
the same counts, and models of the same format; what is learned differs by the order in which it is learned.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from snm import devices
from snm.adjustment.events import TrainingEvents
from snm.adjustment.function import AdjustmentFunction
from snm.adjustment.settings import TrainingSettings
from snm.counts.counting import Counting
from snm.features.extraction import Extractor
from snm.gate.fitting import GateEvents, GateReport
from snm.layouts.counts import Counts
from snm.matrix.writing import MatrixWriter
from snm.progress import Progress
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.text.encoding import Text

WORTH_A_GPU = 1_000_000  # tokens; fewer are done before a GPU has woken up


class Engine(Protocol):
    name: str

    @property
    def max_slots(self) -> int:
        """Of the table of weights, where the user asks for no number."""

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> TrainingEvents:
        """The events that the adjustment function is learned from, for `count` to fill in."""

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: TrainingEvents | None, writer: ModelWriter
    ) -> Counting:
        """The counts of all features but the empty one; features seen less than `prune` times are left out.

        `writer` has disk for what is needed on the way.
        """

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        """An adjustment function before it is learned."""

    def matrix_writer(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> MatrixWriter:
        """What makes the pages of M."""

    def fit_gate(self, events: GateEvents, units: int, seed: int, advance: Any) -> tuple[np.ndarray, GateReport]:
        """See `snm.calibration.fit`."""


def make(settings: Settings, tokens: int, progress: Progress, notify: Any) -> Engine:
    """The engine that is asked for, or the one that suits a text of so many tokens."""
    if settings.engine == "gpu" or (settings.engine == "auto" and tokens >= WORTH_A_GPU and devices.has_gpu()):
        from snm.engines.gpu import GpuEngine

        return GpuEngine(settings, devices.find_gpu(), progress, notify)
    from snm.engines.cpu import CpuEngine

    return CpuEngine(settings, progress, notify)
