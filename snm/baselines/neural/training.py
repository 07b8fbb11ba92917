"""Training of a neural model, from a text to the arrays of its folder; default settings."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from snm.baselines.neural.checkpoints import Checkpoint
from snm.baselines.neural.classes import WordClasses
from snm.baselines.neural.fitting import Fit, FitSettings
from snm.baselines.neural.networks import Network, Shape
from snm.baselines.neural.settings import NetworkSettings
from snm.baselines.neural.tree import Tree
from snm.describing import shape_text
from snm.errors import SettingsError
from snm.progress import Notify, Progress, ignore, silent
from snm.storage import ModelWriter, turn
from snm.text.classes import CLASSES, FREQUENT, learn_classes
from snm.text.classes import PASSES as CLASS_PASSES
from snm.text.encoding import Text
from snm.text.vocabulary import Vocabulary

ORDERS = {"hsme": 5, "rnn": 9, "hybrid": 5}  # those of the benchmark
PASSES = {"hsme": 2, "rnn": 6, "hybrid": 6}
FEATURE_PASSES = 1  # of an RNN: the last ones
RATES = {"rnn": 0.001, "lstm": 0.002}  # of Adam
FEATURE_RATE = 0.3  # of AdaGrad
MAX_EMBEDDING = 512
STEPS_PER_PASS = 1500
MIN_BATCH, MAX_BATCH = 256, 32768  # events a step
SLOTS_PER_TOKEN = {"hsme": 8, "rnn": 16, "hybrid": 8}  # of the table of feature weights; 8 and 25 in the benchmark
MIN_SLOTS, MAX_SLOTS = 1 << 16, 1 << 30
LITTLE_TEXT = 10_000_000  # tokens
DROPOUT = {"rnn": (0.3, 0.1), "lstm": (0.5, 0.1)}  # on little text, and on more


def train_network(
    model: str, how: NetworkSettings, order: int | None, seed: int, text: Text, dev: Text, vocabulary: Vocabulary,
    writer: ModelWriter, output: Path, device: str, progress: Progress = silent, notify: Notify = ignore,
    learned: np.ndarray | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train a network on a text and write its arrays; return its entries of the manifest.

    `dev` is the held-out text that chooses the best pass. The checkpoint lies beside `output`, the model that the
    network is or becomes a part of.
    """
    network, grouping = make_network(model, how, order, seed, text, vocabulary, device, progress, learned)
    size = sum(array.size for _, array in network.arrays())
    settings = fit_settings(model, how, seed, text.events)
    notify(f"{shape_text(asdict(network.shape))}: {size:,} parameters, on {network.device.type}")
    fit = Fit(network, text, dev, settings, progress)
    run = {name: hashlib.sha256(t.tokens.tobytes()).hexdigest()[:16] for name, t in (("text", text), ("dev", dev))}
    checkpoint = Checkpoint(output, {**run, **asdict(network.shape), **asdict(settings)})
    every = how.checkpoint or math.inf

    def save() -> None:
        try:
            checkpoint.save(fit)
        except OSError as error:
            notify(f"no checkpoint: {error}")

    with turn(checkpoint.folder, wait=False) as ours:
        if not ours:
            notify(f"another run uses {checkpoint.folder}; this one makes no checkpoints")
        elif checkpoint.restore(fit):
            notify(f"resuming from {checkpoint.folder}, in pass {fit.report.passes + 1} of {settings.passes}")
        report = fit.run(save, every if ours else math.inf)
    if report.perplexities:
        steps = " → ".join(f"{p:.2f}" for p in report.perplexities)
        notify(f"held-out perplexity {steps}; kept pass {report.best_pass}")
    shapes = {}
    for name, array in [*network.arrays(), *_grouping_arrays(grouping)]:
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
    device: str, progress: Progress = silent, learned: np.ndarray | None = None,
) -> tuple[Network, Tree | WordClasses | None]:  # fmt: skip
    """An untrained network, and how its output groups words, if it does.

    `learned`: the classes of words; they are learned from the text if they are not given.
    """
    shape = _shape(model, how, order, text, vocabulary)
    counts = np.bincount(text.tokens, minlength=len(vocabulary))
    grouping: Tree | WordClasses | None = None
    odds = None
    if shape.softmax != "adaptive":
        if learned is None:
            with progress("word classes", CLASS_PASSES * min(len(vocabulary), FREQUENT)) as bar:
                learned = learn_classes(text, len(vocabulary), CLASSES, seed, bar)
        if shape.softmax == "tree":
            grouping, odds = Tree.build(counts, learned, vocabulary.never_a_target)
        else:
            grouping = WordClasses.build(counts, learned)
    network = Network(shape, grouping, device)
    network.start(counts, odds, seed)
    return network, grouping


def fit_settings(model: str, how: NetworkSettings, seed: int, events: int) -> FitSettings:
    """The settings of a run over `events` events; those that `how` leaves open have their defaults."""
    passes = PASSES[model] if how.passes is None else how.passes
    return FitSettings(
        passes=passes,
        feature_passes=passes if model == "hsme" else min(FEATURE_PASSES, passes),
        batch=how.batch or int(np.clip(events // STEPS_PER_PASS, MIN_BATCH, MAX_BATCH)),
        rate=how.rate or RATES[how.cell_of(model)],
        feature_rate=(how.rate if model == "hsme" else None) or FEATURE_RATE,
        dropout=DROPOUT[how.cell_of(model)][events >= LITTLE_TEXT] if how.dropout is None else how.dropout,
        seed=seed,
    )


def _shape(model: str, how: NetworkSettings, order: int | None, text: Text, vocabulary: Vocabulary) -> Shape:
    hidden = 0 if model == "hsme" else how.hidden
    output = how.output_of(model)
    if output != "tree" and (order or how.slots):
        raise SettingsError(f"a network with softmax {output!r} has no n-gram features; leave out order and slots")
    order = (order or ORDERS[model]) if output == "tree" else 0
    least = SLOTS_PER_TOKEN[model] * text.events
    slots = how.slots or int(np.clip(1 << (least - 1).bit_length(), MIN_SLOTS, MAX_SLOTS))
    if slots & (slots - 1):
        raise SettingsError(f"slots is {slots:,}; expected a power of two")
    return Shape(
        len(vocabulary),
        vocabulary.never_a_target,
        how.cell_of(model) if hidden else None,
        hidden,
        min(hidden, MAX_EMBEDDING),
        output,
        order,
        slots if order else 0,
    )


def _grouping_arrays(grouping: Tree | WordClasses | None) -> list[tuple[str, np.ndarray]]:
    if isinstance(grouping, Tree):
        return [("word_up", grouping.word_up), ("node_up", grouping.node_up)]
    return [] if grouping is None else [("places", grouping.places), ("class_starts", grouping.starts)]
