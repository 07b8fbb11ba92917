"""Walking over a text: its links are computed and scattered to their buckets."""

from __future__ import annotations

import numpy as np

from snm import parallel
from snm.features.extraction import Extractor
from snm.kernels import counts as count_kernels
from snm.progress import Advance, ignore

LINK_BYTES = 8
NO_ORIGINS = np.empty(0, np.uint32)


def bounds_of(bucket_sizes: np.ndarray, first: int, last: int) -> np.ndarray:
    """Where the links of the buckets [first, last) begin and end. (last - first + 1,) int64"""
    return np.concatenate([[0], np.cumsum(bucket_sizes[first:last])]).astype(np.int64)


class Walk:
    """The links of tokens[start:stop]. One walk finds the sizes of buckets, another one scatters links to some."""

    def __init__(
        self, tokens: np.ndarray, extractor: Extractor, threads: int, start: int = 0, stop: int | None = None,
        advance: Advance = ignore,
    ) -> None:  # fmt: skip
        self.tokens, self.extractor, self.threads = tokens, extractor, threads
        self.chunks = parallel.shares(start, len(tokens) if stop is None else stop, threads)
        bits = np.uint64(extractor.layout.bucket_bits)
        self.chunk_sizes = np.zeros((len(self.chunks), 1 << extractor.layout.bucket_bits), np.int64)
        """Links of each chunk of the text in each bucket. (chunks, buckets)"""

        def work(chunk: int) -> None:
            for start, stop in extractor.blocks(*self.chunks[chunk]):
                keys = extractor.keys(tokens, start, stop)
                count_kernels.count_buckets(keys[1:], bits, self.chunk_sizes[chunk])
                advance(stop - start)

        parallel.run(work, range(len(self.chunks)), threads)
        self.bucket_sizes = self.chunk_sizes.sum(axis=0)
        """Links in each bucket, repeats included. (buckets,) int64"""

    def scatter(
        self, first: int, last: int, links: np.ndarray, origins: np.ndarray = NO_ORIGINS, advance: Advance = ignore
    ) -> None:
        """Write the links of the buckets [first, last) to `links`, bucket by bucket, as integers that sort by row.

        origins: if given, receives for each link token * (templates - 1) + template - 1.
        """
        layout = self.extractor.layout
        sizes = self.chunk_sizes[:, first:last]
        cursors = np.zeros_like(self.chunk_sizes)
        cursors[:, first:last] = bounds_of(self.bucket_sizes, first, last)[:-1] + np.cumsum(sizes, axis=0) - sizes
        bits = np.uint64(layout.bucket_bits), np.uint64(layout.target_bits)
        per_token = self.extractor.n_templates - 1

        def work(chunk: int) -> None:
            for start, stop in self.extractor.blocks(*self.chunks[chunk]):
                keys = self.extractor.keys(self.tokens, start, stop)[1:]
                count_kernels.scatter(
                    keys, self.tokens[start:stop], *bits, first, last, cursors[chunk], links, start * per_token, origins
                )
                advance(stop - start)

        parallel.run(work, range(len(self.chunks)), self.threads)
