"""What models are compared by: probabilities that mean the same for all of them.

`<UNK>` is easy to predict where many words are rare. So its probability counts only if all vocabularies are equal;
otherwise unknown words are spelled or, where a model cannot spell, only words that all models know are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snm.reporting.scores import Scored, without_nan

UNK, SPELLED, KNOWN, NOTHING = "unk", "spelled", "known", "none"
TEXTS = {
    UNK: "All vocabularies are equal; unknown words count as <UNK>.",
    SPELLED: "Vocabularies differ: unknown words are spelled, so every word has a probability of its own.",
    KNOWN: "Vocabularies differ, and not every model can spell: only words that all models know are compared.",
    NOTHING: "These models cannot be compared: they divide text in different ways, and not every model can spell.",
}


@dataclass(frozen=True)
class Basis:
    """Comparable probabilities of several models."""

    kind: str
    logs: list[np.ndarray]
    """ln P of each target under each model, NaN of those left out. (targets of the model,)"""
    sums: np.ndarray
    """ln P of each line. (models, lines)"""
    units: np.ndarray
    """Words and sentence ends of each line that count. (lines,)"""

    @property
    def text(self) -> str:
        return TEXTS[self.kind]


def basis_of(scored: Sequence[Scored], words: np.ndarray) -> Basis:
    """The basis on which models can be compared; that of a single model is its perplexity.

    words: that white space separates in each line. (lines,)
    """
    first = scored[0]
    same = all(other.model.vocabulary == first.model.vocabulary for other in scored)
    aligned = all(other.is_aligned(first) for other in scored)
    if same and aligned:
        kind, logs = UNK, [one.logs for one in scored]
    elif all(one.spelled is not None for one in scored):
        kind, logs = SPELLED, [one.spelled for one in scored if one.spelled is not None]
    elif aligned:
        known = np.logical_and.reduce([one.known for one in scored])
        kind, logs = KNOWN, [np.where(known, one.logs, np.nan) for one in scored]
    else:
        kind, logs = NOTHING, [one.logs for one in scored]
    n = len(words)
    sums = [np.bincount(one.line, without_nan(log), n) for one, log in zip(scored, logs, strict=True)]
    if aligned:
        units = np.bincount(first.line, ~np.isnan(logs[0]), n)
    else:  # what white space separates
        units = np.where(words > 0, words + 1, 0).astype(np.float64)
    return Basis(kind, logs, np.array(sums), units)
