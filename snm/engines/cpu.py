"""The engine of threads: Numba kernels over arrays in memory."""

from __future__ import annotations

import gc
import shutil
from typing import Any

import numpy as np

from snm.adjustment.events import AnnotatedEvents, TrainingEvents
from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.adjustment.settings import MAX_DEFAULT_SLOTS, TrainingSettings
from snm.counts.counting import ON_THEIR_WAY, Counter
from snm.counts.walks import LINK_BYTES
from snm.features.extraction import Extractor
from snm.gate.fitting import GateEvents, GateReport, fit
from snm.layouts.counts import Counts
from snm.matrix.writing import MatrixWriter
from snm.memory import release_free_memory, resident_bytes
from snm.progress import Progress
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.text.encoding import Text
from snm.text.sampling import sample_sentences

PROGRAM = 192 << 20  # bytes of the program itself, which are part of the memory that the user allows it
GROWING = 64 << 20  # by which the program grows while it counts: compiled code, buffers of files
WALKED_SHARE = 1 / 16  # of the memory at most, for tokens to stay in, which are walked over again and again
ON_THEIR_WAY_SHARE = 1 / 8  # of that memory at most, for counts that are made and not yet written
EVENTS_SHARE = 0.4  # of what is left, for annotated events: on disk, at random places, they are slow
TABLE_SHARE = 1 - EVENTS_SHARE  # for the weights that are learned from them
MIN_ROOM = 128 << 20  # for a partition of the counts
MAX_WALKS = 12  # over the tokens; links that are written to disk and read again take as long
ROWS_SHARE = 1 / 1024  # rows of M that are made at one time, to a byte of memory
MAX_ROWS = 1 << 21


class CpuEngine:
    """See `snm.engines.Engine`."""

    name = "cpu"

    def __init__(self, settings: Settings, progress: Progress, notify: Any) -> None:
        self.settings, self.progress, self.notify = settings, progress, notify
        self.on_their_way = min(ON_THEIR_WAY, int(ON_THEIR_WAY_SHARE * settings.memory))
        self.room = settings.memory - PROGRAM - self.on_their_way

    @property
    def max_slots(self) -> int:
        fitting = int(TABLE_SHARE * self.room) // self.settings.training.bytes_a_slot // 8 * 8
        return min(fitting, MAX_DEFAULT_SLOTS)

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> TrainingEvents:
        s = self.settings
        wanted = s.training.events_of(extractor.n_templates)
        room = EVENTS_SHARE * self.room
        fitting = int(text.events * room / max(1, AnnotatedEvents.bytes_needed(text, extractor)))
        few = s.training.events is None and fitting < min(wanted, text.events)
        events = sample_sentences(text, fitting if few else wanted, s.seed, writer.spool)
        if events.events < text.events:
            why = ": as many as fit into memory" if few else ""
            self.notify(f"the adjustment is learned from {events.events:,} tokens drawn by sentence{why}")
        in_memory = few or AnnotatedEvents.bytes_needed(events, extractor) <= room
        return AnnotatedEvents(events, extractor, unigrams, _zeros if in_memory else writer.scratch)

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: TrainingEvents | None, writer: ModelWriter
    ) -> Counter:
        s = self.settings
        assert annotations is None or isinstance(annotations, AnnotatedEvents)
        release_free_memory()
        # how much the process holds is no matter for what comes out: partitions only differ in size
        walked = text.tokens.nbytes
        room = s.memory - resident_bytes() - GROWING - self.on_their_way
        if annotations is not None:
            walked += annotations.text.tokens.nbytes
            if not isinstance(annotations.values, np.memmap):
                room -= annotations.values.nbytes
        room -= min(walked, int(WALKED_SHARE * s.memory))
        room = max(room, MIN_ROOM)
        spill = writer if self._spills(text, extractor, room, writer) else None
        return Counter(
            text, extractor, room, s.threads, s.partitions, self.progress, prune, annotations, self.on_their_way, spill
        )

    def _spills(self, text: Text, extractor: Extractor, room: int, writer: ModelWriter) -> bool:
        """Whether links go to disk. No more than half of what is free is taken: the counts need room as well."""
        needed = text.events * (extractor.n_templates - 1) * LINK_BYTES
        if (self.settings.partitions or needed / room) <= MAX_WALKS:
            return False
        if needed > shutil.disk_usage(writer.folder).free // 2:
            self.notify(f"counting takes long: give more --memory, or {2 * needed / 1e6:,.0f} MB of free disk")
            return False
        self.notify(f"up to {needed / 1e6:,.0f} MB of disk are needed for a while: memory is small for this text")
        return True

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        gc.collect()  # where Numba compiled a kernel, cycles of what it left hold the arrays that links were sorted in
        release_free_memory()
        return Adjustment(extractor, training, slots, self.settings.threads)

    def matrix_writer(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> MatrixWriter:
        release_free_memory()
        rows = min(int(ROWS_SHARE * self.settings.memory), MAX_ROWS)
        return MatrixWriter(writer, extractor, adjustment, self.settings.threads, rows)

    def fit_gate(self, events: GateEvents, units: int, seed: int, advance: Any) -> tuple[np.ndarray, GateReport]:
        release_free_memory()
        return fit(events, units, seed, advance)


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.uint32)
