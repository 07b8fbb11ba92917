"""The events that the adjustment is learned from, annotated with the counts of their features.

Training needs only an event's features and their counts (C_i*, C_ij). Events are annotated with them while each
partition of C is in memory; then training streams the annotated events and never reads C again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import IO, Any, NamedTuple, Protocol

import numpy as np

from snm import parallel
from snm.adjustment.function import Adjustment
from snm.adjustment.settings import TrainingSettings
from snm.adjustment.threads import AdjustmentTrainer
from snm.counts.counting import VALUE_BYTES
from snm.counts.walks import BLOCKS, Links, bounds_of
from snm.features.extraction import Extractor
from snm.kernels import counts as count_kernels
from snm.kernels import event_codes
from snm.layouts.counts import Counts, Unigrams
from snm.layouts.keys import ABSENT
from snm.storage import read_fully, write_fully
from snm.text.encoding import Text

MAX_CODED = 1 << 20  # counts that are coded and written together
COURSE = 32  # parts of a pass whose losses are recorded


class TrainingEvents(Protocol):
    """Events with the counts of their features, on a CPU or a GPU."""

    @property
    def events(self) -> int:
        """How many."""

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of the counts, if they are in the memory that `--memory` limits."""

    @property
    def on_disk(self) -> bool:
        """Whether the counts are on disk."""

    def mean_features(self, leave_one_out: bool) -> float:
        """Mean number of features of an event that training uses."""

    def train(self, adjustment: Any, settings: TrainingSettings, threads: int, advance: Callable[[int], None]) -> float:
        """One pass over all events in their order; returns the mean loss of an event."""

    course: list[float]
    """The mean loss of each of the COURSE parts of the last pass, in their order; empty where it is not recorded."""

    def __len__(self) -> int:
        """Tokens, the unit of `advance`."""


class AnnotatedEvents:
    """The counts of the features of every event of a text, except the empty feature's, in memory or on disk.

    (C_i*, C_ij) in sixteen bits each, see `kernels.counts.pack_counts`; 0 where there is no feature. They are in the
    order of `snm.counts.walks.Links`: run by run, in a run by bucket, in a bucket as in the text. `Counter` writes
    them. Training loads one run at a time, and takes counts from it as the links of the run were scattered. On disk
    they are coded in one to five bytes, see `snm.kernels.event_codes`.
    """

    def __init__(
        self, text: Text, extractor: Extractor, unigrams: Counts, memory: int,
        disk: Callable[[], IO[bytes]], chosen: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """`memory`: bytes of counts that may be in memory. `disk` makes a temporary file, unbuffered.

        chosen: the tokens that training uses; None for all. (tokens,) bool
        """
        self.text, self.extractor, self.chosen = text, extractor, chosen
        self.events = text.events if chosen is None else int(np.count_nonzero(chosen & text.targets()))
        """How many events training uses."""
        per_token = VALUE_BYTES * max(1, extractor.n_templates - 1)
        self.bytes_needed = per_token * len(text.tokens)
        """Bytes of the counts, at most."""
        self._in_memory = np.empty(0, np.uint32)
        self._disk = None if self.bytes_needed <= memory else CodedValues(disk())
        self.run_tokens = max(1, memory // per_token)
        self._seen = np.zeros(2, np.int64)  # features of events seen at all, and seen more than once
        self._total = int(unigrams.feature_counts[0])
        self._counts = np.zeros(len(extractor.vocabulary), np.int64)
        self._counts[unigrams.targets] = unigrams.link_counts
        self.course: list[float] = []

    def __len__(self) -> int:
        return len(self.text.tokens)

    @property
    def on_disk(self) -> bool:
        return self._disk is not None

    @property
    def bytes_in_memory(self) -> int:
        return 0 if self.on_disk else self.bytes_needed

    @property
    def unigrams(self) -> Unigrams:
        return Unigrams(np.int64(self._total), self._counts)

    def begin(self, links: Links) -> None:
        self._links = links
        ends = np.cumsum([0, *links.sizes.sum(axis=(1, 2), dtype=np.int64)])
        self._runs = list(pairwise(ends.tolist()))
        if not self.on_disk:
            self._in_memory = np.empty(ends[-1], np.uint32)

    def write(self, first: int, last: int, values: np.ndarray, seen: np.ndarray) -> None:
        self._seen += seen
        sizes = self._links.sizes[:, :, first:last].sum(axis=1, dtype=np.int64)
        starts = 2 * bounds_of(self._links.bucket_sizes, first, last)[:-1] + np.cumsum(sizes, axis=0) - sizes
        for run, (begin, _) in enumerate(self._runs):
            at = int(self._links.sizes[run, :, :first].sum(dtype=np.int64))
            if self._disk:
                self._disk.write(run, at, values, starts[run], sizes[run], self._links.threads)
            else:
                out = self._in_memory[begin + at : begin + at + sizes[run].sum()]
                count_kernels.collect_run(values, starts[run], sizes[run], out)

    def add(self, seen: np.ndarray, pieces: Iterable[CodedPiece], threads: int = 1) -> None:
        """Add counts of some buckets that `CodedValues` has coded elsewhere. seen: see `Annotated.write`. (2,)"""
        self._seen += seen
        pairs = event_pairs()

        def decode(piece: CodedPiece) -> None:
            start = self._runs[piece.run][0]
            event_codes.decode_values(piece.coded, pairs, self._in_memory[start + piece.begin : start + piece.end])

        if self._disk is not None:
            for piece in pieces:
                self._disk.append(*piece)
        else:
            for _ in parallel.ordered(decode, pieces, threads):
                pass

    def mean_features(self, leave_one_out: bool) -> float:
        return 1.0 + float(self._seen[int(leave_one_out)]) / max(1, len(self))

    def blocks(self, run: int, chunk: int, stored: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Tokens, keys (templates, n) and counts (n, templates - 1) of a chunk's blocks. stored: the run's counts.

        Counts are taken from as many blocks together as were scattered together.
        """
        sizes = self._links.sizes[run].astype(np.int64)
        of_run = sizes.sum(axis=0)
        cursors = np.cumsum(of_run) - of_run + sizes[:chunk].sum(axis=0)
        bits = np.uint64(self.extractor.layout.bucket_bits)
        for start, stop in self.extractor.blocks(*self._links.runs[run][chunk], BLOCKS):
            keys = self.extractor.keys(self.text.tokens, start, stop)
            values = np.empty((stop - start, len(keys) - 1), np.uint32)
            count_kernels.gather(keys[1:], bits, cursors, stored, values)
            if self.chosen is not None:
                keys[0, ~self.chosen[start:stop]] = ABSENT
            for a, b in self.extractor.blocks(0, stop - start):
                yield slice(start + a, start + b), np.ascontiguousarray(keys[:, a:b]), values[a:b]

    def stored_runs(self, threads: int = 1) -> Iterator[tuple[int, np.ndarray]]:
        """Each run and its counts, in memory until the next one."""
        buffer = np.empty(max(end - begin for begin, end in self._runs) if self._disk else 0, np.uint32)
        for run, (begin, end) in enumerate(self._runs):
            if self._disk:
                self._disk.read(run, buffer, threads)
            yield run, buffer[: end - begin] if self._disk else self._in_memory[begin:end]

    def values(self) -> np.ndarray:
        """The counts in the order of the text. (tokens, templates - 1) uint32"""
        return np.concatenate([
            values
            for run, stored in self.stored_runs()
            for chunk in range(len(self._links.runs[run]))
            for _, _, values in self.blocks(run, chunk, stored)
        ])  # fmt: skip

    def train(
        self, adjustment: Adjustment, settings: TrainingSettings, threads: int, advance: Callable[[int], None]
    ) -> float:
        tokens, threads = self.text.tokens, min(threads, adjustment.threads)
        trainer = AdjustmentTrainer(
            adjustment, self.extractor.n_templates, self.unigrams, settings.loss == "leave-one-out",
            settings.learning_rate(), threads,
        )  # fmt: skip
        losses: list[tuple[int, float]] = []  # events of a block, and their summed loss
        for run, stored in self.stored_runs(threads):

            def work(chunk: int, run: int = run, stored: np.ndarray = stored) -> None:
                for part, keys, values in self.blocks(run, chunk, stored):
                    losses.append((int(np.count_nonzero(keys[0])), trainer.train(keys, tokens[part], values)))
                    advance(part.stop - part.start)

            parallel.run(work, range(len(self._links.runs[run])), threads)
        trainer.finish()
        parts = [sums for sums in np.array_split(np.array(losses).reshape(-1, 2), COURSE) if sums[:, 0].any()]
        self.course = [float(sums[:, 1].sum() / sums[:, 0].sum()) for sums in parts]
        return sum(loss for _, loss in losses) / max(1, self.events)


def event_pairs() -> np.ndarray:
    """The pairs of counts that have short codes, see `snm.kernels.event_codes`. uint32"""
    pairs = np.empty(event_codes.FIRST_OF_THREE, np.uint32)
    event_codes.list_pairs(pairs)
    return pairs


class CodedPiece(NamedTuple):
    """Values of a run that were coded together."""

    run: int
    begin: int  # of the first, in its run
    end: int
    coded: np.ndarray  # uint8


class Piece(NamedTuple):
    """Values that were coded together."""

    begin: int  # of the first, in its run
    end: int
    at: int  # offset in the file
    size: int  # in bytes


class CodedValues:
    """Packed counts in a temporary file, coded in pieces."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.pieces = file, list[list[Piece]]()
        self.bytes = 0
        """Bytes that were written."""
        self._pairs = event_pairs()

    def write(
        self, run: int, begin: int, values: np.ndarray, starts: np.ndarray, sizes: np.ndarray, threads: int
    ) -> None:
        """Append values of a run, from its value number `begin` on; see `kernels.counts.collect_run`."""

        def encode(buckets: tuple[int, int]) -> tuple[int, np.ndarray]:
            here = slice(*buckets)
            n = int(sizes[here].sum())
            coded = np.empty(event_codes.MAX_BYTES * n, np.uint8)
            size = event_codes.encode_values(values, starts[here], sizes[here], coded)
            return n, coded[:size].copy()

        for n, coded in parallel.ordered(encode, _pieces(sizes, MAX_CODED), threads):
            self.append(run, begin, begin + n, coded)
            begin += n

    def append(self, run: int, begin: int, end: int, coded: np.ndarray) -> None:
        """Append the values [begin, end) of a run, coded."""
        while len(self.pieces) <= run:
            self.pieces.append([])
        write_fully(self._file, coded, self.bytes)
        self.pieces[run].append(Piece(begin, end, self.bytes, len(coded)))
        self.bytes += len(coded)

    def read(self, run: int, out: np.ndarray, threads: int) -> None:
        """Expand all values of a run. out: at least as many, uint32"""

        def decode(piece: Piece) -> None:
            coded = np.empty(piece.size, np.uint8)
            read_fully(self._file, coded, piece.at)
            event_codes.decode_values(coded, self._pairs, out[piece.begin : piece.end])

        parallel.run(decode, self.pieces[run] if run < len(self.pieces) else [], threads)

    def __del__(self) -> None:
        self._file.close()


def _pieces(sizes: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Ranges of buckets with about `most` links each, or a single bucket. sizes: (buckets,)"""
    numbers = np.cumsum(sizes) // most
    edges = np.flatnonzero(np.diff(numbers)) + 1
    return parallel.between([0, *edges.tolist(), len(sizes)])
