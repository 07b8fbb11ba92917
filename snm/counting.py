"""The counts C, partition by partition.

Link keys are shared out into buckets by the top bits of the feature's key, so that a bucket holds
whole rows; a *partition* is as many consecutive buckets as the memory allows. For each partition
the tokens are walked again, the keys that fall into it are scattered to their buckets, sorted and
run-length encoded. Partitions come in the order of their keys: put end to end they are the same
bytes whatever their number and the number of threads.

The empty feature's row is not sorted but counted directly: it holds every event. In it a word that
the text lacks counts as seen once, so that no word is without probability.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from snm import parallel
from snm.corpus import Text
from snm.errors import SettingsError
from snm.features import Extractor
from snm.progress import Progress, silent
from snm.vocabulary import UNKNOWN

PRUNED_ABOVE = 5  # words of an n-gram, its target included
BYTES_A_LINK = 40  # at the peak: the sort key, and where all links differ a row and a link of their own


class Counts(NamedTuple):
    """Rows of C in the order of their feature keys. Row i owns links offsets[i]:offsets[i + 1]."""

    features: np.ndarray  # (rows,) uint64, sorted
    totals: np.ndarray  # (rows,) uint64: C_i*
    offsets: np.ndarray  # (rows + 1,) int64
    targets: np.ndarray  # (links,) uint32, sorted inside a row
    counts: np.ndarray  # (links,) uint32: C_ij


def unigram_counts(text: Text, extractor: Extractor) -> Counts:
    """The empty feature's row: every word of the vocabulary but `<S>`, each at least once.

    Where the text has no `<UNK>`, it counts as often as there are words that were seen once: that
    is how often, by Good and Turing's estimate, a new word would have come up.
    """
    vocabulary = extractor.vocabulary
    counts = np.bincount(text.tokens, minlength=len(vocabulary))
    if counts[UNKNOWN] == 0:
        counts[UNKNOWN] = np.count_nonzero(counts[UNKNOWN + 1 :] == 1)
    counts = np.maximum(counts, 1)
    targets = np.arange(1, len(vocabulary), dtype=np.uint32)
    targets = targets[targets != vocabulary.never_a_target]
    counts = counts[targets]
    if counts.sum() >= 1 << 32:
        raise SettingsError(f"the text has {counts.sum():,} tokens; the most is {(1 << 32) - 1:,}: split it")
    return Counts(
        np.array([1], np.uint64),
        np.array([counts.sum()], np.uint64),
        np.array([0, len(targets)], np.int64),
        targets,
        counts.astype(np.uint32),
    )


class Counter:
    """Counts the links of a text inside a memory budget."""

    def __init__(
        self, text: Text, extractor: Extractor, memory: int, threads: int = 1,
        partitions: int | None = None, progress: Progress = silent, prune: int = 1,
    ) -> None:  # fmt: skip
        """`memory` bytes are for one partition; `partitions` asks for a number of them instead.

        `prune`: features seen less often than this are left out, n-grams of up to PRUNED_ABOVE words aside.
        """
        self.tokens, self.extractor, self.threads = text.tokens, extractor, threads
        self.layout = extractor.layout
        self.progress = progress
        types = extractor.spec.types
        self._least = np.ones(1 << self.layout.type_bits, np.int64)
        self._least[: len(types)] = [1 if t.is_ngram and t.a < PRUNED_ABOVE else prune for t in types]
        self.chunks = parallel.shares(0, len(self.tokens), threads)
        self.sizes = self._bucket_sizes()  # (chunks, buckets)
        self.ranges = self._partition_ranges(memory, partitions)

    def _bucket_sizes(self) -> np.ndarray:
        from snm.kernels import counting

        bits = np.uint64(self.layout.bucket_bits)
        sizes = np.zeros((len(self.chunks), 1 << self.layout.bucket_bits), np.int64)

        def work(chunk: int) -> None:
            for start, stop in self.extractor.blocks(*self.chunks[chunk]):
                keys = self.extractor.keys(self.tokens, start, stop)
                counting.count_buckets(keys[1:], bits, sizes[chunk])
                bar(stop - start)

        with self.progress("sizing", len(self.tokens)) as bar:
            parallel.run(work, range(len(self.chunks)), self.threads)
        return sizes

    def _partition_ranges(self, memory: int, partitions: int | None) -> list[tuple[int, int]]:
        """Ranges of buckets, each within the budget where a single bucket is."""
        totals = self.sizes.sum(axis=0)
        room = max(1, memory // BYTES_A_LINK)
        if partitions is not None:
            room = max(1, -(-int(totals.sum()) // partitions))
        edges, filled = [0], 0
        for bucket, size in enumerate(totals.tolist()):
            if filled and filled + size > room:
                edges.append(bucket)
                filled = 0
            filled += size
        return list(zip(edges, [*edges[1:], len(totals)], strict=True))

    @property
    def links(self) -> int:
        """Links with repeats, the empty feature's aside."""
        return int(self.sizes.sum())

    def share(self, part: int) -> float:
        """The share of all links, repeats counted, that lies in a partition. Keys are hashes: what is left of it
        after counting is about the same share of all that will be left."""
        first, last = self.ranges[part]
        return float(self.sizes[:, first:last].sum() / max(1, self.links))

    def __iter__(self) -> Iterator[Counts]:
        for number, (first, last) in enumerate(self.ranges, 1):
            label = f"counting {number}/{len(self.ranges)}" if len(self.ranges) > 1 else "counting"
            links, bounds = self._scatter(first, last, label)
            yield self._encode(links, bounds, first)

    def _scatter(self, first: int, last: int, label: str) -> tuple[np.ndarray, np.ndarray]:
        """Sort keys of the partition, bucket after bucket, and the buckets' bounds."""
        from snm.kernels import counting

        sizes = self.sizes[:, first:last]
        bounds = np.concatenate([[0], np.cumsum(sizes.sum(axis=0))]).astype(np.int64)
        cursors = np.zeros_like(self.sizes)
        cursors[:, first:last] = bounds[:-1] + np.cumsum(sizes, axis=0) - sizes
        links = np.empty(bounds[-1], np.uint64)
        bucket_bits, target_bits = np.uint64(self.layout.bucket_bits), np.uint64(self.layout.target_bits)

        def work(chunk: int) -> None:
            for start, stop in self.extractor.blocks(*self.chunks[chunk]):
                keys = self.extractor.keys(self.tokens, start, stop)[1:]
                targets = self.tokens[start:stop]
                counting.scatter(keys, targets, bucket_bits, target_bits, first, last, cursors[chunk], links)
                bar(stop - start)

        with self.progress(label, len(self.tokens)) as bar:
            parallel.run(work, range(len(self.chunks)), self.threads)
        return links, bounds

    def _encode(self, links: np.ndarray, bounds: np.ndarray, first: int) -> Counts:
        """Sort each bucket and run-length encode it."""
        from snm.kernels import counting

        n_buckets = len(bounds) - 1
        rows, distinct = np.zeros(n_buckets, np.int64), np.zeros(n_buckets, np.int64)
        layout = self.layout
        key_bits = np.uint64(layout.bucket_bits), np.uint64(layout.target_bits), np.uint64(layout.type_shift)
        groups = _even_groups(bounds, 16 * self.threads)

        def sort(group: tuple[int, int]) -> None:
            a, b = group
            for bucket in range(a, b):
                links[bounds[bucket] : bounds[bucket + 1]].sort()
            counting.count_runs(links, bounds[a : b + 1], first + a, *key_bits, self._least, rows[a:b], distinct[a:b])

        parallel.run(sort, groups, self.threads)
        row_at = np.concatenate([[0], np.cumsum(rows)])
        link_at = np.concatenate([[0], np.cumsum(distinct)])
        made = Counts(
            np.empty(row_at[-1], np.uint64),
            np.empty(row_at[-1], np.uint64),
            np.empty(row_at[-1] + 1, np.int64),
            np.empty(link_at[-1], np.uint32),
            np.empty(link_at[-1], np.uint32),
        )
        made.offsets[-1] = link_at[-1]

        def fill(group: tuple[int, int]) -> None:
            a, b = group
            counting.encode_runs(
                links, bounds[a : b + 1], first + a, *key_bits, self._least,
                row_at[a], link_at[a], made.features, made.totals, made.offsets, made.targets, made.counts,
            )  # fmt: skip

        parallel.run(fill, groups, self.threads)
        return made


def _even_groups(bounds: np.ndarray, n: int) -> list[tuple[int, int]]:
    """Ranges of buckets that hold about the same number of keys each."""
    wanted = np.linspace(0, bounds[-1], n + 1)[1:-1]
    return parallel.between([0, *np.searchsorted(bounds, wanted).tolist(), len(bounds) - 1])
