"""The members of a model whose rows one gate weighs: SNMs, of which each feature of an event has a row, and other
models, each of which is one row: its distribution, whose sum is one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from snm.errors import FormatError
from snm.features.extraction import Extractor
from snm.kernels import rows as row_kernels
from snm.kernels.rows import Found
from snm.layouts.gate import Gate
from snm.layouts.tokens import BEGIN
from snm.model import LanguageModel
from snm.scoring.model import SnmModel
from snm.scoring.texts import TextScorer
from snm.scoring.unions import Words
from snm.text.encoding import Text
from snm.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from snm.gate.fitting import GateEvents


class Member:
    """An SNM: its rows, for words of the union."""

    def __init__(self, model: SnmModel, name: str, words: Words) -> None:
        if model.vocabulary.closed and not words.whole:  # another source has the words that it lacks
            words = replace(words, scale=np.sign(words.scale), constant=np.zeros(len(words.ids)))
        if model.spec.caches:
            raise FormatError(f"{model.path} has a cache, which a member cannot have; rebuild the model")
        self.model, self.name, self.words = model, name, words
        self.extractor, self.matrix = _for_union(model.extractor, words), model.matrix
        self.templates = n = self.extractor.n_templates
        ungated = Gate.of(np.zeros(n, np.float32), n)
        self.ungated = ungated
        prune, self.caches = model.manifest["training"]["prune"], self.extractor.cache_reader()
        self.scorer = TextScorer(self.extractor, self.matrix, ungated, prune, self.caches)

    def ids(self, tokens: np.ndarray) -> np.ndarray:
        """The ids of tokens in the member's own vocabulary."""
        return self.words.own(tokens)

    def scales(self, tokens: np.ndarray) -> np.ndarray:
        """The factor of M of each of these targets, 1 unless the member lacks the word. float32"""
        if self.words.whole:
            return np.ones(len(tokens), np.float32)
        factors: np.ndarray = self.words.scale[tokens].astype(np.float32)
        return factors

    def keys(self, tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
        """See `Extractor.keys`; tokens of the union."""
        begin = max(0, start - self.extractor.span)
        return self.extractor.keys(self.ids(tokens[begin:stop]), start - begin, stop - begin)

    def find(
        self, tokens: np.ndarray, start: int, stop: int, targets: np.ndarray | None = None
    ) -> tuple[np.ndarray, Found]:
        """Keys and rows of the events whose targets are tokens[start:stop], or `targets`. (templates, events)"""
        keys, targets = self.keys(tokens, start, stop), tokens[start:stop] if targets is None else targets
        found = row_kernels.find(keys, self.ids(targets), self.matrix, self.ungated)
        return keys, found._replace(weight=found.weight * self.scales(targets))


class Other:
    """A model of any other kind: one row, its distribution over the words of the union."""

    templates = 1

    def __init__(self, model: LanguageModel, name: str, words: Words) -> None:
        self.model, self.name, self.words = model, name, words

    def probabilities(self, tokens: np.ndarray, threads: int = 1) -> np.ndarray:
        """P of each token of a text; 0 where there is no event. (tokens,) float64"""
        p = self.words.shared(self.model.probabilities(self.words.own(tokens), threads=threads), tokens)
        return np.where(tokens == BEGIN, 0.0, p)

    def distribution(self, context: np.ndarray) -> np.ndarray:
        p, words = self.model.distribution(self.words.own(context)), self.words
        spread: np.ndarray = p if words.same else words.scale * p[words.ids] + words.constant
        return spread

    def expand(self, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """P of words after the states of the model. (1 or n, m) to (n, m)"""
        own = self.words.own(ids[0] if len(ids) == 1 else ids)
        p = np.nan_to_num(10.0 ** self.model.expand(states, own), nan=0.0)
        return self.words.shared(p, ids)

    def rows(self, p: np.ndarray) -> Found:
        """The rows of events with these probabilities. (1, events) each"""
        zero, one = np.zeros((1, len(p)), np.float32), np.ones((1, len(p)), np.float32)
        return Found(zero, one, one, p.astype(np.float32)[None], one)


def events_of(members: Sequence[Member], text: Text, others: Sequence[Other] = (), threads: int = 1) -> GateEvents:
    """The rows of a text's events in all members, which a gate is learned on."""
    from snm.gate.fitting import GateEvents

    alone = [other.probabilities(text.tokens, threads) for other in others]
    made, filled = GateEvents.empty(text.events, sum(m.templates for m in members) + len(others)), 0
    for start, stop in members[0].extractor.blocks(0, len(text.tokens)):
        found = [member.find(text.tokens, start, stop)[1] for member in members]
        found += [other.rows(p[start:stop]) for other, p in zip(others, alone, strict=True)]
        filled += made.add(joined(found), filled)
    return made.first(filled)


def joined(parts: list[Found]) -> Found:
    """The rows of several members together."""
    return Found(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _for_union(extractor: Extractor, words: Words) -> Extractor:
    """The same keys, also before targets that a closed vocabulary lacks: there they are <UNK>, which is no target."""
    if words.same or not extractor.vocabulary.closed:
        return extractor
    made = copy(extractor)
    lines = extractor.vocabulary.lines.split(b"\n", 3)[-1]
    made.vocabulary = Vocabulary.of_lines(lines, False, extractor.vocabulary.document, extractor.vocabulary.tokenizer)
    return made
