"""Where training runs: on the CPU, on a GPU or on several machines.

An engine counts a text, learns the adjustment function, writes the matrix, and learns the gate. All engines make the
same counts and models of the same format; learned weights differ a little, because steps are taken in another order.
"""

from __future__ import annotations

from typing import Protocol

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
from snm.progress import Advance, Notify, Progress
from snm.settings import CLUSTER, Settings
from snm.storage import ModelWriter
from snm.text.encoding import Text

MIN_GPU_TOKENS = 1_000_000  # below, the CPU is done before the GPU has started


class Engine(Protocol):
    name: str
    spills: bool
    """Whether links may be written to disk while a text is counted."""

    @property
    def max_slots(self) -> int:
        """Slots of the table of weights at most, unless the user sets a number."""

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> TrainingEvents:
        """The events that the adjustment is learned from; `count` annotates them."""

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: TrainingEvents | None, writer: ModelWriter
    ) -> Counting:
        """The counts of all features except the empty one and those seen less than `prune` times.

        `writer` provides temporary files.
        """

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        """An adjustment function with initial weights."""

    def matrix_writer(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> MatrixWriter:
        """What writes the matrix."""

    def fit_gate(self, events: GateEvents, units: int, seed: int, advance: Advance) -> tuple[np.ndarray, GateReport]:
        """See `snm.gate.fitting.fit`."""


def make(settings: Settings, tokens: int, progress: Progress, notify: Notify) -> Engine:
    """The engine of the settings, or with `auto` the one that suits a text of `tokens` tokens."""
    if settings.engine in CLUSTER or settings.resume:
        from snm.engines.cluster import ClusterEngine

        return ClusterEngine(settings, progress, notify)
    only_cpu = settings.fields or settings.training.metafeatures.beyond_the_paper
    large = tokens >= MIN_GPU_TOKENS and not only_cpu
    if settings.engine == "gpu" or (settings.engine == "auto" and large and devices.has_gpu()):
        from snm.engines.gpu import GpuEngine

        return GpuEngine(settings, devices.find_gpu(), progress, notify)
    from snm.engines.cpu import CpuEngine

    return CpuEngine(settings, progress, notify)
