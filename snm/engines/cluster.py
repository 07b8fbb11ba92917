"""The engine of several machines: tasks count and build, this machine learns the adjustment and the gate.

A training on one machine that can be resumed counts by tasks too, in this process.

Everything that is not a task is the CPU engine's, and so is the model: byte for byte, with one training thread.
"""

from __future__ import annotations

from contextlib import ExitStack

from snm.adjustment.events import AnnotatedEvents, TrainingEvents
from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.cluster.driver import ClusterCounter, ClusterMatrixWriter
from snm.cluster.runners import LocalRunner, RayRunner, Runner, WaitingRunner
from snm.cluster.work import kept_place, named_folder, work_folder
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

    spills = False

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
            self._runner = self._make_runner()
            resources.callback(self._runner.close)
            if s.resume:
                self._folder = Folder(kept_place(s.work, writer.path, s.engine))
            elif s.engine == "ray":
                self._folder = resources.enter_context(work_folder(s.work, writer.path, self.notify))
            else:
                self._folder = resources.enter_context(named_folder(str(s.work)))
        return self._runner, self._folder

    def _make_runner(self) -> Runner:
        s = self.settings
        if s.engine == "ray":
            return RayRunner(s.address, s.threads, s.memory, self.notify)
        if s.engine == "tasks":
            return WaitingRunner(s.threads, s.partitions or WAITED_SLOTS, self.notify)
        return LocalRunner(s.threads)

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: TrainingEvents | None, writer: ModelWriter
    ) -> ClusterCounter:
        s = self.settings
        assert annotations is None or isinstance(annotations, AnnotatedEvents)
        runner, work = self._start(writer)
        if self._counter is not None and not s.resume:
            self._counter.folder.remove()
        folder = work.child(str(self._texts))
        self._texts += 1
        taken = annotations.bytes_in_memory if annotations is not None and isinstance(runner, LocalRunner) else 0
        memory = partition_bytes(s.memory, len(text.tokens), taken)
        self._counter = ClusterCounter(
            runner, folder, text, extractor, memory, s.threads, s.partitions, self.progress, prune, annotations,
            s.resume,
        )  # fmt: skip
        return self._counter

    def matrix_writer(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> MatrixWriter:
        if isinstance(self._runner, LocalRunner):  # building takes little time
            return super().matrix_writer(writer, extractor, adjustment)
        release_free_memory()
        training = self.settings.training
        assert isinstance(adjustment, Adjustment)
        assert self._counter is not None, "the text has been counted"
        return ClusterMatrixWriter(
            writer, extractor, adjustment, self.settings.threads, self.rows_per_part, self._counter,
            training.metafeatures, training.loss,
        )  # fmt: skip
