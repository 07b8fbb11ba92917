"""Scores of words after histories, from any model, for many histories in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from snm.arguments import shown
from snm.errors import SettingsError
from snm.kenlm.histories import null_state, order_of
from snm.layouts.tokens import END, SPECIAL
from snm.model import IDS, LanguageModel

NEVER = -100.0  # log10 P of a word that a model never predicts, as in KenLM


class WordScores:
    """The language model of a decoder."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.order, self.width = model, order_of(model), model.state_width
        self.begin, self.null = model.start(), null_state(model)

    def ids(self) -> dict[str, int]:
        """The words that a decoder may find."""
        return {word: i for i, word in enumerate(self.model.vocabulary.words) if i >= len(SPECIAL)}

    def state(self, given: Any, boundary: bool) -> np.ndarray:
        """A state as a row of an array: the given one, or that of the beginning. (1, width)"""
        if given is None:
            given = self.begin if boundary else self.null
        if not isinstance(given, bytes):
            raise SettingsError(f"lm_start_state is {shown(given)}; expected the last_lm_state of a beam")
        return self.model.state_array([given])

    def step(self, states: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log10 P of a word after each state, and the states after the words."""
        scores, after = self.model.steps(states, ids)
        return np.where(np.isnan(scores), NEVER, scores), after

    def end(self, states: np.ndarray) -> np.ndarray:
        """log10 P of the end of the sentence after each state."""
        scores = self.model.expand(states, np.full((len(states), 1), END, IDS))[:, 0]
        return np.where(np.isnan(scores), NEVER, scores)
