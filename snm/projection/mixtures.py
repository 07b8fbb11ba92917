"""The n-grams of several backoff models, with probabilities that are mixed linearly (SRILM: `ngram -mix-lm`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.kernels import backoff as kernels
from snm.layouts.keys import ABSENT
from snm.layouts.tokens import BEGIN
from snm.mixing import find_weights
from snm.progress import Advance, ignore
from snm.projection.ngrams import LEAST, Ngrams, extractor_for
from snm.projection.texts import ngrams_of
from snm.scoring.unions import Words, ids_in
from snm.text.vocabulary import Vocabulary


def merged_ngrams(members: Sequence[BackoffModel], vocabulary: Vocabulary, order: int | None = None) -> Ngrams:
    """The n-grams of all members, of up to `order` words, with the ids of a vocabulary that has all their words."""
    longest = max(member.extractor.n_templates for member in members)
    order = min(order or longest, longest)
    extractor = extractor_for(vocabulary, order, sum(len(member.targets) for member in members))
    never = vocabulary.never_a_target
    words = np.arange(len(vocabulary), dtype=np.uint32)
    keys = [np.full(len(words), extractor.context_keys(np.zeros((1, 0), np.uint32))[0])]  # every word has a share
    targets = [words]
    for member in members:
        ngrams, ids = ngrams_of(member), _union_ids(member.vocabulary, vocabulary)
        for context, rows in ngrams.pieces():
            if context.shape[1] < order:
                lengths = ngrams.offsets[rows + 1] - ngrams.offsets[rows]
                keys.append(np.repeat(extractor.context_keys(ids[context]), lengths))
                targets.append(ids[ngrams.targets[ngrams.links_of(rows)]])
    all_keys, all_targets = np.concatenate(keys), np.concatenate(targets)
    kept = (all_targets != BEGIN) & (all_targets != never)
    all_keys, all_targets = all_keys[kept], all_targets[kept]
    by_key = np.lexsort((all_targets, all_keys))
    all_keys, all_targets = all_keys[by_key], all_targets[by_key]
    new = np.append(True, (all_keys[1:] != all_keys[:-1]) | (all_targets[1:] != all_targets[:-1]))
    all_keys, all_targets = all_keys[new], all_targets[new]
    starts = np.flatnonzero(np.append(True, all_keys[1:] != all_keys[:-1]))
    return Ngrams(extractor, all_keys[starts], np.append(starts, len(all_keys)), all_targets)


def _union_ids(own: Vocabulary, union: Vocabulary) -> np.ndarray:
    """The ids in a union of the words of a vocabulary. (words,) uint32"""
    found, lacking = ids_in(own, union)
    ids = np.arange(len(own), dtype=np.uint32)
    ids[found[~lacking]] = np.flatnonzero(~lacking)
    return ids


def best_weights(members: Sequence[BackoffModel], maps: Sequence[Words], tokens: np.ndarray) -> np.ndarray:
    """The weights with which the mixture is best on held-out text. tokens: with ids of the union"""
    events = tokens != BEGIN
    both = zip(members, maps, strict=True)
    p = [mapped.shared(member.probabilities(mapped.own(tokens)), tokens)[events] for member, mapped in both]
    possible = np.array(p)[:, np.any(p, axis=0)]  # words that no member can predict say nothing
    return find_weights(possible)


def mixed_probabilities(
    members: Sequence[BackoffModel], maps: Sequence[Words], weights: np.ndarray, ngrams: Ngrams,
    advance: Advance = ignore,
) -> np.ndarray:  # fmt: skip
    """P of the n-grams after their contexts alone, mixed with these weights. (links,) float32

    maps: how each member predicts the words of the n-grams.
    """
    p = np.zeros(len(ngrams.targets), np.float64)
    for words, rows in ngrams.pieces():
        links = ngrams.links_of(rows)
        lengths = ngrams.offsets[rows + 1] - ngrams.offsets[rows]
        for weight, member, mapped in zip(weights, members, maps, strict=True):
            p[links] += weight * _shared(member, mapped, words, lengths, ngrams.targets[links])
        advance(len(links))
    return np.maximum(p, LEAST).astype(np.float32)


def _shared(
    member: BackoffModel, mapped: Words, words: np.ndarray, lengths: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """P of the targets, so many for each context, under a member. contexts: (n, words); (targets,) float64"""
    context = mapped.own(words)
    keys = np.full((member.extractor.n_templates, len(words)), ABSENT)
    for length in range(min(words.shape[1] + 1, len(keys))):
        ending = np.ascontiguousarray(context[:, words.shape[1] - length :])
        keys[length] = member.extractor.context_keys(ending)
    p = np.zeros(len(targets))
    kernels.score(
        np.repeat(keys, lengths, axis=1), mapped.own(targets), member.index, member.offsets, member.targets,
        member.link_probabilities, member.backoffs, p,
    )  # fmt: skip
    return mapped.shared(p, targets)
