"""Samples and slices of a text, in whole segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from snm.layouts.tokens import BEGIN, END
from snm.text import encoding
from snm.text.encoding import Join, Text, in_memory


def draw_sentences(text: Text, events: int, seed: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Draw whole segments at random, with about `events` events in all.

    Yields each piece of the text as a slice of its tokens, with a mask of the tokens that are drawn.
    """
    random, share, seen, drawn = np.random.default_rng(seed), events / max(1, text.events), 0, 0
    for start, stop in _pieces(text):
        begins = np.flatnonzero(text.tokens[start:stop] == BEGIN)
        lengths = np.diff(np.append(begins, stop - start))
        seen += stop - start - len(begins)
        order = random.permutation(len(lengths))
        events_up_to = np.cumsum(lengths[order] - 1)
        wanted = round(seen * share) - drawn
        n = min(int(np.searchsorted(events_up_to, wanted)) + 1, len(order)) if wanted > 0 else 0
        drawn += int(events_up_to[n - 1]) if n else 0
        keep = np.zeros(len(lengths), bool)
        keep[order[:n]] = True
        yield slice(start, stop), np.repeat(keep, lengths)


def _pieces(text: Text) -> Iterator[tuple[int, int]]:
    """Ranges of PIECE tokens, each extended to the end of its last segment."""
    start = 0
    while start < len(text.tokens):
        stop = min(start + encoding.PIECE, len(text.tokens))
        while stop < len(text.tokens) and text.tokens[stop] != BEGIN:
            begins = text.tokens[stop : stop + encoding.PIECE] == BEGIN
            stop += int(begins.argmax()) if begins.any() else len(begins)
        yield start, stop
        start = stop


def sample_sentences(text: Text, events: int, seed: int, join: Join = in_memory) -> Text:
    """The segments that `draw_sentences` draws, in the order of the text; the text itself if that is all of them."""
    if events >= text.events:
        return text
    segments = ends = 0

    def drawn() -> Iterator[np.ndarray]:
        nonlocal segments, ends
        for piece, chosen in draw_sentences(text, events, seed):
            tokens = text.tokens[piece][chosen]
            segments += int(np.count_nonzero(tokens == BEGIN))
            ends += int(np.count_nonzero(tokens == END))
            yield tokens

    tokens = join(drawn())
    sentences, documents = (segments, None) if text.documents is None else (ends, segments)
    return Text(tokens, sentences, documents, first_field=text.first_field)


def folds_of(text: Text, folds: int, join: Join = in_memory) -> Iterator[tuple[Text, Text]]:
    """(the rest, a fold) of a text, for each of its folds: neighbouring segments, about as many in each."""
    begins = np.flatnonzero(text.tokens == BEGIN)
    ends = np.append(begins, len(text.tokens))[np.linspace(0, len(begins), folds + 1).astype(int)]
    for begin, end in pairwise(ends.tolist()):
        rest = join(iter([text.tokens[:begin], text.tokens[end:]]))
        yield _text_of(rest, text), _text_of(text.tokens[begin:end], text)


def _text_of(tokens: np.ndarray, whole: Text) -> Text:
    """Some segments of a text."""
    sentences, segments = int(np.count_nonzero(tokens == END)), int(np.count_nonzero(tokens == BEGIN))
    documents = None if whole.documents is None else segments
    return Text(tokens, sentences, documents, first_field=whole.first_field)


def split_sentences(text: Text, events: int) -> tuple[Text, Text]:
    """(the rest, a slice of about `events` events): whole segments, both views of the text.

    The slice is the end of the text, not a sample: sentences of one document resemble each other, and would make
    held-out text look easier than new text.
    """
    size, begins, events_from = 0, *np.empty((2, 0), np.int64)
    while size < len(text.tokens) and not (events_from >= events).any():  # read more and more of the end
        size = min(2 * max(size, events, 1), len(text.tokens))
        begins = np.flatnonzero(text.tokens[-size:] == BEGIN)
        events_from = size - begins - np.arange(len(begins), 0, -1)
    first = int(np.count_nonzero(events_from >= events)) - 1
    first = max(first, int(len(begins) == text.segments))  # the rest has at least one segment
    cut = len(text.tokens) - size + int(begins[first]) if first < len(begins) else len(text.tokens)
    rest, end = replace(text, tokens=text.tokens[:cut], bytes=0), _text_of(text.tokens[cut:], text)
    if text.documents is None:
        return replace(rest, sentences=text.segments - end.segments), end
    return replace(rest, sentences=text.sentences - end.sentences, documents=text.segments - end.segments), end
