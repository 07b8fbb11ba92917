"""The n-grams of a text, with means of a model's probabilities over places of the text where their contexts occur."""

from __future__ import annotations

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.layouts.tokens import BEGIN
from snm.model import LanguageModel
from snm.progress import Advance, ignore
from snm.projection.ngrams import LEAST, Ngrams
from snm.text.encoding import Text

PLACES = 4  # of a context in a text, at most, over which probabilities are averaged
UNIGRAM_PLACES = 500  # over which the distribution of single words is averaged


def ngrams_of(skeleton: BackoffModel) -> Ngrams:
    """The n-grams of a backoff model."""
    arrays = skeleton.index.features, skeleton.offsets, skeleton.targets
    return Ngrams(skeleton.extractor, *(np.asarray(array) for array in arrays))


def means_over_places(
    model: LanguageModel, skeleton: BackoffModel, text: Text, places: int = PLACES, advance: Advance = ignore
) -> np.ndarray:
    """The mean P of the n-grams of a backoff model that was trained on `text`, under another model. (links,) float32"""
    sums = np.zeros(len(skeleton.targets), np.float32)
    seen = np.zeros(len(skeleton.index.features), np.int32)
    _average_unigrams(model, skeleton, text, sums, seen)
    for start, stop in skeleton.extractor.blocks(0, len(text.tokens)):
        rows = skeleton._find(skeleton.extractor.keys(text.tokens, start, stop)).T
        for level in range(1, len(rows)):
            _add_places(model, skeleton, text, start, rows[level], places, sums, seen)
        advance(stop - start)
    places_of_links = np.repeat(seen, np.diff(skeleton.offsets))
    p = np.maximum(sums / np.maximum(places_of_links, 1), LEAST)
    p = np.where(places_of_links > 0, p, skeleton.link_probabilities)  # such as <S> in the middle of a document
    return p.astype(np.float32)


def _average_unigrams(
    model: LanguageModel, skeleton: BackoffModel, text: Text, sums: np.ndarray, seen: np.ndarray
) -> None:
    """The row of single words: the mean of the model's distributions."""
    targets, _ = skeleton.row(0)
    seen[0] = 1
    begins = np.flatnonzero(text.tokens == BEGIN)
    places = np.linspace(1, len(text.tokens) - 1, min(UNIGRAM_PLACES, len(text.tokens) - 1)).astype(np.int64)
    places = places[text.tokens[places] != BEGIN]
    total = np.zeros(len(model.vocabulary))
    for k in places.tolist():
        total += model.distribution(text.tokens[begins[np.searchsorted(begins, k) - 1] : k])
    sums[: len(targets)] = (total / max(1, len(places)))[targets]


def _add_places(
    model: LanguageModel, skeleton: BackoffModel, text: Text, start: int, rows: np.ndarray, places: int,
    sums: np.ndarray, seen: np.ndarray,
) -> None:  # fmt: skip
    """Add probabilities at the places of a block, from `start` on, whose contexts, of one length, have few so far."""
    chosen = np.flatnonzero(rows >= 0)
    chosen = chosen[seen[rows[chosen]] < places]
    _, first = np.unique(rows[chosen], return_index=True)  # of several places in a block, one
    for place in chosen[np.sort(first)].tolist():
        row = rows[place]
        links = slice(skeleton.offsets[row], skeleton.offsets[row + 1])
        context = text.tokens[_segment_start(text.tokens, start + place) : start + place]
        sums[links] += _after(model, context, skeleton.targets[links])
        seen[row] += 1


def _segment_start(tokens: np.ndarray, place: int) -> int:
    """Where the segment of a place begins."""
    start = place - 1
    while tokens[start] != BEGIN:
        start -= 1
    return start


def _after(model: LanguageModel, context: np.ndarray, words: np.ndarray) -> np.ndarray:
    """P of words after a context."""
    state = model.state_array([model.start()])
    for word in context[1:][-model.state_width :]:
        state = model.follow(state, np.array([word], np.uint32), np.zeros(1, np.int64))
    p: np.ndarray = np.nan_to_num(10.0 ** model.expand(state, words)[0])
    return p
