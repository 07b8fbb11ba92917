"""Histories of stateful models as KenLM sees them: their order, the empty one, and the n-gram that predicts a word."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.baselines.neural.model import NeuralModel
from snm.layouts.tokens import BEGIN, END
from snm.model import IDS, LanguageModel
from snm.scoring.mixture import MixtureModel
from snm.scoring.model import RowModel, SnmModel

ENDLESS = 1 << 16
"""The order of a model whose scores depend on all words of a sentence."""


def order_of(model: LanguageModel) -> int:
    """How many words a feature of the model spans: those before the predicted word, and the word.

    A recurrent network has no such number; decoders that merge beams by their last words take ENDLESS as one.
    """
    if isinstance(model, MixtureModel):
        return max(map(order_of, model.members))
    if isinstance(model, NeuralModel):
        return ENDLESS if model.reach is None else model.reach + 1
    return model.extractor.spec.span + 1 if isinstance(model, RowModel) else model.state_width + 1


def null_state(model: LanguageModel) -> bytes:
    """The state of a model without any context, not even the beginning of a sentence.

    It is made of `</S>`, which is in no feature's context, so only the empty feature has a row.
    """
    if isinstance(model, MixtureModel):
        return b"".join(map(null_state, model.members))
    if isinstance(model, NeuralModel):
        return model.null_state()
    return np.full(model.state_width, END ^ model.vocabulary.tag, IDS).tobytes()


def ngram_length(model: LanguageModel, state: bytes, word: int) -> int:
    """Words of the longest n-gram of the model that ends with `word` after `state`; 1 if there is none."""
    if isinstance(model, MixtureModel):
        ends = np.cumsum([0, *(4 * member.state_width for member in model.members)]).tolist()
        parts = [state[start:end] for start, end in pairwise(ends)]
        members = zip(model.members, parts, model._maps, strict=True)
        return max(ngram_length(member, part, int(words.ids[word])) for member, part, words in members)
    if isinstance(model, NeuralModel):
        return 1
    tokens = np.frombuffer(state, IDS) ^ IDS.type(model.vocabulary.tag)
    begins = np.flatnonzero(tokens == BEGIN)
    return max(_lengths(model, tokens[begins[-1] if len(begins) else 0 :], word), default=1)


def _lengths(model: LanguageModel, context: np.ndarray, word: int) -> list[int]:
    """Words of each n-gram of the model that ends with `word` after `context`."""
    if isinstance(model, BackoffModel):
        rows = model._find(model._keys(context))[0].tolist()
        return [q + 1 for q, row in enumerate(rows) if row >= 0 and word in model.row(row)[0]]
    if isinstance(model, SnmModel):
        found, _ = model._look_up(model._keys(context), word, context)
        kinds = [model.spec.types[template.type_index] for template in model.spec.templates]
        weights = found.weight[: len(kinds), 0].tolist()  # rows of caches come last
        return [kind.a + 1 for kind, weight in zip(kinds, weights, strict=True) if kind.is_ngram and weight > 0]
    return []
