"""Weights of scores, and their tuning for the fewest word errors by exact line search (Och's)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass

import numpy as np

from snm.arguments import real_number, set_real_numbers, whole_number
from snm.errors import InputError
from snm.rescoring.nbest import NBest

_MOST = 1e4  # of a weight


@dataclass(frozen=True)
class Weights:
    """A hypothesis scores acoustic + `model` ln P + `language` times its old language score + `word` for each word."""

    model: float = 1.0
    language: float = 0.0
    word: float = 0.0

    def __post_init__(self) -> None:
        set_real_numbers(self, "model", "language", "word")
        for name, value in asdict(self).items():
            if not abs(value) <= _MOST:
                raise InputError(f"the weight {name} is {value}; expected a number of at most {_MOST:g}")


def features_of(one: NBest) -> np.ndarray:
    """Acoustic score, model, old language score, and words of each hypothesis. (hypotheses, 4)"""
    return np.array([[h.acoustic, h.model, h.language, len(h.words)] for h in one.hypotheses])


def totals_of(one: NBest, weights: Weights) -> np.ndarray:
    found: np.ndarray = features_of(one) @ np.array([1.0, *astuple(weights)])
    return found


def distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Fewest insertions, deletions and substitutions that turn a into b."""
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def errors_of(lists: Sequence[NBest]) -> tuple[int, int]:
    """(word errors of the first hypotheses, words of the references) of the lists that have a reference."""
    known = [one for one in lists if one.reference is not None]
    errors = sum(distance((one.reference or "").split(), one.hypotheses[0].words) for one in known)
    return errors, sum(len((one.reference or "").split()) for one in known)


def tune_weights(lists: Sequence[NBest], *, starts: int = 8, seed: int = 0) -> Weights:
    """The weights with the fewest word errors on lists that have references and the model's scores.

    Along one weight, the number of errors changes only where another hypothesis becomes the best: all these places are
    tried. The weights take turns until none helps, from several beginnings.
    """
    whole_number("starts", starts, 1)
    known = [one for one in lists if one.reference is not None]
    if not known:
        raise InputError("no list has a reference; expected some to tune weights on: give them with --reference")
    features = [features_of(one) for one in known]
    errors = [
        np.array([distance((one.reference or "").split(), h.words) for h in one.hypotheses]) for one in known
    ]  # fmt: skip
    random = np.random.default_rng(seed)
    used = [column for column in range(1, 4) if any(np.ptp(part[:, column]) > 0 for part in features)]
    found = [_descended(begin, features, errors, used) for begin in _beginnings(used, starts, random)]
    best = min(found, key=lambda pair: pair[0])[1]
    return Weights(*(real_number("weight", value) for value in best[1:]))


def _beginnings(used: list[int], starts: int, random: np.random.Generator) -> list[np.ndarray]:
    found = [np.array([1.0, 1.0 * (1 in used), 0.0, 0.0])]
    while len(found) < starts:
        begin = np.array([1.0, random.uniform(0, 2), random.uniform(0, 1), random.uniform(-2, 2)])
        begin[[column for column in range(1, 4) if column not in used]] = 0.0
        found.append(begin)
    return found


def _descended(
    weights: np.ndarray, features: list[np.ndarray], errors: list[np.ndarray], used: list[int]
) -> tuple[int, np.ndarray]:
    """(errors, weights) after line searches along each weight in turn."""
    best = sum(int(e[np.argmax(f @ weights)]) for f, e in zip(features, errors, strict=True))
    improved = True
    while improved:
        improved = False
        for column in used:
            fewer, value = _line_search(weights, column, features, errors)
            if fewer < best:
                best, improved = fewer, True
                weights = weights.copy()
                weights[column] = value
    return best, weights


def _line_search(
    weights: np.ndarray, column: int, features: list[np.ndarray], errors: list[np.ndarray]
) -> tuple[int, float]:
    """(fewest errors, value of weights[column]): the middle of the interval with fewest errors."""
    changes: list[tuple[float, int]] = []
    total = 0
    for part, wrong in zip(features, errors, strict=True):
        slopes = part[:, column]
        edges, lines = envelope(slopes, part @ weights - slopes * weights[column])
        total += int(wrong[lines[0]])
        changes += [(edge, int(wrong[b] - wrong[a])) for edge, a, b in zip(edges, lines, lines[1:], strict=False)]
    changes.sort()
    edges = [-_MOST, *(edge for edge, _ in changes), _MOST]
    counts = np.cumsum([total, *(change for _, change in changes)])
    middles = [(max(a, -_MOST) + min(b, _MOST)) / 2 for a, b in itertools.pairwise(edges)]
    wide = [abs(b - a) > 1e-9 for a, b in itertools.pairwise(edges)]
    # of equally good intervals the one nearest to the present weight
    order = min((int(c), abs(m - weights[column]), m) for c, m, w in zip(counts, middles, wide, strict=True) if w)
    return order[0], order[2]


def envelope(slopes: np.ndarray, heights: np.ndarray) -> tuple[list[float], list[int]]:
    """Which line heights + x slopes is the highest: (x where it changes, the lines from left to right)."""
    edges: list[float] = []
    lines: list[int] = []
    for i in np.lexsort((heights, slopes)).tolist():
        while lines:
            last = lines[-1]
            if slopes[last] == slopes[i]:
                x = -np.inf  # parallel and not lower
            else:
                x = float((heights[last] - heights[i]) / (slopes[i] - slopes[last]))
            if edges and x <= edges[-1]:
                edges.pop()
                lines.pop()
            elif not edges and x == -np.inf:
                lines.pop()
            else:
                edges.append(x)
                break
        lines.append(i)
    return edges, lines
