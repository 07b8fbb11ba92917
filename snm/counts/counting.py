"""The counts C, partition by partition.

Link keys are shared out into buckets by the top bits of the feature's key, so that a bucket holds whole rows; a
*partition* is as many consecutive buckets as the memory allows. For each partition the tokens are walked again, or
links are read from disk where there would be many walks (`snm.spill`); the keys that fall into it are scattered to
their buckets, sorted and run-length encoded. Parts come in the order of their keys: put end to end they are the same
bytes whatever their number and the number of threads.

Events that the adjustment function is learned from take their counts from the buckets too: their keys are
scattered beside the others with where they came from, and walked with the sorted bucket while it is in the cache.

The empty feature's row is not sorted but counted directly: it holds every event. In it a word that
the text lacks counts as seen once, so that no word is without probability.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from snm import parallel
from snm.counts.spill import Spilled
from snm.counts.walks import LINK_BYTES, NOWHERE, Walk, bounds_of
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.kernels import counts as count_kernels
from snm.layouts.counts import Counts
from snm.layouts.tokens import UNKNOWN
from snm.progress import Progress, ignore, silent
from snm.storage import ModelWriter
from snm.text.encoding import Text, count_words

LINKS_PER_PART = 1 << 20  # sorted and encoded together, at most
BYTES_PER_LINK = 28  # of counts, at most: where every link has a row of its own
ON_THEIR_WAY = 256 << 20  # bytes of counts that have been made and not been taken yet
ENOUGH_PARTITIONS, SMALL_PARTITION = 4, 256 << 20  # no more memory is taken: another walk over the tokens is cheap


def unigram_counts(text: Text, extractor: Extractor) -> Counts:
    """The empty feature's row: every word of the vocabulary but `<S>`, each at least once.

    Where the text has no `<UNK>`, it counts as often as there are words that were seen once: that
    is how often, by Good and Turing's estimate, a new word would have come up.
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


def partition_ranges(needed: np.ndarray, room: int, partitions: int | None) -> list[tuple[int, int]]:
    """Ranges of buckets, each within `room` bytes where a single bucket is, or about that number of them.

    needed: bytes that each bucket takes. (buckets,)
    """
    if partitions is not None:
        room = -(-int(needed.sum()) // partitions)
    edges, filled = [0], 0
    for bucket, size in enumerate(needed.tolist()):
        if filled and filled + size > max(1, room):
            edges.append(bucket)
            filled = 0
        filled += size
    return list(zip(edges, [*edges[1:], len(needed)], strict=True))


class Annotated(Protocol):
    """Events that receive the counts of their features while these are in memory."""

    text: Text
    flat: np.ndarray  # (tokens * (templates - 1),) uint32: receives packed counts
    origin_type: np.dtype[Any]  # of an index into `flat`


class Counting(Protocol):
    """Counts on their way: parts of C in the order of their keys."""

    links: int  # with repeats, the empty feature's aside
    done: float  # the share of them that has been counted

    def __iter__(self) -> Iterator[Counts]: ...


class Counter:
    """Counts the links of a text inside a memory budget, and annotates events with them."""

    def __init__(
        self, text: Text, extractor: Extractor, memory: int, threads: int = 1, partitions: int | None = None,
        progress: Progress = silent, prune: int = 1, annotations: Annotated | None = None,
        on_their_way: int = ON_THEIR_WAY, spill: ModelWriter | None = None,
    ) -> None:  # fmt: skip
        """`memory` bytes are for one partition; `partitions` asks for a number of them instead.

        `prune`: features seen less often than this are left out, n-grams of up to PRUNED_ABOVE words aside.
        `annotations` receive the counts of their events' features. `on_their_way` bytes are for counts that have been
        made and not been taken yet. `spill`: where links may go to disk, so that the tokens are walked over once.
        """
        self.layout, self.threads, self.annotations = extractor.layout, threads, annotations
        self._least = extractor.min_counts(prune)
        parts = parallel.ahead(threads) + 1
        self._links_a_part = min(LINKS_PER_PART, on_their_way // (BYTES_PER_LINK * parts))
        self._progress, self._tokens = progress, len(text.tokens)
        self._walk: Walk | Spilled
        with progress("sizing", self._tokens) as bar:
            if spill is None:
                self._walk = Walk(text.tokens, extractor, threads, advance=bar)
            else:
                self._walk = Spilled(text.tokens, extractor, threads, memory, spill, bar)
        self._sampled: Walk | None = None
        if annotations is not None:
            if annotations.text is text and isinstance(self._walk, Walk):
                self._sampled = self._walk
            else:
                self._sampled = Walk(annotations.text.tokens, extractor, threads)
        self.links = int(self._walk.totals.sum())
        """Links with repeats, the empty feature's aside."""
        self.ranges = self._partition_ranges(memory, partitions)
        self.done = 0.0
        """The share of all links, repeats counted, that has been counted. Keys are hashes: what is left of them after
        counting is about that share of all that will be left."""

    def _partition_ranges(self, memory: int, partitions: int | None) -> list[tuple[int, int]]:
        needed = LINK_BYTES * self._walk.totals
        if self._sampled is not None and self.annotations is not None:
            of_sampled = self.annotations.origin_type.itemsize + (0 if self._sampled is self._walk else LINK_BYTES)
            needed = needed + of_sampled * self._sampled.totals
        room = min(memory, max(int(needed.sum()) // ENOUGH_PARTITIONS, SMALL_PARTITION))
        return partition_ranges(needed, room, partitions)

    def __iter__(self) -> Iterator[Counts]:
        """Parts of C in the order of their keys. The arrays that links are sorted in serve all partitions."""
        most = max(int(self._walk.totals[a:b].sum()) for a, b in self.ranges)
        links, wanted, origins = np.empty(most, np.uint64), np.empty(0, np.uint64), NOWHERE
        everything = self._sampled is self._walk  # every event is learned from
        if self._sampled is not None and self.annotations is not None:
            most = max(int(self._sampled.totals[a:b].sum()) for a, b in self.ranges)
            wanted = links if everything else np.empty(most, np.uint64)
            origins = np.empty(most, self.annotations.origin_type)
        for number, (first, last) in enumerate(self.ranges, 1):
            label = f"counting {number}/{len(self.ranges)}" if len(self.ranges) > 1 else "counting"
            with self._progress(label, self._tokens) as bar:
                if not everything:
                    self._walk.scatter(first, last, links, advance=bar)
                if self._sampled is not None:
                    self._sampled.scatter(first, last, wanted, origins, bar if everything else ignore)
            yield from self._encode(first, last, links, wanted, origins)
        if isinstance(self._walk, Spilled):
            self._walk.close()

    def _encode(
        self, first: int, last: int, links: np.ndarray, wanted: np.ndarray, origins: np.ndarray
    ) -> Iterator[Counts]:
        """Sort each bucket, run-length encode it, and take from it what events are annotated with."""
        bounds = bounds_of(self._walk.totals, first, last)
        sampled = None if self._sampled is None else bounds_of(self._sampled.totals, first, last)

        def work(group: tuple[int, int]) -> Counts:
            a, b = group
            if sampled is not None:
                _sort_with_origins(wanted, origins, sampled[a : b + 1])
            if wanted is not links:
                for start, stop in pairwise(bounds[a : b + 1]):
                    links[start:stop].sort()
            if sampled is not None:
                part = slice(sampled[a], sampled[b])
                self._annotate(links, bounds[a : b + 1], first + a, wanted[part], origins[part])
            return self._encode_group(links, bounds[a : b + 1], first + a)

        groups = _even_groups(bounds, max(1, int(bounds[-1]) // self._links_a_part))
        for (a, b), made in zip(groups, parallel.ordered(work, groups, self.threads), strict=True):
            self.done += float((bounds[b] - bounds[a]) / max(1, self.links))
            yield made

    @property
    def _key_bits(self) -> tuple[np.uint64, np.uint64, np.uint64]:
        return np.uint64(self.layout.bucket_bits), np.uint64(self.layout.target_bits), np.uint64(self.layout.type_shift)

    def _encode_group(self, links: np.ndarray, bounds: np.ndarray, first: int) -> Counts:

        rows, distinct = count_kernels.count_runs(links, bounds, first, *self._key_bits, self._least)
        made = Counts(
            np.empty(rows, np.uint64),
            np.empty(rows, np.uint32),
            np.empty(rows + 1, np.int64),
            np.empty(distinct, np.uint32),
            np.empty(distinct, np.uint32),
        )
        count_kernels.encode_runs(links, bounds, first, *self._key_bits, self._least, *made)
        return made

    def _annotate(
        self, links: np.ndarray, bounds: np.ndarray, first: int, wanted: np.ndarray, origins: np.ndarray
    ) -> None:

        assert self.annotations is not None
        count_kernels.annotate_runs(
            links, bounds, first, *self._key_bits, self._least, wanted, origins, self.annotations.flat
        )  # fmt: skip


def _sort_with_origins(links: np.ndarray, origins: np.ndarray, bounds: np.ndarray) -> None:
    """Sort every bucket of links, and where they came from with them."""
    for start, stop in pairwise(bounds):
        order = np.argsort(links[start:stop])
        links[start:stop] = links[start:stop][order]
        origins[start:stop] = origins[start:stop][order]


def _even_groups(bounds: np.ndarray, n: int) -> list[tuple[int, int]]:
    """Ranges of buckets that hold about the same number of keys each."""
    wanted = np.linspace(0, bounds[-1], n + 1)[1:-1]
    return parallel.between([0, *np.searchsorted(bounds, wanted).tolist(), len(bounds) - 1])
