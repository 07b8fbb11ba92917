"""Where the steps from tokens to a model run: the threads of this machine, or a GPU.

An engine counts a text, learns the adjustment function from it, makes the pages of M, and learns the gate. Engines make
the same counts, and models of the same format; what is learned differs by the order in which it is learned.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from snm.calibration import Events, GateReport
from snm.corpus import Text
from snm.counting import Counting, Counts
from snm.errors import MissingExtra, SettingsError
from snm.features import Extractor
from snm.pages import PageWriter
from snm.progress import Progress
from snm.storage import ModelWriter
from snm.training import AdjustmentFunction, Annotated, TrainingSettings

if TYPE_CHECKING:
    from snm.pipeline import Settings

ENGINES = ("auto", "cpu", "gpu")
WORTH_A_GPU = 1_000_000  # tokens; fewer are done before a GPU has woken up


class Engine(Protocol):
    name: str

    @property
    def most_slots(self) -> int:
        """Of the table of weights, where the user asks for no number."""

    def choose_events(self, text: Text, extractor: Extractor, unigrams: Counts, writer: ModelWriter) -> Annotated:
        """The events that the adjustment function is learned from, for `count` to fill in."""

    def count(
        self, text: Text, extractor: Extractor, prune: int, annotations: Annotated | None, writer: ModelWriter
    ) -> Counting:
        """The counts of all features but the empty one; features seen less than `prune` times are left out.

        `writer` has disk for what is needed on the way.
        """

    def adjustment(self, extractor: Extractor, training: TrainingSettings, slots: int) -> AdjustmentFunction:
        """An adjustment function before it is learned."""

    def pages(self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction) -> PageWriter:
        """What makes the pages of M."""

    def fit_gate(self, events: Events, units: int, seed: int, advance: Any) -> tuple[np.ndarray, GateReport]:
        """See `snm.calibration.fit`."""


def make(settings: Settings, tokens: int, progress: Progress, notify: Any) -> Engine:
    """The engine that is asked for, or the one that suits a text of so many tokens."""
    if settings.engine == "gpu" or (settings.engine == "auto" and tokens >= WORTH_A_GPU and has_gpu()):
        from snm.engines.gpu import GpuEngine

        return GpuEngine(settings, find_gpu(), progress, notify)
    from snm.engines.cpu import CpuEngine

    return CpuEngine(settings, progress, notify)


def device_of(engine: str) -> str:
    """The PyTorch device of an engine, for models that need PyTorch anyway."""
    if engine == "gpu" or (engine == "auto" and has_gpu()):
        return str(find_gpu())
    return "cpu"


def has_gpu() -> bool:
    """Whether PyTorch could use a GPU; it is not imported, which takes seconds, where there is no driver for one."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


@contextmanager
def memory_watched() -> Iterator[None]:
    """A GPU whose memory is used up is told in a line."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":  # PyTorch's: it may not be there to be named
            raise
        raise SettingsError(
            "the GPU's memory is used up; take more --partitions, fewer --events or --slots, or --engine cpu"
        ) from error


def find_gpu() -> Any:
    """The GPU as a PyTorch device, or an error that says what is missing."""
    if find_spec("torch") is None:
        raise MissingExtra("torch", "gpu", "the GPU engine")
    import torch

    if not torch.cuda.is_available():
        raise SettingsError("engine gpu: PyTorch finds no GPU here; take --engine cpu, or leave it out")
    return torch.device("cuda")
