"""Vocabularies that differ: the union of the members' words, and what a member predicts of the words that it lacks.

A member *lacks* the words of the union that are not in its vocabulary and, if its vocabulary is closed, `<UNK>`. It
gives all of these together a share of its probability, in equal parts, so that its distribution over the union still
sums to one:

- with an open vocabulary, a share of its P(<UNK> | h), the rest of which is the probability of the union's `<UNK>`;
- with a closed vocabulary, a share of everything: it has no P(<UNK> | h).

The share is what the held-out text shows, with one event more on either side (`share_of`). The union is closed if all
members are, and begins with the words of the first member, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snm.arguments import shown
from snm.errors import FormatError, SettingsError
from snm.layouts.tokens import SPECIAL, UNKNOWN
from snm.model import LanguageModel
from snm.text.encoding import Text
from snm.text.spelling import Spelling
from snm.text.tokenizers import check_same
from snm.text.vocabulary import Vocabulary


def union_of(vocabularies: Sequence[Vocabulary]) -> Vocabulary:
    """The words of all vocabularies: those of the first one, then what the others have beside."""
    first = vocabularies[0]
    if any(other.document != first.document for other in vocabularies):
        raise SettingsError(
            "one model reads documents, the other sentences, so they see different contexts; train both with "
            "--document, or both without"
        )
    for other in vocabularies:
        check_same(first.tokenizer, other.tokenizer, "the first model", "another model")
    closed, words = all(v.closed for v in vocabularies), dict.fromkeys(first.words)
    for other in vocabularies[1:]:
        if other.lines != first.lines:
            words |= dict.fromkeys(other.words)
    if len(words) == len(first) and closed == first.closed:
        return first
    return Vocabulary(list(words)[len(SPECIAL) :], closed=closed, document=first.document, tokenizer=first.tokenizer)


@dataclass(frozen=True)
class Words:
    """How a member predicts the words of a union: scale * P(the member's own id) + constant.

    All arrays have an entry for each word of the union.
    """

    ids: np.ndarray  # (words,) uint32: the member's id, that of <UNK> for a word that it lacks
    scale: np.ndarray  # (words,) float64
    constant: np.ndarray  # (words,) float64
    same: bool
    """Whether the member has the same words with the same ids."""
    whole: bool
    """Whether the member lacks no word: then all factors are 1 and all constants 0."""

    @classmethod
    def of(cls, vocabulary: Vocabulary, union: Vocabulary, share: float) -> Words:
        """`share`: what the member gives to the words that it lacks, if there are any."""
        n = len(union)
        if vocabulary == union:
            return cls(np.arange(n, dtype=np.uint32), np.ones(n), np.zeros(n), True, True)
        ids, lacking = ids_in(vocabulary, union)
        lacked, scale, constant = int(lacking.sum()), np.ones(n), np.zeros(n)
        if lacked and vocabulary.closed:
            scale[:], constant[lacking] = 1 - share, share / lacked
            scale[lacking] = 0
        elif lacked:
            scale[lacking], scale[UNKNOWN] = share / lacked, 1 - share
        return cls(ids, scale, constant, False, not lacked)

    def own(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens of the union with the member's own ids."""
        return tokens if self.same else self.ids[tokens]

    def shared(self, p: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The probabilities of tokens of the union, from those that the member gives to its own ids."""
        return p if self.whole else self.scale[tokens] * p + self.constant[tokens]


def ids_in(vocabulary: Vocabulary, union: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """The ids of a union's words in a member's vocabulary, and whether the member lacks them. (words,) each"""
    ids = vocabulary.ids_of(union.words)
    lacking = ids == UNKNOWN
    lacking[UNKNOWN] = vocabulary.closed and not union.closed
    return ids, lacking


def share_of(vocabulary: Vocabulary, union: Vocabulary, text: Text) -> float:
    """The share of its probability that a member gives to the words that it lacks. `text` has ids of the union.

    Of an open vocabulary, the text's <UNK>s that the union knows, among all of its <UNK>s; of a closed one, the words
    of the text that it lacks, among all. One event is added to either side: a share is above 0 and below 1.
    """
    ids, lacking = ids_in(vocabulary, union)
    counts = np.bincount(text.tokens, minlength=len(union)).astype(np.float64)
    counts[0] = 0
    found = float(counts[lacking].sum())
    if union.closed:
        counts[UNKNOWN] = 0  # no target
    of_all = counts.sum() if vocabulary.closed else counts[ids == UNKNOWN].sum()
    return (found + 1) / (float(of_all) + 2)


def check_shares(path: Path, shares: Any) -> None:
    """Raise an error if a model's `shares` are not."""
    if not isinstance(shares, list) or not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares):
        raise FormatError(f"{path} is damaged: shares is {shown(shares)}; expected numbers from 0 to 1")


def spelling_of(members: Sequence[LanguageModel], union: Vocabulary) -> Spelling | None:
    """The spelling model of the first member that has one. All members spell with it: then P sums to one."""
    for member in members:
        if member.spelling is not None:
            same = member.vocabulary.lines == union.lines
            return member.spelling if same else member.spelling.outside(union)
    return None
