"""Linear mixtures of models of any kind, with weights estimated by EM on held-out text."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snm import storage
from snm.baselines.backoff.arpa import read_arpa
from snm.errors import InputError, SettingsError
from snm.layouts.tokens import BEGIN, UNKNOWN
from snm.loading import load
from snm.manifest import describe_kind, size_of
from snm.model import LanguageModel
from snm.progress import Notify, ignore
from snm.scoring.mixture import MixtureModel, ids_in
from snm.text.encoding import encode_files
from snm.text.files import Sources, names, open_text

CONVERGED = 1e-7  # EM stops when no weight changes by more
MAX_STEPS = 10_000
_TOO_FEW = "a mixture needs two models or more"


def find_weights(probabilities: np.ndarray) -> np.ndarray:
    """The weights with the highest likelihood, by EM. probabilities: (members, events); returns (members,)

    The likelihood is concave, so EM converges to the global maximum. But it approaches a weight of zero slowly, and is
    stopped before: in the end, members without which the likelihood is no lower get weight zero.
    """
    weights = np.full(len(probabilities), 1 / len(probabilities))
    for _ in range(MAX_STEPS):
        parts = weights[:, None] * probabilities
        before, weights = weights, (parts / parts.sum(axis=0)).mean(axis=1)
        if np.abs(weights - before).max() < CONVERGED:
            break
    likelihood = np.log(weights @ probabilities).sum()
    for member in np.argsort(weights)[:-1]:
        others = np.where(np.arange(len(weights)) == member, 0, weights)
        others /= others.sum()
        without = others @ probabilities
        if without.all() and np.log(without).sum() >= likelihood:
            weights, likelihood = others, np.log(without).sum()
    return weights


@dataclass(frozen=True)
class Mixed:
    """Weights in the order of the members, and the perplexities of each member and of the mixture."""

    weights: np.ndarray
    dev_perplexities: list[float]
    dev_perplexity: float
    test_perplexities: list[float] | None = None
    test_perplexity: float | None = None


def mix(
    paths: Sequence[str | Path], dev: Sources, output: str | Path, force: bool = False, threads: int = 1,
    notify: Notify = ignore,
) -> MixtureModel:  # fmt: skip
    """Mix models or ARPA files, with the best weights on held-out text, and write the mixture to `output`.

    The mixture contains its members: hard links to their files, or copies where links are not possible.
    """
    if len(paths) < 2:
        raise SettingsError(_TOO_FEW)
    with storage.ModelWriter(output, force) as writer:
        folders = [f"member{i}" for i in range(len(paths))]
        models = [_add_member(Path(path), writer.folder / folder) for path, folder in zip(paths, folders, strict=True)]
        mixed = _mix(_probabilities(models, [], dev, threads), None)
        _report(paths, mixed, notify)
        writer.finish(_manifest(models, folders, mixed), threads)
    mixture = load(output)
    assert isinstance(mixture, MixtureModel)
    return mixture


def weigh(
    paths: Sequence[str | Path], dev: Sources, test: Sources = (), test_files: Sequence[str | Path] = (),
    threads: int = 1, notify: Notify = ignore,
) -> Mixed:  # fmt: skip
    """The best weights of models and *probability files*, and perplexities; writes nothing.

    A probability file comes from another program: one number for every word and every sentence end of the held-out
    text, in order. `test_files` are the same files for the test text, in the same order.
    """
    if len(paths) < 2:
        raise SettingsError(_TOO_FEW)
    is_file = [is_probability_file(Path(path)) for path in paths]
    files = [Path(path) for path, file in zip(paths, is_file, strict=True) if file]
    others = [Path(path) for path, file in zip(paths, is_file, strict=True) if not file]
    if test and len(test_files) != len(files):
        raise SettingsError(
            f"{len(files)} probability files for the held-out text, {len(test_files)} for the test text; "
            f"give one of each, in the same order"
        )
    with tempfile.TemporaryDirectory() as scratch:
        models = [load(p) if p.is_dir() else _add_member(p, Path(scratch) / str(i)) for i, p in enumerate(others)]
        if not models:
            raise SettingsError("only probability files; add at least one model, whose vocabulary is used")
        parts = [_probabilities(models, files, dev, threads)]
        if test:
            parts.append(_probabilities(models, [Path(file) for file in test_files], test, threads))
    order = np.argsort(np.argsort(is_file, kind="stable"))  # in the parts, files follow the models
    mixed = _mix(parts[0][order], parts[1][order] if test else None)
    _report(paths, mixed, notify)
    return mixed


def _mix(dev: np.ndarray, test: np.ndarray | None) -> Mixed:
    """Find weights from the members' probabilities. (members, events)"""
    weights = find_weights(dev)
    held_out = [perplexity_of(p) for p in dev], perplexity_of(weights @ dev)
    if test is None:
        return Mixed(weights, *held_out)
    return Mixed(weights, *held_out, [perplexity_of(p) for p in test], perplexity_of(weights @ test))


def perplexity_of(p: np.ndarray) -> float:
    """Perplexity from the probabilities of events."""
    return float(np.exp(-np.log(p).mean()))


def _report(paths: Sequence[str | Path], mixed: Mixed, notify: Notify) -> None:
    for i, (path, weight, ppl) in enumerate(zip(paths, mixed.weights, mixed.dev_perplexities, strict=True)):
        tested = f", test {mixed.test_perplexities[i]:.2f}" if mixed.test_perplexities else ""
        notify(f"{weight:.4f}  {path} (perplexity alone {ppl:.2f}{tested})")
    notify(f"held-out perplexity {mixed.dev_perplexity:.2f}")
    if mixed.test_perplexity is not None:
        notify(f"test perplexity {mixed.test_perplexity:.2f}")


def _probabilities(models: list[LanguageModel], files: Sequence[Path], source: Sources, threads: int) -> np.ndarray:
    """The members' probabilities of the events of a text. (members, events)"""
    vocabulary = models[0].vocabulary
    ids = [ids_in(model.vocabulary, vocabulary) for model in models]
    text = encode_files(source, vocabulary)
    events = (text.tokens != BEGIN) & ~(vocabulary.closed & (text.tokens == UNKNOWN))
    if not events.any():
        raise InputError(f"{names(source)}: no words; expected held-out text, one sentence a line")
    p = [m.probabilities(i[text.tokens], threads)[events] for m, i in zip(models, ids, strict=True)]
    return np.array([*p, *(read_probabilities(file, int(events.sum())) for file in files)])


def is_probability_file(path: Path) -> bool:
    """Whether a path is a probability file, not a model or an ARPA file: it begins with a number."""
    if not path.is_file():
        return False
    with open_text(str(path)) as file:
        words = file.read(4096).split()
    try:
        float(words[0])
    except (IndexError, ValueError):
        return False
    return True


def read_probabilities(path: Path, events: int) -> np.ndarray:
    """Read a probability file: `events` numbers above 0 and up to 1, or their log10, separated by white space."""
    with open_text(str(path)) as file:
        words = file.read().split()
    try:
        p = np.array(words, np.float64)
    except ValueError as error:
        raise InputError(f"{path}: {error}; expected one number for every word and sentence end") from error
    if len(p) != events:
        raise InputError(
            f"{path} has {len(p):,} numbers; expected one for each of the text's {events:,} words and sentence ends"
        )
    if (p <= 0).all():
        p = 10.0**p
    if not ((p > 0) & (p <= 1)).all():
        wrong = int(np.flatnonzero(~((p > 0) & (p <= 1)))[0])
        raise InputError(
            f"{path}: number {wrong + 1:,} is {words[wrong].decode()}; expected probabilities above 0 and up to 1, "
            f"or only their log10"
        )
    return p


def _manifest(models: list[LanguageModel], folders: list[str], mixed: Mixed) -> dict[str, Any]:
    return {
        **describe_kind(MixtureModel.kind, models[0].vocabulary),
        "members": folders,
        "weights": mixed.weights.tolist(),
        "dev_perplexity": mixed.dev_perplexity,
        "dev_perplexities": mixed.dev_perplexities,
        "links": sum(size_of(model.manifest)[0] for model in models),
    }


def _add_member(source: Path, target: Path) -> LanguageModel:
    """Link a model folder, or import an ARPA file, into the folder `target`."""
    if source.is_file():
        return read_arpa(source, target)
    load(source)  # raises an error if it is not a model

    def link(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)

    shutil.copytree(source, target, copy_function=link)
    return load(target)
