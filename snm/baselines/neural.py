"""Neural models: settings, the road from text to a folder, and scores of a folder on a CPU.

A model is scored with NumPy and Numba; PyTorch is needed to train one, and to score it on a GPU.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from snm import parallel, storage
from snm.baselines.tree import Tree
from snm.classes import CLASSES, FREQUENT, learn_classes
from snm.classes import PASSES as CLASS_PASSES
from snm.corpus import Text
from snm.errors import FormatError, MissingExtra, SettingsError
from snm.model import LanguageModel
from snm.progress import Progress, silent
from snm.storage import ModelWriter
from snm.vocabulary import BEGIN, END, Vocabulary

if TYPE_CHECKING:
    from snm.baselines.fitting import FitSettings
    from snm.baselines.networks import Network, Shape

CELLS = ("rnn", "lstm")
OUTPUTS = ("tree", "adaptive")
ORDERS = {"hsme": 5, "rnn": 9}  # the benchmark's
PASSES = {"hsme": 2, "rnn": 6}
FEATURE_PASSES = 1  # of an RNN's features, its last
RATES = {"rnn": 0.001, "lstm": 0.002}  # of Adam
FEATURE_RATE = 0.3  # of AdaGrad
LARGEST_EMBEDDING = 512
STEPS_A_PASS = 1500
BATCHES = 256, 32768  # events a step, at least and at most
SLOTS_A_TOKEN = {"hsme": 8, "rnn": 16}  # of the table of feature weights; the benchmark's models have 8 and 25
SLOTS = 1 << 16, 1 << 30
LITTLE_TEXT = 10_000_000  # tokens
DROPOUT = {"rnn": (0.3, 0.1), "lstm": (0.5, 0.1)}  # on little text, and on more
ROWS = 32
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
    checkpoint: float = 600.0

    def __post_init__(self) -> None:
        for name, low in (("hidden", 1), ("passes", 0), ("batch", 1), ("slots", 2), ("checkpoint", 0)):
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise SettingsError(f"{name} is {value}; expected {low} or more")
        for name, known in (("cell", CELLS), ("softmax", (None, *OUTPUTS))):
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


def checkpoint_folder(output: Path) -> Path:
    """Where the training of a model that will be in `output` leaves what it needs to go on."""
    return output.with_name(output.name + ".checkpoint")


def clear_checkpoint(output: Path) -> None:
    shutil.rmtree(checkpoint_folder(output), ignore_errors=True)


# ---------------------------------------------------------------------------------------------
# training


def train(
    model: str, how: NetworkSettings, order: int | None, seed: int, text: Text, dev: Text, vocabulary: Vocabulary,
    writer: ModelWriter, device: str, progress: Progress = silent, notify: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:  # fmt: skip
    """Train a network on a text and write its arrays; what the manifest is to say of it.

    `dev` says which pass is best. `writer`'s path is where the model will be: the checkpoint is beside it.
    """
    from snm.baselines.fitting import Checkpoint, Fit

    network, tree = make_network(model, how, order, seed, text, vocabulary, device, progress)
    size = sum(array.size for _, array in network.arrays())
    settings = fit_settings(model, how, seed, text.events)
    notify(f"{shape_text(asdict(network.shape))}: {size:,} parameters, on {network.device.type}")
    fit = Fit(network, text, dev, settings, progress)
    run = {name: hashlib.sha256(t.tokens.tobytes()).hexdigest()[:16] for name, t in (("text", text), ("dev", dev))}
    checkpoint = Checkpoint(writer.path, {**run, **asdict(network.shape), **asdict(settings)})
    if checkpoint.restore(fit):
        notify(f"going on from {checkpoint.folder}, in pass {fit.report.passes + 1} of {settings.passes}")
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
        "network": asdict(network.shape),
        "arrays": shapes,
        "parameters": size,
        "training": {**asdict(settings), "device": network.device.type, **done},
    }


def make_network(
    model: str, how: NetworkSettings, order: int | None, seed: int, text: Text, vocabulary: Vocabulary,
    device: str, progress: Progress = silent,
) -> tuple[Network, Tree | None]:  # fmt: skip
    """A network before training, and its tree where it has one."""
    from snm.baselines.networks import Network

    shape = _shape(model, how, order, text, vocabulary)
    counts = np.bincount(text.tokens, minlength=len(vocabulary))
    tree, odds = None, None
    if shape.softmax == "tree":
        with progress("word classes", CLASS_PASSES * min(len(vocabulary), FREQUENT)) as bar:
            classes = learn_classes(text, len(vocabulary), CLASSES, seed, bar)
        tree, odds = Tree.build(counts, classes, vocabulary.never_a_target)
    network = Network(shape, tree, device)
    network.start(counts, odds, seed)
    return network, tree


def fit_settings(model: str, how: NetworkSettings, seed: int, events: int) -> FitSettings:
    """How a network is trained on so many events, where nothing else is asked for."""
    from snm.baselines.fitting import FitSettings

    passes = PASSES[model] if how.passes is None else how.passes
    return FitSettings(
        passes=passes,
        feature_passes=passes if model == "hsme" else min(FEATURE_PASSES, passes),
        batch=how.batch or int(np.clip(events // STEPS_A_PASS, *BATCHES)),
        rate=how.rate or RATES[how.cell],
        feature_rate=(how.rate if model == "hsme" else None) or FEATURE_RATE,
        dropout=DROPOUT[how.cell][events >= LITTLE_TEXT] if how.dropout is None else how.dropout,
        seed=seed,
    )


def _shape(model: str, how: NetworkSettings, order: int | None, text: Text, vocabulary: Vocabulary) -> Shape:
    from snm.baselines.networks import Shape

    hidden = 0 if model == "hsme" else how.hidden
    output = how.output_of(model)
    if output == "adaptive" and (order or how.slots):
        raise SettingsError("an adaptive softmax has no features of n-grams; leave out order and slots")
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


def _tree_arrays(tree: Tree | None) -> list[tuple[str, np.ndarray]]:
    return [] if tree is None else [("word_up", tree.word_up), ("node_up", tree.node_up)]


# ---------------------------------------------------------------------------------------------
# scoring


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
        from snm.engines import device_of

        self.device = device_of(engine)

    def _on_gpu(self, tokens: np.ndarray) -> np.ndarray:
        from snm.baselines.fitting import score
        from snm.baselines.networks import Network, Shape

        network = Network(Shape(**self.shape), self.output.tree, "cuda")
        network.fill(self.arrays)
        return score(network, tokens, network.table is not None)

    def faults(self) -> Iterator[tuple[bool, str]]:
        for name, array in self.arrays.items():
            yield not np.isfinite(array).all(), f"{name} holds what is no number"
        yield from self.output.faults()
