"""The side that starts the tasks and collects what they have made, in the order of keys."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from snm.adjustment.events import AnnotatedEvents
from snm.adjustment.function import Adjustment
from snm.adjustment.metafeatures import MetafeatureSet
from snm.cluster.runners import Runner
from snm.cluster.tasks import BuiltPart, bucket_range, counts_of, events_of, join_sizes
from snm.cluster.work import (
    CHUNKS,
    JOB,
    PAGE_FILES,
    SHARDS,
    SIZES,
    VALUES,
    WEIGHTS,
    BuildPlan,
    Job,
    checked,
    finished,
    name_of,
)
from snm.counts.store import Encoded, StoredCounts
from snm.counts.walks import LINK_BYTES, Walk
from snm.features.extraction import Extractor
from snm.kernels import matrix_writing as kernels
from snm.matrix.writing import MatrixWriter
from snm.progress import Advance, Progress
from snm.remote import Folder
from snm.storage import ModelWriter
from snm.text.encoding import Text

FEWEST_SHARDS = 4  # of counting: what a lost task has done is done again


class ClusterCounter:
    """See `snm.counts.counting.Counting`."""

    def __init__(
        self, runner: Runner, folder: Folder, text: Text, extractor: Extractor, memory: int, threads: int,
        partitions: int | None, progress: Progress, prune: int, annotations: AnnotatedEvents | None,
        keep: bool = False,
    ) -> None:  # fmt: skip
        """`memory`: bytes for a partition. `threads`: of this machine, that train.

        `keep`: files that have been read stay, and what a run before has left in the folder is used.
        """
        self.runner, self.folder, self.annotations, self._progress = runner, folder, annotations, progress
        self.layout, self._threads = extractor.layout, threads
        run_tokens = None if annotations is None else annotations.run_tokens
        self.keep = keep
        if folder.size(JOB) is None:
            Job.write(
                folder, text, extractor, prune, run_tokens, threads, annotations is not None, memory, runner.threads
            )  # fmt: skip
        with progress("sizing", runner.slots) as bar:
            for _ in runner.run("size", runner.slots, folder):
                bar(1)
        join_sizes(runner.slots, folder.where, folder.where)
        walk = Walk(
            text.tokens, extractor, threads, run_tokens=run_tokens, sizes=folder.map(SIZES, "<u4")
        )  # fmt: skip
        if annotations is not None:
            annotations.begin(walk)
        self._sizes = walk.bucket_sizes
        self.links, self.done = int(self._sizes.sum()), 0.0
        self.shards = partitions or shards_for(self.links * LINK_BYTES, memory, runner.slots)
        if folder.size(SHARDS) is None:
            folder.write(SHARDS, json.dumps(self.shards).encode())
        self.shards = int(json.loads(folder.read(SHARDS)))

    def __iter__(self) -> Iterator[Encoded]:
        with self._progress("counting", self.shards) as bar:
            for shard in self.runner.run("count", self.shards, self.folder):
                for part in counts_of(shard, self.shards, self.folder):
                    links = self._sizes[part.first : part.first + len(part.chunks)].sum()
                    self.done += float(links / max(1, self.links))
                    yield part
                if self.annotations is not None:
                    self.annotations.add(*events_of(shard, self.shards, self.folder), self._threads)
                    if not self.keep:
                        self.folder.delete(f"{name_of('count', shard, self.shards)}.events")
                bar(1)

    @property
    def edges(self) -> list[int]:
        """Of the buckets of tasks."""
        return [*(bucket_range(self._sizes, i, self.shards)[0] for i in range(self.shards)), len(self._sizes)]


def shards_for(needed: int, memory: int, slots: int) -> int:
    """How many tasks count links of `needed` bytes: each in one walk, and as many for every slot."""
    least = max(FEWEST_SHARDS, -(-needed // max(1, memory)))
    return -(-least // slots) * slots


class ClusterMatrixWriter(MatrixWriter):
    """Writes the matrix from pages that tasks make."""

    def __init__(
        self, writer: ModelWriter, extractor: Extractor, adjustment: Adjustment, threads: int, rows_per_part: int,
        counter: ClusterCounter, metafeatures: MetafeatureSet, loss: str,
    ) -> None:  # fmt: skip
        super().__init__(writer, extractor, adjustment, threads, rows_per_part)
        self._counter, self._metafeatures, self._loss = counter, metafeatures, loss

    def _add_all(self, counts: StoredCounts, bits: int, advance: Advance) -> None:
        folder, m = self._counter.folder, self._metafeatures
        folder.write(CHUNKS, counts.chunks.view(np.uint8))
        folder.write(WEIGHTS, self.adjustment.weights().astype("<f4", copy=False))
        folder.write(VALUES, self.values.astype("<f4", copy=False))
        buckets = {"feature_buckets": m.feature_buckets, "link_buckets": m.link_buckets, "merge": m.merge}
        BuildPlan(
            self._loss, str(m), buckets, self.adjustment.start, bits, self.code_bytes, self.rows_per_part,
            self._counter.shards, self._counter.edges,
        ).write(folder)  # fmt: skip
        shards = self._counter.shards
        for shard in self._counter.runner.run("build", shards, folder):
            self._collect(shard, shards, folder, advance)

    def _collect(self, shard: int, shards: int, folder: Folder, advance: Advance) -> None:
        """Append the pages of a task."""
        name, before, at = name_of("build", shard, shards), self.n_long, [0, 0, 0]
        types = "<u4", "|u1", self.spread.link_type
        for part in (BuiltPart(*listed) for listed in finished(folder, name)["parts"]):
            arrays = []
            for i, dtype in enumerate(types):
                file, size = f"{name}.{PAGE_FILES[i]}", part.lengths[i] * np.dtype(dtype).itemsize
                array = folder.read_array(file, dtype, at[i], at[i] + size)
                arrays.append(checked(array, part.checksums[i], folder.path(file)))
                at[i] += size
            sizes, data, long_links = arrays
            kernels.move_long_rows(data, sizes.astype(np.int64), before)
            self.append(part.first, sizes, data, long_links, part.most_rows, part.max_offset, part.shadowed)
            advance(part.links)
        for end in PAGE_FILES if not self._counter.keep else ():
            folder.delete(f"{name}.{end}")
