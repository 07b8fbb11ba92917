"""Links of a text on disk, by bucket, where the memory is small for the text.

To walk over the tokens again for every partition takes time that grows with the square of the text. Here they are
walked over once: *runs* of the text, each as long as its links fit into memory, are shared out into buckets and
written one after another, and a partition is read from all of them.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from snm import parallel
from snm.counts.walks import LINK_BYTES, Walk, bounds_of
from snm.features.extraction import Extractor
from snm.kernels import counts as count_kernels
from snm.memory import LARGE, zeros
from snm.progress import Advance, ignore
from snm.storage import ModelWriter

ALIGNED = 4096  # bytes: where reads and writes that bypass the system's cache may begin and end
WRITTEN_AT_ONCE = 256 << 20
READ_AT_ONCE = 4 << 20


class SpillFile:
    """A file without a name, gone when this process is. It bypasses the system's cache where that can be bypassed:
    every byte is written once and read once, and the cache would only be slower (four times, where it was measured).
    """

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._bypass(True)

    def _bypass(self, yes: bool) -> None:
        with suppress(ImportError, AttributeError, OSError):  # not on every system, nor with every file system
            import fcntl

            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_DIRECT if yes else flags & ~os.O_DIRECT)

    def write(self, data: memoryview, at: int) -> None:
        """Write bytes of an `aligned_bytes`, a whole number of ALIGNED of them."""
        self._move(os.pwritev, data, at, WRITTEN_AT_ONCE)

    def read(self, into: memoryview, at: int) -> None:
        """Fill the beginning of an `aligned_bytes`, a whole number of ALIGNED."""
        self._move(os.preadv, into, at, READ_AT_ONCE)

    def _move(self, move: Callable[[int, list[memoryview], int], int], data: memoryview, at: int, most: int) -> None:
        done = 0
        while done < len(data):
            try:
                moved = move(self._file.fileno(), [data[done : done + most]], at + done)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._bypass(False)  # of this file system other places are aligned
                moved = move(self._file.fileno(), [data[done : done + most]], at + done)
            if not moved:
                raise OSError(errno.EIO, "a temporary file ends too early")
            done += moved

    def close(self) -> None:
        self._file.close()


def aligned_bytes(length: int) -> np.ndarray:
    """At least as many bytes as a `SpillFile` can write and read; those of the system itself begin with a page."""
    return zeros((max(LARGE, -(-length // ALIGNED) * ALIGNED),), np.uint8)


class Spilled:
    """The links of a text as `Walk` has them, walked over once. Partitions are to be taken in their order."""

    def __init__(
        self, tokens: np.ndarray, extractor: Extractor, threads: int, memory: int, writer: ModelWriter,
        advance: Advance = ignore,
    ) -> None:  # fmt: skip
        """`memory` bytes are for a run; `writer` has the disk."""
        self.threads, buckets = threads, 1 << extractor.layout.bucket_bits
        length = max(1, memory // (LINK_BYTES * max(1, extractor.n_templates - 1)))
        self.runs = [(start, min(start + length, len(tokens))) for start in range(0, len(tokens), length)]
        self.sizes = writer.scratch((len(self.runs), buckets))
        self.totals = np.zeros(buckets, np.int64)
        self._file = SpillFile(writer.folder)
        self._next = np.zeros(len(self.runs), np.int64)  # of every run, the place of its next link in the file
        room = aligned_bytes(min(length, len(tokens)) * (extractor.n_templates - 1) * LINK_BYTES)
        at = 0
        for number, (start, stop) in enumerate(self.runs):
            walk = Walk(tokens, extractor, threads, start, stop)
            walk.scatter(0, buckets, room.view(np.uint64), advance=advance)
            self.sizes[number], self._next[number] = walk.totals, at // LINK_BYTES
            self.totals += walk.totals
            padded = -(-int(walk.totals.sum()) * LINK_BYTES // ALIGNED) * ALIGNED
            self._file.write(room[:padded].data, at)
            at += padded

    def scatter(self, first: int, last: int, links: np.ndarray, advance: Advance = ignore) -> None:
        """See `Walk.scatter`."""

        sizes = self.sizes[:, first:last].astype(np.int64)
        starts = bounds_of(self.totals, first, last)[:-1] + np.cumsum(sizes, axis=0) - sizes

        def work(runs: tuple[int, int]) -> None:
            room = aligned_bytes(READ_AT_ONCE)
            for run in range(*runs):
                begin, end = self._next[run], self._next[run] + sizes[run].sum()
                place = begin
                while place < end:
                    skipped = place % (ALIGNED // LINK_BYTES)
                    length = min(end - place + skipped, READ_AT_ONCE // LINK_BYTES) - skipped
                    padded = -(-(skipped + length) * LINK_BYTES // ALIGNED) * ALIGNED
                    self._file.read(room[:padded].data, int(place - skipped) * LINK_BYTES)
                    piece = room.view(np.uint64)[skipped : skipped + length]
                    count_kernels.place_links(piece, place - begin, sizes[run], starts[run], links)
                    place += length
                self._next[run] = end
                advance(self.runs[run][1] - self.runs[run][0])

        parallel.run(work, parallel.shares(0, len(self.runs), self.threads), self.threads)

    def close(self) -> None:
        self._file.close()
