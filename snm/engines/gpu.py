"""The engine of one GPU: PyTorch tensors, and kernels in Triton for what PyTorch is slow at.

Tokens and the features' counts are the same as the CPU engine's. What differs is that all events are learned from where
their counts fit on the card, by batches instead of one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from snm.adjustment.events import TrainingEvents
from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.adjustment.settings import MAX_DEFAULT_SLOTS, TrainingSettings
from snm.features.extraction import Extractor
from snm.gate.fitting import GateEvents, GateReport, fit
from snm.layouts.counts import Counts
from snm.matrix.writing import MatrixWriter
from snm.progress import Progress
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.tensors.adjustment import TensorAdjustment
from snm.tensors.counts import TensorCounter
from snm.tensors.events import TensorEvents
from snm.tensors.features import TokenBlocks
from snm.tensors.gate import TensorGateTrainer
from snm.tensors.matrix import TensorMatrixWriter
from snm.text.encoding import Text
from snm.text.sampling import draw_sentences

EVENTS_SHARE = 0.4  # of the card's memory, at most, for the counts of events
COUNTING_SHARE = 0.8  # of what is left, for a partition of the counts
ROWS_AT_PER_TIME = 1 << 22  # of M


class GpuEngine:
    """See `snm.engines.Engine`. `device` is a GPU, or the CPU to try the engine's logic without one."""

    name = "gpu"
    max_slots = MAX_DEFAULT_SLOTS

    def __init__(self, settings: Settings, device: torch.device, progress: Progress, notify: Any) -> None:
        self.settings, self.device, self.progress, self.notify = settings, device, progress, notify
        self._blocks: TokenBlocks | None = None
        on = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
        notify(f"engine gpu{on}")

    def _memory(self) -> tuple[int, int]:
        """Bytes that are free on the device, and all of them."""
        if self.device.type != "cuda":
            return self.settings.memory, self.settings.memory
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return int(free), int(total)

    def _blocks_of(self, text: Text, extractor: Extractor) -> TokenBlocks:
        """The text on the device; it stays there for the steps that follow."""
        if self._blocks is None or self._blocks.host_tokens is not text.tokens:
            self._blocks = TokenBlocks(text.tokens, extractor, self.device)
        return self._blocks

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> TrainingEvents:
        s = self.settings
        fit = int(EVENTS_SHARE * self._memory()[1]) // max(1, TensorEvents.bytes_needed(1, extractor))
        wanted = fit if s.training.events is None else min(fit, s.training.events)
        chosen = None
        if wanted < text.events:
            chosen = np.concatenate([drawn for _, drawn in draw_sentences(text, wanted, s.seed)])
            self.notify(f"the adjustment is learned from about {wanted:,} tokens drawn by sentence")
        return TensorEvents(self._blocks_of(text, extractor), unigrams, chosen)

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: TrainingEvents | None, writer: ModelWriter
    ) -> TensorCounter:
        assert annotations is None or isinstance(annotations, TensorEvents)
        blocks = self._blocks_of(text, extractor)
        room = int(COUNTING_SHARE * self._memory()[0])
        return TensorCounter(blocks, room, self.settings.partitions, self.progress, prune, annotations)

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        if training.loss == "multinomial":  # it has a few thousand rows of held-out text: nothing for a GPU
            return Adjustment(extractor, training, slots)
        return TensorAdjustment(extractor, training, slots, self.device)

    def matrix_writer(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> MatrixWriter:
        self._blocks = None
        kind = TensorMatrixWriter if isinstance(adjustment, TensorAdjustment) else MatrixWriter
        return kind(writer, extractor, adjustment, self.settings.threads, ROWS_AT_PER_TIME)

    def fit_gate(self, events: GateEvents, units: int, seed: int, advance: Any) -> tuple[np.ndarray, GateReport]:
        return fit(events, units, seed, advance, lambda flat: TensorGateTrainer(flat, events, self.device))
