"""Layouts of CTC decoding: labels, tries, and the arrays of a beam search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

LETTERS, BLANK, SPACE, BEGINS = range(4)
"""Kinds of labels: characters of a word; the blank; the end of a word; characters that begin a word."""

NONE = -1
FIRST_LABEL = -2
ROOT = 0
DEAD = 1
"""Of a trie of hot words: no hot word begins at the start of the unfinished word."""
TYPICAL_LETTERS = 6
"""Unfinished unknown words that are longer cost more."""

ALL_WORDS = 1 << 10
"""A model of this order or more sees all words of a text."""

NODE_BITS = 21
"""Low bits of an edge's key that hold the character."""

LABEL = np.dtype([("kind", "<i8"), ("closes", "<i8"), ("start", "<i8"), ("stop", "<i8"), ("id", "<i8")])
"""`closes`: the next label begins a word. `start`, `stop`: of its characters. `id`: of a token-level model."""

BEAM = np.dtype(
    [
        ("word", "<i8"),  # last finished word: index in `words`
        ("text", "<u8"),  # hash of the finished words
        ("part", "<u8"),  # hash of the unfinished word, 0 where there is none
        ("letters", "<i8"),  # of the unfinished word
        ("lexicon", "<i8"),  # its node in the trie of the vocabulary, or NONE
        ("hot", "<i8"),  # node in the trie of hot words
        ("label", "<i8"),  # of the last frame, or NONE
        ("closed", "<i8"),  # whether the next label begins a word
        ("piece", "<i8"),  # last piece of the unfinished word, or NONE
        ("span", "<i8"),  # span of the last finished word, or NONE
        ("begin", "<i8"),  # first frame of the unfinished word, or NONE
        ("end", "<i8"),  # the frame after its last
        ("acoustic", "<f8"),  # ln P of the frames
        ("total", "<f8"),  # with the language model and hot words
        # of candidates alone
        ("key", "<u8"),  # equal candidates have equal ones
        ("before", "<i8"),  # index of the beam that it extends
        ("grows", "<i8"),  # whether its label adds a piece
        ("finishes", "<i8"),  # whether it finishes a word; then of that word:
        ("hash", "<u8"),
        ("id", "<i8"),  # in the model's vocabulary, or NONE
        ("bonus", "<f8"),  # of hot words that end there
    ]
)
"""A beam, or a candidate for the next frame."""

WORD = np.dtype(
    [
        ("parent", "<i4"),  # the word before, or NONE
        ("id", "<i4"),  # in the model's vocabulary
        ("known", "<i4"),
        ("piece", "<i4"),  # its last piece; of a token-level model, FIRST_LABEL - label
        ("depth", "<i4"),  # words before it
        ("hash", "<u8"),  # of its letters
        ("text", "<u8"),  # of all words up to it
        ("recent", "<u8"),  # of the last words that the model can see
        ("score", "<f8"),  # weighted ln P of all words up to it
        ("hot", "<f8"),  # bonus of all words up to it
    ]
)
"""A finished word after a history. Word 0 is the beginning of the text."""

PIECE = np.dtype([("parent", "<i4"), ("label", "<i4")])
SPAN = np.dtype([("parent", "<i4"), ("depth", "<i4"), ("begin", "<i8"), ("end", "<i8")])
"""Frames of a finished word of a beam. Beams of equal text may have different ones."""

(BEAMS, CANDIDATES, WORDS, PIECES, SPANS, PENDING, FRAME, PHASE, CUT) = range(9)
COUNTERS = 9
"""Indices into `Search.counters`: numbers of each; frames so far; EXPAND or PRUNE; the depth that `compact` keeps."""
EXPAND, PRUNE = range(2)
DONE, SCORE, GROW = range(3)
"""What `advance` wants next: nothing, scores of pending words, more room."""


class Labels(NamedTuple):
    labels: np.ndarray  # (labels,) LABEL
    characters: np.ndarray  # (characters,) uint32
    by_token: np.ndarray  # (1,) int64: whether each label is a word of the model


class Trie(NamedTuple):
    """Edges are in a hash table of (node, character)."""

    keys: np.ndarray  # (size,) uint64: node << NODE_BITS | character, plus one; 0 where free. size is a power of two
    children: np.ndarray  # (size,) int32
    values: np.ndarray  # (nodes,) int32: id of the word that ends there, or NONE


class HotWords(NamedTuple):
    """A trie of phrases as an automaton: `fail` leads to the longest other phrase that may have begun."""

    trie: Trie
    fail: np.ndarray  # (nodes,) int32
    bonus: np.ndarray  # (nodes,) float64: of phrases that are complete there
    partial: np.ndarray  # (nodes,) float64: of the phrase that has begun


class Limits(NamedTuple):
    width: int
    min_token: float
    prune: float
    by_history: bool
    order: int
    """Words that the model can see, the predicted word included."""
    has_model: bool
    alpha: float
    beta: float
    unknown: float
    """Added to log10 P of an unknown word."""
    open: bool
    """Whether words outside the vocabulary are possible."""


class Search(NamedTuple):
    """The state of one beam search."""

    counters: np.ndarray  # (COUNTERS,) int64
    beams: np.ndarray  # (width,) BEAM
    kept: np.ndarray  # (width,) BEAM
    candidates: np.ndarray  # (room,) BEAM
    order: np.ndarray  # (2, room) int64
    table: np.ndarray  # (4 room,) int64
    tokens: np.ndarray  # (labels,) int64
    words: np.ndarray  # (words,) WORD
    states: np.ndarray  # (words, width of states) uint32
    children: np.ndarray  # (2 words or more,) int64: a hash table of words by parent and hash
    pieces: np.ndarray  # (pieces,) PIECE
    spans: np.ndarray  # (spans,) SPAN
    pending: np.ndarray  # (words,) int64: words without a score
