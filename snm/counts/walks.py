"""Walks over a text: its links on their way into buckets, how many there are of each and where they go."""

from __future__ import annotations

import numpy as np

from snm import parallel
from snm.features.extraction import Extractor
from snm.kernels import counts as count_kernels
from snm.progress import Advance, ignore

LINK_BYTES = 8
NOWHERE = np.empty(0, np.uint32)


def bounds_of(totals: np.ndarray, first: int, last: int) -> np.ndarray:
    """Where the links of each bucket of [first, last) begin and end. totals: links of each bucket"""
    return np.concatenate([[0], np.cumsum(totals[first:last])]).astype(np.int64)


class Walk:
    """The links of tokens[start:stop], which are walked over for sizes, and again for every range of buckets."""

    def __init__(
        self, tokens: np.ndarray, extractor: Extractor, threads: int, start: int = 0, stop: int | None = None,
        advance: Advance = ignore,
    ) -> None:  # fmt: skip

        self.tokens, self.extractor, self.threads = tokens, extractor, threads
        self.chunks = parallel.shares(start, len(tokens) if stop is None else stop, threads)
        bits = np.uint64(extractor.layout.bucket_bits)
        self.sizes = np.zeros((len(self.chunks), 1 << extractor.layout.bucket_bits), np.int64)

        def work(chunk: int) -> None:
            for start, stop in extractor.blocks(*self.chunks[chunk]):
                keys = extractor.keys(tokens, start, stop)
                count_kernels.count_buckets(keys[1:], bits, self.sizes[chunk])
                advance(stop - start)

        parallel.run(work, range(len(self.chunks)), threads)
        self.totals = self.sizes.sum(axis=0)

    def scatter(
        self, first: int, last: int, links: np.ndarray, origins: np.ndarray = NOWHERE, advance: Advance = ignore
    ) -> None:
        """Write the sort keys of the buckets [first, last), bucket after bucket, and where they came from."""

        layout = self.extractor.layout
        sizes = self.sizes[:, first:last]
        cursors = np.zeros_like(self.sizes)
        cursors[:, first:last] = bounds_of(self.totals, first, last)[:-1] + np.cumsum(sizes, axis=0) - sizes
        bits = np.uint64(layout.bucket_bits), np.uint64(layout.target_bits)
        slots = self.extractor.n_templates - 1

        def work(chunk: int) -> None:
            for start, stop in self.extractor.blocks(*self.chunks[chunk]):
                keys = self.extractor.keys(self.tokens, start, stop)[1:]
                count_kernels.scatter(
                    keys, self.tokens[start:stop], *bits, first, last, cursors[chunk], links, start * slots, origins
                )  # fmt: skip
                advance(stop - start)

        parallel.run(work, range(len(self.chunks)), self.threads)
