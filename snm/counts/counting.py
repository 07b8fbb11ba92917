"""Counting: from a text to the counts C, partition by partition.

The top bits of a feature's key are its bucket, so a bucket has whole rows. A *partition* is a range of buckets whose
links fit into memory. For each partition the tokens are walked again (`snm.counts.walks`) or, if there would be many
walks, links are read from disk (`snm.counts.spill`). Links are scattered to their buckets as 64-bit integers. Equal
links of a bucket are merged in a hash table, and the distinct ones sorted. The parts of C come in the order of keys:
together they are the same bytes for any number of partitions and threads.

Events are annotated with their counts at the same time: each link knows its number among the distinct ones, so the
counts go back to where the links were.

The row of the empty feature, which has every event, is counted without sorting (`unigram_counts`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np

from snm import parallel
from snm.counts.spill import Spilled
from snm.counts.store import Encoded, encode
from snm.counts.walks import LINK_BYTES, Links, Walk, bounds_of
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.kernels import counts as count_kernels
from snm.kernels.counts import DIGIT_BITS
from snm.layouts.counts import Counts
from snm.layouts.keys import KeyLayout
from snm.layouts.tokens import UNKNOWN
from snm.progress import Progress, silent
from snm.storage import ModelWriter
from snm.text.encoding import Text, count_words
from snm.text.vocabulary import Vocabulary

LINKS_PER_PART = 1 << 18  # sorted and encoded together, at most
COUNTS_BYTES = 48  # of a link while it is encoded, at most: every link has a row of its own
CODE_BYTES = 12  # of a link that is encoded, at most
VALUE_BYTES = 4  # of the packed counts of a link
SORT_BYTES = 24  # of scratch memory for each link of a bucket

MAX_BUCKET_LINKS = (1 << 32) - 1  # the order of a bucket's links has 32 bits
MAX_SORTED_TOGETHER = 1 << 20  # links of a bucket that several threads sort at the same time
PENDING_BYTES = 256 << 20  # of parts that are finished and not consumed
# A partition takes no more memory than these say, even if there is more: another walk over the tokens is cheap.
ENOUGH_PARTITIONS, SMALL_PARTITION = 4, 256 << 20


def unigram_counts(text: Text, extractor: Extractor) -> Counts:
    """The row of the empty feature."""
    return unigram_row(count_words(text, len(extractor.vocabulary)), extractor.vocabulary)


def unigram_row(words: np.ndarray, vocabulary: Vocabulary) -> Counts:
    """The row of the empty feature: every word but `<S>`, each counted at least once.

    If the text has no `<UNK>`, it is counted as often as there are words seen once: the Good-Turing estimate of how
    often a new word would have been seen.

    words: how often each word occurs. (words,) int64
    """
    counts = words.copy()
    if counts[UNKNOWN] == 0:
        counts[UNKNOWN] = np.count_nonzero(counts[UNKNOWN + 1 : vocabulary.first_field] == 1)
    counts = np.maximum(counts, 1)
    targets = np.arange(1, vocabulary.first_field, dtype=np.uint32)
    targets = targets[targets != vocabulary.never_a_target]
    counts = counts[targets].astype(np.int64)
    return Counts(np.array([1], np.uint64), counts.sum(keepdims=True), np.array([0, len(targets)]), targets, counts)


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
    """Receives the counts of all features of all events."""

    run_tokens: int
    """Tokens of a run, at most."""

    def begin(self, links: Links) -> None:
        """The links that are going to be counted."""

    def write(self, first: int, last: int, values: np.ndarray, seen: np.ndarray) -> None:
        """The packed counts of the links of the buckets [first, last), in the order of `Links`.

        values: those of a bucket are together, and begin at twice the number of links in the buckets before it. uint32
        seen: how many of them are of features seen at all, and seen more than once. (2,)
        """


class Counting(Protocol):
    """An iterator over parts of C, encoded, in the order of keys."""

    layout: KeyLayout
    links: int  # to count, repeats included, without the empty feature's
    done: float  # the share of them that has been counted

    def __iter__(self) -> Iterator[Encoded]: ...


class Counter:
    """Counts the links of a text inside a memory limit, and annotates events."""

    def __init__(
        self, text: Text, extractor: Extractor, memory: int, threads: int = 1, partitions: int | None = None,
        progress: Progress = silent, prune: int = 1, annotations: Annotated | None = None,
        pending_bytes: int = PENDING_BYTES, spill: ModelWriter | None = None, phases: int = 1,
        links: Links | None = None, buckets: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """`memory`: bytes for a partition. `partitions`: their number, instead.

        `prune`: features seen less often are left out, see `Extractor.min_counts`. `annotations` receive the counts of
        their features. `pending_bytes`: for parts that are finished and not consumed. `spill`: has the disk that links
        are written to, in so many `phases`; None to walk over the tokens for each partition. `links`: of the text,
        where their sizes are known already. `buckets`: the range of those to count; None for all.
        """
        self.layout, self.threads, self.annotations = extractor.layout, threads, annotations
        self._min_counts = extractor.min_counts(prune)
        link_bytes = COUNTS_BYTES * threads + CODE_BYTES * (parallel.ahead(threads) + 1)
        self._links_per_part = max(1, min(LINKS_PER_PART, pending_bytes // link_bytes))
        self._progress, self._tokens = progress, len(text.tokens)
        self._sorted_together = 0
        run_tokens = None if annotations is None else annotations.run_tokens
        self._source: Links
        with progress("sizing", self._tokens) as bar:
            if links is not None:
                self._source = links
            elif spill is None:
                self._source = Walk(text.tokens, extractor, threads, run_tokens=run_tokens, advance=bar)
            else:
                self._source = Spilled(text.tokens, extractor, threads, memory, spill, run_tokens, bar, n_phases=phases)
        if annotations is not None:
            annotations.begin(self._source)
        self.buckets = buckets or (0, len(self._source.bucket_sizes))
        self.links = int(self._source.bucket_sizes[slice(*self.buckets)].sum())
        """Links to count, repeats included, without the empty feature's."""
        self.phases = self._partition_ranges(memory, partitions)
        """The partitions of each phase, as ranges of buckets."""
        self.done = 0.0
        """The share of `links` that has been counted. Keys are hashes, so about the same share of C is finished."""

    def _partition_ranges(self, memory: int, partitions: int | None) -> list[list[tuple[int, int]]]:
        sizes, link_bytes = self._source.bucket_sizes[slice(*self.buckets)], LINK_BYTES
        largest = int(sizes.max(initial=0))
        if largest > MAX_BUCKET_LINKS:
            raise SettingsError(
                f"a feature is so frequent that its bucket has {largest:,} links; at most {MAX_BUCKET_LINKS:,} can be "
                f"sorted: split the text, or choose other features"
            )
        self._sorted_together = min(MAX_SORTED_TOGETHER, memory // (8 * SORT_BYTES * self.threads))
        scratch = SORT_BYTES * (self.threads * min(largest, self._sorted_together) + largest)
        self.least_bytes = link_bytes * largest + scratch
        """What the largest bucket takes, which has whole rows: no partition can be smaller."""
        needed = link_bytes * sizes
        enough = max(int(needed.sum()) // ENOUGH_PARTITIONS, SMALL_PARTITION)
        if len(sizes) < len(self._source.bucket_sizes):
            enough = memory  # these buckets are a part already
        most = min(max(memory - scratch, memory // 4), enough)
        phases = self._source.phases if isinstance(self._source, Spilled) else [self.buckets]
        wanted, begin = None if partitions is None else -(-partitions // len(phases)), self.buckets[0]
        return [
            [(first + a, first + b) for a, b in partition_ranges(needed[first - begin : last - begin], most, wanted)]
            for first, last in phases
        ]

    def check_memory(self, available: int) -> None:
        """Raise an error if the largest bucket takes more than `available` bytes."""
        if self.least_bytes > available:
            raise SettingsError(
                f"a feature is so frequent that its links take {self.least_bytes / 1e6:,.0f} MB of memory; there "
                f"are {available / 1e6:,.0f} MB for them: give more --memory"
            )

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """All partitions."""
        return [partition for phase in self.phases for partition in phase]

    def __iter__(self) -> Iterator[Encoded]:
        """Parts of C in the order of keys."""
        counted, many = 0, len(self.ranges)
        for phase, ranges in enumerate(self.phases):
            if phase and isinstance(self._source, Spilled):
                with self._progress(f"writing links {phase + 1}/{len(self.phases)}", self._tokens) as bar:
                    self._source.spill(phase, bar)
            yield from self._count(ranges, counted, many)
            counted += len(ranges)
        if isinstance(self._source, Spilled):
            self._source.close()

    def _count(self, ranges: list[tuple[int, int]], counted: int, many: int) -> Iterator[Encoded]:
        """The parts of partitions, which use the same arrays for links. `counted` of `many` came before."""
        most = max(int(self._source.bucket_sizes[a:b].sum()) for a, b in ranges)
        links = np.empty(most, np.uint64)
        for number, (first, last) in enumerate(ranges, counted + 1):
            label = f"counting {number}/{many}" if many > 1 else "counting"
            with self._progress(label, self._tokens) as bar:
                self._source.scatter(first, last, links, bar)
            yield from self._encode(first, last, links)

    def _encode(self, first: int, last: int, links: np.ndarray) -> Iterator[Encoded]:
        """Count the buckets [first, last), annotate events, and encode rows. The counts of events replace the links."""
        bounds = bounds_of(self._source.bucket_sizes, first, last)
        sorting = Sorting(self.threads, self._sorted_together)
        seen = np.zeros(2, np.int64)

        def work(group: tuple[int, int]) -> tuple[Encoded, tuple[int, int]]:
            a, b = group
            here = bounds[a : b + 1]
            values, link_counts = np.empty((2, int(here[-1] - here[0])), np.uint32)
            distinct = np.empty(b - a, np.int64)
            where = links, here, first + a, *self._key_bits, self._min_counts
            with sorting.scratch(int(np.diff(here).max())) as scratch:
                sizes = count_kernels.count_links(*where, values, link_counts, distinct, *scratch)
            rows, kept_links, *found = sizes
            part = Counts.empty(rows, kept_links)
            count_kernels.collect_rows(*where, link_counts, distinct, part)
            encoded = encode(part, first + a, first + b, self.layout)
            if self.annotations is not None:
                count_kernels.replace_links(links.view(np.uint32), here, values)
            return encoded, (found[0], found[1])

        groups = even_groups(bounds, max(1, int(bounds[-1]) // self._links_per_part))
        for (a, b), (part, found) in zip(groups, parallel.ordered(work, groups, self.threads), strict=True):
            self.done += float((bounds[b] - bounds[a]) / max(1, self.links))
            seen += found
            yield part
        if self.annotations is not None:
            self.annotations.write(first, last, links.view(np.uint32), seen)

    @property
    def _key_bits(self) -> tuple[np.uint64, np.uint64, np.uint64]:
        return np.uint64(self.layout.bucket_bits), np.uint64(self.layout.target_bits), np.uint64(self.layout.type_shift)


class Scratch(NamedTuple):
    """Memory for counting a bucket of n links. The table is not used at the same time as `links` and `orders`."""

    table: np.ndarray  # (4 n,) uint32
    links: np.ndarray  # (n,) uint64
    orders: np.ndarray  # (2, n) uint32
    repeats: np.ndarray  # (2, n) uint32
    digits: np.ndarray  # of radix sort, int64

    @classmethod
    def of(cls, n: int) -> Scratch:
        shared, repeats = np.empty(2 * n, np.uint64), np.empty((2, n), np.uint32)
        orders = shared[n:].view(np.uint32).reshape(2, n)
        return cls(shared.view(np.uint32), shared[:n], orders, repeats, np.empty(1 << DIGIT_BITS, np.int64))


class Sorting:
    """Scratch memory for sorting buckets. Of the large buckets, one is sorted at a time."""

    def __init__(self, threads: int, most: int) -> None:
        """`most`: links of a bucket that several threads may sort at the same time."""
        self._most = most
        self._idle = [Scratch.of(0) for _ in range(threads)]
        self._large, self._of_large = threading.Lock(), Scratch.of(0)

    @contextmanager
    def scratch(self, size: int) -> Iterator[Scratch]:
        """Memory for a bucket of `size` links, that no other thread uses."""
        if size > self._most:
            with self._large:
                if len(self._of_large.links) < size:
                    self._of_large = Scratch.of(size)
                yield self._of_large
            return
        made = self._idle.pop()
        if len(made.links) < size:
            made = Scratch.of(size)
        try:
            yield made
        finally:
            self._idle.append(made)


def even_groups(bounds: np.ndarray, n: int) -> list[tuple[int, int]]:
    """About n ranges of buckets with nearly equal numbers of links."""
    wanted = np.linspace(0, bounds[-1], n + 1)[1:-1]
    return parallel.between([0, *np.searchsorted(bounds, wanted).tolist(), len(bounds) - 1])
