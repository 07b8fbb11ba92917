"""TODO: docstring."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from snm.layouts.tokens import BEGIN, END
from snm.text import encoding
from snm.text.encoding import Join, Text, in_memory


def draw_sentences(text: Text, events: int, seed: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Whole sentences, or documents, drawn at random until they hold about `events` events.

    Of one piece of the text after another, where it lies, and of each of its tokens whether it is in one of them.
    """
    random, share, seen, drawn = np.random.default_rng(seed), events / max(1, text.events), 0, 0
    for start, stop in _between_sentences(text):
        begins = np.flatnonzero(text.tokens[start:stop] == BEGIN)
        lengths = np.diff(np.append(begins, stop - start))
        seen += stop - start - len(begins)
        chosen = random.permutation(len(lengths))
        held = np.cumsum(lengths[chosen] - 1)
        wanted = round(seen * share) - drawn
        enough = min(int(np.searchsorted(held, wanted)) + 1, len(held)) if wanted > 0 else 0
        drawn += int(held[enough - 1]) if enough else 0
        keep = np.zeros(len(lengths), bool)
        keep[chosen[:enough]] = True
        yield slice(start, stop), np.repeat(keep, lengths)


def _between_sentences(text: Text) -> Iterator[tuple[int, int]]:
    """Pieces of the text, PIECE tokens and up to where the next sentence, or document, begins."""
    start = 0
    while start < len(text.tokens):
        stop = start + encoding.PIECE
        while stop < len(text.tokens) and text.tokens[stop] != BEGIN:
            stop += 1
        yield start, min(stop, len(text.tokens))
        start = stop


def sample_sentences(text: Text, events: int, seed: int, join: Join = in_memory) -> Text:
    """The sentences, or documents, that `draw_sentences` draws, in their order; the text itself if they are all."""
    if events >= text.events:
        return text
    units = ends = 0

    def drawn() -> Iterator[np.ndarray]:
        nonlocal units, ends
        for where, chosen in draw_sentences(text, events, seed):
            tokens = text.tokens[where][chosen]
            units += int(np.count_nonzero(tokens == BEGIN))
            ends += int(np.count_nonzero(tokens == END))
            yield tokens

    tokens = join(drawn())
    return Text(tokens, units) if text.documents is None else Text(tokens, ends, units)


def split_sentences(text: Text, events: int) -> tuple[Text, Text]:
    """(the rest, a slice of about `events` events), both of whole sentences, or documents, and views of the text.

    The slice is the end of the text: sentences of one document tell of each other, so what is to judge a text is
    better not mixed with it.
    """
    size, begins, held = 0, *np.empty((2, 0), np.int64)
    while size < len(text.tokens) and not (held >= events).any():  # more and more of the end is looked at
        size = min(2 * max(size, events, 1), len(text.tokens))
        begins = np.flatnonzero(text.tokens[-size:] == BEGIN)
        held = size - begins - np.arange(len(begins), 0, -1)  # events from each of them on
    first = max(int(np.count_nonzero(held >= events)) - 1, int(len(begins) == text.segments))  # the rest has some
    cut = len(text.tokens) - size + int(begins[first]) if first < len(begins) else len(text.tokens)
    rest, end = text.tokens[:cut], text.tokens[cut:]
    units, ends = len(begins) - first, int(np.count_nonzero(end == END))
    if text.documents is None:
        return Text(rest, text.segments - units), Text(end, units)
    return Text(rest, text.sentences - ends, text.segments - units), Text(end, ends, units)
