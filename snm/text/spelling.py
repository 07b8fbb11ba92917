"""Spelling: a probability for every string, for words that are not in a vocabulary.

An interpolated Kneser-Ney model (modified discounts) of the UTF-8 bytes of words. A word is its bytes between two
boundaries; the boundary before it is context, the one after it is predicted. The model is learned from a list of
words, each once, which is what a model folder stores: estimating takes a fraction of a second, and happens when the
first unknown word is spelled. The reference is `snm.reference.spelling`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from snm.arguments import shown
from snm.errors import FormatError
from snm.kernels import spelling as spelling_kernels
from snm.kernels import text as text_kernels
from snm.kernels.spelling import BOUNDARY
from snm.layouts.tokens import SPECIAL
from snm.text.vocabulary import ALIASES_OF_UNKNOWN, MARKERS, Vocabulary

ORDER = 6
MAX_ORDER = 7  # an n-gram and its length are one integer
MAX_WORDS = 200_000  # that a spelling model is learned from
MAX_BYTES = 64 << 20  # of their list in a model
FEW_WORDS = 10_000  # if fewer words of a text are rare, those of the vocabulary are taken too
_NEVER = [0, *range(9, 14), 32, 0xC0, 0xC1, *range(0xF5, 0x100)]  # NUL, white space, and bytes that UTF-8 lacks
SYMBOLS = np.append(np.setdiff1d(np.arange(256), _NEVER), BOUNDARY)
"""What may follow in a word: a byte, or the boundary after it."""
FALLBACK = (0.5, 1.0, 1.5)
CHECKED_BYTES, TOLERANCE = 10_000, 1e-5  # of the words of which `faults` checks the sums
HIGHEST = 3  # counts of 3 and more have one discount


@dataclass(frozen=True)
class Grams:
    """The n-grams of one length, in the order of their codes."""

    keys: np.ndarray  # uint64: their bytes, the last one lowest
    p: np.ndarray  # P(the last byte | the others), float64
    contexts: np.ndarray  # uint64: the bytes of the contexts, each once
    backoffs: np.ndarray  # of the contexts, float64


def estimate(words: bytes, order: int = ORDER) -> list[Grams]:
    """The model of words, one a line: the n-grams of each length from 1 up."""
    data = np.frombuffer(b"\n" + words, np.uint8)
    keys, lengths = _keys(data, order)
    counts = _adjusted_counts(keys, lengths)
    made: list[Grams] = []
    for grams, n in counts:
        shorter = made[-1] if made else None
        made.append(_interpolated(grams, n, shorter, len(made)))
    return made


def _keys(data: np.ndarray, order: int) -> tuple[list[np.ndarray], np.ndarray]:
    """For each length, the n-gram that ends at each byte but the first; and how long they can be, inside of a word."""
    at = np.arange(len(data))
    begin = np.maximum.accumulate(np.where(data == BOUNDARY, at, 0))[:-1]  # the boundary before each further byte
    keys = [data[1:].astype(np.uint64)]
    for n in range(2, order + 1):
        key = keys[-1].copy()
        key[n - 2 :] |= data[: max(0, len(data) - n + 1)].astype(np.uint64) << np.uint64(8 * (n - 1))
        keys.append(key)
    return keys, at[1:] - begin + 1


def _adjusted_counts(keys: list[np.ndarray], lengths: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The distinct n-grams of each length and their counts.

    The longest ones, and those at the beginning of a word, have plain counts; the others the number of different bytes
    before them.
    """
    order = len(keys)
    found = [np.unique(keys[-1][lengths >= order], return_counts=True)]
    for n in range(order - 1, 0, -1):
        continued = found[-1][0] & np.uint64((1 << 8 * n) - 1)
        found.append(np.unique(np.concatenate([continued, keys[n - 1][lengths == n]]), return_counts=True))
    return found[::-1]


def _interpolated(keys: np.ndarray, counts: np.ndarray, shorter: Grams | None, context_bytes: int) -> Grams:
    discounts = _discounts(counts)[np.minimum(counts, HIGHEST)]
    contexts = keys >> np.uint64(8)
    new = np.append(True, contexts[1:] != contexts[:-1])[: len(keys)]
    first, row = np.flatnonzero(new), np.cumsum(new) - 1
    totals = np.add.reduceat(counts, first) if len(first) else counts
    backoffs = (np.add.reduceat(discounts, first) if len(first) else discounts) / totals
    if shorter is None:
        below = np.full(len(keys), 1 / len(SYMBOLS))
    else:
        suffixes = keys & np.uint64((1 << 8 * context_bytes) - 1)
        below = shorter.p[np.searchsorted(shorter.keys, suffixes)]
    p = (counts - discounts) / totals[row] + backoffs[row] * below
    return Grams(keys, p, contexts[first], backoffs)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """Chen and Goodman's discounts of counts 0, 1, 2, and 3 or more; fixed ones where these are undefined."""
    _, n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=6)[:5].tolist()
    found = FALLBACK
    if n1 and n2 and n3:
        y = n1 / (n1 + 2 * n2)
        made = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        if all(0 < d <= n for n, d in enumerate(made, 1)):  # with 0 some strings would have no probability
            found = made
    return np.array([0.0, *found])


class Spelling:
    """P(string), for every string that is not a word of the vocabulary; they sum to one.

    `words`: what it is learned from, one a line. `known`: the sum of the probabilities that the model of bytes gives
    to the words of the vocabulary, and to `<s>`, `<unk>` and the like. It is left out of the probabilities.
    """

    def __init__(self, words: bytes, known: float, order: int = ORDER) -> None:
        self.words, self.known, self.order = words, known, order

    @classmethod
    def learn(cls, words: bytes, vocabulary: Vocabulary) -> Spelling:
        """The model of some words, one a line, for what is not in a vocabulary."""
        return cls(words, 0.0).outside(vocabulary)

    def outside(self, vocabulary: Vocabulary) -> Spelling:
        """The same model of bytes, for another vocabulary."""
        made = Spelling(self.words, 0.0, self.order)
        made.__dict__["_table"] = self._table
        made.known = float(np.exp(made._log_spellings(*spans_of(never_spelled(vocabulary)))).sum())
        return made

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
        """(codes, ln P, ln backoff, ln P of a byte that was never seen, ln P that a word has any bytes)"""
        try:
            with np.errstate(all="ignore"):
                return self._learned()
        except (ArithmeticError, LookupError, ValueError) as error:
            raise FormatError(
                f"the spelling model is damaged ({shown(error)}); restore or rebuild the model"
            ) from error

    def _learned(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
        grams = estimate(self.words, self.order)
        codes, p = _coded([g.keys for g in grams], 1), np.concatenate([g.p for g in grams])
        contexts = _coded([g.contexts for g in grams[1:]], 1)
        size = 1 << max(4, (4 * len(codes) // 3).bit_length())  # up to three quarters full
        table = np.zeros(size, np.uint64), np.zeros(size, np.float32), np.zeros(size, np.float32)
        places = np.empty(len(codes), np.int64)
        spelling_kernels.insert_codes(codes, table[0], places)
        table[1][places] = np.log(p)
        places = np.empty(len(contexts), np.int64)
        spelling_kernels.insert_codes(contexts, table[0], places)
        table[2][places] = np.log(np.concatenate([g.backoffs for g in grams[1:]]))
        floor = math.log(grams[0].backoffs[0] / len(SYMBOLS))
        empty = np.zeros(1)
        how = self.order, *table, floor
        spelling_kernels.log_spellings(np.zeros(0, np.uint8), np.zeros(2, np.int64), *how, empty)
        return *table, floor, math.log1p(-math.exp(empty[0]))

    def _log_spellings(self, data: np.ndarray, spans: np.ndarray) -> np.ndarray:
        codes, logs, backoffs, floor, some = self._table
        out = np.empty(len(spans) // 2, np.float64)
        spelling_kernels.log_spellings(data, spans, self.order, codes, logs, backoffs, floor, out)
        out[spans[::2] >= 0] -= some
        return out

    def log_probabilities(self, data: bytes, spans: np.ndarray) -> np.ndarray:
        """ln P of strings outside the vocabulary, data[start:stop] for each pair of `spans`. (strings,) float64

        The pair (-1, -1) is a word that the text hides (`<unk>`): 0, the probability that it is any string.
        """
        if not len(spans):
            return np.empty(0)
        found = self._log_spellings(np.frombuffer(data, np.uint8), spans)
        found[spans[::2] >= 0] -= math.log1p(-self.known)
        return found

    def faults(self) -> Iterator[tuple[bool, str]]:
        """Check that probabilities sum to one: of strings, and of what follows the beginnings of some words."""
        codes, logs, backoffs, floor, _ = self._table
        off, out = 0.0, np.empty(len(SYMBOLS))
        for word in self.words[:CHECKED_BYTES].split(b"\n")[:-1]:
            context = (b"\n" + word)[: 1 + len(word) // 2][1 - self.order :]
            history, length = np.uint64(int.from_bytes(context)), len(context)
            spelling_kernels.log_symbols(history, length, SYMBOLS, codes, logs, backoffs, floor, out)
            off = max(off, abs(float(np.exp(out).sum()) - 1))
        yield off > TOLERANCE, f"the probabilities of the bytes of words sum to 1 only within {off:.2g}"


def _coded(keys: list[np.ndarray], first_length: int) -> np.ndarray:
    return np.concatenate([k | np.uint64((first_length + i) << 56) for i, k in enumerate(keys)])


def spans_of(lines: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of lines, and where each begins and ends, one after another."""
    data = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(data == BOUNDARY)
    spans = np.empty(2 * len(ends), np.int64)
    spans[1::2] = ends
    spans[2::2] = ends[:-1] + 1
    spans[:1] = 0
    return data, spans


def never_spelled(vocabulary: Vocabulary) -> bytes:
    """The strings, one a line, that are words of a vocabulary or have a meaning of their own."""
    strings = sorted({*ALIASES_OF_UNKNOWN, *MARKERS})
    words = vocabulary.lines.split(b"\n", len(SPECIAL))[-1]
    return b"".join(s.encode() + b"\n" for s in strings) + words


class RareWords:
    """Distinct words of a text that are not in its vocabulary: a sample, the `most` with the smallest hashes."""

    def __init__(self, most: int = MAX_WORDS) -> None:
        self.most = most
        self._words: dict[int, bytes] = {}
        self._limit = np.uint64(2**64 - 1)  # a larger hash is not among the smallest

    def add(self, data: bytes | np.ndarray, spans: np.ndarray) -> None:
        """Add the words data[start:stop], for each pair of `spans`; (-1, -1) is none."""
        data = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        spans = np.ascontiguousarray(spans.reshape(-1, 2)[spans[::2] >= 0])
        hashes = np.empty(len(spans), np.uint64)
        text_kernels.hash_spans(data, spans.reshape(-1), hashes)
        new = np.flatnonzero(hashes <= self._limit)
        for word_hash, (start, stop) in zip(hashes[new].tolist(), spans[new].tolist(), strict=True):
            if word_hash not in self._words:
                self._words[word_hash] = data[start:stop].tobytes()
        if len(self._words) > 2 * self.most:
            self._keep_smallest()

    def _keep_smallest(self) -> None:
        smallest = sorted(self._words)[: self.most]
        self._words = {h: self._words[h] for h in smallest}
        if len(smallest) == self.most:
            self._limit = np.uint64(smallest[-1])

    @property
    def lines(self) -> bytes:
        """The words, one a line, in the order of their hashes."""
        self._keep_smallest()
        return b"".join(word + b"\n" for word in self._words.values())


def thinned(words: bytes, most: int) -> bytes:
    """The first words of a list, one a line, that take at most so many bytes; one word at least."""
    return words if len(words) <= most else words[: max(words.rfind(b"\n", 0, most), words.find(b"\n")) + 1]


def words_to_learn(rare: bytes, counts: np.ndarray, vocabulary: Vocabulary) -> bytes:
    """What a spelling model is learned from, one word a line: rare words of the training text, given one a line.

    If they are fewer than FEW_WORDS, words of the vocabulary are added, the least frequent first, until there are
    MAX_WORDS. `counts`: how often each word of the vocabulary occurs in the text.
    """
    found = rare.count(b"\n")
    if found >= FEW_WORDS:
        return rare
    data, spans = spans_of(vocabulary.lines)
    ids = np.arange(len(SPECIAL), vocabulary.first_field)
    order = np.lexsort((-ids, counts[ids]))[: MAX_WORDS - found]
    chosen = spans.reshape(-1, 2)[ids[order]].tolist()
    return rare + b"".join(data[start : stop + 1].tobytes() for start, stop in chosen)
