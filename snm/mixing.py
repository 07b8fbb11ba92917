"""Linear mixtures of any models, with weights found by EM on held-out text."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
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
from snm.scoring.mixture import MixtureModel, ids_in
from snm.text.encoding import encode_files
from snm.text.files import Sources, names, open_text

CONVERGED = 1e-7  # largest change of a weight in the last step
MAX_STEPS = 10_000


def find_weights(probabilities: np.ndarray) -> np.ndarray:
    """The weights of the members that make the text likeliest, by EM. probabilities: (members, events)

    The likelihood is concave in the weights, so that EM comes to its one maximum from anywhere. But it creeps towards
    a weight of zero, and is stopped before: members without which the text is no less likely are then left out.
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
    """The best weights, in the order of the members, and perplexities: of each member alone and of the mixture."""

    weights: np.ndarray
    dev_perplexities: list[float]
    dev_perplexity: float
    test_perplexities: list[float] | None = None
    test_perplexity: float | None = None


def mix(
    paths: Sequence[str | Path], dev: Sources, output: str | Path, force: bool = False, threads: int = 1,
    notify: Callable[[str], None] = lambda message: None,
) -> MixtureModel:  # fmt: skip
    """Mix models, or ARPA files, with the weights that are best on held-out text, and write the mixture to `output`.

    The mixture holds its members: links to their files where the disk allows it, copies elsewhere.
    """
    _check_members(paths)
    with storage.ModelWriter(output, force) as writer:
        folders = [f"member{i}" for i in range(len(paths))]
        models = [_take_in(Path(path), writer.folder / folder) for path, folder in zip(paths, folders, strict=True)]
        found = _mix(_probabilities(models, [], dev, threads), None)
        _report(paths, found, notify)
        writer.finish(_manifest(models, folders, found), threads)
    mixture = load(output)
    assert isinstance(mixture, MixtureModel)
    return mixture


def weigh(
    paths: Sequence[str | Path], dev: Sources, test: Sources = (), test_files: Sequence[str | Path] = (),
    threads: int = 1, notify: Callable[[str], None] = lambda message: None,
) -> Mixed:  # fmt: skip
    """The best weights of models and of *files of probabilities*, and perplexities; nothing is written.

    A file of probabilities is another program's: one number for every word and every sentence end of the held-out
    text, in its order. For the test text each has a counterpart in `test_files`, in the same order.
    """
    _check_members(paths)
    kinds = [is_plain(Path(path)) for path in paths]
    plain = [Path(path) for path, figures in zip(paths, kinds, strict=True) if figures]
    named = [Path(path) for path, figures in zip(paths, kinds, strict=True) if not figures]
    if test and len(test_files) != len(plain):
        raise SettingsError(
            f"{len(test_files)} files of the test text's probabilities for {len(plain)} of the held-out text's; "
            f"give one for each, in the same order"
        )
    with tempfile.TemporaryDirectory() as scratch:
        models = [load(p) if p.is_dir() else _take_in(p, Path(scratch) / str(i)) for i, p in enumerate(named)]
        if not models:
            raise SettingsError("only files of probabilities; expected a model among them, whose vocabulary counts")
        parts = [_probabilities(models, plain, dev, threads)]
        if test:
            parts.append(_probabilities(models, [Path(file) for file in test_files], test, threads))
    back = np.argsort(np.argsort(kinds, kind="stable"))  # models come first in the parts, then files
    found = _mix(parts[0][back], parts[1][back] if test else None)
    _report(paths, found, notify)
    return found


def _check_members(paths: Sequence[str | Path]) -> None:
    if len(paths) < 2:
        raise SettingsError("a mixture needs two models or more")


def _mix(dev: np.ndarray, test: np.ndarray | None) -> Mixed:
    """From the members' probabilities of the events of both texts. (members, events)"""
    weights = find_weights(dev)
    held_out = [perplexity_of(p) for p in dev], perplexity_of(weights @ dev)
    if test is None:
        return Mixed(weights, *held_out)
    return Mixed(weights, *held_out, [perplexity_of(p) for p in test], perplexity_of(weights @ test))


def perplexity_of(p: np.ndarray) -> float:
    """Perplexity from the probabilities of all events."""
    return float(np.exp(-np.log(p).mean()))


def _report(paths: Sequence[str | Path], found: Mixed, notify: Callable[[str], None]) -> None:
    for i, (path, weight, ppl) in enumerate(zip(paths, found.weights, found.dev_perplexities, strict=True)):
        tested = f", test {found.test_perplexities[i]:.2f}" if found.test_perplexities else ""
        notify(f"{weight:.4f}  {path} (perplexity alone {ppl:.2f}{tested})")
    notify(f"held-out perplexity {found.dev_perplexity:.2f}")
    if found.test_perplexity is not None:
        notify(f"test perplexity {found.test_perplexity:.2f}")


def _probabilities(models: list[LanguageModel], files: Sequence[Path], source: Sources, threads: int) -> np.ndarray:
    """Every member's probabilities of the events of a text. (members, events)"""
    vocabulary = models[0].vocabulary
    ids = [ids_in(model.vocabulary, vocabulary) for model in models]
    text = encode_files(source, vocabulary)
    events = (text.tokens != BEGIN) & ~(vocabulary.closed & (text.tokens == UNKNOWN))
    if not events.any():
        raise InputError(f"{names(source)}: no words; expected held-out text, one sentence a line")
    p = [m.probabilities(i[text.tokens], threads)[events] for m, i in zip(models, ids, strict=True)]
    return np.array([*p, *(read_probabilities(file, int(events.sum())) for file in files)])


def is_plain(path: Path) -> bool:
    """Whether this is a file of probabilities, not a model or an ARPA file."""
    if not path.is_file():
        return False
    with open_text(str(path)) as file:
        first = file.read(4096).split()
    return bool(first) and _is_number(first[0])


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_probabilities(path: Path, events: int) -> np.ndarray:
    """A file of probabilities: `events` numbers between 0 and 1, or their log10, apart by white space."""
    with open_text(str(path)) as file:
        words = file.read().split()
    try:
        p = np.array(words, np.float64)
    except ValueError as error:
        raise InputError(f"{path}: {error}; expected numbers alone, one for every word and sentence end") from error
    if len(p) != events:
        raise InputError(
            f"{path} has {len(p):,} numbers; the text has {events:,} words and sentence ends: expected one for each"
        )
    if (p <= 0).all():
        p = 10.0**p
    if not ((p > 0) & (p <= 1)).all():
        wrong = int(np.flatnonzero(~((p > 0) & (p <= 1)))[0])
        raise InputError(
            f"{path}: number {wrong + 1:,} is {words[wrong].decode()}; expected probabilities above 0 and up to 1, "
            f"or their log10 throughout"
        )
    return p


def _manifest(models: list[LanguageModel], folders: list[str], found: Mixed) -> dict[str, Any]:
    return {
        **describe_kind(MixtureModel.kind, models[0].vocabulary),
        "members": folders,
        "weights": found.weights.tolist(),
        "dev_perplexity": found.dev_perplexity,
        "dev_perplexities": found.dev_perplexities,
        "links": sum(size_of(model.manifest)[0] for model in models),
    }


def _take_in(source: Path, target: Path) -> LanguageModel:
    """A model's folder linked, or an ARPA file imported, into the folder `target`."""
    if source.is_file():
        return read_arpa(source, target)
    load(source)  # before anything of it is linked

    def link(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)

    shutil.copytree(source, target, copy_function=link)
    return load(target)
