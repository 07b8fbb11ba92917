"""Neural models: settings, the road from text to a folder, and scores of a folder on a CPU.

A model is scored with NumPy and Numba; PyTorch is needed to train one, and to score it on a GPU.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from snm import parallel, storage
from snm.corpus import Text
from snm.errors import FormatError, MissingExtra, SettingsError
from snm.model import LanguageModel
from snm.progress import Progress, silent
from snm.storage import ModelWriter
from snm.vocabulary import BEGIN, END, Vocabulary

CELLS = ("rnn", "lstm")
OUTPUTS = ("tree", "adaptive")
DEVICES = ("auto", "cpu", "cuda")
ORDERS = {"hsme": 5, "rnn": 9}  # the benchmark's
PASSES = {"hsme": 2, "rnn": 10}
LARGEST_EMBEDDING = 512
STEPS_A_PASS = 1500
BATCHES = 256, 32768  # events a step, at least and at most
SLOTS_A_TOKEN = {"hsme": 8, "rnn": 16}  # of the table of feature weights; the benchmark's models have 8 and 25
SLOTS = 1 << 16, 1 << 30
LITTLE_TEXT = 10_000_000  # tokens
ROWS = 16
"""Sentences that are scored side by side. A matrix product always has this many rows, whatever there is to
score, so that a sentence's score does not depend on what else is scored: other shapes round differently."""
SENTENCES = 1024  # scored at a time where there is no layer


@dataclass(frozen=True)
class NetworkSettings:
    """What a neural model can be asked for; None is what the text's size or the model says.

    `cell` is `rnn` (the benchmark's) or `lstm`, `softmax` the output: `tree` (binary decisions, with hashed features of
    n-grams; an RNN's and HSME's) or `adaptive` (an LSTM's). `batch` is in events, `checkpoint` in seconds.
    """

    cell: str = "rnn"
    hidden: int = 256
    softmax: str | None = None
    passes: int | None = None
    rate: float | None = None
    batch: int | None = None
    dropout: float | None = None
    slots: int | None = None
    device: str = "auto"
    checkpoint: float = 600.0

    def __post_init__(self) -> None:
        for name, low in (("hidden", 1), ("passes", 0), ("batch", 1), ("slots", 2), ("checkpoint", 0)):
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise SettingsError(f"{name} is {value}; expected {low} or more")
        for name, known in (("cell", CELLS), ("softmax", (None, *OUTPUTS)), ("device", DEVICES)):
            if getattr(self, name) not in known:
                expected = ", ".join(map(str, filter(None, known)))
                raise SettingsError(f"{name} {getattr(self, name)!r} is not known; expected one of {expected}")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise SettingsError(f"rate is {self.rate}; expected a number above 0")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise SettingsError(f"dropout is {self.dropout}; expected 0 or more, and below 1")

    def output_of(self, model: str) -> str:
        if model == "hsme":
            return "tree"
        return self.softmax or {"rnn": "tree", "lstm": "adaptive"}[self.cell]


def require_torch() -> None:
    if find_spec("torch") is None:
        raise MissingExtra("torch", "neural", "training a neural model, or scoring one on a GPU,")


def choose_device(asked: str) -> str:
    """`cuda` where it is asked for or, with `auto`, to be had."""
    require_torch()
    import torch

    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise SettingsError("device is cuda, but PyTorch finds no GPU; leave it out to train on the CPU")
    return "cuda" if asked != "cpu" and there else "cpu"


# ---------------------------------------------------------------------------------------------
# training


def train(
    model: str, how: NetworkSettings, order: int | None, seed: int, text: Text, dev: Text, vocabulary: Vocabulary,
    writer: ModelWriter, progress: Progress = silent, notify: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:  # fmt: skip
    """Train a network on a text and write its arrays; what the manifest is to say of it.

    `dev` says which pass is best. `writer`'s path is where the model will be: the checkpoint is beside it.
    """
    from snm.baselines.fitting import Checkpoint, Fit, FitSettings
    from snm.baselines.networks import Network
    from snm.baselines.tree import Tree

    device = choose_device(how.device)
    shape = _shape(model, how, order, text, vocabulary)
    counts = np.bincount(text.tokens, minlength=len(vocabulary))
    tree, odds = Tree.build(counts, vocabulary.never_a_target) if shape.softmax == "tree" else (None, None)
    network = Network(shape, tree, device)
    network.start(counts, odds, seed)
    passes = PASSES[model] if how.passes is None else how.passes
    rates = {"hsme": 0.1, "rnn": 0.001, "lstm": 0.002}
    settings = FitSettings(
        passes,
        passes if model == "hsme" else min(1, passes),
        how.batch or int(np.clip(text.events // STEPS_A_PASS, *BATCHES)),
        how.rate or rates[shape.cell or "hsme"],
        (how.rate if model == "hsme" else None) or 0.1,
        (0.5 if text.events < LITTLE_TEXT else 0.1) if how.dropout is None else how.dropout,
        seed,
    )
    notify(f"{shape_text(asdict(shape))}: {n_parameters(network):,} parameters, on {device}; {settings.batch:,} events a step")
    fit = Fit(network, text, dev, settings, progress)
    run = {"text": hashlib.sha256(text.tokens).hexdigest()[:16], "dev": hashlib.sha256(dev.tokens).hexdigest()[:16]}
    checkpoint = Checkpoint(writer.path, {**run, **asdict(shape), **asdict(settings)})
    if checkpoint.restore(fit):
        notify(f"going on from {checkpoint.folder}, in pass {fit.report.passes + 1} of {passes}")
    report = fit.run(lambda: checkpoint.save(fit), how.checkpoint or math.inf)
    if report.perplexities:
        steps = " → ".join(f"{p:.2f}" for p in report.perplexities)
        notify(f"held-out perplexity {steps}; kept pass {report.best_pass}")
    shapes = {}
    for name, array in [*network.arrays(), *_tree_arrays(tree)]:
        shapes[name] = list(array.shape)
        writer.array(name, array.dtype.str).append(array.reshape(-1))
    done = {k: v for k, v in asdict(report).items() if k not in ("passes", "steps", "loss")}
    return {
        "network": asdict(shape),
        "arrays": shapes,
        "parameters": n_parameters(network),
        "training": {**asdict(settings), "device": device, **done},
    }


def _shape(model: str, how: NetworkSettings, order: int | None, text: Text, vocabulary: Vocabulary) -> Any:
    from snm.baselines.networks import Shape

    hidden = 0 if model == "hsme" else how.hidden
    output = how.output_of(model)
    order = (order or ORDERS[model]) if output == "tree" else 0
    least = SLOTS_A_TOKEN[model] * text.events
    slots = how.slots or int(np.clip(1 << (least - 1).bit_length(), *SLOTS))
    if slots & (slots - 1):
        raise SettingsError(f"slots is {slots:,}; expected a power of two for a table of features")
    return Shape(
        len(vocabulary),
        vocabulary.never_a_target,
        how.cell if hidden else None,
        hidden,
        min(hidden, LARGEST_EMBEDDING),
        output,
        order,
        slots if order else 0,
    )


def shape_text(shape: dict[str, Any]) -> str:
    """A network in words."""
    parts = [f"{shape['cell'].upper()} of {shape['hidden']:,} units"] if shape["hidden"] else []
    if shape["order"]:
        parts.append(f"maximum entropy over hashed features of n-grams up to order {shape['order']}")
    output = "a tree of binary decisions" if shape["softmax"] == "tree" else "an adaptive softmax"
    return f"{' with '.join(parts)}, {output}"


def n_parameters(network: Any) -> int:
    return sum(array.size for _, array in network.arrays())


def _tree_arrays(tree: Any) -> list[tuple[str, np.ndarray]]:
    return [] if tree is None else [("word_up", tree.word_up), ("node_up", tree.node_up)]


# ---------------------------------------------------------------------------------------------
# scoring


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
        self.output: _TreeOutput | _SoftmaxOutput
        self.output = (_TreeOutput if self.shape["softmax"] == "tree" else _SoftmaxOutput)(self.shape, self.arrays)
        self.layer = _Layer(self.shape, self.arrays) if self.shape["hidden"] else None

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
        tokens = np.append(context, np.uint32(BEGIN)).astype(np.uint32)
        states = self._states(tokens, np.array([0]), np.array([len(tokens)]))
        return self.output.distribution(tokens, states[-1])

    def _on_gpu(self, tokens: np.ndarray) -> np.ndarray:
        choose_device("cuda")
        from snm.baselines.fitting import score
        from snm.baselines.networks import Network, Shape

        tree = self.output.tree if isinstance(self.output, _TreeOutput) else None
        network = Network(Shape(**self.shape), tree, "cuda")
        network.fill(self.arrays)
        return score(network, tokens, network.table is not None)

    def faults(self) -> Iterator[tuple[bool, str]]:
        for name, array in self.arrays.items():
            yield not np.isfinite(array).all(), f"{name} holds what is no number"
        if isinstance(self.output, _TreeOutput):
            yield from self.output.faults()


class _Layer:
    """A recurrent layer, a step at a time, for ROWS sentences side by side."""

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.hidden, self.cell = shape["hidden"], shape["cell"]
        self.vectors = [arrays[name] for name in sorted(arrays) if name.startswith("vectors.")]
        self.edges = np.cumsum([0, *(len(part) for part in self.vectors)])
        both = np.concatenate([arrays["layer.weight_ih_l0"], arrays["layer.weight_hh_l0"]], axis=1)
        self.weights = np.ascontiguousarray(both.T)
        self.bias = arrays["layer.bias_ih_l0"] + arrays["layer.bias_hh_l0"]

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        empty = np.zeros((ROWS, self.hidden), np.float32)
        return empty, empty

    def step(self, words: np.ndarray, memory: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(state, cell) after one more word in every row."""
        state, cell = memory
        given = np.empty((ROWS, len(self.weights)), np.float32)
        for part, low in zip(self.vectors, self.edges, strict=False):
            rows = np.flatnonzero((words >= low) & (words < low + len(part)))
            given[rows, : part.shape[1]] = part[words[rows] - low]
        given[:, -self.hidden :] = state
        z = given @ self.weights + self.bias
        if self.cell == "rnn":
            return np.tanh(z), cell
        enter, keep, new, leave = np.split(z, 4, axis=1)
        cell = _sigmoid(keep) * cell + _sigmoid(enter) * np.tanh(new)
        return _sigmoid(leave) * np.tanh(cell), cell


def _sigmoid(x: np.ndarray) -> np.ndarray:
    half: np.ndarray = np.tanh(x * np.float32(0.5))
    return half * np.float32(0.5) + np.float32(0.5)


class _TreeOutput:
    """Binary decisions, from the state and from hashed features."""

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        from snm.baselines.tree import Tree

        self.tree = Tree(arrays["word_up"], arrays["node_up"])
        self.order = shape["order"]
        table = arrays["table"]
        shift = np.uint64(64 - (len(table) - 1).bit_length())
        vectors = arrays.get("nodes", np.zeros((len(self.tree), 0), np.float32))
        self.weights = table, shift, arrays["starts"], vectors

    def _hashes(self, tokens: np.ndarray) -> np.ndarray:
        from snm.kernels import tree

        hashes = np.empty((len(tokens), self.order), np.uint64)
        tree.hash_contexts(tokens, BEGIN, hashes)
        return hashes

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        from snm.kernels import tree

        out = np.empty(len(tokens), np.float64)
        tree.score_words(
            tokens, self._hashes(tokens), *self.weights, states, self.tree.word_up, self.tree.node_up, out
        )
        return out

    def distribution(self, tokens: np.ndarray, state: np.ndarray) -> np.ndarray:
        from snm.kernels import tree

        hashes = self._hashes(np.append(tokens[:-1], np.uint32(END)))[-1]
        out = np.empty(len(self.tree.word_up), np.float64)
        tree.score_all(hashes, *self.weights, state, self.tree.word_up, self.tree.node_up, out)
        return out

    def faults(self) -> Iterator[tuple[bool, str]]:
        node_up, word_up = self.tree.node_up, self.tree.word_up
        own = np.arange(len(node_up))
        yield bool((node_up[1:] >> 1 >= own[1:]).any() or node_up[0] != -1), "a node of the tree is not below another"
        sides = np.concatenate([node_up[1:], word_up[word_up >= 0]])
        yield not np.array_equal(np.sort(sides), np.arange(2 * len(node_up))), "the tree is not whole"


class _SoftmaxOutput:
    """An adaptive softmax: a part for frequent words, and one for each band of rarer ones."""

    def __init__(self, shape: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.vectors = [arrays[name] for name in sorted(arrays) if name.startswith("vectors.")]
        self.edges = np.cumsum([0, *(len(part) for part in self.vectors)]).tolist()
        self.projection = np.ascontiguousarray(arrays["projection"].T)
        self.biases, parts = arrays["biases"], arrays["parts"]
        first = self.edges[1]
        self.head = self.vectors[0].T, np.ascontiguousarray(parts[:, :-1].T)
        self.head_bias = np.concatenate([self.biases[:first], parts[:, -1]])
        self.head_bias[[BEGIN, shape["never_a_target"]]] = -np.inf

    def score(self, tokens: np.ndarray, states: np.ndarray) -> np.ndarray:
        out = np.empty(len(tokens), np.float64)
        z = _product(states, self.projection)
        parts = np.searchsorted(self.edges, tokens, "right") - 1
        for rows in _tiles(np.arange(len(tokens))):
            logs = self._head(z[rows])
            column = np.where(parts[rows] > 0, self.edges[1] + parts[rows] - 1, tokens[rows])
            out[rows] = logs[np.arange(len(rows)), column]
        for i in range(1, len(self.vectors)):
            for rows in _tiles(np.flatnonzero(parts == i)):
                out[rows] += self._tail(i, z[rows])[np.arange(len(rows)), tokens[rows] - self.edges[i]]
        return np.exp(out)

    def _head(self, z: np.ndarray) -> np.ndarray:
        return _log_softmax(np.hstack([_product(z, part) for part in self.head]) + self.head_bias)

    def _tail(self, i: int, z: np.ndarray) -> np.ndarray:
        return _log_softmax(_product(z, self.vectors[i].T) + self.biases[self.edges[i] : self.edges[i + 1]])

    def distribution(self, tokens: np.ndarray, state: np.ndarray) -> np.ndarray:
        z = _product(state[None], self.projection)
        head = self._head(z)[0]
        first = self.edges[1]
        tails = [head[first + i - 1] + self._tail(i, z)[0] for i in range(1, len(self.vectors))]
        p: np.ndarray = np.exp(np.concatenate([head[:first], *tails]))
        return p


def _tiles(rows: np.ndarray) -> Iterator[np.ndarray]:
    for i in range(0, len(rows), ROWS):
        yield rows[i : i + ROWS]


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, ROWS rows at a time."""
    padded = np.zeros((-len(a) % ROWS + len(a), a.shape[1]), a.dtype)
    padded[: len(a)] = a
    parts = [padded[i : i + ROWS] @ b for i in range(0, len(padded), ROWS)]
    made: np.ndarray = np.concatenate(parts)[: len(a)] if len(parts) > 1 else parts[0][: len(a)]
    return made


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    """In double precision, so that the exponentials of a row sum to one. (rows, n) float64"""
    scores = scores.astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores


class RnnModel(NeuralModel):
    kind = "rnn"


class HsmeModel(NeuralModel):
    kind = "hsme"
