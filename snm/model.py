"""What a user holds: a language model that scores, predicts, samples and explains.

`LanguageModel` is the protocol of every family. A family gives two things, the probabilities of the
targets of a token array and the distribution after a context; everything else follows from them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from snm import storage
from snm.calibration import Gate
from snm.calibration import size as gate_size
from snm.corpus import encode_lines, encode_sentences
from snm.errors import FormatError, InputError, SettingsError
from snm.features import Extractor, FeatureSpec, KeyLayout
from snm.pages import Pages
from snm.scoring import Scorer
from snm.vocabulary import BEGIN, END, UNKNOWN, Vocabulary, split_words

if TYPE_CHECKING:
    from snm.evaluation import PerplexityReport


@dataclass(frozen=True)
class Part:
    """What one feature brings to a word's probability."""

    feature: str
    share: float
    """Its part of P(word): the parts of a word add up to P exactly."""
    weight: float
    """Its part of the whole distribution: its gated row sum over that of all rows."""
    gate: float
    """By how much the gate multiplies its row."""


@dataclass(frozen=True)
class Explanation:
    """A word, its probability, and the features that make it up, the largest share first."""

    word: str
    probability: float
    parts: list[Part]


IDS = np.dtype(np.uint32)  # of word ids and states
INDICES = np.dtype(np.int64)
# What a kernel raises for arrays that it does not take as they are, and what comes of arguments that are no arrays. To
# look at each argument before a call took a tenth of the time of a beam's words.
_NOT_AS_THEY_ARE = TypeError, ValueError, AttributeError, IndexError
_WHOLE_SENTENCES = "a model of this kind scores whole sentences; SNM and backoff models go word by word"


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
        """P(w | context) for every word; `context` begins with `<S>`. (vocabulary,) float64"""

    @abstractmethod
    def faults(self) -> Iterator[tuple[bool, str]]:
        """(whether it is wrong, what is wrong) of everything that can be checked without a text."""

    def score(self, sentence: str) -> float:
        """log10 of the sentence's probability, its end included."""
        return self.score_sentences([sentence])[0]

    def score_sentences(self, sentences: Sequence[str]) -> list[float]:
        """log10 probability of each sentence, its end included; NaN for a blank one.

        In a closed vocabulary words outside it are not predicted; they are left out.
        """
        return [total_score(words) for words in self.score_words(sentences)]

    def score_words(self, sentences: Sequence[str]) -> list[list[tuple[str, float]]]:
        """Of each sentence its words and `</S>`, each with its log10 probability; NaN where it has none."""
        tokens = encode_sentences(sentences, self.vocabulary).tokens
        p = self.probabilities(tokens)
        if self.vocabulary.closed:
            p[tokens == UNKNOWN] = np.nan
        with np.errstate(divide="ignore"):
            logs = np.log10(p).tolist()
        scored: list[list[tuple[str, float]]] = []
        k = 0
        for sentence in sentences:
            words = split_words(sentence)
            if not words:
                scored.append([])
                continue
            end = k + len(words) + 2
            scored.append(list(zip([*words, "</S>"], logs[k + 1 : end], strict=True)))
            k = end
        return scored

    def start(self) -> bytes:
        """The state at the beginning of a sentence, for `step`.

        A state is the last words, by their ids. Equal states have the same future, so it serves as a key.
        """
        raise SettingsError(_WHOLE_SENTENCES)

    def step(self, state: bytes, word: str) -> tuple[float, bytes]:
        """log10 P(word | state), and the state after the word. `</s>` ends a sentence."""
        raise SettingsError(_WHOLE_SENTENCES)

    def steps(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for many: a word, or its id, after each state. (n, width) uint32 to (n,) and (n, width)

        `state_array` makes rows of states, `states[i].tobytes()` is a state again, and `states[chosen]` keeps some. In
        a closed vocabulary the score of a word outside it is NaN.
        """
        raise SettingsError(_WHOLE_SENTENCES)

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        """log10 P of many words, or ids, after each state: (n, width) and (m,), or (n, m) of each its own, to (n, m).

        With `follow` what a beam search needs: it scores all candidates after all states, and lets some go on.
        """
        raise SettingsError(_WHOLE_SENTENCES)

    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """The states of those hypotheses of `expand` that are chosen, by their numbers in its scores, row by row."""
        raise SettingsError(_WHOLE_SENTENCES)

    def state_array(self, states: Sequence[bytes]) -> np.ndarray:
        """States as the rows of an array, for `steps` and `expand`. (n, width) uint32"""
        return np.frombuffer(bytearray().join(states), np.uint32).reshape(len(states), -1)

    def perplexity(self, sentences: Iterable[str], threads: int = 1) -> PerplexityReport:
        """Perplexity of sentences, one a string; an open file is such a thing."""
        from snm.evaluation import perplexity

        return perplexity(self, encode_lines(sentences, self.vocabulary), threads)

    def explain(self, sentence: str) -> list[Explanation]:
        """For every word of the sentence and its end: which features fired, and what each brought."""
        raise SettingsError("only an SNM model is a sum that can be explained part by part; this one is not")

    def move_to(self, engine: str) -> None:
        """Score texts on a GPU (`gpu`) from now on, or on the CPU again (`cpu`); a neural model can."""
        raise SettingsError(f"only a neural model is scored on a GPU; {self.path} is not one")

    def context(self, text: str) -> np.ndarray:
        """`<S>` and the ids of the words of `text`."""
        return np.concatenate([[BEGIN], self.vocabulary.ids_of(split_words(text))]).astype(np.uint32)

    def next_words(self, text: str = "", k: int = 10) -> list[tuple[str, float]]:
        """The k likeliest words after the words of `text` at the start of a sentence, likeliest first."""
        if k < 1:
            raise SettingsError(f"k is {k}; expected 1 or more")
        p = self.distribution(self.context(text))
        best = np.argpartition(-p, min(k, len(p) - 1))[:k]
        best = best[np.lexsort((best, -p[best]))]
        return [(self.vocabulary.words[i], float(p[i])) for i in best if p[i] > 0]

    def generate(
        self, seed: int | Sequence[int] | None = None, prompt: str = "", max_words: int = 100,
        temperature: float = 1.0, unknown: bool = False,
    ) -> str:  # fmt: skip
        """A sentence drawn from the model; `<UNK>` is not drawn unless `unknown` says so."""
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


def _plain(array: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """An array as kernels take it."""
    return np.require(array, dtype, ["C", "A", "W", "E"])


def total_score(words: list[tuple[str, float]]) -> float:
    """log10 probability of a sentence from those of its words, words without one left out; NaN for no words."""
    return sum(p for _, p in words if not math.isnan(p)) if words else math.nan


class RowModel(LanguageModel):
    """A model made of rows of links, found by the features of an event, mapped from disk."""

    kind: str

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = storage.read_manifest(self.path)
        try:
            self._open()
        except (KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{self.path} is damaged ({error!r}); restore or rebuild the model") from error

    def _open(self) -> None:
        m = self.manifest
        how = m["vocabulary"]
        self.vocabulary = Vocabulary.read(self.path / storage.VOCABULARY, how["closed"], how["document"])
        if len(self.vocabulary) != how["words"]:
            raise FormatError(f"{self.path}: the vocabulary does not fit; restore or rebuild the model")
        self.spec = FeatureSpec(m["features"])
        self.layout = KeyLayout(**m["layout"])
        classes = self._array("classes") if self.spec.has_classes else None
        self.extractor = Extractor(self.spec, self.layout, self.vocabulary, classes)
        for name, digest in self.extractor.family_digests().items():
            if digest != m["families"][name]:
                raise FormatError(
                    f"{self.path}: the feature family {name!r} gives other keys than when the model was trained; "
                    f"register the same one, one that gives the same keys in every process"
                )

    def __repr__(self) -> str:
        links = f"{len(self.vocabulary):,} words, {self.manifest['links']:,} links"
        return f"<{type(self).__name__} {self.path}: {self.spec}, {links}>"

    def _array(self, name: str) -> np.ndarray:
        return storage.open_array(self.path / f"{name}.npy")

    def start(self) -> bytes:
        return np.full(self.extractor.span, BEGIN, "<u4").tobytes()

    def step(self, state: bytes, word: str) -> tuple[float, bytes]:
        scores, states = self.steps(np.frombuffer(bytearray(state), np.uint32)[None], [word])
        return float(scores[0]), states[0].tobytes()

    def steps(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ids = np.ascontiguousarray(self._ids_of(words)).reshape(-1, 1)
        return self.expand(states, ids)[:, 0], self.follow(states, ids, np.arange(len(states)))

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        ids = self._candidates(states, words)
        n, m = len(states), ids.shape[-1]
        flat = np.empty((n, m, states.shape[1] + 1), np.uint32)
        flat[:, :, :-1], flat[:, :, -1] = states[:, None], ids
        p = self.probabilities(flat.ravel()).reshape(flat.shape)[:, :, -1]
        with np.errstate(divide="ignore"):
            return np.where(p > 0, np.log10(p), np.nan)

    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        kernel, words_known, width = self._following
        try:
            after = np.empty((len(chosen), width), IDS)
            if kernel(states, words, words_known, chosen, after):
                return after
        except _NOT_AS_THEY_ARE:
            pass
        ids, chosen = self._candidates(states, words), _plain(chosen, INDICES)
        after, hypotheses = np.empty((len(chosen), width), IDS), len(states) * ids.shape[-1]
        wrong = chosen[(chosen < 0) | (chosen >= hypotheses)]
        if len(wrong):
            raise SettingsError(f"hypothesis {wrong[0]} of {hypotheses}; expected numbers from 0 to {hypotheses - 1}")
        if len(chosen):
            kernel(_plain(states, IDS), ids, words_known, chosen, after)
        return after

    @cached_property
    def _following(self) -> tuple[Any, int, int]:
        """The kernel of `follow`, the number of words, a state's width: to look for them takes a fifth of a call."""
        from snm.kernels import stepping

        return stepping.follow, len(self.vocabulary), self.extractor.span

    def _candidates(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        """Ids of words for `expand`, of all states, or a row for each."""
        ids = self._ids_of(words)
        if ids.ndim != 1 and (ids.ndim != 2 or len(ids) != len(states)):
            raise SettingsError(
                f"words of shape {ids.shape} for {len(states)} states; expected some that are scored after all of "
                f"them, or a row of words for each"
            )
        if states.ndim != 2 or states.shape[1] != self.extractor.span or states.dtype != IDS:
            raise SettingsError(
                f"states of shape {states.shape} and type {states.dtype}; expected uint32 of shape "
                f"{('n', self.extractor.span)}, made by state_array and follow"
            )
        if ids.max(initial=0) >= len(self.vocabulary):
            raise SettingsError(f"a word's id is {ids.max()}; the vocabulary has {len(self.vocabulary):,} words")
        return _plain(ids, IDS)

    def _ids_of(self, words: Sequence[str] | np.ndarray) -> np.ndarray:
        """Ids of words, which may be ids, of any shape."""
        words = np.asarray(words)
        if words.dtype.kind in "ui" or not words.size:
            return words.astype(np.uint32, copy=False)
        if words.dtype.kind != "U":
            raise SettingsError(f"words of type {words.dtype}; expected strings, or ids")
        get = self._step_ids.get
        return np.array([get(word, UNKNOWN) for word in words.ravel().tolist()], np.uint32).reshape(words.shape)

    @cached_property
    def _step_ids(self) -> dict[str, int]:
        """Ids of the words that `step` knows."""
        return {**self.vocabulary.ids, "</s>": END}

    def _keys(self, context: np.ndarray) -> np.ndarray:
        """Keys of the features of the event after `context`. (slots, 1)"""
        tokens = np.append(context, END).astype(np.uint32)
        return self.extractor.keys(tokens, len(context), len(tokens))


class _Stepping(NamedTuple):
    """The kernels that score word by word, and how they find a model."""

    expand: Any
    step: Any
    address: int  # of a handle, for `step`
    state_bytes: int  # of a state that they take; -1 where they take none
    unused: list[np.ndarray]  # handles for `expand`


class SnmModel(RowModel):
    """A sparse non-negative matrix in pages, and its gate."""

    kind = "snm"

    def _open(self) -> None:
        super()._open()
        slots = self.extractor.n_slots
        self.pages = Pages.open(self.path, self.manifest["pages"], self.extractor)
        flat, units = np.zeros(slots, np.float32), 0
        if self.manifest["gate"] is not None:
            flat, units = np.ascontiguousarray(self._array("gate")), self.manifest["gate"]["units"]
        if len(flat) != gate_size(slots, units):
            raise FormatError(f"{self.path}: the gate does not fit the features; restore or rebuild the model")
        self.gate, p = Gate.of(flat, slots), self.pages
        self._folded = self.gate.folded(int(p.unigram_code), float(p.unigram_links), float(p.unigram_sum))
        self._scorer = Scorer(self.extractor, p, self._folded, self.manifest["training"]["prune"])
        self._addressed: list[tuple[np.ndarray, ...]] = []  # handles, and what they have the addresses of

    def probabilities(self, tokens: np.ndarray, threads: int = 1) -> np.ndarray:
        return self._scorer.probabilities(tokens, threads)

    def _look_up(self, keys: np.ndarray, word: int) -> tuple[Any, np.ndarray]:
        """What the rows of an event say of themselves and of a word, and what the gate multiplies them by. (slots,)"""
        found = self._scorer.find(keys, np.array([word], np.uint32))
        return found, found.scale[:, 0].astype(np.float64)

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        how = self._stepping
        try:
            handle = how.unused.pop()
        except IndexError:  # other threads have them
            handle = self._handle()
        try:
            scores = np.empty((len(states), words.shape[-1]))  # type: ignore[union-attr]
            if how.expand(states, words, handle, scores):
                return scores
        except _NOT_AS_THEY_ARE:
            pass
        finally:
            how.unused.append(handle)
        if self.extractor.has_families:
            return super().expand(states, words)
        ids = self._candidates(states, words)
        if not len(states) or not ids.size:
            return np.empty((len(states), ids.shape[-1]))
        return self.expand(_plain(states, IDS), ids)

    def step(self, state: bytes, word: str) -> tuple[float, bytes]:
        how = self._stepping
        if len(state) != how.state_bytes:
            return super().step(state, word)
        number = self._step_ids.get(word, UNKNOWN)
        return how.step(how.address, state, number), state[4:] + number.to_bytes(4, "little")

    @cached_property
    def _stepping(self) -> _Stepping:
        from snm.kernels import stepping

        p = self.pages
        types = [array.dtype.name for array in (p.starts, p.long_links, p.singles)]
        expand, step = stepping.kernels_of(*types)
        state_bytes = -1 if self.extractor.has_families else 4 * self.extractor.span
        return _Stepping(expand, step, self._handle().ctypes.data, state_bytes, [])

    def _handle(self) -> np.ndarray:
        """Scalars and addresses for `kernels.stepping`: of this model, and of working memory for one call at a time."""
        from snm.kernels import gating, stepping

        p, g, slots, width = self.pages, self._folded, self.extractor.n_slots, self.extractor.span
        classes = np.zeros(1, np.uint16) if self.extractor.classes is None else self.extractor.classes
        numbers = np.array([p.unigram_links, p.unigram_sum], np.float32)
        addressed = (
            p.data, p.values, p.unigrams, p.single_of_slot, p.parent_of_slot, *g, numbers, self.extractor.slot_table,
            classes, p.starts, p.long_links, p.singles, *gating.make_rows(slots, len(g.bias)),
            *stepping.make_beam(slots, width),
        )  # fmt: skip
        scalars = [
            len(self.vocabulary), slots, len(g.bias), len(p.data), len(p.values), int(p.shift),
            int(p.spread.bits), int(p.spread.factor), int(p.spread.inverse), int(p.code_bytes), int(p.unigram_code),
            self.layout.hash_mask - (1 << 64), self.vocabulary.never_a_target, len(p.starts),
            -1 if self.extractor.has_families else width,
        ]  # fmt: skip
        handle = np.zeros(stepping.HANDLE, np.int64)
        handle[: stepping.WORD] = [*scalars, *(array.ctypes.data for array in addressed)]
        self._addressed.append((handle, *addressed))  # they live as long as the model
        return handle

    def distribution(self, context: np.ndarray) -> np.ndarray:
        from snm.kernels import pages

        keys = self._keys(context)
        found, scale = self._look_up(keys, END)
        y: np.ndarray = scale[0] * self.pages.unigrams.astype(np.float64)
        for q in np.flatnonzero(found.row_sum[1:, 0] > 0) + 1:
            targets, weights = pages.read_row(q, keys[q, 0], self.pages)
            y[targets] += scale[q] * weights
        y /= (scale * found.row_sum[:, 0]).sum()
        return y

    def faults(self) -> Iterator[tuple[bool, str]]:
        from snm.kernels import pages

        p = self.pages
        disorder = p.starts[0] != 0 or (p.starts[1:] < p.starts[:-1]).any()
        yield bool(disorder), "the pages' starts are not in order"
        yield not (p.values > 0).all(), "a weight is not above zero"
        page = pages.first_fault(p, len(p.singles) > 0, len(self.vocabulary))
        yield page >= 0, f"page {page} of the rows is not as it should be"
        yield not (np.isfinite(p.unigrams).all() and (p.unigrams >= 0).all()), "the empty feature's row is damaged"
        yield not all(np.isfinite(part).all() for part in self.gate), "the gate holds what is no number"

    def explain(self, sentence: str) -> list[Explanation]:
        """For every word of the sentence and its end: which features fired, and what each brought."""
        words = split_words(sentence)
        if not words:
            raise InputError("nothing to explain; expected a sentence of at least one word")
        tokens = np.append(self.context(sentence), np.uint32(END))
        return [self._explain(tokens[: k + 1], word) for k, word in enumerate([*words, "</S>"], 1)]

    def _explain(self, tokens: np.ndarray, word: str) -> Explanation:
        found, scale = self._look_up(self._keys(tokens[:-1]), tokens[-1])
        row_sums = scale * found.row_sum[:, 0]
        denominator = row_sums.sum()
        shares = scale * found.weight[:, 0] / denominator
        parts = [
            Part(self.feature_text(q, tokens[:-1]), float(shares[q]), float(row_sums[q] / denominator), float(scale[q]))
            for q in np.flatnonzero(found.row_sum[:, 0] > 0).tolist()
        ]
        parts.sort(key=lambda part: -part.share)
        return Explanation(word, sum(part.share for part in parts), parts)

    def feature_text(self, q: int, context: np.ndarray) -> str:
        """The feature of slot q after `context`, as the paper writes it: [brown skip-2 over the lazy].

        A word that enters by its class has a ~ before it.
        """
        slot = self.spec.slots[q]
        kind = self.spec.types[slot.type_index]
        if kind.family is not None:
            return f"[{kind}]"
        words = [self.vocabulary.words[i] for i in context]
        adjacent = words[len(words) - slot.a :]
        if slot.r == 0:
            return f"[{' '.join(adjacent)}]"
        end = len(words) - slot.a - slot.s
        remote = [f"~{word}" if kind.classes else word for word in words[end - slot.r : end]]
        skip = ["skip-*"] if kind.s is None else [f"skip-{slot.s}"] if slot.s else []
        return f"[{' '.join([*remote, *skip, *adjacent])}]"


_KINDS = {
    "snm": "snm.model:SnmModel",
    "backoff": "snm.baselines.backoff:BackoffModel",
    "hsme": "snm.baselines.hsme:HsmeModel",
    "rnn": "snm.baselines.rnn:RnnModel",
    "mixture": "snm.mixing:MixtureModel",
}


def load(path: str | Path) -> LanguageModel:
    """Open a model folder. The arrays are mapped, not read: it takes milliseconds whatever their size."""
    kind = storage.read_manifest(Path(path)).get("kind")
    if kind not in _KINDS:
        raise FormatError(f"{path}: a model of kind {kind!r}; this program knows {', '.join(_KINDS)}")
    module, _, name = _KINDS[kind].partition(":")
    made: LanguageModel = getattr(import_module(module), name)(path)
    return made
