"""Links of a text on disk, by bucket, for texts whose links are many times larger than memory.

Walking over the tokens for every partition takes time that grows with the square of the text. Here the text is walked
once, in *runs* whose links fit into memory. Each run is scattered to its buckets and written; a partition is read from
all runs. If the disk is too small for all links, the buckets are divided into *phases*: the text is walked once for
each, and the links of one phase are on disk at a time.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from snm import parallel, system
from snm.counts.walks import LINK_BYTES, KeySource, Walk, bounds_of, cut
from snm.kernels import counts as count_kernels
from snm.memory import HUGE_PAGE, zeros
from snm.progress import Advance, ignore
from snm.storage import ModelWriter

ALIGNMENT = 4096  # bytes: of memory, offset and length of direct reads and writes
WRITE_BYTES = 256 << 20  # at once
READ_BYTES = 4 << 20
BUFFERS = 2  # runs in memory: one is written while the next is walked over


class SpillFile:
    """A file without a name, which the system deletes with the process.

    Direct input and output where possible: every byte is written once and read once, and through the system's cache
    that was four times slower.
    """

    def __init__(self, folder: Path) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        system.bypass_cache(self._file, True)

    def write(self, data: memoryview, at: int) -> None:
        """Write to offset `at`. Data, length and offset are multiples of ALIGNMENT, see `aligned_bytes`."""
        self._move(system.write_at, data, at, WRITE_BYTES)

    def read(self, into: memoryview, at: int) -> None:
        """Fill `into` from offset `at`, with the same alignment."""
        self._move(system.read_at, into, at, READ_BYTES)

    def _move(self, move: Callable[[IO[bytes], memoryview, int], int], data: memoryview, at: int, most: int) -> None:
        done = 0
        while done < len(data):
            try:
                moved = move(self._file, data[done : done + most], at + done)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                system.bypass_cache(self._file, False)  # this file system needs another alignment
                moved = move(self._file, data[done : done + most], at + done)
            if not moved:
                raise OSError(errno.EIO, "a temporary file ends too early")
            done += moved

    def free(self, at: int, size: int) -> None:
        """Give the disk of whole blocks that are no longer needed back to the system, where it can."""
        first, last = _padded(at), (at + size) // ALIGNMENT * ALIGNMENT
        if first < last:
            system.punch_hole(self._file, first, last - first)

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # a full disk has no place for the file
            self.close()


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def aligned_bytes(length: int) -> np.ndarray:
    """At least `length` bytes, aligned for a `SpillFile`: `zeros` maps arrays of this size, at a memory page."""
    return zeros((max(HUGE_PAGE, _padded(length)),), np.uint8)


class Spilled:
    """The links of a text, as `Walk` has them, from one walk a phase. Partitions must be read in order."""

    def __init__(
        self, tokens: np.ndarray, extractor: KeySource, threads: int, memory: int, writer: ModelWriter,
        run_tokens: int | None = None, advance: Advance = ignore, numbers: np.ndarray | None = None,
        n_phases: int = 1,
    ) -> None:  # fmt: skip
        """`memory`: bytes for BUFFERS runs, of at most `run_tokens` each. `writer`: its folder is on the disk to use.

        The links of the first of `n_phases` are spilled at once. numbers: of the events, in place of their links, see
        `Walk.carrying`.
        """
        self.threads, buckets = threads, 1 << extractor.layout.bucket_bits
        self._tokens, self._extractor, self._numbers, self._writer = tokens, extractor, numbers, writer
        length = max(1, memory // BUFFERS // (LINK_BYTES * max(1, extractor.n_templates - 1)))
        length = length if run_tokens is None else min(length, run_tokens)
        self.runs = cut(0, len(tokens), length, threads, extractor.block)
        self.sizes = writer.scratch((len(self.runs), threads, buckets))
        self.bucket_sizes = np.zeros(buckets, np.int64)
        self.phases = parallel.shares(0, buckets, n_phases)
        """Ranges of buckets whose links are on disk at the same time."""
        self._next = np.zeros(len(self.runs), np.int64)  # index of each run's next link in the file
        self._file: SpillFile | None = None
        self.spill(0, advance)

    def spill(self, phase: int, advance: Advance = ignore) -> None:
        """Write the links of a phase to disk. The phases before it are read no more."""
        self.close()
        self._file = SpillFile(self._writer.folder.parent)
        (first, last), at = self.phases[phase], 0
        longest = max((run[-1][1] - run[0][0] for run in self.runs), default=0)
        most = longest * (self._extractor.n_templates - 1)
        if phase:
            most = int(self.sizes[:, :, first:last].sum(axis=(1, 2), dtype=np.int64).max(initial=0))
        buffers = [aligned_bytes(most * LINK_BYTES) for _ in range(BUFFERS)]
        written: list[Future[None]] = []
        with ThreadPoolExecutor(1) as pool:  # writes a run while the next one is walked over
            for run in range(len(self.runs)):
                if run >= BUFFERS:
                    written[run - BUFFERS].result()
                buffer = buffers[run % BUFFERS]
                size = self._scatter_run(run, phase, buffer, advance)
                self._next[run] = at // LINK_BYTES
                written.append(pool.submit(self._file.write, buffer[:size].data, at))
                at += size
        for done in written:
            done.result()

    def _scatter_run(self, run: int, phase: int, buffer: np.ndarray, advance: Advance) -> int:
        """Scatter the links of a run, in the buckets of a phase, to a buffer; the bytes to write."""
        (first, last), chunks = self.phases[phase], self.runs[run]
        sizes = self.sizes[run : run + 1] if phase else None
        walk = Walk(self._tokens, self._extractor, self.threads, chunks[0][0], chunks[-1][1], sizes=sizes)
        if not phase:
            self.sizes[run] = walk.sizes[0]
            self.bucket_sizes += walk.bucket_sizes
        links = walk if self._numbers is None else walk.carrying(self._numbers)
        links.scatter(first, last, buffer.view(np.uint64), advance)
        return _padded(int(walk.bucket_sizes[first:last].sum()) * LINK_BYTES)

    def scatter(self, first: int, last: int, links: np.ndarray, advance: Advance = ignore) -> None:
        """Read the links of buckets [first, last) of the phase on disk, and free their disk; see `Links.scatter`."""
        assert self._file is not None, "a phase has been spilled"
        file = self._file
        sizes = self.sizes[:, :, first:last].sum(axis=1, dtype=np.int64)
        starts = bounds_of(self.bucket_sizes, first, last)[:-1] + np.cumsum(sizes, axis=0) - sizes

        def work(runs: tuple[int, int]) -> None:
            buffer = aligned_bytes(READ_BYTES)
            for run in range(*runs):
                begin, end = self._next[run], self._next[run] + sizes[run].sum()
                at = begin
                while at < end:
                    skipped = at % (ALIGNMENT // LINK_BYTES)
                    length = min(end - at + skipped, READ_BYTES // LINK_BYTES) - skipped
                    size = _padded((skipped + length) * LINK_BYTES)
                    file.read(buffer[:size].data, int(at - skipped) * LINK_BYTES)
                    piece = buffer.view(np.uint64)[skipped : skipped + length]
                    count_kernels.place_links(piece, at - begin, sizes[run], starts[run], links)
                    at += length
                file.free(int(begin) * LINK_BYTES, int(end - begin) * LINK_BYTES)
                self._next[run] = end
                advance(self.runs[run][-1][1] - self.runs[run][0][0])

        parallel.run(work, parallel.shares(0, len(self.runs), self.threads), self.threads)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
