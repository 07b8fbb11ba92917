"""The engine of threads: Numba kernels over arrays in memory."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snm import calibration, corpus
from snm.calibration import Events, GateReport
from snm.corpus import Text
from snm.counting import Counter, Counts
from snm.features import Extractor
from snm.pages import PageWriter
from snm.progress import Progress
from snm.storage import ModelWriter
from snm.training import Adjustment, AdjustmentFunction, Annotated, Annotations, TrainingSettings

if TYPE_CHECKING:
    from snm.pipeline import Settings

IN_MEMORY_SHARE = 0.4  # of the memory beside the text, for annotated events: on disk, at random places, they are slow
LEAST_ROOM = 128 << 20  # for a partition of the counts
ON_THEIR_WAY = 256 << 20  # bytes of counts that are sorted, encoded and written at one time


class CpuEngine:
    """See `snm.engines.Engine`."""

    name = "cpu"

    def __init__(self, settings: Settings, progress: Progress, notify: Any) -> None:
        self.settings, self.progress, self.notify = settings, progress, notify

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> Annotated:
        s = self.settings
        wanted = s.training.events_of(extractor.n_slots)
        beside_text = s.memory - 3 * text.tokens.nbytes - ON_THEIR_WAY  # it, what it was cut from, a sample
        room = IN_MEMORY_SHARE * max(beside_text, LEAST_ROOM)
        fitting = int(text.events * room / max(1, Annotations.bytes_needed(text, extractor)))
        few = s.training.events is None and fitting < min(wanted, text.events)
        events = corpus.sample_sentences(text, fitting if few else wanted, s.seed)
        if events.events < text.events:
            why = f": as many as fit into {IN_MEMORY_SHARE:.0%} of the memory beside the text" if few else ""
            self.notify(f"the adjustment is learned from {events.events:,} tokens drawn by sentence{why}")
        in_memory = few or Annotations.bytes_needed(events, extractor) <= room
        return Annotations(events, extractor, unigrams, _zeros if in_memory else writer.scratch)

    def count(self, text: Text, extractor: Extractor, prune: int, annotations: Annotated | None) -> Counter:
        s = self.settings
        assert annotations is None or isinstance(annotations, Annotations)
        # how much the process holds is no matter for what comes out: partitions only differ in size
        room = s.memory - resident() - ON_THEIR_WAY
        if annotations is not None and not isinstance(annotations.values, np.memmap):
            room -= annotations.values.nbytes
        return Counter(
            text, extractor, max(room, LEAST_ROOM), s.threads, s.partitions, self.progress, prune, annotations
        )  # fmt: skip

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        return Adjustment(extractor, training, slots, self.settings.threads)

    def pages(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> PageWriter:
        return PageWriter(writer, extractor, adjustment, self.settings.threads)

    def fit_gate(self, events: Events, units: int, seed: int, advance: Any) -> tuple[np.ndarray, GateReport]:
        return calibration.fit(events, units, seed, advance)


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not say so as Linux does."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.uint32)
