"""What brings how much: the feature types and sources of an SNM, the members of a mixture, the orders of a backoff
model. Measured on a sample of the text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snm.baselines.backoff.model import BackoffModel
from snm.layouts.tokens import BEGIN
from snm.model import LanguageModel
from snm.progress import Progress
from snm.scoring.mixture import MixtureModel
from snm.scoring.model import SnmModel
from snm.scoring.sources import SourcesModel
from snm.text.encoding import are_targets

MOST_TOKENS = 20_000  # of the text that are looked at
PIECES = 20  # of the text, evenly spread


@dataclass(frozen=True)
class Part:
    """One feature type, member or order."""

    name: str
    share: float
    """Its part of the probability of the words, on average."""
    without: float | None = None
    """By what factor the perplexity would rise without it, 0.03 for 3 %, all else being equal; None if some words would
    have no probability, or if it is not defined."""
    weight: float | None = None
    """Its part of the whole distribution: the share of words that are drawn from it."""


@dataclass(frozen=True)
class Contributions:
    """The parts of a model, the largest first."""

    title: str
    of: str
    """What `share` is a share of."""
    parts: list[Part]
    words: int


def contributions(model: LanguageModel, tokens: np.ndarray, progress: Progress) -> list[Contributions]:
    """What brings how much in a text; nothing for a network. tokens: of the model's vocabulary"""
    if isinstance(model, SnmModel | SourcesModel | BackoffModel | MixtureModel):
        sample = sampled(tokens)
        with progress("what brings how much", len(sample)) as bar:
            made = list(_parts_of(model, sample))
            bar(len(sample))
        return made
    return []


def sampled(tokens: np.ndarray) -> np.ndarray:
    """All of a short text, or whole segments from places all over it."""
    if len(tokens) <= MOST_TOKENS:
        return tokens
    begins = np.append(np.flatnonzero(tokens == BEGIN), len(tokens))
    parts, wanted = [], MOST_TOKENS // PIECES
    for start in np.linspace(0, len(tokens), PIECES, endpoint=False):
        first = int(np.searchsorted(begins, start))
        last = int(np.searchsorted(begins, start + wanted, "right"))
        if first < len(begins) - 1:
            parts.append(tokens[begins[first] : begins[min(max(last - 1, first + 1), len(begins) - 1)]])
    return np.concatenate(parts)


def _parts_of(model: LanguageModel, tokens: np.ndarray, prefix: str = "") -> Iterator[Contributions]:
    if isinstance(model, SnmModel):
        yield _of_rows(model, tokens, model.row_names(), f"{prefix}By feature type")
    elif isinstance(model, SourcesModel):
        names = model.row_names()
        what = "source" if model.kind == "sources" else "member"
        yield _of_rows(model, tokens, [name for name, _ in names], f"{prefix}By {what}")
        yield _of_rows(model, tokens, [f"{name}: {kind}" for name, kind in names], f"{prefix}By feature type")
    elif isinstance(model, BackoffModel):
        yield _of_orders(model, tokens, f"{prefix}By order")
    elif isinstance(model, MixtureModel):
        yield _of_members(model, tokens, f"{prefix}By member")
        for name, member, words in zip(_member_names(model), model.members, model._maps, strict=True):
            yield from _parts_of(member, words.own(tokens), f"{prefix}{name}: ")


def _of_rows(model: SnmModel | SourcesModel, tokens: np.ndarray, names: list[str], title: str) -> Contributions:
    """The parts of the rows that have the same name."""
    groups = list(dict.fromkeys(names))
    member = np.zeros((len(groups), len(names)))
    member[[groups.index(name) for name in names], np.arange(len(names))] = 1
    share, weight, lost, words = (np.zeros(len(groups)) for _ in range(4))
    events = 0
    for _, found in model.event_rows(tokens):
        brought, sums = member @ (found.scale * found.weight), member @ (found.scale * found.row_sum)
        counted = brought.sum(axis=0) > 0
        brought, sums = brought[:, counted].astype(np.float64), sums[:, counted].astype(np.float64)
        total, whole = brought.sum(axis=0), sums.sum(axis=0)
        events += int(counted.sum())
        share += (brought / total).sum(axis=1)
        weight += (sums / whole).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.where(brought < total * (1 - 1e-6), np.log(total - brought) - np.log(whole - sums), -np.inf)
            lost += (np.log(total) - np.log(whole) - left).sum(axis=1)
        words += (sums > 0).sum(axis=1)
    n = max(1, events)
    parts = [
        Part(name, float(share[i] / n), _risen(float(lost[i] / n)), float(weight[i] / n))
        for i, name in enumerate(groups)
        if words[i]
    ]
    return Contributions(title, "the probability of the words", sorted(parts, key=lambda p: -p.share), events)


def _risen(nats: float) -> float | None:
    return math.expm1(nats) if math.isfinite(nats) and nats < 20 else None


def _of_orders(model: BackoffModel, tokens: np.ndarray, title: str) -> Contributions:
    """How many words have their probability from an n-gram of each order."""
    counts = np.zeros(model.extractor.n_templates, np.int64)
    for start, stop in model.extractor.blocks(0, len(tokens)):
        rows = model._find(model.extractor.keys(tokens, start, stop))
        for of_event, target in zip(rows.tolist(), tokens[start:stop].tolist(), strict=True):
            for order in range(len(of_event) - 1, -1, -1):
                if of_event[order] >= 0:
                    targets = model.row(of_event[order])[0]
                    at = int(np.searchsorted(targets, target))
                    if at < len(targets) and targets[at] == target:
                        counts[order] += 1
                        break
    n = max(1, int(counts.sum()))
    parts = [Part(f"{order + 1}-gram", float(count / n)) for order, count in enumerate(counts.tolist())]
    return Contributions(title, "the words", parts[::-1], n)


def _of_members(model: MixtureModel, tokens: np.ndarray, title: str) -> Contributions:
    target = are_targets(tokens, model.vocabulary.first_field)
    parts = np.array([
        weight * words.shared(member.probabilities(words.own(tokens)), tokens)[target]
        for weight, member, words in zip(model.weights, model.members, model._maps, strict=True)
    ])  # fmt: skip
    total = parts.sum(axis=0)
    parts, total = parts[:, total > 0], total[total > 0]
    found = []
    for name, weight, own in zip(_member_names(model), model.weights.tolist(), parts, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            lost = (np.log(total) - np.log((total - own) / (1 - weight))).mean() if weight < 1 else math.inf
        found.append(Part(name, float((own / total).mean()), _risen(float(lost)), weight))
    return Contributions(title, "the probability of the words", sorted(found, key=lambda p: -p.share), len(total))


def _member_names(model: MixtureModel) -> list[str]:
    return [
        f"{name} ({member.manifest['kind']})"
        for name, member in zip(model.manifest["members"], model.members, strict=True)
    ]
