"""Walking over a text: its links are computed and scattered to their buckets."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import pairwise
from typing import Protocol

import numpy as np

from snm import parallel
from snm.kernels import counts as count_kernels
from snm.layouts.keys import KeyLayout
from snm.progress import Advance, ignore

LINK_BYTES = 8
BLOCKS = 4  # walked over together: with short blocks, threads wait for Python's lock
MAX_RUN_LINKS = (1 << 32) - 1  # at most: `Links.sizes` has 32 bits


def bounds_of(bucket_sizes: np.ndarray, first: int, last: int) -> np.ndarray:
    """Where the links of the buckets [first, last) begin and end. (last - first + 1,) int64"""
    return np.concatenate([[0], np.cumsum(bucket_sizes[first:last])]).astype(np.int64)


class KeySource(Protocol):
    """What gives events their features: `snm.features.extraction.Extractor`."""

    layout: KeyLayout
    n_templates: int
    block: int

    def blocks(self, start: int, stop: int, together: int = 1) -> Iterator[tuple[int, int]]:
        """[start, stop) cut into ranges whose keys stay in the cache, or into ranges of so many of these."""

    def keys(self, tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Keys of the events whose targets are tokens[start:stop]; the first template is not counted."""


class Links(Protocol):
    """The links of a text, by bucket.

    A text is cut into *runs*, whose links fit into memory, and a run into a *chunk* for each thread. The links of a
    bucket are in the order of the chunks.
    """

    runs: list[list[tuple[int, int]]]
    """The chunks of each run, as ranges of tokens."""
    sizes: np.ndarray
    """Links of each chunk in each bucket. (runs, threads, buckets) uint32"""
    bucket_sizes: np.ndarray
    """Links in each bucket, repeats included. (buckets,) int64"""
    threads: int

    def scatter(self, first: int, last: int, links: np.ndarray, advance: Advance = ignore) -> None:
        """Write the links of the buckets [first, last) to `links`, bucket by bucket, as integers that sort by row."""


def cut(start: int, stop: int, length: int, threads: int, block: int) -> list[list[tuple[int, int]]]:
    """Runs of at most `length` tokens of [start, stop), each in `threads` chunks, of which some may be empty.

    All but the last edges are multiples of `block`, at which chunks are cut again: so the blocks of the text, which
    training takes its steps by, depend neither on memory nor on threads.
    """
    runs, length = [], max(block, length // block * block)
    for begin in range(start, stop, length):
        size = min(length, stop - begin)
        edges = [begin + size * i // threads // block * block for i in range(threads)]
        runs.append(list(pairwise([*edges, begin + size])))
    return runs


def run_length(tokens: int, run_tokens: int | None, extractor: KeySource) -> int:
    """Tokens of a run of a text, of at most `run_tokens`; None for as many as possible."""
    length = max(1, tokens) + extractor.block if run_tokens is None else run_tokens
    return min(length, MAX_RUN_LINKS // extractor.n_templates)


class Walk:
    """The links of tokens[start:stop]. One walk finds the sizes of buckets, another one scatters links to some."""

    def __init__(
        self, tokens: np.ndarray, extractor: KeySource, threads: int, start: int = 0, stop: int | None = None,
        run_tokens: int | None = None, advance: Advance = ignore, sizes: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """`run_tokens`: tokens of a run, at most; None for as many as possible.

        sizes: as a walk over the same tokens found them. (runs, threads, buckets) uint32
        """
        self._numbers: np.ndarray | None = None
        self.tokens, self.extractor, self.threads = tokens, extractor, threads
        stop = len(tokens) if stop is None else stop
        self.runs = cut(start, stop, run_length(stop - start, run_tokens, extractor), threads, extractor.block)
        bits = np.uint64(extractor.layout.bucket_bits)
        shape = len(self.runs), threads, 1 << extractor.layout.bucket_bits
        self.sizes = np.zeros(shape, np.uint32) if sizes is None else sizes.reshape(shape)
        self._chunks = [chunk for run in self.runs for chunk in run]
        self._chunk_sizes = self.sizes.reshape(len(self._chunks), -1)

        def work(chunk: int) -> None:
            for start, stop in extractor.blocks(*self._chunks[chunk], BLOCKS):
                keys = extractor.keys(tokens, start, stop)
                count_kernels.count_buckets(keys[1:], bits, self._chunk_sizes[chunk])
                advance(stop - start)

        if sizes is None:
            parallel.run(work, range(len(self._chunks)), threads)
        self.bucket_sizes = self.sizes.sum(axis=(0, 1), dtype=np.int64)

    def carrying(self, numbers: np.ndarray) -> Walk:
        """The same walk, which scatters numbers of the events in place of their links. (tokens,) uint64"""
        made = copy(self)
        made._numbers = numbers
        return made

    def scatter(self, first: int, last: int, links: np.ndarray, advance: Advance = ignore) -> None:
        """See `Links.scatter`."""
        layout = self.extractor.layout
        sizes = self._chunk_sizes[:, first:last].astype(np.int64)
        starts = bounds_of(self.bucket_sizes, first, last)[:-1] + np.cumsum(sizes, axis=0) - sizes
        bits = np.uint64(layout.bucket_bits), np.uint64(layout.target_bits)

        def work(chunk: int) -> None:
            cursors = np.zeros(len(self.bucket_sizes), np.int64)
            cursors[first:last] = starts[chunk]
            for start, stop in self.extractor.blocks(*self._chunks[chunk], BLOCKS):
                keys = self.extractor.keys(self.tokens, start, stop)[1:]
                if self._numbers is None:
                    count_kernels.scatter(keys, self.tokens[start:stop], *bits, first, last, cursors, links)
                else:
                    numbers = self._numbers[start:stop]
                    count_kernels.scatter_numbers(keys, numbers, bits[0], first, last, cursors, links)
                advance(stop - start)

        parallel.run(work, range(len(self._chunks)), self.threads)
