"""Word classes learned from the text, by the exchange algorithm of Kneser and Ney (1993).

Every word is in one class. The classes maximise the likelihood of the text under a bigram model of classes: words
move one by one, the most frequent first, to the class with the highest likelihood, until few words still move. `<S>`,
`</S>` and `<UNK>` have classes of their own.
"""

from __future__ import annotations

import numpy as np

from snm.errors import SettingsError
from snm.kernels import classes as class_kernels
from snm.layouts.tokens import BEGIN, UNKNOWN
from snm.progress import Advance, ignore
from snm.text.encoding import Text
from snm.text.sampling import sample_sentences

CLASSES, FEW_CLASSES = 256, 64
LITTLE_TEXT = 2_000_000  # tokens up to which there are few classes: more would be learned from too few neighbours
MAX_TOKENS = 10_000_000  # more text hardly changes the classes, and takes longer
TOKEN_BYTES = 48  # memory of a token and its two pairs of neighbours, at most
PASSES = 5
MIN_MOVED_SHARE = 0.01  # training stops after a pass in which a smaller share of the words moved
FREQUENT = 30_000  # words that move in every pass; the others move once, in the end


def default_classes(tokens: int) -> int:
    """How many classes are learned from a text of this many tokens, unless the user says."""
    return FEW_CLASSES if tokens <= LITTLE_TEXT else CLASSES


def learn_classes(
    text: Text, words: int, classes: int = CLASSES, seed: int = 1, advance: Advance = ignore, memory: int | None = None
) -> np.ndarray:
    """The class of every word of a vocabulary of `words`. (words,) uint16

    `memory`: bytes for the pairs of neighbours. With less, they are learned from a smaller sample of the text.
    """
    fixed = UNKNOWN + 1
    if not fixed < classes <= 1 << 16:
        raise SettingsError(f"{classes} classes; expected {fixed + 1} to {1 << 16}")
    most = MAX_TOKENS if memory is None else min(MAX_TOKENS, memory // TOKEN_BYTES)
    tokens = sample_sentences(text, most, seed).tokens
    if text.first_field is not None:
        tokens = np.where(tokens < text.first_field, tokens, np.uint32(BEGIN))
    after, before = _neighbours(tokens[:-1], tokens[1:], words), _neighbours(tokens[1:], tokens[:-1], words)
    classes_of = np.arange(words) % (classes - fixed) + fixed
    classes_of[:fixed] = np.arange(fixed)
    state = class_kernels.start(classes_of, classes, *after)
    frequent = min(words, FREQUENT)
    for _ in range(PASSES if frequent > fixed else 0):
        moved = class_kernels.move_words(fixed, frequent, fixed, classes_of, state, after, before)
        advance(frequent)
        if moved < MIN_MOVED_SHARE * frequent:
            break
    class_kernels.move_words(max(frequent, fixed), words, fixed, classes_of, state, after, before)
    learned: np.ndarray = classes_of.astype(np.uint16)
    return learned


def _neighbours(of: np.ndarray, neighbour: np.ndarray, words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct neighbours of every word: offsets (words + 1,), neighbours (pairs,) and their counts (pairs,)."""
    pairs = of.astype(np.int64)
    pairs *= words
    pairs += neighbour
    pairs.sort()
    ends = np.flatnonzero(np.append(pairs[1:] != pairs[:-1], [True][: len(pairs)])) + 1
    distinct = pairs[ends - 1]
    del pairs
    counts = np.diff(ends, prepend=0).astype(np.float64)
    offsets = np.searchsorted(distinct, np.arange(words + 1) * words)
    distinct %= words
    return offsets.astype(np.int64), distinct, counts
