"""Forecasting the counts of a text: rows, links and bytes, from an exact count of a share of its features.

The number of distinct features and links does not grow in proportion to the text, so the beginning of a text does not
tell them. But keys are hashes: the features in some of the buckets are a random sample of all features. One walk over
the text collects their links, which are counted, encoded and measured as those of all buckets would be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snm import parallel
from snm.counts.store import encode
from snm.counts.walks import BLOCKS
from snm.features.extraction import Extractor
from snm.kernels import event_codes, matrix_writing
from snm.layouts.counts import CHUNK, Counts
from snm.layouts.matrix import Spread, page_bits
from snm.progress import Advance, ignore
from snm.text.encoding import Text

SAMPLED_LINKS = 1 << 19  # about as many are collected, repeats included
HELD_LINKS = 4 * SAMPLED_LINKS  # that are held before equal ones are added up: a sample may have a frequent feature
WALKED_TOKENS = 1 << 18  # walked over by a thread at a time


@dataclass(frozen=True)
class Forecast:
    """What counting a text gives, without the row of the empty feature."""

    tokens: int  # `<S>` included
    words: int  # of the vocabulary
    features: int  # of all events together: links, repeats included. Known exactly
    rows_by_type: np.ndarray  # (types,) float64
    links_by_type: np.ndarray
    codes_bytes: float  # of counts on disk, see `snm.counts.store`
    chunks_bytes: float  # of their directory
    events_bytes: float  # of annotated events on disk, see `snm.kernels.event_codes`
    pages_bytes: float  # of the matrix's pages and long rows

    @property
    def rows(self) -> float:
        return float(self.rows_by_type.sum())

    @property
    def links(self) -> float:
        return float(self.links_by_type.sum())

    @property
    def counts_bytes(self) -> float:
        """Of counts on disk."""
        return self.codes_bytes + self.chunks_bytes


def forecast(
    text: Text, extractor: Extractor, prune: int = 1, code_bytes: int = 1, singles: bool = True, threads: int = 1,
    advance: Advance = ignore, chosen: int | None = None,
) -> Forecast:  # fmt: skip
    """Forecast the counts of a text.

    `prune`: features seen less often are left out. `code_bytes` of a weight of the matrix; `singles`: features seen
    once have no weights of their own in it. `chosen`: buckets to count; by default those of about SAMPLED_LINKS links.
    """
    layout, types = extractor.layout, len(extractor.spec.types)
    chosen = chosen or chosen_buckets(text, extractor)
    share = chosen / (1 << layout.bucket_bits)
    features_by_template, pairs = _collect(text, extractor, chosen, threads, advance)
    counts, of_events = _count(*pairs, extractor, prune)
    of_types = layout.type_of(counts.features)
    rows_by_type = np.bincount(of_types, minlength=types)[:types]
    links_by_type = np.bincount(np.repeat(of_types, np.diff(counts.offsets)), minlength=types)[:types]
    rows, words = len(counts.features) / share, len(extractor.vocabulary)
    return Forecast(
        tokens=len(text.tokens),
        words=words,
        features=int(features_by_template.sum()),
        rows_by_type=rows_by_type / share,
        links_by_type=links_by_type / share,
        codes_bytes=encode(counts, 0, chosen, layout).codes.nbytes / share,
        chunks_bytes=CHUNK.itemsize << layout.bucket_bits,
        events_bytes=_events_bytes(features_by_template, extractor, layout.type_of(pairs[0]), of_events, pairs[2]),
        pages_bytes=_measure_pages(counts, rows, words, code_bytes, singles) / share,
    )


def chosen_buckets(text: Text, extractor: Extractor, links: int = SAMPLED_LINKS) -> int:
    """How many buckets have about so many links, repeats included; all, if the text has fewer."""
    buckets = 1 << extractor.layout.bucket_bits
    most = max(1, text.events * (extractor.n_templates - 1))
    return min(buckets, max(1, round(buckets * links / most)))


Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Keys, targets, and how often each pair was seen."""


def _collect(text: Text, extractor: Extractor, chosen: int, threads: int, advance: Advance) -> tuple[np.ndarray, Pairs]:
    """Walk over a text: the features of all events, and the links of the first `chosen` buckets. (templates - 1,)"""
    last = np.uint64(((chosen << (64 - extractor.layout.bucket_bits)) - 1) & 0xFFFFFFFFFFFFFFFF)

    def walk(tokens: tuple[int, int]) -> tuple[np.ndarray, Pairs]:
        features, found = np.zeros(extractor.n_templates - 1, np.int64), list[tuple[np.ndarray, np.ndarray]]()
        for start, stop in extractor.blocks(*tokens, BLOCKS):
            keys = extractor.keys(text.tokens, start, stop)[1:]
            features += [np.count_nonzero(row) for row in keys]
            keys = keys.ravel()
            sampled = np.flatnonzero((keys - np.uint64(1)) < last)  # 0, no feature, becomes the largest number
            found.append((keys[sampled], text.tokens[start:stop][sampled % (stop - start)]))
        keys, targets = (np.concatenate(some) for some in zip(*found, strict=True))
        advance(tokens[1] - tokens[0])
        return features, (keys, targets, np.ones(len(keys), np.int64))

    features, held = np.zeros(extractor.n_templates - 1, np.int64), list[Pairs]()
    size = max(1, WALKED_TOKENS // extractor.block) * extractor.block
    ranges = parallel.between([*range(0, len(text.tokens), size), len(text.tokens)])
    for n, pairs in parallel.ordered(walk, ranges, threads):
        features += n
        held.append(pairs)
        if sum(len(keys) for keys, *_ in held) > HELD_LINKS:
            held = [_added_up(held)]
    return features, _added_up(held)


def _added_up(parts: list[Pairs]) -> Pairs:
    """All pairs once, sorted."""
    keys, targets, counts = (np.concatenate(some) for some in zip(*parts, strict=True))
    order = np.lexsort((targets, keys))
    keys, targets, counts = keys[order], targets[order], counts[order]
    new = np.append(True, (np.diff(keys) != 0) | (np.diff(targets) != 0))[: len(keys)]
    starts = np.flatnonzero(new)
    return keys[starts], targets[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def _count(
    keys: np.ndarray, targets: np.ndarray, link_counts: np.ndarray, extractor: Extractor, prune: int
) -> tuple[Counts, np.ndarray]:
    """The rows that are kept; and the pair (C_i*, C_ij) that events have for each link, 0 if not kept. (2, links)"""
    starts = np.flatnonzero(np.append(True, np.diff(keys) != 0)[: len(keys)])
    features = keys[starts]
    feature_counts = np.add.reduceat(link_counts, starts) if len(starts) else link_counts
    kept = feature_counts >= extractor.min_counts(prune)[extractor.layout.type_of(features)]
    offsets = np.append(starts, len(keys))
    lengths = np.diff(offsets)
    counts = Counts(features, feature_counts, offsets, targets, link_counts).select(np.flatnonzero(kept))
    return counts, np.stack([np.repeat(feature_counts * kept, lengths), link_counts * np.repeat(kept, lengths)])


def _events_bytes(
    features_by_template: np.ndarray, extractor: Extractor, types: np.ndarray, pairs: np.ndarray, repeats: np.ndarray
) -> float:
    """Bytes of the counts of all events, from the links of some features.

    A few frequent features have most events of their type, and the sample may lack them. So each type gets its mean
    size, and its number of features is known.
    """
    n = len(extractor.spec.types)
    size = np.bincount(types, code_sizes(pairs) * repeats, minlength=n)[:n]
    sampled = np.bincount(types, repeats, minlength=n)[:n]
    mean = np.where(sampled > 0, size / np.maximum(sampled, 1), size.sum() / max(1.0, sampled.sum()))
    return float(features_by_template @ mean[extractor.type_indices[1:]])


def code_sizes(pairs: np.ndarray) -> np.ndarray:
    """Bytes of the codes of pairs (C_i*, C_ij), if a large C_i* is in the table. (2, pairs) to (pairs,)"""
    feature_counts, link_counts = pairs
    numbers = feature_counts * (feature_counts - 1) // 2 + link_counts
    sizes = 1 + (numbers >= event_codes.TWO_BYTES) + (numbers >= event_codes.FIRST_OF_THREE)
    large: np.ndarray = feature_counts > event_codes.LARGEST_NUMBERED
    return np.where(large, np.where(link_counts < 255, 2, 4), sizes)


def _measure_pages(counts: Counts, rows: float, words: int, code_bytes: int, singles: bool) -> float:
    """Bytes of the pages and long rows of some rows, in a matrix with this many `rows`."""
    if not len(counts.features):
        return 0.0
    shift, spread = np.uint64(64 - page_bits(int(rows))), Spread.over(words, code_bytes)
    pages = int((counts.features[-1] >> shift) - (counts.features[0] >> shift)) + 1
    size, positions = matrix_writing.measure_pages(
        0, len(counts.features), counts, shift, singles, np.int64(code_bytes), spread, np.zeros(pages, np.int64)
    )
    return float(size + positions * np.dtype(spread.link_type).itemsize)
