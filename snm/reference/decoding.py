"""CTC prefix beam search in plain Python, with strings: the oracle of `snm.kernels.decoding`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

Step = Callable[[Any, str], tuple[float, Any]]
"""log10 P of a word after a state, and the state after it."""


@dataclass
class Search:
    """The settings of a search. In `labels`, "" is the blank and " " the space; with `pieces`, ▁ begins a word."""

    labels: Sequence[str]
    pieces: bool = False
    by_token: bool = False
    step: Step | None = None
    begin: Any = None
    words: frozenset[str] = frozenset()
    closed: bool = False
    order: int = 1
    alpha: float = 0.5
    beta: float = 1.5
    unknown: float = -10.0
    width: int = 100
    prune: float = -10.0
    min_token: float = -5.0
    by_history: bool = False
    hot: Mapping[str, float] = field(default_factory=dict)


class Hypothesis(NamedTuple):
    words: tuple[str, ...]
    part: str
    label: int
    closed: bool
    acoustic: float


def decode(logs: np.ndarray, s: Search) -> list[tuple[str, float, float]]:
    """(text, acoustic score, total) of the best texts, the best first. logs: ln P of the labels. (frames, labels)"""
    beams = [Hypothesis((), "", -1, False, 0.0)]
    for row in logs:
        chosen = [label for label in range(len(row)) if row[label] >= s.min_token or label == row.argmax()]
        merged = _merged([_extended(beam, label, row[label], s) for label in chosen for beam in beams])
        possible = [beam for beam in merged if not s.closed or _is_possible(beam, s)]
        beams = _pruned([(_total(beam, s), beam) for beam in possible], s)
    merged = _merged([_ended(beam) for beam in beams])
    if s.closed:
        merged = [beam for beam in merged if _is_possible(beam, s)] or _merged([b._replace(part="") for b in beams])
    scored = sorted(((beam.acoustic + _words_score(beam.words, s, True), beam) for beam in merged), key=lambda x: -x[0])
    space = "" if s.by_token else " "
    texts = [(space.join(beam.words), beam.acoustic, total) for total, beam in scored]
    return [text for text in texts if text[2] >= texts[0][2] + s.prune][: s.width]


def _ended(beam: Hypothesis) -> Hypothesis:
    words = beam.words + ((beam.part,) if beam.part else ())
    return Hypothesis(words, "", -1, False, beam.acoustic)


def _merged(beams: list[Hypothesis]) -> list[Hypothesis]:
    found: dict[tuple[Any, ...], Hypothesis] = {}
    for beam in beams:
        key = beam.words, beam.part, beam.label
        total = np.logaddexp(found[key].acoustic, beam.acoustic) if key in found else beam.acoustic
        found[key] = beam._replace(acoustic=float(total))
    return list(found.values())


def _extended(beam: Hypothesis, label: int, log_p: float, s: Search) -> Hypothesis:
    """A beam with one more label."""
    name, repeated = s.labels[label], label == beam.label
    beam = beam._replace(label=label, acoustic=beam.acoustic + float(log_p))
    if name == "" or repeated:
        return beam
    if s.by_token:
        return beam._replace(words=(*beam.words, name.replace("▁", " ")))
    if name == " ":
        return _ended(beam)._replace(label=label)
    text = name.removeprefix("▁").removesuffix("▁") if s.pieces else name
    if s.pieces and (name[0] == "▁" or beam.closed):
        beam = _ended(beam)._replace(label=label)
    return beam._replace(part=beam.part + text, closed=s.pieces and len(name) > 1 and name[-1] == "▁")


def _is_possible(beam: Hypothesis, s: Search) -> bool:
    return all(word in s.words for word in beam.words) and any(word.startswith(beam.part) for word in s.words)


def _total(beam: Hypothesis, s: Search) -> float:
    return beam.acoustic + _words_score(beam.words, s, False) + _partial_score(beam, s)


def _words_score(words: tuple[str, ...], s: Search, ended: bool) -> float:
    """Weighted ln P of words and bonuses of hot words."""
    total = _hot_score(words, s)
    if s.step is None:
        return total
    state = s.begin
    for word in words:
        score, state = s.step(state, word.replace(" ", "▁") if s.by_token else word)
        if word not in s.words and not s.by_token:
            score += s.unknown
        total += s.alpha * score * math.log(10) + s.beta
    return total + (s.alpha * s.step(state, "</s>")[0] * math.log(10) if ended else 0.0)


def _hot_score(words: tuple[str, ...], s: Search) -> float:
    """The bonus of each hot word or phrase for each time that it occurs in the words."""
    text = " ".join(("".join(words) if s.by_token else " ".join(words)).split())
    return sum(weight * f" {text} ".replace(" ", "  ").count(f" {_doubled(hot)} ") for hot, weight in s.hot.items())


def _doubled(phrase: str) -> str:
    return phrase.replace(" ", "  ")


def _partial_score(beam: Hypothesis, s: Search) -> float:
    """The bonus of the phrase that the longest end of a text has begun, or the cost of an unknown unfinished word."""
    before = [*beam.words, beam.part]
    for first in range(len(before)):
        begun = " ".join(before[first:])
        longer = sorted((len(hot), hot) for hot in s.hot if hot.startswith(begun))
        if begun and longer:
            return s.hot[longer[0][1]] * len(begun) / longer[0][0]
    known = any(word.startswith(beam.part) for word in s.words)
    return 0.0 if known or s.step is None or s.by_token else s.unknown * max(1.0, len(beam.part) / 6)


def _pruned(scored: list[tuple[float, Hypothesis]], s: Search) -> list[Hypothesis]:
    """The best hypotheses; of those with the same future, where that is asked for, the best one."""
    best = max(total for total, _ in scored)
    kept = sorted((pair for pair in scored if pair[0] >= best + s.prune), key=lambda pair: -pair[0])[: s.width]
    seen, found = set(), []
    for _, beam in kept:
        future = beam.words[-max(1, s.order - 1) :], beam.part, beam.label
        if not s.by_history or future not in seen:
            found.append(beam)
        seen.add(future)
    return found
