"""The private memory of this process: its size, its peak, and huge pages."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

INTERVAL = 0.02  # seconds between two measurements of `Peak`
HUGE_PAGE = 2 << 20  # bytes


def resident_bytes() -> int:
    """Resident memory without mapped files, whose pages the system can take back; 0 outside Linux."""
    try:
        _, resident, mapped, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(mapped)) * mmap.PAGESIZE


def release_free_memory() -> None:
    """Return freed memory to the system: the C library keeps freed arrays of less than 32 MB."""
    with suppress(AttributeError, OSError, TypeError):  # only the GNU C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def use_huge_pages(mapping: mmap.mmap) -> None:
    """Ask for huge pages, where the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a Linux kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)


def zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    """Like NumPy's; large arrays use huge pages."""
    length = math.prod(shape)
    size = length * np.dtype(dtype).itemsize
    if size < HUGE_PAGE:
        return np.zeros(shape, dtype)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_huge_pages(mapping)
    return np.frombuffer(mapping, dtype, length).reshape(shape)


class Peak:
    """`with Peak() as peak:` measures `resident_bytes` every INTERVAL; `peak.bytes` is the largest value."""

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
