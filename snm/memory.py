"""The memory that this process has of its own: without files that are mapped, whose pages the system takes back."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

INTERVAL = 0.02  # seconds
LARGE = 2 << 20  # bytes


def resident_bytes() -> int:
    """Bytes; 0 where the system does not say so as Linux does."""
    try:
        _, resident, mapped, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(mapped)) * mmap.PAGESIZE


def release_free_memory() -> None:
    """Have the C library return what was freed: it keeps arrays of less than 32 MB for others like them."""
    with suppress(AttributeError, OSError, TypeError):  # of another library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    """Like NumPy's; what is large comes from the system itself, in large pages where it has them."""
    length = math.prod(shape)
    size = length * np.dtype(dtype).itemsize
    if size < LARGE:
        return np.zeros(shape, dtype)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # of a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype, length).reshape(shape)


class Peak:
    """`with Peak() as peak:` looks again and again; `peak.bytes` is the most that was seen."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        over = False
        while not over:
            over = self._over.wait(INTERVAL)
            self.bytes = max(self.bytes, resident_bytes())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
