"""The public surface of the Python package kenlm, over models of SNM.

    import snm.kenlm as kenlm           # instead of: import kenlm
    snm.kenlm.install()                 # or: every later `import kenlm` of this process gets this module

`Model` opens model folders and ARPA files, and, through the package kenlm, the binary files of KenLM. On an ARPA file
the numbers are KenLM's. `Model.snm_model` is the model with the whole interface of SNM.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from snm.errors import SnmError
from snm.kenlm.engines import Engine, open_engine

__all__ = [
    "ARPALoadComplain", "CannotReadModel", "Config", "FullScoreReturn", "LanguageModel", "LoadMethod", "Model",
    "State", "install",
]  # fmt: skip


class CannotReadModel(SnmError, OSError):
    """A model that cannot be opened: an OSError, as in the package kenlm."""


class LoadMethod:
    """How KenLM reads binary files. Model folders are always mapped."""

    LAZY = 0
    POPULATE_OR_LAZY = 1
    POPULATE_OR_READ = 2
    READ = 3
    PARALLEL_READ = 4


class ARPALoadComplain:
    """Whether KenLM prints that binary files open faster. SNM prints nothing."""

    ALL = 0
    EXPENSIVE = 1
    NONE = 2


class Config:
    """How KenLM opens a binary file. Model folders and ARPA files are opened the same way with any settings."""

    def __init__(self) -> None:
        self._load_method, self._show_progress = LoadMethod.POPULATE_OR_READ, True
        self._arpa_complain = ARPALoadComplain.ALL

    @property
    def load_method(self) -> int:
        return self._load_method

    @load_method.setter
    def load_method(self, to: int) -> None:
        self._load_method = _integer(to)

    @property
    def show_progress(self) -> bool:
        return self._show_progress

    @show_progress.setter
    def show_progress(self, to: bool) -> None:
        self._show_progress = bool(to)

    @property
    def arpa_complain(self) -> int:
        return self._arpa_complain

    @arpa_complain.setter
    def arpa_complain(self, to: int) -> None:
        self._arpa_complain = _integer(to)


class FullScoreReturn:
    """A word's log10 probability, the length of the n-gram that it comes from, and whether the word is unknown."""

    __slots__ = ("_log_prob", "_ngram_length", "_oov")

    def __init__(self, log_prob: float, ngram_length: int, oov: bool) -> None:
        self._log_prob = math.fsum([log_prob])  # a TypeError for a string
        self._ngram_length, self._oov = _integer(ngram_length), bool(oov)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.log_prob!r}, {self.ngram_length!r}, {self.oov!r})"

    @property
    def log_prob(self) -> float:
        return self._log_prob

    @property
    def ngram_length(self) -> int:
        return self._ngram_length

    @property
    def oov(self) -> bool:
        return self._oov


class State:
    """What a model remembers of a history. States with the same future are equal, and have the same hash.

    A new state is that of no context. States of a binary file cannot be pickled; all others can.
    """

    __slots__ = ("_value",)

    def __init__(self, *_: Any) -> None:
        self._value: Any = b""

    def __hash__(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        if other is None:
            return False
        return bool(self._value == _state(other)._value)

    def __lt__(self, other: State) -> bool:
        a, b = self._value, _state(other)._value
        if isinstance(a, bytes) and isinstance(b, bytes):
            return (len(a), a) < (len(b), b)
        return bool(a < b)

    def __le__(self, other: State) -> bool:
        return not _state(other) < self

    def __gt__(self, other: State) -> bool:
        return _state(other) < self

    def __ge__(self, other: State) -> bool:
        return not self < other

    def __copy__(self) -> State:
        copied = State()
        copied._value = self._value
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _state_of, (self._value,)


class Model:
    """A language model, asked as KenLM's are."""

    path: bytes
    _engine: Engine
    __slots__ = ("__weakref__", "_engine", "path")

    def __init__(self, path: str | bytes, config: Config | None = None) -> None:
        """`path`: of a model folder of SNM, an ARPA file (plain or compressed), or a binary file of KenLM."""
        if not isinstance(config, Config | None):
            raise _wrong_type("config", Config, config)
        self.path = os.path.abspath(_as_bytes(path))
        try:
            self._engine = open_engine(self.path, config or Config())
        except (SnmError, OSError) as error:
            raise CannotReadModel(f"Cannot read model {path!r} ({error})") from error

    @property
    def snm_model(self) -> Any:
        """The model as `snm.load` opens it; None for a binary file of KenLM."""
        return self._engine.model

    @property
    def order(self) -> int:
        """Words that an n-gram, or another feature of the model, spans."""
        return self._engine.order

    def score(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> float:
        """log10 probability of a sentence: after `<s>` with `bos`, with its `</s>` with `eos`."""
        engine, total = self._engine, 0.0
        score, get, unknown = engine.score, engine.ids.get, engine.unknown
        state = engine.begin if bos else engine.null
        for word in self._words(sentence):
            p, state = score(state, get(word, unknown))
            total += p
        if eos:
            total += score(state, get("</s>", unknown))[0]
        return total

    def perplexity(self, sentence: str | bytes) -> float:
        """Perplexity of a sentence, its end included."""
        return float(10.0 ** (-self.score(sentence) / (len(self._words(sentence)) + 1)))

    def _words(self, sentence: str | bytes) -> list[str]:
        """The words of a sentence; the pieces, where the model has a tokenizer."""
        model = self._engine.model
        if model is None or model.vocabulary.tokenizer is None:
            return _words(sentence)
        return model.vocabulary.tokenizer.pieces(_as_bytes(sentence).decode(errors="replace"))

    def full_scores(
        self, sentence: str | bytes, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """(log10 probability, length of its n-gram, whether it is unknown) of each word; of `</s>` with `eos`."""
        engine = self._engine
        state = engine.begin if bos else engine.null
        for word in self._words(sentence):
            number = engine.ids.get(word, engine.unknown)
            p, length, state = engine.full_score(state, number)
            yield p, length, number == engine.unknown
        if eos:
            p, length, _ = engine.full_score(state, engine.ids.get("</s>", engine.unknown))
            yield p, length, False

    def BeginSentenceWrite(self, state: State) -> None:  # noqa: N802
        """Make `state` that of the beginning of a sentence."""
        _state(state)._value = self._engine.begin

    def NullContextWrite(self, state: State) -> None:  # noqa: N802
        """Make `state` that of no context."""
        _state(state)._value = self._engine.null

    def BaseScore(self, in_state: State, word: str, out_state: State) -> float:  # noqa: N802
        """log10 P(word | in_state); `out_state` becomes the state after it."""
        engine = self._engine
        try:
            score, out_state._value = engine.score(in_state._value, engine.ids.get(word, engine.unknown))
        except (AttributeError, TypeError):
            score = None
        if type(word) is not str or score is None:
            raise _wrong_arguments(in_state, word, out_state)
        return score

    def BaseFullScore(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:  # noqa: N802
        """`BaseScore` with the length of the n-gram, and whether the word is unknown."""
        engine = self._engine
        if not isinstance(word, str) or not isinstance(in_state, State) or not isinstance(out_state, State):
            raise _wrong_arguments(in_state, word, out_state)
        number = engine.ids.get(word, engine.unknown)
        score, length, out_state._value = engine.full_score(in_state._value, number)
        return FullScoreReturn(score, length, number == engine.unknown)

    def __contains__(self, word: str | bytes) -> bool:
        name = _as_bytes(word).decode("utf8", "surrogateescape")
        return bool(self._engine.ids.get(name, self._engine.unknown) != self._engine.unknown)

    def __repr__(self) -> str:
        return f"<Model from {os.path.basename(self.path)!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)


class LanguageModel(Model):
    """The older name of `Model`."""

    __slots__ = ()


def install() -> None:
    """Put this module in the place of the package kenlm: every later `import kenlm` gets it."""
    sys.modules["kenlm"] = sys.modules[__name__]


def _as_bytes(data: str | bytes) -> bytes:
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    raise TypeError(f"Cannot convert {type(data)} to string")


def _words(sentence: str | bytes) -> list[str]:
    """The words of a sentence. ASCII white space separates them; bytes that are not UTF-8 make an unknown word."""
    pieces = _as_bytes(sentence).split()
    return b" ".join(pieces).decode("utf8", "surrogateescape").split(" ") if pieces else []


def _integer(value: Any) -> int:
    if not hasattr(value, "__index__"):
        raise TypeError("an integer is required")
    return int(value)


def _state(value: Any) -> State:
    if not isinstance(value, State):
        raise _wrong_type("state", State, value)
    return value


def _state_of(value: Any) -> State:
    state = State()
    state._value = value
    return state


def _wrong_type(name: str, expected: type, value: Any) -> TypeError:
    return TypeError(
        f"Argument '{name}' has incorrect type (expected {expected.__qualname__}, got {type(value).__name__})"
    )


def _wrong_arguments(in_state: Any, word: Any, out_state: Any) -> TypeError:
    """The TypeError for an argument of `BaseScore` that is not what it should be."""
    for name, expected, value in (("in_state", State, in_state), ("word", str, word), ("out_state", State, out_state)):
        if not isinstance(value, expected):
            return _wrong_type(name, expected, value)
    return TypeError("a state of another model; expected one that this model made")
