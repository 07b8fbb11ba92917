"""Merging stored counts: the rows of several stores are added in the order of keys, a range of buckets at a time.

Keys depend on the features alone, so the counts of a text are the sum of the counts of its parts. Stores may have
different numbers of buckets, because these depend on the amount of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from snm import parallel
from snm.counts.counting import partition_ranges
from snm.counts.store import CountsWriter, Encoded, StoredCounts, encode
from snm.kernels import count_merging as kernels
from snm.layouts.counts import CHUNK, Counts
from snm.layouts.keys import KeyLayout
from snm.progress import Advance, ignore

ROW_BYTES, LINK_BYTES, WORD_BYTES = 24, 12, 8  # memory of a row and a link that are decoded, and of a word of code
COPIES = 4  # at most: as they were read, added in pairs, added to one, and encoded
MAX_RANGE_BYTES = 64 << 20  # that a thread processes together: more would gain nothing


def write_merged(
    folder: Path, stores: Sequence[StoredCounts], words: np.ndarray, layout: KeyLayout, memory: int, threads: int = 1,
    min_counts: np.ndarray | None = None, advance: Advance = ignore,
) -> StoredCounts:  # fmt: skip
    """Write the sum of the counts of several stores to a new folder; `merged` has the other arguments.

    words: how often each word occurs. (words,) int64
    """
    writer = CountsWriter(folder, layout)
    try:
        for part in merged(stores, layout, memory, threads, min_counts, advance):
            writer.append(part)
    finally:
        writer.close()
    return writer.finish(words)


def merged(
    stores: Sequence[StoredCounts], layout: KeyLayout, memory: int, threads: int = 1,
    min_counts: np.ndarray | None = None, advance: Advance = ignore,
) -> Iterator[Encoded]:  # fmt: skip
    """The sum of the counts of several stores, encoded with the buckets of `layout`.

    `memory`: bytes that this may take, unless one bucket takes more. `advance` gets the links that were read.

    min_counts: how often features of each type must be seen to be kept; None to keep all. (2 ** type_bits,) int64
    """

    def work(buckets: tuple[int, int]) -> Encoded:
        parts = [_rows_of(store, *buckets, layout.bucket_bits) for store in stores]
        advance(sum(len(part.targets) for part in parts))
        counts = add(parts)
        if min_counts is not None:
            counts = counts.select(np.flatnonzero(counts.feature_counts >= min_counts[layout.type_of(counts.features)]))
        return encode(counts, *buckets, layout)

    sizes = sum(_bucket_bytes(store.chunks, store.layout.bucket_bits, layout.bucket_bits) for store in stores)
    share = memory // (COPIES * (threads + parallel.ahead(threads)))
    ranges = partition_ranges(np.asarray(sizes), min(share, MAX_RANGE_BYTES), None)
    return parallel.ordered(work, ranges, threads)


def add(parts: list[Counts]) -> Counts:
    """The sum of several parts of C. Neighbours are added in pairs, so many parts take few rounds."""
    while len(parts) > 1:
        left = parts[len(parts) // 2 * 2 :]
        parts = [_added(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + left
    return parts[0]


def _added(a: Counts, b: Counts) -> Counts:
    counts = Counts.empty(*kernels.merged_sizes(a, b))
    kernels.merge_rows(a, b, counts)
    return counts


def _rows_of(store: StoredCounts, first: int, last: int, bits: int) -> Counts:
    """The rows whose keys have top `bits` from `first` to below `last`."""
    more = bits - store.layout.bucket_bits  # bits that a bucket of the store does not determine
    if more < 0:
        return store.decode(first << -more, last << -more)
    counts = store.decode(first >> more, -(-last >> more))
    edges = [bucket << 64 - bits for bucket in (first, last)]
    low, high = (
        len(counts.features) if edge >> 64 else int(np.searchsorted(counts.features, np.uint64(edge))) for edge in edges
    )
    return counts.between(low, high)


def _bucket_bytes(chunks: np.ndarray, own_bits: int, bits: int) -> np.ndarray:
    """Memory of the rows of each of 2 ** bits buckets, evenly divided where the store has fewer. (buckets,) int64"""
    assert chunks.dtype == CHUNK
    sizes = ROW_BYTES * chunks["rows"] + LINK_BYTES * chunks["links"] + WORD_BYTES * chunks["words"]
    if bits <= own_bits:
        return np.asarray(sizes.reshape(1 << bits, -1).sum(axis=1))
    return np.repeat(-(-sizes >> (bits - own_bits)), 1 << (bits - own_bits))
