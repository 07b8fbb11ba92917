"""The classes of a two-level softmax: P(w | h) = P(class of w | h) P(w | its class, h).

Words come from the classes that the exchange algorithm learns (`snm.text.classes`). Each is cut into several, the most
frequent words first. What an event costs is the number of classes and the number of words in the target's class: the
cuts are those that make the expected sum smallest, so frequent words are in small classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SIZES = tuple(64 << k for k in range(8))
"""Words in a class that a learned class is cut into; the last one of a learned class has fewer."""


@dataclass(frozen=True)
class WordClasses:
    """A row for every word, such that the words of a class are rows [starts[c], starts[c + 1])."""

    places: np.ndarray  # (words,) int32: the row of each word
    starts: np.ndarray  # (classes + 1,) int32

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def build(cls, counts: np.ndarray, learned: np.ndarray) -> WordClasses:
        """`counts`: how often each word occurs; `learned`: its class by the exchange algorithm. (words,) each"""
        order = np.lexsort((-counts, learned))
        ends = np.flatnonzero(np.append(np.diff(learned[order]) != 0, True)) + 1
        shares, starts = counts[order] / max(1, counts.sum()), [0]
        for end in ends.tolist():
            begin = starts[-1]
            starts += [begin + cut for cut in _cuts(shares[begin:end])]
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        return cls(places, np.array(starts, np.int32))

    def is_whole(self) -> bool:
        """Whether every word has a row of its own, in one class."""
        rows = np.sort(self.places)
        whole = np.array_equal(rows, np.arange(len(rows))) and int(self.starts[-1]) == len(rows)
        return bool(whole and self.starts[0] == 0 and (np.diff(self.starts) > 0).all())

    def class_of_rows(self) -> np.ndarray:
        """The class of each row. (words,) int64"""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def banned(self, never_targets: list[int]) -> np.ndarray:
        """The classes of words that are never predicted, each of which is alone in its class."""
        found: np.ndarray = self.class_of_rows()[self.places[sorted(set(never_targets))]]
        if (np.diff(self.starts)[found] != 1).any():
            raise ValueError("a word that is never predicted shares its class with others")
        return found


def _cuts(shares: np.ndarray) -> list[int]:
    """Where the classes end that a learned class is cut into. shares: of its words in the text, the largest first."""
    words, before = len(shares), np.append(0.0, np.cumsum(shares)).tolist()
    costs, begins = [0.0, *[math.inf] * words], [0] * (words + 1)
    for begin in range(0, words, math.gcd(*SIZES)):
        for end in (min(begin + size, words) for size in SIZES):
            cost = costs[begin] + 1 + (before[end] - before[begin]) * (end - begin)
            if cost < costs[end]:
                costs[end], begins[end] = cost, begin
    cuts = [words]
    while begins[cuts[-1]]:
        cuts.append(begins[cuts[-1]])
    return cuts[::-1]
