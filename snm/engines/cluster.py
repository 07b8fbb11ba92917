"""The engine of several machines: tasks count and build, this machine learns the adjustment and the gate.

Everything that is not a task is the CPU engine's, and so is the model: byte for byte, with one training thread.
"""

from __future__ import annotations

from contextlib import ExitStack

from snm.adjustment.events import AnnotatedEvents, TrainingEvents
from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.cluster.driver import ClusterCounter, ClusterMatrixWriter
from snm.cluster.runners import RayRunner, Runner, WaitingRunner
from snm.cluster.work import named_folder, work_folder
from snm.engines.cpu import CpuEngine, partition_bytes
from snm.features.extraction import Extractor
from snm.matrix.writing import MatrixWriter
from snm.progress import Notify, Progress
from snm.remote import Folder
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.system import release_free_memory
from snm.text.encoding import Text

WAITED_SLOTS = 8  # tasks of a phase, at least, where other programs run them and their number is unknown


class ClusterEngine(CpuEngine):
    """See `snm.engines.Engine`."""

    def __init__(self, settings: Settings, progress: Progress, notify: Notify) -> None:
        super().__init__(settings, progress, notify)
        self._runner: Runner | None = None
        self._folder: Folder | None = None
        self._counter: ClusterCounter | None = None
        self._texts = 0

    def _start(self, writer: ModelWriter) -> tuple[Runner, Folder]:
        """Connect, and make the work folder, which is removed when the model has been written, or not."""
        s, resources = self.settings, ExitStack()
        if self._runner is None or self._folder is None:
            writer.at_end(resources.close)
            if s.engine == "ray":
                self._runner = RayRunner(s.address, s.threads, s.memory, self.notify)
                folder = work_folder(s.work, writer.path, self.notify)
            else:
                self._runner = WaitingRunner(s.threads, s.partitions or WAITED_SLOTS, self.notify)
                folder = named_folder(str(s.work))
            resources.callback(self._runner.close)
            self._folder = resources.enter_context(folder)
        return self._runner, self._folder

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: TrainingEvents | None, writer: ModelWriter
    ) -> ClusterCounter:
        s = self.settings
        assert annotations is None or isinstance(annotations, AnnotatedEvents)
        runner, work = self._start(writer)
        if self._counter is not None:
            self._counter.folder.remove()
        folder = work.child(str(self._texts))
        self._texts += 1
        memory = partition_bytes(s.memory, len(text.tokens))
        self._counter = ClusterCounter(
            runner, folder, text, extractor, memory, s.threads, s.partitions, self.progress, prune, annotations
        )
        return self._counter

    def matrix_writer(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> MatrixWriter:
        release_free_memory()
        training = self.settings.training
        assert isinstance(adjustment, Adjustment)
        assert self._counter is not None, "the text has been counted"
        return ClusterMatrixWriter(
            writer, extractor, adjustment, self.settings.threads, self.rows_per_part, self._counter,
            training.metafeatures, training.loss,
        )  # fmt: skip
