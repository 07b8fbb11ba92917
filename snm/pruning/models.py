"""`prune`: a smaller model out of a model, within a number of bytes or links, or a loss of perplexity."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from snm.arguments import MAX_THREADS, file_path, functions, whole_number
from snm.baselines.backoff.model import BackoffModel
from snm.errors import InputError, SettingsError
from snm.gate.events import gate_events
from snm.gate.fitting import MIN_EVENTS, PASSES, fit
from snm.loading import is_arpa, load
from snm.manifest import take_spelling
from snm.matrix.reading import open_matrix
from snm.model import LanguageModel
from snm.progress import Notify, Progress, ignore, silent
from snm.pruning.backoff import prune_backoff
from snm.pruning.budget import Budget
from snm.pruning.matrix import MatrixPruner, describe_pruned, rest_bytes
from snm.scoring.model import SnmModel
from snm.scratch import scratch_folder
from snm.storage import MANIFEST, VOCABULARY, ModelWriter, link_files
from snm.text.encoding import Text, encode_files
from snm.text.files import Sources, are_given, names
from snm.text.sampling import sample_sentences

MAX_HELD_OUT = 300_000  # tokens of held-out text that are used
LOSS_STEPS = 7  # of the search for a size with a given loss: each halves the range of the logarithm of the size
SEED = 1
MANIFEST_BYTES = 4000  # by which the manifest may grow, and what an SNM's classes, values and gate have as headers


def prune(
    model: str | Path | LanguageModel, output: str | Path, *, size: int | None = None, links: int | None = None,
    loss: float | None = None, dev: Sources | None = None, threads: int = 1, on_error: str = "fail",
    force: bool = False, progress: Progress = silent, notify: Notify = ignore,
) -> LanguageModel:  # fmt: skip
    """Write a smaller SNM or backoff model to the folder `output`, without what brings least.

    Exactly one of `size` (bytes of the folder, at most), `links` (at most) and `loss` (of perplexity: 0.01 is 1 %) is
    given. `dev` is held-out text: an SNM's gate is learned anew on it, without it the gate stays as it is; and `loss`
    is measured on it. Without it the loss of a backoff model is estimated from the model alone; an SNM needs it.
    """
    functions(progress=progress, notify=notify)
    budget, threads = Budget(size, links, loss), whole_number("threads", threads, 1, MAX_THREADS)
    opened = model if isinstance(model, LanguageModel) else load(file_path("model", model), progress=progress)
    check_kind(opened)
    opened.check_structure()
    text = _held_out(opened, dev, on_error, notify)
    if budget.loss is not None and text is not None and text.events < MIN_EVENTS:
        raise InputError(
            f"{names(dev or [])} has {text.events:,} tokens, too few to measure a loss on; expected {MIN_EVENTS:,} or "
            f"more; or give --size or --links"
        )
    if budget.loss is not None and text is not None:
        budget = _size_for_loss(opened, Path(output), budget.loss, text, threads, progress, notify)
    elif budget.loss is not None and isinstance(opened, SnmModel):
        raise SettingsError("the loss of an SNM is measured on held-out text; give --dev, or --size or --links")
    with ModelWriter(output, force, notify) as writer:
        _prune(opened, writer, budget, text, threads, progress, notify)
    return load(output)


def check_kind(model: LanguageModel) -> None:
    """Raise an error for a model that cannot be pruned."""
    if isinstance(model, SnmModel | BackoffModel):
        return
    advice = {
        "mixture": "prune its members, and mix them again",
        "sources": "train its sources with a higher --prune, or a model of one text",
    }.get(model.manifest["kind"], "train it with fewer units (--hidden)")
    raise SettingsError(f"{model.path} is a model of kind {model.manifest['kind']!r}, which cannot be pruned; {advice}")


def _held_out(model: LanguageModel, dev: Sources | None, on_error: str, notify: Notify) -> Text | None:
    if not are_given(dev):
        return None
    assert dev is not None
    text = encode_files(dev, model.vocabulary, on_error=on_error, notify=notify)
    if not text.events:
        raise InputError(f"{names(dev)}: no words; expected held-out text, one sentence a line")
    return sample_sentences(text, MAX_HELD_OUT, SEED) if text.events > MAX_HELD_OUT else text


def model_bytes(model: LanguageModel) -> int:
    """Bytes of the files that the manifest lists."""
    return sum(int(entry["bytes"]) for entry in model.manifest["files"].values())


def _prune(
    model: LanguageModel, writer: ModelWriter, budget: Budget, text: Text | None, threads: int, progress: Progress,
    notify: Notify,
) -> None:  # fmt: skip
    before = model_bytes(model), int(model.manifest["links"])
    if (budget.size or 0) >= before[0] or (budget.links or 0) >= before[1]:
        notify(f"{model.path} has {before[0]:,} bytes and {before[1]:,} links: nothing has to leave, it is copied")
        _copy(model, writer)
    elif isinstance(model, BackoffModel):
        made = prune_backoff(model, writer, budget, threads, progress)
        notify(f"{made.links:,} of {before[1]:,} links left; estimated loss of perplexity {made.loss:.2%}")
    else:
        assert isinstance(model, SnmModel)
        prune_snm(model, writer, budget, text, threads, progress, notify)


def _copy(model: LanguageModel, writer: ModelWriter) -> None:
    """Link the files of a model, or copy them."""
    if is_arpa(model.path):
        raise SettingsError(f"{model.path} is small enough already; import makes a model of it")
    link_files(model.path, writer.folder, [MANIFEST], model.manifest["files"])
    writer.finish({name: value for name, value in model.manifest.items() if name != "files"})


def prune_snm(
    model: SnmModel, writer: ModelWriter, budget: Budget, text: Text | None, threads: int, progress: Progress,
    notify: Notify,
) -> None:  # fmt: skip
    """Write the part of an SNM that fits the budget, with a gate learned anew on held-out text."""
    m = model.manifest
    words = int(np.count_nonzero(model.matrix.unigrams))
    pruner = MatrixPruner(model.matrix, threads, progress)
    kept = pruner.keep(budget, rest_bytes(m["files"], budget.spelling_bytes) + MANIFEST_BYTES, words)
    pages = pruner.write(kept, writer, m["pages"])
    if model.extractor.classes is not None:
        writer.array("classes", "<u2").append(model.extractor.classes)
    flat, gate = _gate(model, writer, pages, text, progress, notify)
    if flat is not None:
        writer.array("gate", "<f4").append(flat)
    model.vocabulary.write(writer.folder / VOCABULARY)
    spelling = take_spelling(model.path, m, writer.folder, model.vocabulary, budget.spelling_bytes)
    described = describe_pruned({**m, **spelling, "pages": pages, "gate": gate}, kept, words, budget)
    notify(f"{described['links']:,} of {m['links']:,} links left, {kept.rows + 1:,} of {m['rows']:,} features")
    writer.finish(described, threads)


def _gate(
    model: SnmModel, writer: ModelWriter, pages: dict[str, Any], text: Text | None, progress: Progress, notify: Notify
) -> tuple[np.ndarray | None, dict[str, Any] | None]:
    """The gate of the smaller model: its weights, and its entry of the manifest."""
    described = model.manifest["gate"]
    if described is None:
        return None, None
    if text is not None and text.events >= MIN_EVENTS:
        events = gate_events(model.extractor, open_matrix(writer.load, pages, model.extractor), text)
        with progress("gating", PASSES * len(events)) as bar:
            flat, report = fit(events, described["units"], SEED, bar)
        if report.helps:
            notify(f"held-out perplexity {report.ungated:.2f} → {min(report.perplexities):.2f} with a new gate")
            return flat, {"units": described["units"], **asdict(report)}
    if text is None:
        notify("the gate stays as it is; held-out text (--dev) would adapt it to the links that are left")
    else:
        notify(f"the gate stays as it is: {text.events:,} held-out tokens are too few, or do not help")
    return np.concatenate([part.ravel() for part in model.gate]), described


# ---------------------------------------------------------------------------------------------
# a given loss


def _size_for_loss(
    model: LanguageModel, output: Path, loss: float, text: Text, threads: int, progress: Progress, notify: Notify
) -> Budget:
    """The smallest size, of those that are tried, whose measured loss is at most `loss`."""
    whole = _perplexity(model, text, threads)
    best = high = model_bytes(model)
    low, points = high / 1000, list[tuple[int, float]]()
    with scratch_folder(notify, Path(os.path.realpath(output)).parent) as folder:
        for step in range(LOSS_STEPS):
            tried, place = int(math.sqrt(low * high)), folder / str(step)
            try:
                with ModelWriter(place) as writer:
                    _prune(model, writer, Budget(size=tried), text, threads, progress, ignore)
            except SettingsError:  # below the vocabulary's own bytes
                low = tried
                continue
            with load(place) as smaller:
                lost = _perplexity(smaller, text, threads) / whole - 1
            shutil.rmtree(place)
            points.append((tried, lost))
            notify(f"{tried:,} bytes: held-out perplexity {lost:+.2%}")
            if lost <= loss:
                best = high = tried
            else:
                low = tried
    return Budget(size=best, tried=tuple(points))


def _perplexity(model: LanguageModel, text: Text, threads: int) -> float:
    """Of held-out text; of the part that the gate was not learned on, if this model's gate may have been."""
    if not isinstance(model, SnmModel) or model.manifest["gate"] is None or text.events < MIN_EVENTS:
        return model.perplexity(text, threads=threads).ppl
    events = gate_events(model.extractor, model.matrix, text)
    _, report = fit(events, model.manifest["gate"]["units"], SEED)
    return min(report.perplexities)
