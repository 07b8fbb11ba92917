"""The CPU engine: Numba kernels on several threads, within the memory that the user allows.

The memory is divided like this. First PROGRAM_BYTES, and up to PENDING_SHARE for counts that wait to be written, are
set aside. Of the rest, EVENTS_SHARE is for annotated events and TABLE_SHARE for the table of weights. While the text is
counted there is no table yet: partitions get all memory that is free then.
"""

from __future__ import annotations

import gc
import shutil

import numpy as np

from snm.adjustment.events import AnnotatedEvents, TrainingEvents
from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.adjustment.settings import MAX_DEFAULT_SLOTS, TrainingSettings
from snm.counts.counting import PENDING_BYTES, Counter, Counting
from snm.counts.walks import LINK_BYTES
from snm.features.extraction import Extractor
from snm.gate.fitting import GateEvents, GateReport, fit
from snm.layouts.counts import Counts
from snm.layouts.weights import SLOTS_PER_LINE
from snm.matrix.writing import MatrixWriter
from snm.progress import Advance, Notify, Progress
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.system import release_free_memory, resident_bytes
from snm.text.encoding import Text
from snm.text.sampling import draw_sentences

PROGRAM_BYTES = 192 << 20  # the program itself
GROWTH_BYTES = 64 << 20  # by which the program grows while it counts: compiled code, file buffers
PENDING_SHARE = 1 / 8  # of the memory, at most, for counts that are not yet written
TOKENS_SHARE = 1 / 16  # of the memory, at most, for the page cache of the tokens, which every partition reads
EVENTS_SHARE = 0.4  # for the counts of annotated events: of all, or of one run if they are on disk
TABLE_SHARE = 1 - EVENTS_SHARE
TOKEN_BYTES = 4
MIN_PARTITION_BYTES = 128 << 20
MAX_WALKS = 5  # more walks over the text take longer than writing and reading its links, on a disk of 2 GB a second
SPILL_SHARE = 0.4  # of the free disk, for links: counts need disk too
ROWS_PER_BYTE = 1 / 1024  # rows of M that are made at one time, for each byte of memory
MAX_ROWS = 1 << 21


def partition_bytes(memory: int, tokens: int, taken: int = 0, program: int | None = None) -> int:
    """Bytes for a partition: of `memory`, what nothing else takes. `taken`: by other arrays.

    `program`: what the program takes; by default what is measured. That changes the size of partitions, but never the
    counts.
    """
    release_free_memory()
    program = program or resident_bytes() or PROGRAM_BYTES
    pending = min(PENDING_BYTES, int(PENDING_SHARE * memory))
    cached = min(TOKEN_BYTES * tokens, int(TOKENS_SHARE * memory))
    free = memory - program - GROWTH_BYTES - pending - cached - taken
    return max(free, MIN_PARTITION_BYTES)


def spill_phases(link_bytes: int, partition_bytes: int, partitions: int | None, free: int) -> tuple[int, int]:
    """In how many phases to spill links, and bytes of a phase at most; (0, 0) to walk instead.

    `link_bytes` of all links; `free` bytes of disk.
    """
    share = int(SPILL_SHARE * free)
    phases = -(-link_bytes // max(1, share))
    if (partitions or link_bytes / partition_bytes) < MAX_WALKS + phases:
        return 0, 0
    return phases, min(link_bytes, share)


class CpuEngine:
    """See `snm.engines.Engine`."""

    name = "cpu"
    spills = True

    def __init__(self, settings: Settings, progress: Progress, notify: Notify) -> None:
        self.settings, self.progress, self.notify = settings, progress, notify
        self.pending_bytes = min(PENDING_BYTES, int(PENDING_SHARE * settings.memory))
        self.array_bytes = settings.memory - PROGRAM_BYTES - self.pending_bytes

    @property
    def max_slots(self) -> int:
        fitting = int(TABLE_SHARE * self.array_bytes) // self.settings.training.bytes_per_slot
        return min(fitting // SLOTS_PER_LINE * SLOTS_PER_LINE, MAX_DEFAULT_SLOTS)

    @property
    def rows_per_part(self) -> int:
        """Rows of M that are made at one time."""
        return min(int(ROWS_PER_BYTE * self.settings.memory), MAX_ROWS)

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> TrainingEvents:
        wanted, chosen = self.settings.training.events, None
        if wanted is not None and wanted < text.events:
            drawn = draw_sentences(text, wanted, self.settings.seed)
            chosen = np.concatenate([mask for _, mask in drawn])
        memory = int(EVENTS_SHARE * self.array_bytes)
        events = AnnotatedEvents(text, extractor, unigrams, memory, writer.temporary_file, chosen)
        if chosen is not None:
            self.notify(f"the adjustment is learned from {events.events:,} tokens drawn by sentence")
        if events.on_disk:
            self.notify(f"the counts of events need up to {events.bytes_needed / 1e6:,.0f} MB of disk")
        return events

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: TrainingEvents | None, writer: ModelWriter
    ) -> Counting:
        s = self.settings
        assert annotations is None or isinstance(annotations, AnnotatedEvents)
        taken = 0 if annotations is None else annotations.bytes_in_memory
        available = partition_bytes(s.memory, len(text.tokens), taken)
        phases = self._spill_phases(text, extractor, available, writer)
        counter = Counter(
            text, extractor, available, s.threads, s.partitions, self.progress, prune, annotations,
            self.pending_bytes, writer if phases else None, phases,
        )  # fmt: skip
        counter.check_memory(available)
        return counter

    def _spill_phases(self, text: Text, extractor: Extractor, partition_bytes: int, writer: ModelWriter) -> int:
        """In how many phases to spill links, each of which takes a share of the free disk; 0 to walk instead."""
        needed = text.events * (extractor.n_templates - 1) * LINK_BYTES
        free = shutil.disk_usage(writer.folder).free
        phases, spilled = spill_phases(needed, partition_bytes, self.settings.partitions, free)
        if phases:
            self.notify(f"counting needs up to {spilled / 1e6:,.0f} MB of disk: memory is small for this text")
        return phases

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        gc.collect()  # compiling a kernel leaves reference cycles, which keep the counting arrays alive
        release_free_memory()
        return Adjustment(extractor, training, slots, self.settings.threads)

    def matrix_writer(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> MatrixWriter:
        release_free_memory()
        return MatrixWriter(writer, extractor, adjustment, self.settings.threads, self.rows_per_part)

    def fit_gate(self, events: GateEvents, units: int, seed: int, advance: Advance) -> tuple[np.ndarray, GateReport]:
        release_free_memory()
        return fit(events, units, seed, advance)
