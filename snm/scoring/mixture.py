"""Mixtures: models whose probabilities are weighted sums of other models'. `snm.mixing` makes them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from snm import manifest
from snm.arguments import shown
from snm.errors import FormatError
from snm.model import LanguageModel, wrong_state
from snm.scoring.unions import Words, check_shares, spelling_of


class MixtureModel(LanguageModel):
    """P(w | h) = the weighted sum of the members' P(w | h)."""

    kind = "mixture"

    def __init__(self, path: str | Path, members: list[LanguageModel]) -> None:
        self.path, self.members = Path(path), members
        self.manifest = manifest.read(self.path)
        self.weights = np.array(self.manifest["weights"], np.float64)
        if not members or len(self.weights) != len(members) or not ((self.weights >= 0) & (self.weights < 2)).all():
            raise FormatError(
                f"{self.path} is damaged: {len(members)} members with the weights {shown(self.weights.tolist())}; "
                f"expected a weight for each, 0 or more, whose sum is 1"
            )
        shares = self.manifest.get("shares", [0.0] * len(members))  # where no member lacks a word there are none
        check_shares(self.path, shares)
        with manifest.opening(self.path):
            self.vocabulary = self.members[0].vocabulary
            if any(member.vocabulary.tokenizer != self.vocabulary.tokenizer for member in members):
                raise FormatError(f"{self.path} is damaged: its members have different tokenizers; rebuild the model")
            if "shares" in self.manifest:
                self.vocabulary = manifest.read_vocabulary(self.path, self.manifest)
            self._maps = [
                Words.of(member.vocabulary, self.vocabulary, share)
                for member, share in zip(members, shares, strict=True)
            ]

        heaviest = np.argsort(-self.weights, kind="stable").tolist()
        self.spelling = spelling_of([members[i] for i in heaviest], self.vocabulary)
        self.scores_in_parallel = all(member.scores_in_parallel for member in members)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (os.path.abspath(self.path), self.members)

    def __repr__(self) -> str:
        return f"<MixtureModel {self.path}: {', '.join(f'{w:.3f}' for w in self.weights)} of {self.members}>"

    def _probabilities(self, tokens: np.ndarray, threads: int) -> np.ndarray:
        total = np.zeros(len(tokens), np.float64)
        for weight, member, words in zip(self.weights, self.members, self._maps, strict=True):
            total += weight * words.shared(member.probabilities(words.own(tokens), threads=threads), tokens)
        return total

    def _distribution(self, context: np.ndarray) -> np.ndarray:
        total = np.zeros(len(self.vocabulary), np.float64)
        for weight, member, words in zip(self.weights, self.members, self._maps, strict=True):
            p = member.distribution(words.own(context))
            total += weight * (p if words.same else words.scale * p[words.ids] + words.constant)
        return total

    # -- word by word: a state has the members' states, one after another

    @property
    def state_width(self) -> int:
        return sum(member.state_width for member in self.members)

    def start(self) -> bytes:
        return b"".join(member.start() for member in self.members)

    def step(self, state: bytes, word: str | int) -> tuple[float, bytes]:
        size, plan = self._stepping
        if not isinstance(state, bytes) or len(state) != size:
            raise wrong_state(f"a state of type {type(state).__name__}")
        number = self._id_of(word)
        p, after = 0.0, b""
        for weight, step, words, part in plan:
            score, new = step(state[part], number if words.same else int(words.ids[number]))
            alone = 0.0 if math.isnan(score) else 10.0**score
            p += weight * (alone if words.whole else float(words.scale[number]) * alone + float(words.constant[number]))
            after += new
        return math.log10(p) if p else math.nan, after

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        candidates, total = self._candidates(states, words), np.zeros(())
        plan = zip(self.weights, self.members, self._maps, self._parts(states), strict=True)
        for weight, member, mapped, part in plan:
            p = np.nan_to_num(10.0 ** member.expand(part, mapped.own(candidates)), nan=0.0)
            total = total + weight * mapped.shared(p, candidates)
        with np.errstate(divide="ignore"):
            return np.where(total > 0, np.log10(total), np.nan)

    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        candidates = self._candidates(states, words)
        chosen = self._chosen(chosen, len(states) * candidates.shape[-1])
        parts = zip(self.members, self._maps, self._parts(states), strict=True)
        return np.hstack([member.follow(part, mapped.own(candidates), chosen) for member, mapped, part in parts])

    def _parts(self, states: np.ndarray) -> list[np.ndarray]:
        """The members' states. (n, width) each"""
        ends = np.cumsum([member.state_width for member in self.members])[:-1]
        return [np.ascontiguousarray(part) for part in np.split(states, ends, axis=1)]

    @cached_property
    def _stepping(self) -> tuple[int, list[tuple[float, Any, Words, slice]]]:
        """Bytes of a state; weight, `step`, words and part of the state of each member. Cached: it halves the time."""
        ends = np.cumsum([4 * member.state_width for member in self.members]).tolist()
        parts = [slice(begin, end) for begin, end in pairwise([0, *ends])]
        steps = [member.step for member in self.members]
        return ends[-1], list(zip(self.weights.tolist(), steps, self._maps, parts, strict=True))

    def structure_faults(self) -> Iterator[tuple[bool, str]]:
        for member in self.members:
            yield from member.structure_faults()

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield abs(float(self.weights.sum()) - 1) > 1e-6, "the weights do not sum to one"
        for member in self.members:
            yield from member.faults()
