"""Entropy pruning of a backoff model in plain Python: the reference of its tests.

A model is {n-gram: (probability, backoff weight)}, as an ARPA file has it; n-grams are tuples of words.
"""

from __future__ import annotations

import math

Ngrams = dict[tuple[str, ...], tuple[float, float]]


def probability(model: Ngrams, ngram: tuple[str, ...]) -> float:
    """P(last word | words before), by backing off."""
    if ngram in model:
        return model[ngram][0]
    if len(ngram) == 1:
        return 0.0
    return model.get(ngram[:-1], (0.0, 1.0))[1] * probability(model, ngram[1:])


def context_probability(model: Ngrams, context: tuple[str, ...]) -> float:
    """P(words of a context); <s> is as probable as </s>."""
    words = tuple("</s>" if k == 0 and word == "<s>" else word for k, word in enumerate(context))
    first = probability(model, words[:1])
    return first * math.prod(probability(model, context[: k + 1]) for k in range(1, len(context)))


def entropy_changes(model: Ngrams) -> dict[tuple[str, ...], float]:
    """By how much the entropy of the model rises without each n-gram of two or more words, in nats."""
    changes = {}
    for ngram in model:
        context = ngram[:-1]
        if not context or ngram[-1] == "<s>":
            continue
        row = [other for other in model if len(other) == len(ngram) and other[:-1] == context]
        free = 1 - sum(model[other][0] for other in row)
        left = 1 - sum(probability(model, other[1:]) for other in row)
        p, lower = model[ngram][0], probability(model, ngram[1:])
        before, after = free / left, (free + p) / (left + lower)
        change = p * (math.log(lower) + math.log(after) - math.log(p)) + free * (math.log(after) - math.log(before))
        changes[ngram] = -context_probability(model, context) * change
    return changes


def prune(model: Ngrams, threshold: float) -> Ngrams:
    """The model without n-grams that change the entropy by less than a threshold, as SRILM prunes.

    From the longest n-grams to the shortest; an n-gram stays if it is the context of one that stays.
    """
    changes = entropy_changes(model)
    kept = dict(model)
    for length in range(max(map(len, model)), 1, -1):
        for ngram in [n for n in kept if len(n) == length]:
            extended = any(other[:-1] == ngram for other in kept if len(other) == length + 1)
            if changes.get(ngram, math.inf) < threshold and not extended:
                del kept[ngram]
    return with_backoffs(kept)


def with_backoffs(model: Ngrams) -> Ngrams:
    """The same probabilities, with backoff weights such that every context sums to one."""
    made: Ngrams = {}
    for ngram in sorted(model, key=len):
        made[ngram] = model[ngram][0], 1.0
    for context in sorted(model, key=len):
        row = [other for other in model if other[:-1] == context]
        if row:
            free = 1 - sum(model[other][0] for other in row)
            left = 1 - sum(probability(made, other[1:]) for other in row)
            made[context] = made[context][0], free / left
    return made
