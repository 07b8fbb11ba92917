"""The engine of threads: Numba kernels over arrays in memory."""

from __future__ import annotations

import gc
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from snm import calibration, corpus
from snm.calibration import Events, GateReport
from snm.corpus import Text
from snm.counting import ON_THEIR_WAY, Counter, Counts
from snm.features import Extractor
from snm.memory import give_back, own_memory
from snm.pages import PageWriter
from snm.progress import Progress
from snm.storage import ModelWriter
from snm.training import MOST_BY_DEFAULT, Adjustment, AdjustmentFunction, Annotated, Annotations, TrainingSettings
from snm.walks import LINK_BYTES

if TYPE_CHECKING:
    from snm.pipeline import Settings

PROGRAM = 192 << 20  # bytes of the program itself, which are part of the memory that the user allows it
GROWING = 64 << 20  # by which the program grows while it counts: compiled code, buffers of files
WALKED_SHARE = 1 / 16  # of the memory at most, for tokens to stay in, which are walked over again and again
ON_THEIR_WAY_SHARE = 1 / 8  # of that memory at most, for counts that are made and not yet written
EVENTS_SHARE = 0.4  # of what is left, for annotated events: on disk, at random places, they are slow
TABLE_SHARE = 1 - EVENTS_SHARE  # for the weights that are learned from them
LEAST_ROOM = 128 << 20  # for a partition of the counts
MOST_WALKS = 12  # over the tokens; links that are written to disk and read again take as long
ROWS_SHARE = 1 / 1024  # rows of M that are made at one time, to a byte of memory
MOST_ROWS = 1 << 21


class CpuEngine:
    """See `snm.engines.Engine`."""

    name = "cpu"

    def __init__(self, settings: Settings, progress: Progress, notify: Any) -> None:
        self.settings, self.progress, self.notify = settings, progress, notify
        self.on_their_way = min(ON_THEIR_WAY, int(ON_THEIR_WAY_SHARE * settings.memory))
        self.room = settings.memory - PROGRAM - self.on_their_way

    @property
    def most_slots(self) -> int:
        fitting = int(TABLE_SHARE * self.room) // self.settings.training.bytes_a_slot // 8 * 8
        return min(fitting, MOST_BY_DEFAULT)

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> Annotated:
        s = self.settings
        wanted = s.training.events_of(extractor.n_slots)
        room = EVENTS_SHARE * self.room
        fitting = int(text.events * room / max(1, Annotations.bytes_needed(text, extractor)))
        few = s.training.events is None and fitting < min(wanted, text.events)
        events = corpus.sample_sentences(text, fitting if few else wanted, s.seed, writer.spool)
        if events.events < text.events:
            why = ": as many as fit into memory" if few else ""
            self.notify(f"the adjustment is learned from {events.events:,} tokens drawn by sentence{why}")
        in_memory = few or Annotations.bytes_needed(events, extractor) <= room
        return Annotations(events, extractor, unigrams, _zeros if in_memory else writer.scratch)

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: Annotated | None, writer: ModelWriter
    ) -> Counter:
        s = self.settings
        assert annotations is None or isinstance(annotations, Annotations)
        give_back()
        # how much the process holds is no matter for what comes out: partitions only differ in size
        walked = text.tokens.nbytes
        room = s.memory - own_memory() - GROWING - self.on_their_way
        if annotations is not None:
            walked += annotations.text.tokens.nbytes
            if not isinstance(annotations.values, np.memmap):
                room -= annotations.values.nbytes
        room -= min(walked, int(WALKED_SHARE * s.memory))
        room = max(room, LEAST_ROOM)
        spill = writer if self._spills(text, extractor, room, writer) else None
        return Counter(
            text, extractor, room, s.threads, s.partitions, self.progress, prune, annotations, self.on_their_way, spill
        )

    def _spills(self, text: Text, extractor: Extractor, room: int, writer: ModelWriter) -> bool:
        """Whether links go to disk. No more than half of what is free is taken: the counts need room as well."""
        needed = text.events * (extractor.n_slots - 1) * LINK_BYTES
        if (self.settings.partitions or needed / room) <= MOST_WALKS:
            return False
        if needed > shutil.disk_usage(writer.folder).free // 2:
            self.notify(f"counting takes long: give more --memory, or {2 * needed / 1e6:,.0f} MB of free disk")
            return False
        self.notify(f"up to {needed / 1e6:,.0f} MB of disk are needed for a while: memory is small for this text")
        return True

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        gc.collect()  # where Numba compiled a kernel, cycles of what it left hold the arrays that links were sorted in
        give_back()
        return Adjustment(extractor, training, slots, self.settings.threads)

    def pages(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> PageWriter:
        give_back()
        rows = min(int(ROWS_SHARE * self.settings.memory), MOST_ROWS)
        return PageWriter(writer, extractor, adjustment, self.settings.threads, rows)

    def fit_gate(self, events: Events, units: int, seed: int, advance: Any) -> tuple[np.ndarray, GateReport]:
        give_back()
        return calibration.fit(events, units, seed, advance)


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.uint32)
