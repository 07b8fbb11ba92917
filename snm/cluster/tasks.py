"""The tasks: plain functions of (shard, shards, input, output), where input and output are folders or URLs.

A task does one of `shards` equal parts of the work, and nothing if its mark is there already. Ray, a Slurm array or a
shell loop can run them, see docs/cluster.md:

- `size` counts the links of a part of the text in each bucket; `join_sizes` adds them up;
- `count` counts the links of a range of buckets in the whole text, and annotates events;
- `build` makes the pages of a range of buckets, once the adjustment has been learned.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from snm import parallel
from snm.adjustment.events import CodedPiece, CodedValues
from snm.adjustment.function import Adjustment
from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import TrainingSettings
from snm.cluster.work import (
    CHUNKS,
    PAGE_FILES,
    SIZES,
    VALUES,
    WEIGHTS,
    BuildPlan,
    OpenJob,
    checked,
    finished,
    name_of,
    read_mark,
    write_mark,
)
from snm.counts.counting import Counter
from snm.counts.store import Encoded, StoredCounts
from snm.counts.walks import Links, Walk, bounds_of
from snm.layouts.counts import CHUNK
from snm.layouts.matrix import Spread
from snm.matrix.writing import MatrixWriter
from snm.progress import ignore
from snm.remote import Folder, write_all

READ_BYTES = 64 << 20  # of codes, at a time
Task = Callable[[int, int, str, str], None]
_opened: OpenJob | None = None  # the last one: a process has many tasks of the same job


def open_job(where: str) -> OpenJob:
    """The job of a folder, kept for the next task of this process."""
    global _opened
    if _opened is None or _opened.folder.where != Folder(where).where:
        _opened = None
        _opened = OpenJob(where)
    return _opened


def size(shard: int, shards: int, source: str, target: str) -> None:
    """Find how many links a part of the text has in each bucket, for each chunk of the text."""
    name, out = name_of("size", shard, shards), Folder(target)
    if read_mark(out, name) is not None:
        return
    opened = open_job(source)
    block, n = opened.extractor.block, len(opened.text.tokens)
    first, last = (n * i // shards // block * block if i < shards else n for i in (shard, shard + 1))
    chunks = [(i, max(first, a), min(last, b)) for i, (a, b) in enumerate(c for run in opened.runs for c in run)]
    chunks = [(i, a, b) for i, a, b in chunks if a < b]
    sizes = np.zeros((len(chunks), opened.buckets), "<u4")
    for row, (_, a, b) in enumerate(chunks):
        sizes[row] = Walk(opened.text.tokens, opened.extractor, opened.job.threads, a, b).bucket_sizes
    out.write(name, sizes)
    write_mark(out, name, [name], chunks=[i for i, _, _ in chunks], checksum=zlib.crc32(sizes))  # type: ignore[arg-type]


def join_sizes(shards: int, source: str, target: str) -> None:
    """Add up what the tasks `size` have found."""
    out = Folder(target)
    opened = open_job(source)
    sizes = np.zeros((sum(map(len, opened.runs)), opened.buckets), np.uint32)
    for shard in range(shards):
        name = name_of("size", shard, shards)
        mark = finished(out, name)
        found = checked(out.read_array(name, "<u4"), mark["checksum"], out.path(name)).reshape(
            len(mark["chunks"]), opened.buckets
        )
        for chunk, of_chunk in zip(mark["chunks"], found, strict=True):
            sizes[chunk] += of_chunk
    out.write(SIZES, sizes)


def links_of(opened: OpenJob) -> Walk:
    """The links of a job's text, whose sizes are known."""
    links = Walk(
        opened.text.tokens, opened.extractor, opened.job.chunks, run_tokens=opened.job.run_tokens,
        sizes=opened.folder.map(SIZES, "<u4"),
    )  # fmt: skip
    links.threads = opened.job.threads
    return links


def bucket_range(bucket_sizes: np.ndarray, shard: int, shards: int) -> tuple[int, int]:
    """The buckets of a task: ranges with nearly equal numbers of links, of which some may be empty."""
    bounds = bounds_of(bucket_sizes, 0, len(bucket_sizes))
    wanted = [bounds[-1] * i // shards for i in (shard, shard + 1)]
    first, last = np.searchsorted(bounds, wanted).tolist()
    return (0 if shard == 0 else first), (len(bucket_sizes) if shard == shards - 1 else last)


class _Annotations(CodedValues):
    """The counts of events of a range of buckets, coded. See `snm.counts.counting.Annotated`."""

    def __init__(self, file: IO[bytes], run_tokens: int, threads: int) -> None:
        super().__init__(file)
        self.run_tokens, self._threads = run_tokens, threads
        self.seen = np.zeros(2, np.int64)
        self.listed: list[tuple[int, int, int, int, int, int]] = []
        """(run, begin, end, offset, bytes, checksum) of each piece."""

    def begin(self, links: Links) -> None:
        self._links = links

    def write(self, first: int, last: int, values: np.ndarray, seen: np.ndarray) -> None:  # type: ignore[override]
        self.seen += seen
        sizes = self._links.sizes[:, :, first:last].sum(axis=1, dtype=np.int64)
        starts = 2 * bounds_of(self._links.bucket_sizes, first, last)[:-1] + np.cumsum(sizes, axis=0) - sizes
        before = self._links.sizes[:, :, :first].sum(axis=(1, 2), dtype=np.int64).tolist()
        for run, begin in enumerate(before):
            super().write(run, begin, values, starts[run], sizes[run], self._threads)

    def append(self, run: int, begin: int, end: int, coded: np.ndarray) -> None:
        self.listed.append((run, begin, end, self.bytes, len(coded), zlib.crc32(coded)))  # type: ignore[arg-type]
        super().append(run, begin, end, coded)


def count(shard: int, shards: int, source: str, target: str) -> None:
    """Count the links of a range of buckets, and annotate the events."""
    name, out = name_of("count", shard, shards), Folder(target)
    if read_mark(out, name) is not None:
        return
    opened = open_job(source)
    job, links = opened.job, links_of(opened)
    first, last = bucket_range(links.bucket_sizes, shard, shards)
    chunks, by_type = [np.zeros(0, CHUNK)], np.zeros((3, 1 << opened.extractor.layout.type_bits), np.int64)
    with ExitStack() as files:
        codes = files.enter_context(out.create(f"{name}.codes"))
        annotations = None
        if job.annotated:
            file = files.enter_context(out.create(f"{name}.events"))
            annotations = _Annotations(file, job.run_tokens or 1, job.threads)
        if first < last:
            counter = Counter(
                opened.text, opened.extractor, job.memory, job.threads, prune=job.prune, annotations=annotations,
                links=links, buckets=(first, last),
            )  # fmt: skip
            counter.check_memory(job.memory)
            for part in counter:
                chunks.append(part.chunks)
                by_type += part.by_type
                write_all(codes, part.codes)
    joined = np.concatenate(chunks).view(np.uint8)
    out.write(f"{name}.chunks", joined)
    write_mark(
        out, name, [f"{name}.{end}" for end in ("codes", "chunks", *(["events"] if job.annotated else []))],
        buckets=[first, last], by_type=by_type.tolist(), checksum=zlib.crc32(joined),  # type: ignore[arg-type]
        seen=[] if annotations is None else annotations.seen.tolist(),
        pieces=[] if annotations is None else annotations.listed,
    )  # fmt: skip


def counts_of(shard: int, shards: int, folder: Folder) -> Iterator[Encoded]:
    """The counts of a complete task, in the order of keys."""
    name = name_of("count", shard, shards)
    mark = finished(folder, name)
    first, _ = mark["buckets"]
    chunks = checked(folder.read_array(f"{name}.chunks", CHUNK), mark["checksum"], folder.path(f"{name}.chunks"))
    by_type = np.array(mark["by_type"], np.int64)
    ends = np.concatenate([[0], np.cumsum(chunks["words"])])
    edges = np.searchsorted(ends, np.arange(READ_BYTES // 8, int(ends[-1]), READ_BYTES // 8)).tolist()
    for a, b in parallel.between([0, *edges, len(chunks)]):
        codes = folder.read_array(f"{name}.codes", "<u8", 8 * int(ends[a]), 8 * int(ends[b]))
        yield Encoded(first + a, chunks[a:b], codes, by_type)
        by_type = np.zeros_like(by_type)


def events_of(shard: int, shards: int, folder: Folder) -> tuple[np.ndarray, Iterator[CodedPiece]]:
    """The counts of events of a complete task, as `snm.adjustment.events.AnnotatedEvents.add` takes them."""
    name = name_of("count", shard, shards)
    mark, file = finished(folder, name), f"{name}.events"

    def pieces() -> Iterator[CodedPiece]:
        for run, begin, end, at, length, checksum in mark["pieces"]:
            coded = checked(folder.read_array(file, np.uint8, at, at + length), checksum, folder.path(file))
            yield CodedPiece(run, begin, end, coded)

    return np.array(mark["seen"], np.int64), pieces()


# ---------------------------------------------------------------------------------------------
# building


class SharedCounts(StoredCounts):
    """The counts of the buckets [first, last), in the files of tasks."""

    def __init__(self, opened: OpenJob, plan: BuildPlan, first: int, last: int) -> None:
        self.folder, self._files, self._shards = Path(opened.folder.where), opened.folder, plan.shards
        self.layout, self.first, self.last = opened.extractor.layout, first, last
        chunks = opened.folder.map(CHUNKS, "|u1").view(CHUNK)
        self._ends = np.concatenate([[0], np.cumsum(chunks["words"])])[plan.edges]  # words before each task
        self.chunks = chunks[first:last]
        self._sum_up()
        self._codes += int(chunks["words"][:first].sum())

    def _read_codes(self, begin: int, codes: np.ndarray) -> None:
        """See `StoredCounts`."""
        end = begin + len(codes)
        for shard, (a, b) in enumerate(pairwise(self._ends.tolist())):
            start, stop = max(a, begin), min(b, end)
            if start < stop:
                name = f"{name_of('count', shard, self._shards)}.codes"
                codes[start - begin : stop - begin] = self._files.read_array(
                    name, "<u8", 8 * (start - a), 8 * (stop - a)
                )


class BuiltPart(NamedTuple):
    """Pages that were made together, see `PageWriter.append`."""

    first: int
    lengths: list[int]  # of sizes, pages and long rows
    checksums: list[int]  # of the same
    most_rows: int
    max_offset: int
    shadowed: int
    links: int


class Pages(MatrixWriter):
    """Makes the pages of some rows. Positions of long rows are counted from 0."""

    def __init__(self, opened: OpenJob, plan: BuildPlan) -> None:
        training = TrainingSettings(
            loss=plan.loss, optimiser="sgd", metafeatures=MetafeatureSet.parse(plan.metafeatures, **plan.buckets)
        )
        weights = opened.folder.map(WEIGHTS, "<f4")
        adjustment = Adjustment(opened.extractor, training, len(weights))
        adjustment.restore(weights)
        adjustment.start = plan.start
        self.extractor, self.adjustment, self.threads = opened.extractor, adjustment, opened.job.threads
        self.rows_per_part, self.singles = plan.rows_per_part, adjustment.singles()
        self.shift, self.code_bytes = np.uint64(64 - plan.bits), plan.code_bytes
        self.spread = Spread.over(len(opened.extractor.vocabulary), plan.code_bytes)
        self._set_values(opened.folder.read_array(VALUES, "<f4"))

    def write_range(self, counts: StoredCounts, bits: int, files: list[IO[bytes]]) -> list[BuiltPart]:
        """Write sizes, pages and long rows to three files; return what the parts are."""
        self.n_long, self._files = 0, files
        self._parts: list[BuiltPart] = []
        for part in counts.parts(self.rows_per_part, bits, self.threads):
            self._links = len(part.targets)
            self._add(part, ignore)
        return self._parts

    def append(
        self, first: int, sizes: np.ndarray, data: np.ndarray, long_links: np.ndarray, most_rows: int, max_offset: int,
        shadowed: int,
    ) -> None:  # fmt: skip
        self.n_long += len(long_links)
        arrays = sizes.astype("<u4"), data, long_links
        lengths, sums = [len(array) for array in arrays], [zlib.crc32(array.data) for array in arrays]
        self._parts.append(BuiltPart(first, lengths, sums, most_rows, max_offset, shadowed, self._links))
        for file, array in zip(self._files, arrays, strict=True):
            write_all(file, array)


_pages: tuple[OpenJob, Pages] | None = None  # of the last job: the weights are read once for each process


def build(shard: int, shards: int, source: str, target: str) -> None:
    """Make the pages of a range of buckets."""
    global _pages
    name, out = name_of("build", shard, shards), Folder(target)
    if read_mark(out, name) is not None:
        return
    opened = open_job(source)
    plan = BuildPlan.read(opened.folder)
    if _pages is None or _pages[0] is not opened:
        _pages = None
        _pages = opened, Pages(opened, plan)
    unit = max(0, opened.extractor.layout.bucket_bits - plan.bits)  # pages of several buckets are not divided
    first, last = ((opened.buckets >> unit) * i // shards << unit for i in (shard, shard + 1))
    names = [f"{name}.{end}" for end in PAGE_FILES]
    with ExitStack() as stack:
        files = [stack.enter_context(out.create(file)) for file in names]
        parts = _pages[1].write_range(SharedCounts(opened, plan, first, last), plan.bits, files)
    write_mark(out, name, names, parts=parts)


TASKS: dict[str, Task] = {"size": size, "count": count, "build": build}


def perform(task: str, shard: int, shards: int, source: str, target: str) -> None:
    """Do one task."""
    TASKS[task](shard, shards, source, target)
