"""The n-grams of a text, one order at a time, inside a memory limit.

A *pass* over one order takes the n-grams of that length from the events of a text. They are scattered to buckets as in
counting (`snm.counts`), each with a number that its event brings along; a partition of the buckets is sorted into rows;
an estimator turns the rows of a group of buckets into results; and each event gets a number back. So what an order
computes for an n-gram reaches the n-grams that are one word longer, through the events that both have, and no step
needs more than one partition in memory.

Not every event takes part in a pass. The adjusted count of Kneser-Ney is the number of distinct words before an n-gram,
which is the number of distinct n-grams that are one word longer. Of each of these one event, the first of the text,
takes part; so the adjusted count is the plain count over these events. `levels` says of which orders an event is first.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from snm import parallel
from snm.counts.counting import SORT_BYTES, Sorting, even_groups, partition_ranges
from snm.counts.spill import Spilled
from snm.counts.walks import BLOCKS, Links, Walk, bounds_of
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.kernels import backoff as backoff_kernels
from snm.kernels import counts as count_kernels
from snm.progress import Advance, Notify, Progress, ignore, silent
from snm.storage import ModelWriter, read_fully, write_fully
from snm.system import release_free_memory
from snm.text.encoding import Text

LINKS_PER_GROUP = 1 << 19  # sorted and estimated together, at most
MAX_SORTED_TOGETHER = 1 << 20  # links of a bucket that several threads sort at the same time
GROUP_BYTES = 160  # of results and of NumPy's temporary arrays, for each link of a group
LINK_BYTES, NUMBER_BYTES = 8, 8
MAX_WALKS = 12  # over the tokens; more would take longer than writing n-grams to disk and reading them again
PIECE = 1 << 20  # numbers that are moved at a time


@dataclass(frozen=True)
class Rows:
    """The n-grams of one order in a group of buckets, by their contexts."""

    features: np.ndarray  # (rows,) uint64: keys of the contexts
    offsets: np.ndarray  # (rows + 1,) int64: row i has the links offsets[i]:offsets[i + 1]
    targets: np.ndarray  # (links,) uint32
    counts: np.ndarray  # (links,) uint32: events of the pass that have the n-gram
    firsts: np.ndarray  # (links,) uint32: the first of them
    numbers: np.ndarray  # (events,): what each event has brought along
    links: np.ndarray  # (events,) uint32: the link of each

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """The sum of each row. (links,) to (rows,)"""
        found: np.ndarray = np.add.reduceat(values, self.offsets[:-1])
        return found

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Every row's value for each of its links. (rows,) to (links,)"""
        return np.repeat(values, self.lengths)

    @property
    def brought(self) -> np.ndarray:
        """What the first event of each n-gram has brought along. (links,)"""
        found: np.ndarray = self.numbers[self.firsts]
        return found


class OrderKeys:
    """The keys of the n-grams of one order, of the events that take part; as `snm.counts.walks.KeySource`."""

    n_templates = 2  # the first is not counted: here, the context that is one word longer

    def __init__(self, extractor: Extractor, order: int, levels: np.ndarray | None) -> None:
        """levels: see `Orders.levels`; None if all events take part."""
        selects = levels is not None and order < extractor.n_templates
        self._levels, self._order = levels if selects else None, order
        self._extractor = extractor.with_templates([order if selects else order - 1, order - 1])
        self.layout, self.block, self.blocks = extractor.layout, extractor.block, extractor.blocks

    def keys(self, tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
        keys = self._extractor.keys(tokens, start, stop)
        if self._levels is not None:
            backoff_kernels.select_events(keys, self._levels[start:stop], self._order + 1)
        return keys


class Orders:
    """Passes over the orders of a text's n-grams."""

    def __init__(
        self, text: Text, extractor: Extractor, writer: ModelWriter, free: Callable[[], int], threads: int = 1,
        progress: Progress = silent, notify: Notify = ignore,
    ) -> None:  # fmt: skip
        """`free`: says how many bytes there are for a partition now. `writer` has the disk for temporary files."""
        self.text, self.extractor, self.writer, self.threads = text, extractor, writer, threads
        self._free, self.memory = free, free()
        self.progress, self.notify = progress, notify
        self.highest = extractor.n_templates
        self.levels: np.ndarray | None = None
        """The lowest order in which an event is the first of its n-gram, `highest + 1` if in none. (tokens,) uint8"""
        self.spilled = False

    def count_first_events(self) -> None:
        """From now on an event takes part in an order only if it is the first of its next longer n-gram."""
        self.levels = self.writer.scratch((len(self.text.tokens),), np.uint8)
        for part in self._pieces():
            self.levels[part] = self.highest + 1

    def unigrams(self) -> np.ndarray:
        """The events of each word that take part. (words,) int64"""
        counts = np.zeros(len(self.extractor.vocabulary), np.int64)
        for part in self._pieces():
            words = self.text.tokens[part]
            if self.levels is not None and self.highest > 1:
                words = words[self.levels[part] <= 2]
            counts += np.bincount(words, minlength=len(counts))
        return counts

    def _pieces(self) -> Iterator[slice]:
        n = len(self.text.tokens)
        return (slice(start, min(start + PIECE, n)) for start in range(0, n, PIECE))

    def numbers(self, of_words: np.ndarray) -> np.ndarray:
        """An array with a number for every event, at first that of its target. (words,) to (tokens,), 8 bytes each"""
        made = self.writer.scratch((len(self.text.tokens),), of_words.dtype)
        for part in self._pieces():
            made[part] = of_words[self.text.tokens[part]]
        return made

    def mark(self, order: int, highest_count: int) -> np.ndarray:
        """How many n-grams of an order have each count, up to `highest_count`, which stands for more; mark levels."""
        statistics = np.zeros(highest_count + 1, np.int64)

        def work(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
            found = np.bincount(np.minimum(rows.counts, highest_count), minlength=highest_count + 1)
            marks = np.full(len(rows.links), order + 1, np.uint8)
            marks[rows.firsts] = order
            return found, marks

        for found in self._pass(order, "counting", work, None, self.levels):
            statistics += found
        return statistics

    def estimate(
        self, order: int, work: Callable[[Rows], tuple[Any, np.ndarray]], numbers: np.ndarray
    ) -> Iterator[Any]:
        """What `work` makes of the rows of an order, in the order of their keys.

        It takes the numbers that events have for it and returns, beside the results, a number for each link: the
        events' next numbers.
        """
        last = order == self.highest
        return self._pass(order, "estimating", lambda rows: _of_links(work, rows), numbers, None if last else numbers)

    def _pass(
        self, order: int, label: str, work: Callable[[Rows], tuple[Any, np.ndarray]], numbers: np.ndarray | None,
        results: np.ndarray | None,
    ) -> Iterator[Any]:  # fmt: skip
        """What `work` returns for each group of rows; and the events' numbers that it returns, to `results`."""
        keys, self.memory = OrderKeys(self.extractor, order, self.levels), self._free()
        back = (
            None if results is None else Returned(results, self.writer, max(1, self.memory // (2 * results.itemsize)))
        )
        run_tokens = None if back is None else back.run_tokens
        with self.progress(f"{label} {order}-grams, sizing", len(self.text.tokens)) as bar:
            links = self._links(keys, run_tokens, None, bar)
        brought: Links | None = None
        if numbers is not None and isinstance(links, Walk):
            brought = links.carrying(numbers.view(np.uint64))
        elif numbers is not None:
            brought = self._links(keys, run_tokens, numbers.view(np.uint64), ignore)
        if back is not None:
            back.begin(links)
        partitions = Partitions(self, links, brought, back)
        for number, (first, last) in enumerate(partitions.ranges, 1):
            many = f" {number}/{len(partitions.ranges)}" if len(partitions.ranges) > 1 else ""
            with self.progress(f"{label} {order}-grams{many}", len(self.text.tokens)) as bar:
                yield from partitions.process(first, last, work, numbers, bar)
        del partitions
        gc.collect()  # compiling a kernel leaves reference cycles, which keep the arrays alive
        release_free_memory()
        for source in (links, brought):
            if isinstance(source, Spilled):
                source.close()
        if back is not None:
            back.give(keys, self.text.tokens, self.threads)

    def _links(self, keys: OrderKeys, run_tokens: int | None, numbers: np.ndarray | None, bar: Advance) -> Links:
        """The n-grams of an order, or the numbers that their events bring along."""
        tokens = self.text.tokens
        needed = len(tokens) * (LINK_BYTES + NUMBER_BYTES)
        if needed > MAX_WALKS * self.memory and needed < shutil.disk_usage(self.writer.folder).free // 2:
            if not self.spilled:
                self.notify(f"estimating needs up to {needed / 1e6:,.0f} MB of disk: memory is small for this text")
            self.spilled = True
            return Spilled(tokens, keys, self.threads, self.memory // 2, self.writer, run_tokens, bar, numbers)
        return Walk(tokens, keys, self.threads, run_tokens=run_tokens, advance=bar)


def _of_links(work: Callable[[Rows], tuple[Any, np.ndarray]], rows: Rows) -> tuple[Any, np.ndarray]:
    """`work`, with the number of each link given to all its events."""
    found, numbers = work(rows)
    return found, numbers[rows.links]


class Partitions:
    """The partitions of a pass, and the memory that they share."""

    def __init__(self, orders: Orders, links: Links, brought: Links | None, back: Returned | None) -> None:
        self.orders, self.links, self.brought, self.back = orders, links, brought, back
        self.layout, self.threads = orders.extractor.layout, orders.threads
        link_bytes = LINK_BYTES + (NUMBER_BYTES if brought else 0) + (back.results.itemsize if back else 0)
        largest = int(links.bucket_sizes.max(initial=0))
        together = min(MAX_SORTED_TOGETHER, orders.memory // (8 * SORT_BYTES * self.threads))
        self.sorting = Sorting(self.threads, together)
        waiting = parallel.ahead(self.threads) + 1
        self.group_links = max(1, min(LINKS_PER_GROUP, orders.memory // (4 * GROUP_BYTES * waiting)))
        taken = SORT_BYTES * (self.threads * min(largest, together) + largest)
        taken += GROUP_BYTES * waiting * self.group_links
        least = link_bytes * largest + SORT_BYTES * largest
        if least > orders.memory:
            raise SettingsError(
                f"a context is so frequent that its n-grams take {least / 1e6:,.0f} MB of memory; there are "
                f"{orders.memory / 1e6:,.0f} MB for them: give more --memory"
            )
        available = max(orders.memory - taken, orders.memory // 4)
        self.ranges = partition_ranges(link_bytes * links.bucket_sizes, available, None)
        most = max(int(links.bucket_sizes[a:b].sum()) for a, b in self.ranges)
        self.link_array = np.empty(most, np.uint64)
        self.brought_array = np.empty(most if brought else 0, np.uint64)
        self.back_array = np.empty(most if back else 0, back.results.dtype if back else np.uint8)

    def process(
        self, first: int, last: int, work: Callable[[Rows], tuple[Any, np.ndarray]], numbers: np.ndarray | None,
        bar: Advance,
    ) -> Iterator[Any]:  # fmt: skip
        """What `work` returns for the groups of the buckets [first, last)."""
        self.links.scatter(first, last, self.link_array, bar)
        if self.brought is not None and numbers is not None:
            self.brought.scatter(first, last, self.brought_array)
        bounds = bounds_of(self.links.bucket_sizes, first, last)
        brought = self.brought_array if numbers is None else self.brought_array.view(numbers.dtype)

        def estimate(group: tuple[int, int]) -> Any:
            here = bounds[group[0] : group[1] + 1]
            rows = self._rows(here, first + group[0], brought)
            if not len(rows.features):
                return None
            found, returned = work(rows)
            if self.back is not None:
                self.back_array[here[0] : here[-1]] = returned.view(self.back_array.dtype)
            return found

        groups = even_groups(bounds, max(1, int(bounds[-1]) // self.group_links))
        for found in parallel.ordered(estimate, groups, self.threads):
            if found is not None:
                yield found
        if self.back is not None:
            self.back.write(first, last, self.back_array)

    def _rows(self, bounds: np.ndarray, first: int, brought: np.ndarray) -> Rows:
        """Sort the buckets between `bounds`, from bucket `first` on, into rows."""
        n = int(bounds[-1] - bounds[0])
        features, lengths = np.empty(n, np.uint64), np.empty(n, np.uint32)
        targets, counts, firsts, links = np.empty((4, n), np.uint32)
        bits = np.uint64(self.layout.bucket_bits), np.uint64(self.layout.target_bits)
        with self.sorting.scratch(int(np.diff(bounds).max(initial=0))) as scratch:
            n_rows, n_links = backoff_kernels.sort_into_rows(
                self.link_array, bounds, first, *bits, features, lengths, targets, counts, firsts, links, *scratch
            )
        offsets = np.concatenate([[0], np.cumsum(lengths[:n_rows], dtype=np.int64)])
        numbers = brought[bounds[0] : bounds[-1]]
        return Rows(features[:n_rows], offsets, targets[:n_links], counts[:n_links], firsts[:n_links], numbers, links)


class Returned:
    """Numbers that a pass returns to the events of a text: kept on disk by run until the pass is over."""

    def __init__(self, results: np.ndarray, writer: ModelWriter, run_tokens: int) -> None:
        """results: of every event; those that take part get new ones. (tokens,)"""
        self.results = results.view(f"<u{results.itemsize}")  # kernels move bytes
        self.run_tokens, self._writer = run_tokens, writer

    def begin(self, links: Links) -> None:
        """The links of the pass."""
        self._links = links
        ends = np.cumsum([0, *links.sizes.sum(axis=(1, 2), dtype=np.int64)])
        self._runs = list(pairwise(ends.tolist()))
        self._file = self._writer.temporary_file()

    def write(self, first: int, last: int, numbers: np.ndarray) -> None:
        """The numbers of the buckets [first, last), in the order of `Links`."""
        sizes = self._links.sizes[:, :, first:last].sum(axis=1, dtype=np.int64)
        starts = bounds_of(self._links.bucket_sizes, first, last)[:-1] + np.cumsum(sizes, axis=0) - sizes
        for run, (begin, _) in enumerate(self._runs):
            at = begin + int(self._links.sizes[run, :, :first].sum(dtype=np.int64))
            for a, b in even_groups(np.append(0, np.cumsum(sizes[run])), max(1, int(sizes[run].sum()) // PIECE)):
                piece = np.empty(int(sizes[run, a:b].sum()), self.results.dtype)
                count_kernels.collect_run(numbers, starts[run, a:b], sizes[run, a:b], piece)
                write_fully(self._file, piece, at * piece.itemsize)
                at += len(piece)

    def give(self, keys: OrderKeys, tokens: np.ndarray, threads: int) -> None:
        """Give every event that takes part its number."""
        buffer = np.empty(max((end - begin for begin, end in self._runs), default=0), self.results.dtype)
        bits = np.uint64(keys.layout.bucket_bits)
        for run, (begin, end) in enumerate(self._runs):
            stored = buffer[: end - begin]
            read_fully(self._file, stored, begin * stored.itemsize)
            sizes = self._links.sizes[run].astype(np.int64)
            of_run = sizes.sum(axis=0)
            starts = np.cumsum(of_run) - of_run + np.cumsum(sizes, axis=0) - sizes

            def work(task: tuple[tuple[int, int], np.ndarray], stored: np.ndarray = stored) -> None:
                chunk, cursors = task
                for start, stop in keys.blocks(*chunk, BLOCKS):
                    own = keys.keys(tokens, start, stop)[1]
                    backoff_kernels.take_back(own, bits, cursors, stored, self.results[start:stop])

            parallel.run(work, list(zip(self._links.runs[run], starts, strict=True)), threads)

    def __del__(self) -> None:
        with suppress(AttributeError):  # a full disk has no place for the file
            self._file.close()
