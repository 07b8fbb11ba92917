"""The private memory of this process: its peak, and arrays in huge pages."""

from __future__ import annotations

import math
import threading

import numpy as np

from snm import system

INTERVAL = 0.02  # seconds between two measurements of `Peak`
HUGE_PAGE = 2 << 20  # bytes


def zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    """Like NumPy's; large arrays use huge pages."""
    length = math.prod(shape)
    size = length * np.dtype(dtype).itemsize
    if size < HUGE_PAGE:
        return np.zeros(shape, dtype)
    return np.frombuffer(system.map_memory(size), dtype, length).reshape(shape)


class Peak:
    """`with Peak() as peak:` measures `resident_bytes` every INTERVAL; `peak.bytes` is the largest value.

    Where it is unknown, the peak of the process since its start is taken.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        over = False
        while not over:
            over = self._over.wait(INTERVAL)
            self.bytes = max(self.bytes, system.resident_bytes())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self.bytes = self.bytes or system.peak_bytes()
