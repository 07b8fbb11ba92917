"""A word language model for the decoders of flashlight-text.

    from flashlight.lib.text.decoder import LexiconDecoder
    from snm.integrations.flashlight import SnmLM

    lm = SnmLM("my.model", words)        # instead of KenLM("my.arpa", words)
    LexiconDecoder(options, trie, lm, ...)

Scores are log10 probabilities, as KenLM's are there, so weights can stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snm.errors import MissingExtra
from snm.integrations.words import engine_for
from snm.model import LanguageModel

try:
    from flashlight.lib.text.decoder import LM, LMState
except ImportError:
    raise MissingExtra("flashlight-text", "flashlight", "decoding with flashlight") from None


class WordScores:
    """`start`, `score` and `finish` of a language model for flashlight.

    flashlight compares states by their addresses. So equal states are one object here, and hypotheses with the same
    future are merged. The objects and the scores after them are kept until `forget`.
    """

    def __init__(self, model: str | Path | LanguageModel, words: Sequence[str] | Any) -> None:
        """`words`: flashlight's dictionary of words, or the words in the order of their indices there."""
        super().__init__()
        self._engine = engine = engine_for(model)
        listed = words if isinstance(words, Sequence) else [words.get_entry(i) for i in range(words.index_size())]
        self._ids = [engine.ids.get(word, engine.unknown) for word in listed]
        self._end = engine.ids.get("</s>", engine.unknown)
        self._objects: dict[Any, Any] = {}
        self._states: dict[Any, Any] = {}
        self._scores: dict[tuple[Any, int], tuple[Any, float]] = {}

    def start(self, start_with_nothing: bool) -> Any:
        """The state at the beginning of a sentence, or of no context."""
        return self._object_of(self._engine.null if start_with_nothing else self._engine.begin)

    def score(self, state: Any, usr_token_idx: int) -> tuple[Any, float]:
        """The state after a word, and log10 P(word | state)."""
        return self._step(state, self._ids[usr_token_idx])

    def finish(self, state: Any) -> tuple[Any, float]:
        """The state after the end of the sentence, and its log10 probability."""
        return self._step(state, self._end)

    def forget(self) -> None:
        """Give up the memory of states and scores. Call it between texts, while no decoder is at work."""
        self._objects.clear()
        self._states.clear()
        self._scores.clear()

    def _step(self, state: Any, word: int) -> tuple[Any, float]:
        before = self._states[state]
        found = self._scores.get((before, word))
        if found is None:
            score, after = self._engine.score(before, word)
            found = self._scores[before, word] = self._object_of(after), score
        return found

    def _object_of(self, state: Any) -> Any:
        found = self._objects.get(state)
        if found is None:
            found = self._objects[state] = LMState()
            self._states[found] = state
        return found


class SnmLM(WordScores, LM):
    """A language model for flashlight's decoders."""
