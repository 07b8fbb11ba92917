"""Neural models on disk: reading, and scoring with NumPy or, on a GPU, with PyTorch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from snm import manifest, parallel, storage
from snm.arguments import choice
from snm.baselines.neural.classes import WordClasses
from snm.baselines.neural.layer import RecurrentLayer
from snm.baselines.neural.states import NetworkStates
from snm.baselines.neural.tree import Tree
from snm.describing import shape_text
from snm.devices import device_of
from snm.errors import FormatError
from snm.layouts.tokens import BEGIN, END
from snm.model import IDS, LanguageModel, wrong_state

INTEGERS = "word_up", "node_up", "places", "class_starts"  # arrays of whole numbers; the others are float32
BLOCK_TOKENS, BLOCK_BYTES = 1 << 15, 1 << 25  # of a text, and of their states, that are scored together


def array_shapes(shape: dict[str, Any], sizes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The arrays of a network, see docs/format.md. The parts of its vocabulary are those of `sizes`."""
    words, hidden, embedding = shape["words"], shape["hidden"], shape["embedding"]
    vectors = {name: size for name, size in sizes.items() if name.startswith("vectors.")}
    parts = [size[0] for size in vectors.values()]
    made: dict[str, list[int]] = {}
    if hidden:
        gates = {"rnn": 1, "lstm": 4}[shape["cell"]] * hidden
        if sum(parts) != words or list(vectors) != [f"vectors.{i}" for i in range(len(parts))]:
            raise ValueError(f"vectors of {sum(parts)} words; expected {words}")
        if min(parts) < 1 or (len(parts) > 1 and shape["softmax"] != "adaptive"):
            raise ValueError(f"the vocabulary has parts of {parts} words")
        made = {
            **{name: [n, embedding] for name, n in zip(vectors, parts, strict=True)},
            "layer.weight_ih_l0": [gates, embedding], "layer.weight_hh_l0": [gates, hidden],
            "layer.bias_ih_l0": [gates], "layer.bias_hh_l0": [gates],
        }  # fmt: skip
    if shape["softmax"] == "adaptive":
        return made | {
            "projection": [embedding, hidden], "biases": [words], "parts": [len(parts) - 1, embedding + 1],
        }  # fmt: skip
    if shape["softmax"] == "classes":
        classes = sizes["class_vectors"][0]
        return made | {
            "projection": [embedding, hidden], "biases": [words], "class_vectors": [classes, embedding + 1],
            "places": [words], "class_starts": [classes + 1],
        }  # fmt: skip
    if shape["order"] and (shape["slots"] < 2 or shape["slots"] & (shape["slots"] - 1)):
        raise ValueError(f"{shape['slots']} slots; expected a power of two")
    nodes = words - len({BEGIN, shape["never_a_target"]}) - 1
    made |= {"word_up": [words], "node_up": [nodes], "starts": [nodes]}
    made |= {"table": [shape["slots"]], "scales": [shape["order"]]}
    return made | ({"nodes": [nodes, hidden]} if hidden else {})


def any_numbers() -> np.errstate:
    """A context for what may compute with the numbers of a stranger's file, without NumPy's warnings.

    They are not read on opening: there are too many. What they make is checked, see `LanguageModel.probabilities`.
    """
    return np.errstate(all="ignore")


class Output(Protocol):
    """Computes probabilities from hidden states."""

    @property
    def grouping(self) -> Tree | WordClasses | None:
        """How the output groups words, if it does."""

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        """P of each token of whole sentences, given the state before it; 0 for `<S>`. (tokens,) float64"""

    def distribution(self, context: np.ndarray, state: np.ndarray) -> np.ndarray:
        """P of each word after a context and the state that it led to. (words,) float64"""

    def candidates(self, words: np.ndarray, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """P of words after each state. (n, reach) last words, (n, hidden), and (1 or n, m) to (n, m) float64"""

    def faults(self) -> Iterator[tuple[bool, str]]: ...


class NeuralModel(LanguageModel):
    """A neural model on disk. `device` is where it scores texts: `cpu` with NumPy, or `cuda` with PyTorch."""

    scores_in_parallel = False

    def __init__(self, path: str | Path) -> None:
        self.path, self.device = Path(path), "cpu"
        self.manifest = manifest.read(self.path)
        with manifest.opening(self.path), any_numbers():
            self._open()

    def _open(self) -> None:
        self.vocabulary = manifest.read_vocabulary(self.path, self.manifest)
        self.spelling = manifest.read_spelling(self.path, self.manifest)
        self.shape, sizes = self.manifest["network"], self.manifest["arrays"]
        known = len(self.vocabulary), self.vocabulary.never_a_target
        if (self.shape["words"], self.shape["never_a_target"]) != known or sizes != array_shapes(self.shape, sizes):
            raise FormatError(f"{self.path}: the entries of its network contradict each other; rebuild the model")
        self.arrays = {
            name: storage.open_array(self.path / f"{name}.npy", "<i4" if name in INTEGERS else "<f4").reshape(size)
            for name, size in sizes.items()
        }
        self.layer, self.output = self._parts()
        self._states_of = NetworkStates(max(1, self.shape["order"] - 1), self.layer, self.vocabulary.tag)

    @abstractmethod
    def _parts(self) -> tuple[RecurrentLayer | None, Output]:
        """The recurrent layer, if there is one, and the output."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {shape_text(self.shape)}, {len(self.vocabulary):,} words>"

    def _probabilities(self, tokens: np.ndarray, threads: int) -> np.ndarray:
        if self.device == "cuda":
            return self._on_gpu(tokens)
        out = np.zeros(len(tokens), np.float64)

        def work(part: tuple[int, int]) -> None:
            here = tokens[slice(*part)]
            with any_numbers():
                out[slice(*part)] = self.output.score(here, self._states(here))

        parallel.run(work, self._blocks(tokens, threads), threads)
        return out

    def _blocks(self, tokens: np.ndarray, threads: int) -> list[tuple[int, int]]:
        """[start, stop) of whole sentences with about as many tokens as are scored together."""
        begins = np.flatnonzero(tokens == BEGIN)
        if not len(begins):
            return []
        size = min(BLOCK_TOKENS, BLOCK_BYTES // (4 * max(1, self.shape["hidden"])), -(-len(tokens) // threads))
        chosen = begins[np.searchsorted(begins, np.arange(0, len(tokens), size), "right") - 1]
        return list(pairwise([*np.unique(chosen).tolist(), len(tokens)]))

    def _states(self, tokens: np.ndarray) -> np.ndarray:
        """The hidden state before each token of whole sentences; 0 before `<S>`. (tokens, hidden)"""
        if self.layer is None:
            return np.zeros((len(tokens), 0), np.float32)
        begins = np.flatnonzero(tokens == BEGIN)
        return self.layer.run(tokens, begins, np.diff(np.append(begins, len(tokens))))

    def _distribution(self, context: np.ndarray) -> np.ndarray:
        tokens = np.append(context, END).astype(np.uint32)
        with any_numbers():
            return self.output.distribution(tokens[:-1], self._states(tokens)[-1])

    # -- word by word

    @property
    def reach(self) -> int | None:
        """How many words before a word its probability depends on; None with a recurrent layer: all of them."""
        return self._states_of.words if self.layer is None else None

    @property
    def state_width(self) -> int:
        return self._states_of.width

    def start(self) -> bytes:
        with any_numbers():
            return self._states_of.start().tobytes()

    def null_state(self) -> bytes:
        """The state before any word, not even `<S>`."""
        return self._states_of.null().tobytes()

    def step(self, state: bytes, word: str | int) -> tuple[float, bytes]:
        states, ids = self.state_array([state]), np.array([[self._id_of(word)]], IDS)
        score = float(self.expand(states, ids)[0, 0])
        with any_numbers():
            return score, self._states_of.follow(states, ids[0]).tobytes()

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        ids = np.atleast_2d(self._candidates(states, words))
        if not len(states) or not ids.shape[1]:
            return np.empty((len(states), ids.shape[1]))
        with any_numbers():
            p = self.output.candidates(self._states_of.ids(states), self._states_of.hidden(states), ids)
        p[np.broadcast_to((ids == BEGIN) | (ids == self.vocabulary.never_a_target), p.shape)] = 0
        with any_numbers():
            return np.where(p > 0, np.log10(p), np.nan)

    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        ids = np.atleast_2d(self._candidates(states, words))
        chosen = self._chosen(chosen, len(states) * ids.shape[1])
        rows, columns = np.divmod(chosen, max(1, ids.shape[1]))
        with any_numbers():
            return self._states_of.follow(states[rows], ids[0 if len(ids) == 1 else rows, columns])

    def _candidates(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        ids = super()._candidates(states, words)
        if (self._states_of.ids(states) >= len(self.vocabulary)).any():
            raise wrong_state("a state of another vocabulary")
        return ids

    def move_to(self, engine: str) -> None:
        self.device = device_of(choice("engine", engine, ("auto", "cpu", "gpu")))

    def _on_gpu(self, tokens: np.ndarray) -> np.ndarray:
        from snm.baselines.neural.batches import score
        from snm.baselines.neural.networks import Network, Shape

        network = Network(Shape(**self.shape), self.output.grouping, "cuda")
        network.fill(self.arrays)
        return score(network, tokens, network.table is not None)

    def faults(self) -> Iterator[tuple[bool, str]]:
        for name, array in self.arrays.items():
            yield not np.isfinite(array).all(), f"{name} has a number that is not finite"
        yield from self.output.faults()
