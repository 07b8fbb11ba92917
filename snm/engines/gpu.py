"""The GPU engine: PyTorch tensors on one GPU, and Triton kernels where PyTorch alone is slow.

The counts are the same as the CPU engine's. The adjustment is learned in batches, from all events if their counts fit
into GPU memory.
"""

from __future__ import annotations

import numpy as np
import torch

from snm.adjustment.events import TrainingEvents
from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.adjustment.settings import MAX_DEFAULT_SLOTS, TrainingSettings
from snm.features.extraction import Extractor
from snm.gate.fitting import GateEvents, GateReport, fit
from snm.layouts.counts import Counts
from snm.matrix.writing import MatrixWriter
from snm.progress import Advance, Notify, Progress
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

EVENTS_SHARE = 0.4  # of the GPU's memory, at most, for annotated events
PARTITION_SHARE = 0.8  # of the memory that is free when counting begins
ROWS_PER_PART = 1 << 22  # of M, made at one time


class GpuEngine:
    """See `snm.engines.Engine`. `device` is a GPU; tests use the CPU."""

    name, spills = "gpu", False
    max_slots = MAX_DEFAULT_SLOTS

    def __init__(self, settings: Settings, device: torch.device, progress: Progress, notify: Notify) -> None:
        self.settings, self.device, self.progress, self.notify = settings, device, progress, notify
        self._blocks: TokenBlocks | None = None
        name = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
        notify(f"engine gpu{name}")

    def _memory(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        if self.device.type != "cuda":
            return self.settings.memory, self.settings.memory
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return int(free), int(total)

    def _blocks_of(self, text: Text, extractor: Extractor) -> TokenBlocks:
        """The text on the device, where it stays until the matrix is written."""
        known = self._blocks
        if known is None or known.host_tokens is not text.tokens or known.extractor is not extractor:
            self._blocks = known = TokenBlocks(text.tokens, extractor, self.device)
        return known

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> TrainingEvents:
        s = self.settings
        fitting = int(EVENTS_SHARE * self._memory()[1]) // max(1, TensorEvents.bytes_needed(1, extractor))
        wanted = fitting if s.training.events is None else min(fitting, s.training.events)
        chosen = None
        if wanted < text.events:
            chosen = np.concatenate([drawn for _, drawn in draw_sentences(text, wanted, s.seed)])
            self.notify(f"the adjustment is learned from about {wanted:,} tokens drawn by sentence")
        return TensorEvents(self._blocks_of(text, extractor), unigrams, chosen)

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: TrainingEvents | None, writer: ModelWriter
    ) -> TensorCounter:
        s = self.settings
        assert annotations is None or isinstance(annotations, TensorEvents)
        blocks = self._blocks_of(text, extractor)
        partition_bytes = int(PARTITION_SHARE * self._memory()[0])
        return TensorCounter(blocks, partition_bytes, s.partitions, self.progress, prune, annotations, s.threads)

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        if training.loss == "multinomial":  # held-out text has few rows: too little work for a GPU
            return Adjustment(extractor, training, slots)
        return TensorAdjustment(extractor, training, slots, self.device)

    def matrix_writer(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> MatrixWriter:
        self._blocks = None
        writer_class = TensorMatrixWriter if isinstance(adjustment, TensorAdjustment) else MatrixWriter
        return writer_class(writer, extractor, adjustment, self.settings.threads, ROWS_PER_PART)

    def fit_gate(self, events: GateEvents, units: int, seed: int, advance: Advance) -> tuple[np.ndarray, GateReport]:
        return fit(events, units, seed, advance, lambda flat: TensorGateTrainer(flat, events, self.device))
