"""The time of each stage of a training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from snm.progress import Advance, ignore

STAGES = ("reading", "word classes", "counting", "training", "building", "gating", "estimating", "merging", "writing")
OF_STAGE = {"sizing": "counting", "writing": "counting", "word": "word classes", "forecasting": "reading"}
"""The stage of a progress bar, by the first word of its label, where they differ."""


class Clock:
    """Divides the time of a training between its stages, by their progress bars."""

    def __init__(self, gate: bool) -> None:
        """`gate`: the training learns one."""
        self._after = {"building": "gating" if gate else "writing", "gating": "writing", "merging": "writing"}
        self._seconds = {stage: np.zeros(2) for stage in STAGES}
        self._stage, self._begun = STAGES[0], self._now()

    @staticmethod
    def _now() -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])

    def _enter(self, stage: str) -> None:
        now = self._now()
        self._seconds[self._stage] += now - self._begun
        self._stage, self._begun = stage, now

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Advance]:
        first = label.split()[0]
        self._enter(OF_STAGE.get(first, first))
        yield ignore
        if self._stage in self._after:
            self._enter(self._after[self._stage])

    def stop(self) -> dict[str, np.ndarray]:
        """Wall and CPU seconds of each stage. (2,)"""
        self._enter("writing")
        return self._seconds


def straight(short: np.ndarray, long: np.ndarray, small: float, large: float, whole: float) -> np.ndarray:
    """Two times of work of two sizes, continued in a straight line; through 0 if the sizes are nearly the same."""
    if large < 2 * small:
        return long * (whole / large)
    made: np.ndarray = long + np.maximum(long - short, 0) * ((whole - large) / (large - small))
    return made
