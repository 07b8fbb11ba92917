"""Mixtures: models whose probabilities are weighted sums of other models'. `snm.mixing` makes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from snm import storage
from snm.errors import SettingsError
from snm.model import LanguageModel
from snm.text.vocabulary import Vocabulary


class MixtureModel(LanguageModel):
    """P(w | h) = the weighted sum of the members' P(w | h)."""

    kind = "mixture"

    def __init__(self, path: str | Path, members: list[LanguageModel]) -> None:
        self.path, self.members = Path(path), members
        self.manifest = storage.read_manifest(self.path)
        self.weights = np.array(self.manifest["weights"], np.float64)
        self.vocabulary = self.members[0].vocabulary
        self._ids = [ids_in(member.vocabulary, self.vocabulary) for member in self.members]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (os.path.abspath(self.path), self.members)

    def __repr__(self) -> str:
        return f"<MixtureModel {self.path}: {', '.join(f'{w:.3f}' for w in self.weights)} of {self.members}>"

    def probabilities(self, tokens: np.ndarray, threads: int = 1) -> np.ndarray:
        total = np.zeros(len(tokens), np.float64)
        for weight, member, ids in zip(self.weights, self.members, self._ids, strict=True):
            total += weight * member.probabilities(ids[tokens], threads)
        return total

    def distribution(self, context: np.ndarray) -> np.ndarray:
        total = np.zeros(len(self.vocabulary), np.float64)
        for weight, member, ids in zip(self.weights, self.members, self._ids, strict=True):
            total += weight * member.distribution(ids[context])[ids]
        return total

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield abs(float(self.weights.sum()) - 1) > 1e-6, "the weights do not sum to one"
        for member in self.members:
            yield from member.faults()


def ids_in(vocabulary: Vocabulary, other: Vocabulary) -> np.ndarray:
    """The id in `vocabulary` of each word of `other`, which has the same words in any order. (words,) uint32"""
    if vocabulary == other:
        return np.arange(len(other), dtype=np.uint32)
    differing = sorted(set(other.words) ^ set(vocabulary.words))
    if differing or (vocabulary.closed, vocabulary.document) != (other.closed, other.document):
        what = "one is closed" if vocabulary.closed != other.closed else "one reads documents, the other sentences"
        if differing:
            what = f"{len(differing):,} words are in one only, such as {differing[0]!r}"
        raise SettingsError(
            f"models of different vocabularies cannot be mixed: {what}; train them with the same --vocab"
        )
    return vocabulary.ids_of(other.words)
