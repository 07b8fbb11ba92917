"""The interface of all models: scoring, generation, and reports."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snm.errors import ClosedModel, InputError, SettingsError
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.text.encoding import Sentence, Sentences, Text, as_lines, encode_lines, encode_sentences
from snm.text.vocabulary import Vocabulary, split_words


@dataclass(frozen=True)
class Part:
    """What one feature contributes to a word's probability."""

    feature: str
    share: float
    """Its part of P(word); the shares of a word add up to P exactly."""
    weight: float
    """Its gated row sum, divided by that of all rows: its part of the whole distribution."""
    gate: float
    """The factor by which the gate multiplies its row."""


@dataclass(frozen=True)
class Explanation:
    """A word, its probability, and the parts of it, largest share first."""

    word: str
    probability: float
    parts: list[Part]


_WHOLE_SENTENCES = "a model of this kind scores whole sentences only; word by word, use an SNM or backoff model"


class LanguageModel(ABC):
    """A probability for every word of a vocabulary after every context."""

    vocabulary: Vocabulary
    manifest: dict[str, Any]
    path: Path

    @abstractmethod
    def probabilities(self, tokens: np.ndarray, threads: int = 1) -> np.ndarray:
        """P(tokens[k] | tokens before k) for every token; 0 where there is no event. (tokens,) float64"""

    @abstractmethod
    def distribution(self, context: np.ndarray) -> np.ndarray:
        """P(w | context) for every word w; `context` begins with `<S>`. (words,) float64"""

    @abstractmethod
    def faults(self) -> Iterator[tuple[bool, str]]:
        """Check everything that needs no text: (whether a check failed, what is wrong) for each check."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied by its path: the copy opens the folder again."""
        return type(self), (os.path.abspath(self.path),)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.manifest == other.manifest

    def __hash__(self) -> int:
        return hash(tuple(entry["sha256"] for entry in self.manifest["files"].values()))

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the model's files. Every later call of the model raises `ClosedModel`."""
        path = self.path
        self.__dict__.clear()
        self.__class__ = _ClosedModel  # type: ignore[assignment]
        self.path = path

    def score(self, sentence: Sentence) -> float:
        """log10 probability of a sentence, its end included."""
        return self.score_sentences([sentence])[0]

    def score_sentences(self, sentences: Sentences) -> list[float]:
        """log10 probability of each sentence, its end included; NaN for a blank one.

        Words outside a closed vocabulary are left out.
        """
        return [total_score(words) for words in self.score_words(sentences)]

    def score_words(self, sentences: Sentences) -> list[list[tuple[str, float]]]:
        """Each sentence's words and `</S>` with their log10 probabilities; NaN outside a closed vocabulary."""
        lines = list(as_lines(sentences, self.vocabulary))
        tokens = encode_sentences(lines, self.vocabulary).tokens
        p = self.probabilities(tokens)
        if self.vocabulary.closed:
            p[tokens == UNKNOWN] = np.nan
        with np.errstate(divide="ignore"):
            logs = np.log10(p).tolist()
        scored: list[list[tuple[str, float]]] = []
        k = 0
        for line in lines:
            words = split_words(line)
            if not words:
                scored.append([])
                continue
            end = k + len(words) + 2
            scored.append(list(zip([*words, "</S>"], logs[k + 1 : end], strict=True)))
            k = end
        return scored

    def start(self) -> bytes:
        """The state at the beginning of a sentence, for `step`.

        A state has the ids of the last words, each XOR a tag of the vocabulary. Equal states have the same future, so
        a state can be a dictionary key. Models with the same vocabulary and features share states.
        """
        raise SettingsError(_WHOLE_SENTENCES)

    def step(self, state: bytes, word: str | int) -> tuple[float, bytes]:
        """log10 P(word | state) of a word or word id, and the state after it. `</S>` or `</s>` ends a sentence."""
        raise SettingsError(_WHOLE_SENTENCES)

    def steps(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of one word, or word id, after each state, and the states after the words.

        (n, width) uint32 and (n,) to (n,) and (n, width). `state_array` makes the array, `states[i].tobytes()` is a
        single state. The score of a word outside a closed vocabulary is NaN.
        """
        raise SettingsError(_WHOLE_SENTENCES)

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        """log10 P of m words, or word ids, after each of n states. (n, width) and (m,) or (n, m), to (n, m)

        For beam search: score all candidates after all states with `expand`, then `follow` the best.
        """
        raise SettingsError(_WHOLE_SENTENCES)

    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """The states of chosen hypotheses: `chosen` are flat indices into the scores of `expand`."""
        raise SettingsError(_WHOLE_SENTENCES)

    def state_array(self, states: Sequence[bytes]) -> np.ndarray:
        """States as rows of an array, for `steps` and `expand`. (n, width) uint32"""
        raise SettingsError(_WHOLE_SENTENCES)

    def perplexity(self, text: Text | Sentences, threads: int = 1) -> PerplexityReport:
        """Perplexity of an encoded text, or of sentences."""
        if not isinstance(text, Text):
            text = encode_lines(as_lines(text, self.vocabulary), self.vocabulary)
        if not text.events:
            raise InputError("no words to score; expected one sentence a line")
        begun = time.perf_counter()
        p = self.probabilities(text.tokens, threads)
        seconds = time.perf_counter() - begun
        target = text.tokens != BEGIN
        known = text.tokens[target] != UNKNOWN
        with np.errstate(divide="ignore"):
            logs = np.log(p[target])
        scored = logs[known] if self.vocabulary.closed else logs
        oov = len(known) - int(known.sum())
        return PerplexityReport(
            text.sentences, text.events, oov, oov / text.events, float(scored.sum()) / math.log(10),
            float(np.exp(-scored.mean())), float(np.exp(-logs[known].mean())), seconds,
        )  # fmt: skip

    def explain(self, sentence: str) -> list[Explanation]:
        """The features that contribute to each word of a sentence and to its end."""
        raise SettingsError(f"only the probabilities of an SNM can be explained; {self.path} is not one")

    def move_to(self, engine: str) -> None:
        """Score texts on the GPU (`gpu`) or the CPU (`cpu`) from now on. For neural models."""
        raise SettingsError(f"only a neural model can use a GPU for scoring; {self.path} is not one")

    def context(self, text: str) -> np.ndarray:
        """`<S>` and the ids of the words of `text`."""
        return np.concatenate([[BEGIN], self.vocabulary.ids_of(split_words(text))]).astype(np.uint32)

    def next_words(self, text: str = "", k: int = 10) -> list[tuple[str, float]]:
        """The k most probable words after `text`, the beginning of a sentence; the most probable first."""
        if k < 1:
            raise SettingsError(f"k is {k}; expected 1 or more")
        p = self.distribution(self.context(text))
        best = np.argpartition(-p, min(k, len(p) - 1))[:k]
        best = best[np.lexsort((best, -p[best]))]
        return [(self.vocabulary.words[i], float(p[i])) for i in best if p[i] > 0]

    def generate(
        self, prompt: str = "", *, seed: int | Sequence[int] | None = None, max_words: int = 100,
        temperature: float = 1.0, unknown: bool = False,
    ) -> str:  # fmt: skip
        """Sample a sentence that begins with `prompt`; `<UNK>` only with `unknown`."""
        if not 0 < temperature < math.inf:
            raise SettingsError(f"temperature is {temperature}; expected a number above 0")
        if np.any(np.asarray(seed or 0) < 0):
            raise SettingsError(f"seed is {seed}; expected 0 or more")
        random = np.random.default_rng(seed)
        words, context = split_words(prompt), self.context(prompt)
        for _ in range(max_words):
            p = self.distribution(context)
            if not unknown:
                p[UNKNOWN] = 0
            p = (p / p.max()) ** (1 / temperature)
            word = int(random.choice(len(p), p=p / p.sum()))
            if word == END:
                break
            context = np.append(context, np.uint32(word))
            words.append(self.vocabulary.words[word])
        return " ".join(words)


class _ClosedModel(ABC):
    """A model after `close`. An ABC as a model is: an object can only change to a class of the same layout."""

    path: Path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error()

    def __repr__(self) -> str:
        return f"<closed model {self.path}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise self._error()

    def __enter__(self) -> Any:
        raise self._error()

    def _error(self) -> ClosedModel:
        return ClosedModel(f"the model {self.path} is closed; open it again with snm.load")

    def __exit__(self, *error: object) -> None:  # noqa: B027
        pass

    def close(self) -> None:  # noqa: B027
        pass


def total_score(words: list[tuple[str, float]]) -> float:
    """log10 probability of a sentence: the sum over its words without NaNs; NaN for no words."""
    return sum(p for _, p in words if not math.isnan(p)) if words else math.nan


@dataclass(frozen=True)
class PerplexityReport:
    """Perplexity of a text, over all words and every `</S>`.

    In an open vocabulary `ppl` counts out-of-vocabulary words as `<UNK>`; in a closed one it leaves them out.
    `ppl_no_oov` always leaves them out.
    """

    sentences: int
    tokens: int
    oov: int
    oov_rate: float
    logprob10: float
    ppl: float
    ppl_no_oov: float
    seconds: float
