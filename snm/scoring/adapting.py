"""A model with another gate: learned on text of a new domain, the other files shared with the old model."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import numpy as np

from snm.arguments import functions, whole_number
from snm.errors import InputError
from snm.gate.fitting import PASSES, initial_gate, refit
from snm.layouts.gate import Gate
from snm.model import LanguageModel
from snm.progress import Notify, Progress, ignore, silent
from snm.storage import ModelWriter, link_files
from snm.text.encoding import Sentences, Text, as_lines, encode_files
from snm.text.sampling import sample_sentences

UNITS = 64  # of the gate of a model that has none
MAX_EVENTS = 300_000
GATE = "gate"


def adapt_gate(
    model: LanguageModel, gate: Gate, sentences: Text | Sentences, output: str | Path, *, force: bool = False,
    seed: int = 1, on_error: str = "fail", progress: Progress = silent, notify: Notify = ignore,
) -> Path:  # fmt: skip
    """See `LanguageModel.adapt`. The path of the new model."""
    functions(progress=progress, notify=notify)
    seed = whole_number("seed", seed, 0)
    text = sentences
    if not isinstance(text, Text):
        source = text if isinstance(text, os.PathLike) else as_lines(text, model.vocabulary, on_error)
        text = encode_files(source, model.vocabulary, on_error=on_error, notify=notify)
    if not text.events:
        raise InputError("no words to adapt to; expected one sentence a line")
    text = sample_sentences(text, MAX_EVENTS, seed)
    assert hasattr(model, "gate_events")
    events = model.gate_events(text)
    start = start_gate(gate, seed)
    with ModelWriter(output, force, notify) as writer:
        with progress("gating", PASSES * len(events)) as bar:
            flat, report = refit(events, start, seed, bar)
        notify(
            f"perplexity of this text {report.ungated:.2f} → {report.perplexities[-1]:.2f}; of new text, less changes"
        )
        link_files(
            Path(os.path.abspath(model.path)), writer.folder, [f"{GATE}.npy", "manifest.json"], model.manifest["files"]
        )
        writer.array(GATE, "<f4").append(flat)
        units = len(Gate.of(flat, events.templates).bias)
        kept = {name: entry for name, entry in model.manifest.items() if name not in ("format", "version", "files")}
        writer.finish({**kept, "gate": {"units": units, **asdict(report)}})
    return writer.path


def start_gate(gate: Gate, seed: int) -> np.ndarray:
    """The flat array of a gate, or of a new one where there is none."""
    if len(gate.bias):
        return np.concatenate([part.ravel() for part in gate]).astype(np.float32)
    return initial_gate(len(gate.offset), UNITS, np.random.default_rng(seed))
