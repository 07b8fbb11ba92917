"""Counting: from a text to the counts C, partition by partition.

The top bits of a feature's key are its bucket, so a bucket has whole rows. A *partition* is a range of buckets whose
links fit into memory. For each partition the tokens are walked again (`snm.counts.walks`) or, if there would be many
walks, links are read from disk (`snm.counts.spill`). Links are scattered to their buckets as 64-bit integers, sorted
and run-length encoded. The parts of C come in the order of keys: together they are the same bytes for any number of
partitions and threads.

Annotated events get their counts at the same time: their links are scattered with their origins and sorted too, and
are compared with the links of a bucket while it is in the cache.

The row of the empty feature, which has every event, is counted without sorting (`unigram_counts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from snm import parallel
from snm.counts.spill import Spilled
from snm.counts.walks import LINK_BYTES, NO_ORIGINS, Walk, bounds_of
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.kernels import counts as count_kernels
from snm.layouts.counts import Counts
from snm.layouts.tokens import UNKNOWN
from snm.progress import Progress, ignore, silent
from snm.storage import ModelWriter
from snm.text.encoding import Text, count_words

LINKS_PER_PART = 1 << 20  # sorted and encoded together, at most
BYTES_PER_LINK = 28  # of counts, at most: every link has a row of its own
PENDING_BYTES = 256 << 20  # of parts that are finished and not consumed
# A partition takes no more memory than these say, even if there is more: another walk over the tokens is cheap.
ENOUGH_PARTITIONS, SMALL_PARTITION = 4, 256 << 20


def unigram_counts(text: Text, extractor: Extractor) -> Counts:
    """The row of the empty feature: every word but `<S>`, each counted at least once.

    If the text has no `<UNK>`, it is counted as often as there are words seen once: the Good-Turing estimate of how
    often a new word would have been seen.
    """
    vocabulary = extractor.vocabulary
    counts = count_words(text, len(vocabulary))
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
        np.array([counts.sum()], np.uint32),
        np.array([0, len(targets)], np.int64),
        targets,
        counts.astype(np.uint32),
    )


def partition_ranges(bucket_bytes: np.ndarray, memory: int, partitions: int | None) -> list[tuple[int, int]]:
    """Ranges of buckets, each within `memory` bytes unless one bucket is larger; or about `partitions` ranges.

    bucket_bytes: memory that each bucket needs. (buckets,)
    """
    if partitions is not None:
        memory = -(-int(bucket_bytes.sum()) // partitions)
    edges, filled = [0], 0
    for bucket, size in enumerate(bucket_bytes.tolist()):
        if filled and filled + size > max(1, memory):
            edges.append(bucket)
            filled = 0
        filled += size
    return list(zip(edges, [*edges[1:], len(bucket_bytes)], strict=True))


class Annotated(Protocol):
    """Events that receive the counts of their features."""

    text: Text
    flat: np.ndarray  # (tokens * (templates - 1),) uint32: packed counts
    origin_type: np.dtype[Any]  # of an index into `flat`


class Counting(Protocol):
    """An iterator over parts of C, in the order of keys."""

    links: int  # to count, repeats included, without the empty feature's
    done: float  # the share of them that has been counted

    def __iter__(self) -> Iterator[Counts]: ...


class Counter:
    """Counts the links of a text inside a memory limit, and annotates events."""

    def __init__(
        self, text: Text, extractor: Extractor, memory: int, threads: int = 1, partitions: int | None = None,
        progress: Progress = silent, prune: int = 1, annotations: Annotated | None = None,
        pending_bytes: int = PENDING_BYTES, spill: ModelWriter | None = None,
    ) -> None:  # fmt: skip
        """`memory`: bytes for a partition. `partitions`: their number, instead.

        `prune`: features seen less often are left out, see `Extractor.min_counts`. `annotations` receive the counts of
        their features. `pending_bytes`: for parts that are finished and not consumed. `spill`: has the disk that links
        are written to; None to walk over the tokens for each partition.
        """
        self.layout, self.threads, self.annotations = extractor.layout, threads, annotations
        self._min_counts = extractor.min_counts(prune)
        parts = parallel.ahead(threads) + 1
        self._links_per_part = min(LINKS_PER_PART, pending_bytes // (BYTES_PER_LINK * parts))
        self._progress, self._tokens = progress, len(text.tokens)
        self._source: Walk | Spilled
        with progress("sizing", self._tokens) as bar:
            if spill is None:
                self._source = Walk(text.tokens, extractor, threads, advance=bar)
            else:
                self._source = Spilled(text.tokens, extractor, threads, memory, spill, bar)
        self._annotated: Walk | None = None
        if annotations is not None:
            if annotations.text is text and isinstance(self._source, Walk):
                self._annotated = self._source
            else:
                self._annotated = Walk(annotations.text.tokens, extractor, threads)
        self.links = int(self._source.bucket_sizes.sum())
        """Links to count, repeats included, without the empty feature's."""
        self.ranges = self._partition_ranges(memory, partitions)
        self.done = 0.0
        """The share of `links` that has been counted. Keys are hashes, so about the same share of C is finished."""

    def _partition_ranges(self, memory: int, partitions: int | None) -> list[tuple[int, int]]:
        needed = LINK_BYTES * self._source.bucket_sizes
        if self._annotated is not None and self.annotations is not None:
            link_bytes = self.annotations.origin_type.itemsize
            link_bytes += 0 if self._annotated is self._source else LINK_BYTES
            needed = needed + link_bytes * self._annotated.bucket_sizes
        enough = max(int(needed.sum()) // ENOUGH_PARTITIONS, SMALL_PARTITION)
        return partition_ranges(needed, min(memory, enough), partitions)

    def __iter__(self) -> Iterator[Counts]:
        """Parts of C in the order of keys. The arrays for links are allocated once and used by all partitions."""
        most = max(int(self._source.bucket_sizes[a:b].sum()) for a, b in self.ranges)
        links, wanted, origins = np.empty(most, np.uint64), np.empty(0, np.uint64), NO_ORIGINS
        everything = self._annotated is self._source  # every event of the text is annotated
        if self._annotated is not None and self.annotations is not None:
            most = max(int(self._annotated.bucket_sizes[a:b].sum()) for a, b in self.ranges)
            wanted = links if everything else np.empty(most, np.uint64)
            origins = np.empty(most, self.annotations.origin_type)
        for number, (first, last) in enumerate(self.ranges, 1):
            label = f"counting {number}/{len(self.ranges)}" if len(self.ranges) > 1 else "counting"
            with self._progress(label, self._tokens) as bar:
                if not everything:
                    self._source.scatter(first, last, links, advance=bar)
                if self._annotated is not None:
                    self._annotated.scatter(first, last, wanted, origins, bar if everything else ignore)
            yield from self._encode(first, last, links, wanted, origins)
        if isinstance(self._source, Spilled):
            self._source.close()

    def _encode(
        self, first: int, last: int, links: np.ndarray, wanted: np.ndarray, origins: np.ndarray
    ) -> Iterator[Counts]:
        """Sort the buckets [first, last), annotate events, and run-length encode links."""
        bounds = bounds_of(self._source.bucket_sizes, first, last)
        wanted_bounds = None if self._annotated is None else bounds_of(self._annotated.bucket_sizes, first, last)

        def work(group: tuple[int, int]) -> Counts:
            a, b = group
            if wanted_bounds is not None:
                _sort_with_origins(wanted, origins, wanted_bounds[a : b + 1])
            if wanted is not links:
                for start, stop in pairwise(bounds[a : b + 1]):
                    links[start:stop].sort()
            if wanted_bounds is not None:
                part = slice(wanted_bounds[a], wanted_bounds[b])
                self._annotate(links, bounds[a : b + 1], first + a, wanted[part], origins[part])
            return self._encode_group(links, bounds[a : b + 1], first + a)

        groups = _even_groups(bounds, max(1, int(bounds[-1]) // self._links_per_part))
        for (a, b), part in zip(groups, parallel.ordered(work, groups, self.threads), strict=True):
            self.done += float((bounds[b] - bounds[a]) / max(1, self.links))
            yield part

    @property
    def _key_bits(self) -> tuple[np.uint64, np.uint64, np.uint64]:
        return np.uint64(self.layout.bucket_bits), np.uint64(self.layout.target_bits), np.uint64(self.layout.type_shift)

    def _encode_group(self, links: np.ndarray, bounds: np.ndarray, first: int) -> Counts:
        rows, distinct = count_kernels.count_runs(links, bounds, first, *self._key_bits, self._min_counts)
        part = Counts(
            np.empty(rows, np.uint64),
            np.empty(rows, np.uint32),
            np.empty(rows + 1, np.int64),
            np.empty(distinct, np.uint32),
            np.empty(distinct, np.uint32),
        )
        count_kernels.encode_runs(links, bounds, first, *self._key_bits, self._min_counts, *part)
        return part

    def _annotate(
        self, links: np.ndarray, bounds: np.ndarray, first: int, wanted: np.ndarray, origins: np.ndarray
    ) -> None:
        assert self.annotations is not None
        count_kernels.annotate_runs(
            links, bounds, first, *self._key_bits, self._min_counts, wanted, origins, self.annotations.flat
        )


def _sort_with_origins(links: np.ndarray, origins: np.ndarray, bounds: np.ndarray) -> None:
    """Sort the links of every bucket, and their origins in the same order."""
    for start, stop in pairwise(bounds):
        order = np.argsort(links[start:stop])
        links[start:stop] = links[start:stop][order]
        origins[start:stop] = origins[start:stop][order]


def _even_groups(bounds: np.ndarray, n: int) -> list[tuple[int, int]]:
    """About n ranges of buckets with nearly equal numbers of links."""
    wanted = np.linspace(0, bounds[-1], n + 1)[1:-1]
    return parallel.between([0, *np.searchsorted(bounds, wanted).tolist(), len(bounds) - 1])
