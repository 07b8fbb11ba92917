"""The classes of a two-level softmax: P(w | h) = P(class of w | h) P(w | its class, h).

Words come from the classes that the exchange algorithm learns (`snm.text.classes`). Of each, the most frequent words
are a class of their own, the next ones another that is larger, and so on: what an event costs is the number of classes
and the number of words in the target's class, so frequent words are in small ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SIZES = (64, 256, 1024, 4096)
"""Words in the first, second … class that a learned class is cut into; all further ones are as large as the last."""


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
        starts, begin = [0], 0
        for end in ends.tolist():
            for k in range(end - begin):
                begin += SIZES[min(k, len(SIZES) - 1)]
                if begin >= end:
                    break
                starts.append(begin)
            starts.append(end)
            begin = end
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
