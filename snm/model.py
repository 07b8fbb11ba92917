"""The interface of all models: scoring, generation, and reports."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from snm.arguments import MAX_THREADS, flag, real_number, shown, whole_number
from snm.errors import ClosedModel, FormatError, InputError, SettingsError
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.text.encoding import Sentence, Sentences, Text, as_lines, divide_lines, encode_files, encode_sentences
from snm.text.spelling import Spelling
from snm.text.vocabulary import Vocabulary


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
    source: str | None = None
    """The name of the source that the row is of, in a model of several."""
    shape: tuple[int, int, int] | None = None
    """(r, s, a) of the feature: which words before the target it has; None of a cache and of a family's feature."""


@dataclass(frozen=True)
class Explanation:
    """A word, its probability, and the parts of it, largest share first."""

    word: str
    probability: float
    parts: list[Part]

    def _repr_html_(self) -> str:
        return Explanations([self])._repr_html_()

    @property
    def sources(self) -> dict[str, float]:
        """What each source contributes: the sum of its parts' shares. Empty in a model without sources."""
        found: dict[str, float] = {}
        for part in self.parts:
            if part.source is not None:
                found[part.source] = found.get(part.source, 0.0) + part.share
        return found


class Explanations(list[Explanation]):
    """The explanations of the words of a sentence, in their order. A notebook shows them as coloured words."""

    def _repr_html_(self) -> str:
        from snm.markup.words import Share, coloured

        return coloured(
            (
                explanation.word,
                explanation.probability,
                [Share(p.feature, p.share / (explanation.probability or 1.0), p.source) for p in explanation.parts],
            )
            for explanation in self
        )


IDS = np.dtype(np.uint32)  # of word ids and states
INDICES = np.dtype(np.int64)


def contiguous(array: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """An array as kernels take it."""
    return np.require(np.asarray(array), dtype, ["C", "A", "W", "E"])


def _as_array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError):  # such as rows of different lengths
        raise SettingsError(f"{name} is {shown(values)}; expected a list or an array") from None


class LanguageModel(ABC):
    """A probability for every word of a vocabulary after every context.

    It is asked for whole texts: `score`, `perplexity`, `explain`, `next_words`, `generate` and others; and word by
    word, by decoders: `start`, `step`, `expand` and `follow`. A state is what the model keeps of the words so far, as
    32-bit numbers: the ids of the last words, each XOR a tag of the vocabulary, and the memory of a network. Equal
    states have the same future, so a state can be a dictionary key. SNM and backoff models with the same vocabulary and
    features share states.

    A kind of model defines `_probabilities` and `_distribution`, whose arguments have been validated, and the calls of
    decoders.
    """

    vocabulary: Vocabulary
    manifest: dict[str, Any]
    path: Path
    spelling: Spelling | None = None
    """P(string | `<UNK>`), where the model has it."""
    scores_in_parallel = True
    """Whether several threads can score at the same time. A neural model uses the threads of its matrix products."""

    @abstractmethod
    def _probabilities(self, tokens: np.ndarray, threads: int) -> np.ndarray:
        """The same as `probabilities`."""

    @abstractmethod
    def _distribution(self, context: np.ndarray) -> np.ndarray:
        """The same as `distribution`."""

    @abstractmethod
    def faults(self) -> Iterator[tuple[bool, str]]:
        """Check everything that needs no text: (whether a check failed, what is wrong) for each check."""

    def structure_faults(self) -> Iterator[tuple[bool, str]]:
        """The faults of rows and links, which look-ups bound where they follow them: they are not read on opening."""
        yield from ()

    def check_structure(self) -> None:
        """Raise an error if a row or a link is damaged: before something that reads all of them."""
        for wrong, what in self.structure_faults():
            if wrong:
                raise FormatError(f"{self.path} is damaged: {what}; restore or rebuild the model")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied by its path: the copy opens the folder again."""
        return type(self), (os.path.abspath(self.path),)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.manifest == other.manifest

    def __hash__(self) -> int:
        return hash(tuple(entry["sha256"] for entry in self.manifest["files"].values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        from snm.describing import describe
        from snm.markup.html import properties

        return properties(str(self.path), describe(self.manifest, self.path))

    def close(self) -> None:
        """Let go of the model's files. Every later call of the model raises `ClosedModel`."""
        path = self.path
        self.__dict__.clear()
        self.__class__ = _ClosedModel  # type: ignore[assignment]
        self.path = path

    def probabilities(self, tokens: np.ndarray, *, threads: int = 1) -> np.ndarray:
        """P(tokens[k] | tokens before k) for every token; 0 where there is no event. (tokens,) float64"""
        threads = whole_number("threads", threads, 1, MAX_THREADS)
        return self._numbers(self._probabilities(self._tokens("tokens", tokens), threads))

    def distribution(self, context: np.ndarray) -> np.ndarray:
        """P(w | context) for every word w; `context` begins with `<S>`. (words,) float64"""
        context = self._tokens("context", context)
        if not len(context) or context[0] != BEGIN or (context[1:] == BEGIN).any():
            raise SettingsError("a context does not begin with its only <S>; make contexts with model.context(text)")
        return self._numbers(self._distribution(context))

    def _numbers(self, p: np.ndarray) -> np.ndarray:
        """Probabilities, if they are numbers; what is no number comes from a damaged model."""
        if len(p) and not (p.min() >= 0 and p.max() < np.inf):
            wrong = p[~((p >= 0) & (p < np.inf))][0]
            raise FormatError(
                f"{self.path} is damaged: it gives the probability {wrong}; see snm verify, or rebuild it"
            )
        return p

    def _tokens(self, name: str, values: Any) -> np.ndarray:
        """Validated tokens. (tokens,) uint32"""
        tokens = self._valid_ids(name, values)
        if tokens.ndim != 1:
            raise SettingsError(f"{name} of shape {tokens.shape}; expected a one-dimensional array of word ids")
        return tokens

    def _valid_ids(self, name: str, values: Any) -> np.ndarray:
        """Word ids in an array of any shape, validated. uint32"""
        ids = _as_array(name, values)
        if ids.size and ids.dtype.kind not in "ui":
            raise SettingsError(f"{name} of type {ids.dtype}; expected word ids: whole numbers")
        low, high = (ids.min(), ids.max()) if ids.size else (0, 0)
        if low < 0 or high >= len(self.vocabulary):
            wrong = low if low < 0 else high
            raise SettingsError(f"a word's id is {wrong}; the vocabulary has {len(self.vocabulary):,} words")
        return contiguous(ids, IDS)

    def score(self, sentence: Sentence, *, spelled: bool = False) -> float:
        """log10 probability of a sentence, its end included. `spelled`: see `score_sentences`."""
        return self.score_sentences([sentence], spelled=spelled)[0]

    def score_sentences(
        self, sentences: Sentences, *, spelled: bool = False, on_error: str = "fail"
    ) -> list[float]:  # fmt: skip
        """log10 probability of each sentence, its end included; NaN for a blank one.

        A word outside the vocabulary counts as `<UNK>`, which holds the probability of all such words together. With
        `spelled` it has a probability of its own, P(`<UNK>`) times that of its spelling; then sentences of good text
        and of gibberish, and models of different vocabularies, can be compared. `snm score` prints these.

        Words outside a closed vocabulary are left out. `on_error`: what to do with a line of a file that is not UTF-8
        or has a NUL byte: `fail`, `replace` (the bytes, by U+FFFD) or `skip-line` (it counts as blank).
        """
        words = self.score_words(sentences, spelled=spelled, on_error=on_error)
        return [total_score(scored) for scored in words]

    def score_words(
        self, sentences: Sentences, *, spelled: bool = False, on_error: str = "fail"
    ) -> list[list[tuple[str, float]]]:
        """Each sentence's words and `</S>` with their log10 probabilities; NaN outside a closed vocabulary.

        `spelled`, `on_error`: see `score_sentences`.
        """
        spelling = self._spelling_for(flag("spelled", spelled))
        lines = divide_lines(as_lines(sentences, self.vocabulary, on_error), self.vocabulary.tokenizer)
        text = encode_sentences(lines, self.vocabulary, spelling)
        logs = self._logs_of(text, self.probabilities(text.tokens)).tolist()
        scored: list[list[tuple[str, float]]] = []
        k = 0
        for line in lines:
            values, words = self.vocabulary.split(line)
            if not values and not words:
                scored.append([])
                continue
            end = k + len(values) + len(words) + 2
            scored.append(list(zip([*words, "</S>"], logs[k + 1 + len(values) : end], strict=True)))
            k = end
        return scored

    def _spelling_for(self, spelled: bool) -> Spelling | None:
        """The spelling model, if words are to be spelled; in a closed vocabulary there is nothing to spell."""
        if not spelled or self.vocabulary.closed:
            return None
        if self.spelling is None:
            raise SettingsError(
                f"{self.path} has no spelling model: it was written by an older version, or imported; train it again, "
                f"or count unknown words as <UNK> (spelled=False, --unk)"
            )
        return self.spelling

    def _logs_of(self, text: Text, p: np.ndarray) -> np.ndarray:
        """log10 of the probabilities of a text's tokens, spelled if it has spellings; NaN outside a closed vocabulary.

        (tokens,) float64; of `<S>` it is minus infinity.
        """
        with np.errstate(divide="ignore"):
            logs: np.ndarray = np.log10(p)
        if self.vocabulary.closed:
            logs[text.tokens == UNKNOWN] = np.nan
        elif text.spellings is not None and len(text.spellings):
            logs[text.tokens == UNKNOWN] += text.spellings / math.log(10)
        return logs

    def perplexity(self, text: Text | Sentences, *, threads: int = 1, on_error: str = "fail") -> PerplexityReport:
        """Perplexity of an encoded text, or of sentences.

        `on_error`: what to do with a line that is not UTF-8 or has a NUL byte: `fail`, `replace` (the bytes, by U+FFFD)
        or `skip-line`.
        """
        if not isinstance(text, Text):
            sources = text if isinstance(text, os.PathLike) else as_lines(text, self.vocabulary)
            text = encode_files(sources, self.vocabulary, on_error=on_error, spelling=self.spelling)
        if not text.events:
            raise InputError("no words to score; expected one sentence a line")
        begun = time.perf_counter()
        p = self.probabilities(text.tokens, threads=threads)
        seconds = time.perf_counter() - begun
        return perplexity_report(self.vocabulary, text, p[text.targets()], seconds)

    def explain(self, sentence: Sentence) -> Explanations:
        """The features that contribute to each word of a sentence and to its end."""
        raise SettingsError(f"only the probabilities of an SNM can be explained; {self.path} is not one")

    def adapt(self, sentences: Text | Sentences, output: str | Path, **how: Any) -> LanguageModel:
        """Write a copy of this model to `output` whose gate has learned from sentences of another domain, in seconds.

        Files are shared with this model where the disk has hard links. The gate begins with this model's, and is pulled
        to it, so that a few sentences change little. `sentences`: see `perplexity`. `how`: `force`, `seed`,
        `on_error`, `progress` and `notify`, as those of `train`. `snm.adapt` adds counts and new words too.
        """
        raise SettingsError(
            f"only an SNM, or a model of several sources, has a gate that can adapt; {self.path} is not one"
        )

    def move_to(self, engine: str) -> None:
        """Score texts on the GPU (`gpu`) or the CPU (`cpu`) from now on. For neural models."""
        raise SettingsError(f"only a neural model can use a GPU for scoring; {self.path} is not one")

    def to(self, device: str, *, labels: Sequence[str] | None = None) -> Any:
        """This model on a device, `cuda` or `cpu`, for decoders that ask for all words at every step. Needs PyTorch.

        See `snm.tensors.advance.TensorModel`. `labels`: the words of the columns; without them all of the vocabulary.
        """
        raise SettingsError(f"only an SNM can be moved to a device; {self.path} is not one")

    def context(self, text: Sentence) -> np.ndarray:
        """`<S>` and the ids of the words of `text`, and of the fields before them."""
        values, words = self._split(text)
        return np.concatenate([[BEGIN], self.vocabulary.ids_of([*values, *words])]).astype(IDS)

    def _split(self, sentence: Sentence) -> tuple[list[str], list[str]]:
        """The values of fields before a sentence, and its words."""
        (line,) = divide_lines(as_lines([sentence], self.vocabulary), self.vocabulary.tokenizer)
        return self.vocabulary.split(line)

    def _words(self, sentence: Sentence) -> list[str]:
        return self._split(sentence)[1]

    def next_words(self, text: Sentence = "", *, k: int = 10) -> list[tuple[str, float]]:
        """The k most probable words after `text`, the beginning of a sentence; the most probable first."""
        k = whole_number("k", k, 1)
        p = self.distribution(self.context(text))
        best = np.argpartition(-p, min(k, len(p) - 1))[:k]
        best = best[np.lexsort((best, -p[best]))]
        return [(self.vocabulary.words[i], float(p[i])) for i in best if p[i] > 0]

    def generate(
        self, prompt: Sentence = "", *, seed: int | Sequence[int] | None = None, max_words: int = 100,
        temperature: float = 1.0, unknown: bool = False,
    ) -> str:  # fmt: skip
        """Sample a sentence that begins with `prompt`, and has up to `max_words` more; `<UNK>` only with `unknown`.

        The pieces of a tokenizer are joined to text.
        """
        words = self.sample(prompt, seed=seed, max_words=max_words, temperature=temperature, unknown=unknown)
        tokenizer = self.vocabulary.tokenizer
        return " ".join(words) if tokenizer is None else tokenizer.join(words)

    def sample(
        self, prompt: Sentence = "", *, seed: int | Sequence[int] | None = None, max_words: int = 100,
        temperature: float = 1.0, unknown: bool = False,
    ) -> list[str]:  # fmt: skip
        """The words of a sentence of `generate`; pieces, where the model has a tokenizer."""
        temperature, unknown = real_number("temperature", temperature), flag("unknown", unknown)
        if not 0 < temperature < math.inf:
            raise SettingsError(f"temperature is {temperature}; expected a number above 0")
        try:
            random = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise SettingsError(f"seed is {shown(seed)}; expected a whole number, 0 or more, or some of them") from None
        words, context = self._words(prompt), self.context(prompt)
        for word, _ in draw_words(self, context, random, whole_number("max_words", max_words, 0), temperature, unknown):
            if word != END:
                words.append(self.vocabulary.words[word])
        return words

    # -- word by word

    @property
    @abstractmethod
    def state_width(self) -> int:
        """32-bit numbers in a state."""

    @abstractmethod
    def start(self) -> bytes:
        """The state at the beginning of a sentence, for `step`."""

    @abstractmethod
    def step(self, state: bytes, word: str | int) -> tuple[float, bytes]:
        """log10 P(word | state) of a word or word id, and the state after it. `</S>` or `</s>` ends a sentence."""

    @abstractmethod
    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        """log10 P of m words, or word ids, after each of n states. (n, width) and (m,) or (n, m), to (n, m)

        For beam search: score all candidates after all states with `expand`, then `follow` the best.
        """

    @abstractmethod
    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """The states of chosen hypotheses: `chosen` are flat indices into the scores of `expand`."""

    def steps(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores of one word, or word id, after each state, and the states after the words.

        (n, width) uint32 and (n,) to (n,) and (n, width). `state_array` makes the array, `states[i].tobytes()` is a
        single state. The score of a word outside a closed vocabulary is NaN.
        """
        ids = self._ids_of(words).reshape(-1, 1)
        return self.expand(states, ids)[:, 0], self.follow(states, ids, np.arange(len(states)))

    def state_array(self, states: Sequence[bytes]) -> np.ndarray:
        """States as rows of an array, for `steps` and `expand`. (n, width) uint32"""
        if not isinstance(states, list | tuple):
            raise SettingsError(f"states is {shown(states)}; expected a list of states")
        for state in states:
            if not isinstance(state, bytes) or len(state) != 4 * self.state_width:
                raise wrong_state(f"a state of type {type(state).__name__}")
        return np.frombuffer(bytearray().join(states), IDS).reshape(len(states), self.state_width)

    def _candidates(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        """Validate the arguments of `expand`; return the ids of the words. (m,) or (n, m) uint32"""
        if not isinstance(states, np.ndarray) or states.ndim != 2:
            raise wrong_state(f"states is {shown(states)}")
        if states.shape[1] != self.state_width or states.dtype != IDS:
            raise wrong_state(f"states of shape {states.shape} and type {states.dtype}")
        ids = self._ids_of(words)
        if ids.ndim != 1 and (ids.ndim != 2 or len(ids) != len(states)):
            raise SettingsError(
                f"words of shape {ids.shape} for {len(states)} states; expected a list of words for all states, "
                f"or a row of words for each"
            )
        return ids

    def _chosen(self, chosen: np.ndarray, hypotheses: int) -> np.ndarray:
        """Validate the argument of `follow`. (chosen,) int64"""
        flat = _as_array("chosen", chosen)
        if flat.ndim != 1 or (flat.size and flat.dtype.kind not in "ui"):
            raise SettingsError(
                f"chosen is {shown(chosen)}; expected a list of whole numbers: flat indices into the scores of expand"
            )
        wrong = flat[(flat < 0) | (flat >= hypotheses)]
        if len(wrong):
            raise SettingsError(f"hypothesis {wrong[0]} of {hypotheses}; expected numbers from 0 to {hypotheses - 1}")
        return contiguous(flat, INDICES)

    def _ids_of(self, words: Sequence[str] | np.ndarray) -> np.ndarray:
        """Ids of words or ids, in an array of any shape. uint32"""
        if not isinstance(words, np.ndarray):
            if isinstance(words, str) or not isinstance(words, Sequence):
                raise SettingsError(f"words is {shown(words)}; expected a list of strings or ids, or an array of them")
            words = _as_array("words", words)
        if words.dtype.kind in "ui" or not words.size:
            return self._valid_ids("words", words)
        if words.dtype.kind != "U":
            raise SettingsError(f"words of type {words.dtype}; expected strings, or ids")
        get = self._step_ids.get
        return np.array([get(word, UNKNOWN) for word in words.ravel().tolist()], IDS).reshape(words.shape)

    def _id_of(self, word: str | int) -> int:
        """The id of a word, or of an id."""
        if isinstance(word, str):
            return self._step_ids.get(word, UNKNOWN)
        if isinstance(word, int | np.integer) and not isinstance(word, bool) and 0 <= word < len(self.vocabulary):
            return int(word)
        raise SettingsError(f"{shown(word)} is no word; expected a string, or an id below {len(self.vocabulary):,}")

    @cached_property
    def _step_ids(self) -> dict[str, int]:
        """The vocabulary's ids, and `</s>` for `</S>`."""
        return {**self.vocabulary.ids, "</s>": END}


StatefulModel = LanguageModel
"""The name that code written for earlier versions uses: then only some kinds scored word by word."""


def draw_words(
    model: LanguageModel, context: np.ndarray, random: np.random.Generator, max_words: int, temperature: float,
    unknown: bool,
) -> Iterator[tuple[int, np.ndarray]]:  # fmt: skip
    """Up to `max_words` words after a context, the last one may be `</S>`; and P of every word where each was drawn.

    A temperature of 0 takes the most probable words. `<UNK>` is drawn only with `unknown`.
    """
    for _ in range(max_words):
        p = model.distribution(context)
        weights = p.copy()
        if not unknown:
            weights[UNKNOWN] = 0
        if not weights.any():  # only <UNK> can follow
            return
        if temperature > 0:
            weights = (weights / weights.max()) ** (1 / temperature)
            word = int(random.choice(len(p), p=weights / weights.sum()))
        else:
            word = int(weights.argmax())
        yield word, p
        if word == END:
            return
        context = np.append(context, np.uint32(word))


def wrong_state(what: str) -> SettingsError:
    return SettingsError(f"{what}; expected one that start, step, follow or state_array of this model made")


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


def check_targets(model: LanguageModel, targets: np.ndarray) -> None:
    """Raise an error if a row of a model has targets that are no words."""
    if len(targets) and targets.max() >= len(model.vocabulary):
        raise FormatError(
            f"{model.path} is damaged: a target is {targets.max()}; the vocabulary has {len(model.vocabulary):,} "
            f"words; restore or rebuild the model"
        )


@np.errstate(divide="ignore", over="ignore")
def perplexity_report(vocabulary: Vocabulary, text: Text, p: np.ndarray, seconds: float) -> PerplexityReport:
    """The perplexity of a text whose targets have these probabilities, which may be infinite. (targets,)"""
    known = text.tokens[text.targets()] != UNKNOWN
    logs = np.log(p)
    scored = logs[known] if vocabulary.closed else logs
    oov = len(known) - int(known.sum())
    words = text.words + text.sentences if vocabulary.tokenizer is not None else text.events
    words_known = vocabulary.tokenizer is None or text.words > 0
    spelled = _spelled_sum(logs, oov, text.spellings)
    return PerplexityReport(
        text.sentences, text.events, oov, oov / text.events, float(scored.sum()) / math.log(10),
        float(np.exp(-scored.mean())), float(np.exp(-logs[known].mean())), seconds, text.bad_lines,
        None if spelled is None else float(np.exp(-spelled / text.events)), text.bytes or None,
        None if spelled is None else bits_per_byte(spelled, text.bytes), words if words_known else None,
        None if spelled is None or not words_known else float(np.exp(-spelled / words)),
    )  # fmt: skip


def _spelled_sum(logs: np.ndarray, oov: int, spellings: np.ndarray | None) -> float | None:
    """ln P of a text whose unknown words are spelled; None if their spellings are not known.

    `logs`: ln P of each target, unknown words as `<UNK>`.
    """
    if oov and (spellings is None or len(spellings) != oov):
        return None
    total = float(logs.sum()) + (0.0 if spellings is None else float(spellings.sum()))
    return total if math.isfinite(total) else None


def bits_per_byte(log_probability: float, text_bytes: int) -> float | None:
    """Bits a byte of a text with this ln P; None if its number of bytes is not known."""
    return -log_probability / math.log(2) / text_bytes if text_bytes else None


@dataclass(frozen=True)
class PerplexityReport:
    """Perplexity of a text, over all words and every `</S>`.

    - `ppl` counts out-of-vocabulary words as `<UNK>`; in a closed vocabulary it leaves them out. `ppl_no_oov` always
      leaves them out.
    - `ppl_spelled` and `bits_per_byte` spell them: P(`<UNK>`) times the probability of the word's string. None if the
      vocabulary is closed or the model has no spelling model, and the text has such words.
    - `bytes`: those of the words in UTF-8, and one for the space or line end after each; None if not known.
    - `words`: what white space separates, and line ends; `ppl_word`: the same probability a word. Where a tokenizer
      divides words, there are more `tokens`.
    - `bad_lines`: lines that were repaired or left out, see `perplexity`.
    """

    sentences: int
    tokens: int
    oov: int
    oov_rate: float
    logprob10: float
    ppl: float
    ppl_no_oov: float
    seconds: float
    bad_lines: int = 0
    ppl_spelled: float | None = None
    bytes: int | None = None
    bits_per_byte: float | None = None
    words: int | None = None
    ppl_word: float | None = None

    def _repr_html_(self) -> str:
        from snm.markup.html import properties

        figures = {name: value for name, value in vars(self).items() if value is not None}
        rows = [(k, f"{v:,}" if isinstance(v, int) else f"{v:,.4f}") for k, v in figures.items()]
        return properties("Perplexity", rows)
