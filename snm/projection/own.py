"""The n-grams of an SNM: its links that n-grams have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from snm.features.specification import FeatureType
from snm.kernels import backoff as backoff_kernels
from snm.kernels import projection as kernels
from snm.layouts.tokens import BEGIN
from snm.progress import Advance, ignore
from snm.projection.ngrams import PIECE, Ngrams, extractor_for
from snm.scoring.model import SnmModel


def ngram_order(model: SnmModel) -> int:
    """The longest n-grams of a model such that all shorter ones are features too."""
    order = 1
    while FeatureType(0, 0, order) in model.spec.types:
        order += 1
    return order


def own_ngrams(model: SnmModel, order: int, advance: Advance = ignore) -> Ngrams:
    """The n-grams of up to `order` words that are links of an SNM."""
    extractor, pieces = extractor_for(model.vocabulary, order, model.manifest["links"]), []
    for words, lengths, targets in _pieces(model, order):
        pieces.append((extractor.context_keys(words), lengths, targets))
        advance(len(targets))
    keys, lengths, targets = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    by_key = np.argsort(keys)
    sizes, starts = lengths[by_key], (np.cumsum(lengths) - lengths)[by_key]
    sorted_targets = np.empty_like(targets)
    backoff_kernels.copy_rows(starts, sizes, targets, sorted_targets)
    return Ngrams(extractor, keys[by_key], np.append(0, np.cumsum(sizes)).astype(np.int64), sorted_targets)


def _pieces(model: SnmModel, order: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Contexts of one length, (n, words); numbers of their links; and the links' targets, sorted in each row."""
    stack = [np.zeros((1, 0), np.uint32)]
    while stack:
        words = stack.pop()
        lengths = _lengths(model, words)
        words, lengths = words[lengths > 0], lengths[lengths > 0]
        cut = max(1, int(np.searchsorted(np.cumsum(lengths), PIECE, "right")))
        if cut < len(words):
            stack.append(words[cut:])
            words, lengths = words[:cut], lengths[:cut]
        if not len(words):
            continue
        targets = _targets(model, words, lengths)
        yield words, lengths, targets
        if words.shape[1] + 1 < order:
            longer = np.column_stack([np.repeat(words, lengths, axis=0), targets])
            if words.shape[1] == 0:
                longer = np.append(longer, [[BEGIN]], axis=0)
            stack.append(np.ascontiguousarray(longer, np.uint32))


def _lengths(model: SnmModel, words: np.ndarray) -> np.ndarray:
    if words.shape[1] == 0:
        return np.array([np.count_nonzero(model.matrix.unigrams)])
    lengths = np.empty(len(words), np.int64)
    kernels.count_targets(model.extractor.context_keys(words), model.matrix, lengths)
    return lengths


def _targets(model: SnmModel, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    if words.shape[1] == 0:
        return np.flatnonzero(model.matrix.unigrams).astype(np.uint32)
    targets = np.empty(lengths.sum(), np.uint32)
    kernels.read_targets(model.extractor.context_keys(words), model.matrix, targets)
    row = np.repeat(np.arange(len(lengths)), lengths).astype(np.uint64)
    return np.sort((row << np.uint64(32)) | targets).astype(np.uint32)
