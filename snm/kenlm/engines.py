"""What scores words for `snm.kenlm.Model`: a backoff model, another SNM model, or the package kenlm itself.

An engine gives each word a number, each history a state that can be hashed and compared, and steps from a state to the
next one.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from snm.baselines.backoff.arpa import ArpaModel
from snm.baselines.backoff.model import BackoffModel
from snm.errors import MissingExtra, SettingsError
from snm.kenlm.histories import ngram_length, null_state, order_of
from snm.kernels import backoff_states
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.loading import load
from snm.model import LanguageModel
from snm.text.files import BadLines, line_blocks

NEVER = -100.0  # log10 probability of words that a model never predicts, as in KenLM
BINARY = b"mmap lm http://kheafield.com/code"  # a binary file of KenLM begins with this
State = Any
"""Bytes, or a state of the package kenlm. An empty one stands for no context in every engine."""


class Engine(ABC):
    """Scores one more word after a state. `ids`: the number of every word; `unknown`: that of other words."""

    ids: dict[str, int]
    unknown: int
    order: int
    model: LanguageModel | None
    """The SNM model that is asked; None for a binary file of KenLM."""
    begin: State
    null: State

    @abstractmethod
    def score(self, state: State, word: int) -> tuple[float, State]:
        """log10 P(word | state), and the state after it."""

    @abstractmethod
    def full_score(self, state: State, word: int) -> tuple[float, int, State]:
        """log10 P(word | state), the length of the n-gram that it comes from, and the state after it."""


class BackoffEngine(Engine):
    """A backoff model: the same numbers, and states that are as short, as KenLM has for its ARPA file."""

    def __init__(self, model: BackoffModel, ids: dict[str, int], begin_score: float = NEVER) -> None:
        """`begin_score`: log10 P(`<s>`), which the model does not have."""
        self.model, self.ids, self.unknown, self.order = model, ids, UNKNOWN, model.extractor.span + 1
        if model.extractor.n_templates == 1:
            self.order = 1
        self.begin, self.null = BEGIN.to_bytes(4, "little"), b""
        self._absent = {BEGIN: begin_score}
        self._kernel = backoff_states.kernel_of(model.index.directory.dtype.name)
        self._address = model._beams.address

    def score(self, state: bytes, word: int) -> tuple[float, bytes]:
        score, _, after = self.full_score(state, word)
        return score, after

    def full_score(self, state: bytes, word: int) -> tuple[float, int, bytes]:
        score, packed = self._kernel(self._address, state, len(state) >> 2, word)
        kept = (packed & 255) << 2
        after = (word.to_bytes(4, "little") + state)[:kept] if kept else b""
        if packed < backoff_states.LENGTH:  # such as <unk> where the file has none
            return score + self._absent.get(word, NEVER), 1, after
        return score, packed >> 8, after


class SnmEngine(Engine):
    """A model whose states are its own: SNM, networks, and mixtures."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = self._model = model
        self.unknown, self.order = UNKNOWN, order_of(model)
        self.ids = {**model.vocabulary.ids, "<s>": BEGIN, "</s>": END}
        self.begin, self.null, self._step = model.start(), null_state(model), model.step

    def score(self, state: bytes, word: int) -> tuple[float, bytes]:
        score, after = self._step(state or self.null, word)
        return (NEVER if math.isnan(score) else score), after

    def full_score(self, state: bytes, word: int) -> tuple[float, int, bytes]:
        score, after = self.score(state, word)
        return score, ngram_length(self._model, state or self.null, word), after


class KenlmEngine(Engine):
    """A binary file, opened by the package kenlm."""

    def __init__(self, path: bytes, config: Any) -> None:
        self._kenlm = real_kenlm()
        settings = self._kenlm.Config()
        settings.load_method, settings.show_progress = config.load_method, config.show_progress
        settings.arpa_complain = config.arpa_complain
        self._model = self._kenlm.Model(path, settings)
        self.model, self.order = None, self._model.order
        self.begin, self.null = self._kenlm.State(), self._kenlm.State()
        self._model.BeginSentenceWrite(self.begin)
        self._model.NullContextWrite(self.null)
        self.ids, self.unknown = _Words(self._model), ""  # type: ignore[assignment]

    def score(self, state: State, word: Any) -> tuple[float, State]:
        after = self._kenlm.State()
        return self._model.BaseScore(state or self.null, word, after), after

    def full_score(self, state: State, word: Any) -> tuple[float, int, State]:
        after = self._kenlm.State()
        found = self._model.BaseFullScore(state or self.null, word, after)
        return found.log_prob, found.ngram_length, after


class _Words(dict[str, Any]):
    """The words of a binary file: it cannot list them, so a word is its own number."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def get(self, word: str, default: Any = None) -> Any:
        return word if word in self._model else default

    def __contains__(self, word: object) -> bool:
        return word in self._model


def open_engine(path: bytes, config: Any) -> Engine:
    """The engine for a model folder, an ARPA file or a binary file of KenLM."""
    name = path.decode("utf8", "surrogateescape")
    return KenlmEngine(path, config) if is_binary(name) else engine_of(load(name))


def engine_of(model: LanguageModel) -> Engine:
    """The engine for an open model."""
    if model.vocabulary.fields:
        raise SettingsError("its lines have fields, which have no place here; use snm.load(path) and start(fields)")
    if isinstance(model, ArpaModel):
        return BackoffEngine(model, *_words_of_arpa(model))
    if isinstance(model, BackoffModel) and not model.extractor.needs_text:
        return BackoffEngine(model, {**model.vocabulary.ids, "<s>": BEGIN, "</s>": END})
    return SnmEngine(model)


def is_binary(path: str) -> bool:
    """Whether a file is one that KenLM's build_binary wrote."""
    if not Path(path).is_file():
        return False
    with open(path, "rb") as file:
        return file.read(len(BINARY)) == BINARY


def real_kenlm() -> ModuleType:
    """The package kenlm, also where `snm.kenlm` has its place."""
    placed = sys.modules.get("kenlm")
    own = placed is not None and placed.__name__ != "kenlm"
    if placed is not None and not own:
        return placed
    if own:
        del sys.modules["kenlm"]
    try:
        return import_module("kenlm")
    except ImportError:
        raise MissingExtra("kenlm", "kenlm", "opening a binary file of KenLM") from None
    finally:
        if own and placed is not None:
            sys.modules["kenlm"] = placed


def _words_of_arpa(model: ArpaModel) -> tuple[dict[str, int], float]:
    """The words of an ARPA file as KenLM reads it, and log10 P(`<s>`) in it."""
    ids = dict(model.vocabulary.ids)
    scores = dict(_special_scores(model.path))
    for upper, lower, number in (("<S>", "<s>", BEGIN), ("</S>", "</s>", END)):
        ids.pop(upper)
        ids |= {name: number for name in (upper, lower) if name in scores}
    return ids, next((score for name, score in scores.items() if name in ("<s>", "<S>")), NEVER)


def _special_scores(path: Path) -> Iterator[tuple[str, float]]:
    """The sentence markers among the 1-grams of an ARPA file, with their log10 probabilities."""
    with closing(line_blocks(str(path), BadLines(advice="expected an ARPA file as text"))) as blocks:
        for block in blocks:
            for line in block.decode().split("\n"):
                if line.startswith("\\2-grams") or line.startswith("\\end"):
                    return
                parts = line.split()
                if len(parts) > 1 and parts[1] in ("<s>", "</s>", "<S>", "</S>"):
                    yield parts[1], float(parts[0])
