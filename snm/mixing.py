"""Linear mixtures of any models, with weights found by EM on held-out text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snm import storage
from snm.corpus import Sources, encode_files, names
from snm.errors import InputError, SettingsError
from snm.model import LanguageModel, load
from snm.vocabulary import BEGIN, UNKNOWN, Vocabulary

CONVERGED = 1e-7  # largest change of a weight in the last step
MOST_STEPS = 10_000


class MixtureModel(LanguageModel):
    """P(w | h) = the weighted sum of the members' P(w | h)."""

    kind = "mixture"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = storage.read_manifest(self.path)
        self.weights = np.array(self.manifest["weights"], np.float64)
        self.members = [load(self.path / folder) for folder in self.manifest["members"]]
        self.vocabulary = self.members[0].vocabulary
        self._ids = [ids_in(member.vocabulary, self.vocabulary) for member in self.members]

    def __repr__(self) -> str:
        return f"<MixtureModel {self.path}: {', '.join(f'{w:.3f}' for w in self.weights)} of {self.members}>"

    def probabilities(self, tokens: np.ndarray, threads: int = 1) -> np.ndarray:
        total = np.zeros(len(tokens), np.float64)
        for weight, member, ids in zip(self.weights, self.members, self._ids, strict=True):
            total += weight * member.probabilities(ids[tokens], threads)
        return total

    def distribution(self, context: np.ndarray) -> np.ndarray:
        total = np.zeros(len(self.vocabulary), np.float64)
        for weight, member, ids in zip(self.weights, self.members, self._ids, strict=True):
            total += weight * member.distribution(ids[context])[ids]
        return total

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield abs(float(self.weights.sum()) - 1) > 1e-6, "the weights do not sum to one"
        for member in self.members:
            yield from member.faults()


def ids_in(vocabulary: Vocabulary, of: Vocabulary) -> np.ndarray:
    """The ids in one vocabulary of the words of another, which has the same words in any order."""
    if vocabulary == of:
        return np.arange(len(of), dtype=np.uint32)
    if (vocabulary.closed, set(vocabulary.words)) != (of.closed, set(of.words)):
        missing = sorted(set(of.words) ^ set(vocabulary.words))
        what = f"{len(missing):,} words are in one only, such as {missing[0]!r}" if missing else "one is closed"
        raise SettingsError(
            f"models of different vocabularies cannot be mixed: {what}; train them with the same --vocab"
        )
    return vocabulary.ids_of(of.words)


def find_weights(probabilities: np.ndarray) -> np.ndarray:
    """The weights of the members that make the text likeliest, by EM. probabilities: (members, events)

    The likelihood is concave in the weights, so that EM comes to its one maximum from anywhere.
    """
    weights = np.full(len(probabilities), 1 / len(probabilities))
    for _ in range(MOST_STEPS):
        parts = weights[:, None] * probabilities
        new: np.ndarray = (parts / parts.sum(axis=0)).mean(axis=1)
        if np.abs(new - weights).max() < CONVERGED:
            return new
        weights = new
    return weights


def mix(
    paths: Sequence[str | Path], dev: Sources, output: str | Path, overwrite: bool = False, threads: int = 1,
    notify: Callable[[str], None] = lambda message: None,
) -> MixtureModel:  # fmt: skip
    """Mix models, or ARPA files, with the weights that are best on held-out text, and write the mixture to `output`.

    The mixture holds its members: links to their files where the disk allows it, copies elsewhere.
    """
    if len(paths) < 2:
        raise SettingsError("a mixture needs two models or more")
    with storage.ModelWriter(output, overwrite) as writer:
        folders = [f"member{i}" for i in range(len(paths))]
        models = [_take_in(Path(path), writer.folder / folder) for path, folder in zip(paths, folders, strict=True)]
        weights, alone, mixed = _weigh(models, dev, threads)
        for path, weight, ppl in zip(paths, weights, alone, strict=True):
            notify(f"{weight:.4f}  {path} (perplexity alone {ppl:.2f})")
        notify(f"held-out perplexity {mixed:.2f}")
        writer.finish(_manifest(models, folders, weights, alone.tolist(), mixed), threads)
    return MixtureModel(output)


def _weigh(models: list[LanguageModel], dev: Sources, threads: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The best weights, every member's perplexity alone, and the mixture's."""
    vocabulary = models[0].vocabulary
    ids = [ids_in(model.vocabulary, vocabulary) for model in models]
    text = encode_files(dev, vocabulary)
    events = (text.tokens != BEGIN) & ~(vocabulary.closed & (text.tokens == UNKNOWN))
    if not events.any():
        raise InputError(f"{names(dev)}: no words; expected held-out text, one sentence a line")
    p = np.array([m.probabilities(i[text.tokens], threads)[events] for m, i in zip(models, ids, strict=True)])
    weights = find_weights(p)
    return weights, np.exp(-np.log(p).mean(axis=1)), float(np.exp(-np.log(weights @ p).mean()))


def _manifest(
    models: list[LanguageModel], folders: list[str], weights: np.ndarray, alone: list[float], mixed: float
) -> dict[str, Any]:
    from snm import __version__

    vocabulary = models[0].vocabulary
    return {
        "kind": MixtureModel.kind,
        "written_by": f"snm {__version__}",
        "members": folders,
        "weights": weights.tolist(),
        "dev_perplexity": mixed,
        "dev_perplexities": alone,
        "vocabulary": {"words": len(vocabulary), "closed": vocabulary.closed},
        "links": sum(model.manifest["links"] for model in models),
    }


def _take_in(source: Path, target: Path) -> LanguageModel:
    """A model's folder linked, or an ARPA file imported, into the folder `target`."""
    if source.is_file():
        from snm.arpa import read_arpa

        return read_arpa(source, target)
    load(source)  # before anything of it is linked

    def link(a: str, b: str) -> None:
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)

    shutil.copytree(source, target, copy_function=link)
    return load(target)
