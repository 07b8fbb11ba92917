"""TODO: docstring."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from snm import parallel, storage
from snm.baselines.neural.tree import Tree
from snm.devices import device_of
from snm.errors import FormatError
from snm.layouts.tokens import BEGIN, END
from snm.model import LanguageModel
from snm.text.vocabulary import Vocabulary

ROWS = 32
"""Sentences that are scored side by side. A matrix product always has this many rows, whatever there is to
score, so that a sentence's score does not depend on what else is scored: other shapes round differently."""
SENTENCES = 1024  # scored at a time where there is no layer


def shape_text(shape: dict[str, Any]) -> str:
    """A network in words."""
    parts = [f"{shape['cell'].upper()} of {shape['hidden']:,} units"] if shape["hidden"] else []
    if shape["order"]:
        parts.append(f"maximum entropy over hashed features of n-grams up to order {shape['order']}")
    output = "a tree of binary decisions" if shape["softmax"] == "tree" else "an adaptive softmax"
    return f"{' with '.join(parts)}, {output}"


class Layer(Protocol):
    """A recurrent layer, a step at a time, for ROWS sentences side by side."""

    def start(self) -> tuple[np.ndarray, ...]:
        """The memory before a sentence; its first array is the state. (ROWS, hidden)"""

    def step(self, words: np.ndarray, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """The memory after one more word in every row."""


class Output(Protocol):
    """Probabilities from states."""

    @property
    def tree(self) -> Tree | None:
        """Where there is one."""

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        """P of every token of whole sentences, each in the state before it; 0 of `<S>`. (tokens,)"""

    def distribution(self, context: np.ndarray, state: np.ndarray) -> np.ndarray:
        """P of every word after a context that led to this state. (words,)"""

    def faults(self) -> Iterator[tuple[bool, str]]: ...


class NeuralModel(LanguageModel):
    """A network on disk. `device` says where texts are scored: `cpu`, with NumPy, or `cuda`, with PyTorch."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.device = Path(path), "cpu"
        self.manifest = storage.read_manifest(self.path)
        try:
            self._open()
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{self.path} is damaged ({error!r}); restore or rebuild the model") from error

    def _open(self) -> None:
        how = self.manifest["vocabulary"]
        self.vocabulary = Vocabulary.read(self.path / storage.VOCABULARY, how["closed"], how["document"])
        self.shape = self.manifest["network"]
        self.arrays = {
            name: storage.open_array(self.path / f"{name}.npy").reshape(size)
            for name, size in self.manifest["arrays"].items()
        }
        if len(self.vocabulary) != self.shape["words"]:
            raise ValueError(f"{len(self.vocabulary)} words, {self.shape['words']} expected")
        self.layer, self.output = self._parts()

    @abstractmethod
    def _parts(self) -> tuple[Layer | None, Output]:
        """What computes states, and what computes probabilities from them."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {shape_text(self.shape)}, {len(self.vocabulary):,} words>"

    def probabilities(self, tokens: np.ndarray, threads: int = 1) -> np.ndarray:
        if self.device == "cuda":
            return self._on_gpu(tokens)
        out = np.zeros(len(tokens), np.float64)
        begins = np.flatnonzero(tokens == BEGIN)
        lengths = np.diff(np.append(begins, len(tokens)))
        order = np.argsort(-lengths, kind="stable")  # sentences of one length do not wait for each other
        at_once = ROWS if self.layer is not None else SENTENCES
        groups = [order[i : i + at_once] for i in range(0, len(order), at_once)]

        def work(rows: np.ndarray) -> None:
            firsts = np.cumsum(lengths[rows]) - lengths[rows]
            places = np.arange(lengths[rows].sum()) + np.repeat(begins[rows] - firsts, lengths[rows])
            states = self._states(tokens, begins[rows], lengths[rows])
            out[places] = self.output.score(tokens[places], states)

        with threadpool_limits(1, "blas"):  # threads are over groups of sentences
            parallel.run(work, groups, threads)
        return out

    def _states(self, tokens: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Of every token of some sentences, one after another, the hidden state before it. (tokens, hidden)

        Nothing is known before `<S>`: its own state is empty.
        """
        states = np.zeros((int(lengths.sum()), self.shape["hidden"]), np.float32)
        if self.layer is None:
            return states
        firsts = np.cumsum(lengths) - lengths
        memory = self.layer.start()
        for t in range(int(lengths.max()) - 1):
            rows = np.flatnonzero(lengths > t + 1)
            words = np.zeros(ROWS, np.int64)
            words[rows] = tokens[begins[rows] + t]
            memory = self.layer.step(words, memory)
            states[firsts[rows] + t + 1] = memory[0][rows]
        return states

    def distribution(self, context: np.ndarray) -> np.ndarray:
        tokens = np.append(context, END).astype(np.uint32)
        states = self._states(tokens, np.array([0]), np.array([len(tokens)]))
        return self.output.distribution(tokens[:-1], states[-1])

    def move_to(self, engine: str) -> None:

        self.device = device_of(engine)

    def _on_gpu(self, tokens: np.ndarray) -> np.ndarray:
        from snm.baselines.neural.batches import score
        from snm.baselines.neural.networks import Network, Shape

        network = Network(Shape(**self.shape), self.output.tree, "cuda")
        network.fill(self.arrays)
        return score(network, tokens, network.table is not None)

    def faults(self) -> Iterator[tuple[bool, str]]:
        for name, array in self.arrays.items():
            yield not np.isfinite(array).all(), f"{name} holds what is no number"
        yield from self.output.faults()
