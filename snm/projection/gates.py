"""A gate for each length of context, such that the backoff model as a whole is most probable on held-out text.

A backoff model gives a word that the row of a context h lists its P_n(w | h), and any other word the rest of that row's
mass, in proportion to the probabilities after the next shorter context:

    P(w | h) = P_n(w | h)                                                        if h lists w
    P(w | h) = (1 - sum of P_n(v | h)) / (1 - sum of P_n-1(v | h')) P(w | h')    else; v: the words that h lists

P_n is an SNM of the rows that the n words of h select, with a gate of its own. So every sum is linear in the gate's
factors, and so is every numerator and denominator: a gate is learned for each n as for an SNM, with the weights and row
sums of some words instead of those of one or all. P_n is only learned where it is used: where longer contexts lack the
word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snm.gate.fitting import PASSES, GateEvents, fit
from snm.kernels import projection as kernels
from snm.kernels import row_index as row_kernels
from snm.kernels import rows as found_kernels
from snm.kernels.rows import Found
from snm.layouts.gate import Gate, gate_size
from snm.progress import Progress, silent
from snm.projection.continuations import Continuations
from snm.projection.ngrams import Ngrams
from snm.scoring.model import SnmModel

UNITS = 32
LEAST = 1e-9  # of a row sum without the words that are listed: less is rounding
BLOCK = 1 << 14  # tokens that are looked up together


class LevelEvents(GateEvents):
    """Events as a gate sees them, whose loss has other row sums: those without the words of a longer context."""

    def __init__(
        self, codes: np.ndarray, lengths: np.ndarray, sums: np.ndarray, weights: np.ndarray, free: np.ndarray,
        caches: int,
    ) -> None:  # fmt: skip
        super().__init__(codes, lengths, sums, weights, caches)
        self.free = free

    def batch(self, chosen: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inputs, weights, _ = super().batch(chosen)
        return inputs, weights, self.free[chosen]


def needed(model: SnmModel) -> np.ndarray:
    """How many words before the target each template reads; more than any n-gram has for families. (templates,)"""
    types = model.spec.types
    return np.array([t.r + t.s + t.a if types[t.type_index].family is None else 1 << 20 for t in model.spec.templates])


@dataclass
class _Events:
    """The events of a text: keys and rows of the templates, rows and links of the n-grams."""

    keys: np.ndarray  # (templates, events) uint64
    found: Found  # of templates and continuation rows, (templates + continuation rows, events)
    rows: np.ndarray  # (events, order) int64, -1 where there is none
    links: np.ndarray  # (events, order) int64, -1 where the word is not listed

    @property
    def used(self) -> np.ndarray:
        """The length of the longest context that lists the word. (events,)"""
        listed = self.links >= 0
        return np.where(listed.any(axis=1), listed.shape[1] - 1 - listed[:, ::-1].argmax(axis=1), 0)


def _look_up(model: SnmModel, ngrams: Ngrams, continuations: Continuations, tokens: np.ndarray) -> _Events:
    n = model.extractor.n_templates + ngrams.order - 1
    ungated = Gate.of(np.zeros(n, np.float32), n)
    parts = []
    for start in range(0, len(tokens), BLOCK):
        stop = min(start + BLOCK, len(tokens))
        rows = ngrams.find(ngrams.extractor.keys(tokens, start, stop))
        links = np.empty_like(rows)
        row_kernels.find_links(rows, tokens[start:stop], ngrams.offsets, ngrams.targets, links)
        keys = model.extractor.keys(tokens, start, stop)
        extra = continuations.found(rows[:, :-1], links[:, :-1])
        found = found_kernels.find(keys, tokens[start:stop], model.matrix, ungated, extra)
        kept = rows[:, 0] >= 0
        parts.append((keys[:, kept], *(part[:, kept] for part in found), rows[kept].T, links[kept].T))
    keys, *whole, rows, links = (np.concatenate(some, axis=1) for some in zip(*parts, strict=True))
    return _Events(keys, Found(*whole), np.ascontiguousarray(rows.T), np.ascontiguousarray(links.T))


class GateLearner:
    """Learns the gates of a projection: for each length of context one over all templates and continuation rows."""

    def __init__(self, model: SnmModel, ngrams: Ngrams, continuations: Continuations, tokens: np.ndarray) -> None:
        """tokens: of held-out or generated text."""
        self.model, self.ngrams, self.continuations = model, ngrams, continuations
        self.needed, self.templates = needed(model), model.extractor.n_templates
        self.events = _look_up(model, ngrams, continuations, tokens)
        self.used = self.events.used

    def columns(self, level: int) -> np.ndarray:
        """The templates and, after them, the continuation rows that contexts of `level` words have."""
        rows = np.arange(min(level + 1, self.ngrams.order - 1)) + self.templates
        return np.concatenate([np.flatnonzero(self.needed <= level), rows])

    def learn(self, progress: Progress = silent) -> list[Gate]:
        """The gates, from the one for the empty context on."""
        gates: list[Gate] = []
        listed = self._listed(self.ngrams.order)
        with progress("gating", PASSES * len(self.used) * self.ngrams.order) as bar:
            for level in range(self.ngrams.order - 1, -1, -1):
                longer, listed = listed, self._listed(level)
                events = self._level_events(level, listed, longer)
                flat, _ = fit(events, UNITS, advance=bar)
                columns = self.columns(level)
                gates.insert(0, spread(Gate.of(flat, len(columns)), columns, len(self.events.found.code)))
        return gates

    def _listed(self, level: int) -> tuple[np.ndarray, np.ndarray]:
        """Sums of the words that contexts of a length list, and the row of them of each event, or -1.

        Only of events that no context of this length or longer lists.
        """
        if level in (0, self.ngrams.order):
            return np.zeros((0, 0), np.float32), np.full(len(self.used), -1)
        rows = np.where(self.used < level, self.events.rows[:, level], -1)
        distinct, first, which = np.unique(rows, return_index=True, return_inverse=True)
        columns = self.columns(level)
        chosen, conts = columns[columns < self.templates], columns[columns >= self.templates] - self.templates
        sums = np.zeros((len(distinct), len(columns)), np.float32)
        here = distinct >= 0
        made = np.zeros((int(here.sum()), len(columns)), np.float64)
        ngrams = self.ngrams
        kernels.sum_listed(
            np.ascontiguousarray(self.events.keys[:, first[here]]), chosen, distinct[here],
            np.ascontiguousarray(self.events.rows[first[here]][:, conts]), ngrams.offsets, ngrams.targets,
            self.continuations.weights, self.model.matrix, np.empty(longest_row(ngrams), np.float32), made,
        )  # fmt: skip
        sums[here] = made
        return sums, np.where(rows >= 0, which.reshape(-1), -1)

    def _level_events(
        self, level: int, own: tuple[np.ndarray, np.ndarray], longer: tuple[np.ndarray, np.ndarray]
    ) -> LevelEvents:
        """The events that reach contexts of a length. own, longer: `_listed` of this length and of the next."""
        columns, events = self.columns(level), self.events
        reach = np.flatnonzero((events.rows[:, level] >= 0) & (self.used <= level))
        code, length, row_sum, weight = (part[columns][:, reach].T for part in events.found[:4])
        weights, free = weight.copy(), row_sum.copy()
        backing_off = self.used[reach] < level
        weights[backing_off] = _without(row_sum, columns, own, self.columns(level), reach)[backing_off]
        free = _without(row_sum, columns, longer, self.columns(level + 1), reach)
        free = np.maximum(free, weights)
        codes = np.rint(code).astype(np.uint8)
        some = (weights > 0).any(axis=1) & (row_sum[:, 0] > 0)
        caches = int((columns >= self.templates).sum())
        return LevelEvents(codes[some], length[some], row_sum[some], weights[some], free[some], caches)


def spread(part: Gate, columns: np.ndarray, templates: int) -> Gate:
    """A gate over some of the templates as one over all."""
    whole = Gate.of(np.zeros(gate_size(templates, len(part.bias)), np.float32), templates)
    whole.hidden[columns], whole.output[columns], whole.offset[columns] = part.hidden, part.output, part.offset
    whole.bias[:] = part.bias
    return whole


def own_gates(model: SnmModel, ngrams: Ngrams) -> list[Gate]:
    """The model's own gate, for contexts of any length: continuation rows must be empty."""
    n = model.extractor.n_templates
    return [spread(model.gate, np.arange(n), n + ngrams.order - 1)] * ngrams.order


def longest_row(ngrams: Ngrams) -> int:
    return int(np.diff(ngrams.offsets).max())


def _without(
    row_sum: np.ndarray, columns: np.ndarray, listed: tuple[np.ndarray, np.ndarray], its_columns: np.ndarray,
    events: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Row sums without the words that are listed. (events, columns) float32"""
    sums, which = listed[0], listed[1][events]
    if not len(sums):
        return row_sum.copy()
    places = np.searchsorted(its_columns, columns)
    less = np.where(which[:, None] >= 0, sums[np.maximum(which, 0)][:, places], 0)
    left: np.ndarray = np.where(row_sum > 0, np.maximum(row_sum - less, LEAST * row_sum), 0)
    return left
