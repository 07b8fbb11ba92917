"""Linear mixtures of models of any kind, with weights estimated by EM on held-out text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snm import storage
from snm.arguments import MAX_THREADS, file_path, functions, shown, whole_number
from snm.baselines.backoff.arpa import import_arpa
from snm.errors import InputError, SettingsError
from snm.layouts.tokens import BEGIN, UNKNOWN
from snm.loading import is_arpa, load
from snm.manifest import describe_kind, requiring, size_of
from snm.model import LanguageModel
from snm.progress import Notify, Progress, ignore, silent
from snm.scoring.mixture import MixtureModel
from snm.scoring.unions import Words, share_of, union_of
from snm.text.encoding import Text, encode_files
from snm.text.files import BadLines, Sources, names, read_blocks, read_bytes
from snm.text.tokenizers import check_same
from snm.text.vocabulary import Vocabulary

CONVERGED = 1e-7  # EM stops when no weight changes by more
MAX_STEPS = 10_000


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
    models: Iterable[str | Path | LanguageModel], dev: Sources, output: str | Path, *, force: bool = False,
    threads: int = 1, on_error: str = "fail", progress: Progress = silent, notify: Notify = ignore,
) -> MixtureModel:  # fmt: skip
    """Mix models or ARPA files, with the best weights on held-out text, and write the mixture to `output`.

    The mixture contains its members: hard links to their files, or copies where links are not possible. Their
    vocabularies may differ: docs/sources.md says what a model gives to words that it lacks. `on_error`: see `Settings`.
    """
    functions(progress=progress, notify=notify)
    paths, threads = paths_of(models), whole_number("threads", threads, 1, MAX_THREADS)
    with storage.ModelWriter(output, force, notify) as writer:
        folders = [f"member{i}" for i in range(len(paths))]
        with ExitStack() as opened:  # Windows renames no folder with a file that is mapped
            members = [
                opened.enter_context(add_member(a, writer.folder / b, progress))
                for a, b in zip(paths, folders, strict=True)
            ]
            union = _Union.of(members, paths, dev, on_error, notify)
            mixed = _mix(_probabilities(members, [], union, union.dev, threads), None)
            manifest = _manifest(members, folders, mixed, union)
            if "shares" in manifest:
                union.vocabulary.write(writer.folder / storage.VOCABULARY)
        _report(paths, mixed, notify)
        writer.finish(manifest, threads)
    mixture = load(output)
    assert isinstance(mixture, MixtureModel)
    return mixture


def paths_of(models: Iterable[str | Path | LanguageModel]) -> list[Path]:
    if not isinstance(models, list | tuple | Iterator):
        raise SettingsError(f"models is {shown(models)}; expected a list of paths or models")
    paths = [file_path("a model", m.path if isinstance(m, LanguageModel) else m) for m in models]
    if len(paths) < 2:
        raise SettingsError("a mixture needs two models or more")
    return paths


def weigh(
    models: Iterable[str | Path | LanguageModel], dev: Sources, *, test: Sources = (),
    test_files: Sequence[str | Path] = (), threads: int = 1, on_error: str = "fail", progress: Progress = silent,
    notify: Notify = ignore,
) -> Mixed:  # fmt: skip
    """The best weights of models and *probability files*, and perplexities; writes nothing.

    A probability file comes from another program: one number for every word and every sentence end of the held-out
    text, in order. `test_files` are the same files for the test text, in the same order.
    """
    paths = paths_of(models)
    is_file = [is_probability_file(path) for path in paths]
    files = [path for path, file in zip(paths, is_file, strict=True) if file]
    if test and len(test_files) != len(files):
        raise SettingsError(
            f"{len(files)} probability files for the held-out text, {len(test_files)} for the test text; "
            f"give one of each, in the same order"
        )
    members = [load(path, progress=progress) for path, file in zip(paths, is_file, strict=True) if not file]
    if not members:
        raise SettingsError("only probability files; add at least one model, whose vocabulary is used")
    union = _Union.of(members, [member.path for member in members], dev, on_error, notify)
    parts = [_probabilities(members, files, union, union.dev, threads)]
    if test:
        text = _encoded(test, union.vocabulary, on_error, notify)
        parts.append(_probabilities(members, [Path(file) for file in test_files], union, text, threads))
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


@dataclass(frozen=True)
class _Union:
    """The members' words together, the held-out text in their ids, and what each member gives to words it lacks."""

    vocabulary: Vocabulary
    dev: Text
    shares: list[float]
    words: list[Words]

    @classmethod
    def of(
        cls, members: list[LanguageModel], paths: Sequence[Path], dev: Sources, on_error: str, notify: Notify
    ) -> _Union:
        """`paths`: what the user calls the members."""
        for member, path in zip(members[1:], paths[1:], strict=True):
            check_same(members[0].vocabulary.tokenizer, member.vocabulary.tokenizer, str(paths[0]), str(path))
        for member in members:
            if member.vocabulary.fields:
                raise SettingsError(
                    f"{member.path} has fields of lines, which a mixture cannot have; mix models without"
                )
        vocabulary = union_of([member.vocabulary for member in members])
        text = _encoded(dev, vocabulary, on_error, notify)
        shares = [share_of(member.vocabulary, vocabulary, text) for member in members]
        words = [Words.of(m.vocabulary, vocabulary, share) for m, share in zip(members, shares, strict=True)]
        if not all(w.whole for w in words):
            notify(f"{len(vocabulary):,} words in all; each member gives a share of P(<UNK>) to those that it lacks")
        return cls(vocabulary, text, shares, words)


def _encoded(source: Sources, vocabulary: Vocabulary, on_error: str, notify: Notify) -> Text:
    text = encode_files(source, vocabulary, on_error=on_error, notify=notify)
    if not _events(text, vocabulary).any():
        raise InputError(f"{names(source)}: no words; expected held-out text, one sentence a line")
    return text


def _events(text: Text, vocabulary: Vocabulary) -> np.ndarray:
    """Which tokens are targets. (tokens,) bool"""
    events: np.ndarray = (text.tokens != BEGIN) & ~(vocabulary.closed & (text.tokens == UNKNOWN))
    return events


def _probabilities(
    models: list[LanguageModel], files: Sequence[Path], union: _Union, text: Text, threads: int
) -> np.ndarray:
    """The members' probabilities of the events of a text. (members, events)"""
    tokens, events = text.tokens, _events(text, union.vocabulary)
    p = [
        words.shared(model.probabilities(words.own(tokens), threads=threads), tokens)[events]
        for model, words in zip(models, union.words, strict=True)
    ]
    return np.array([*p, *(read_probabilities(file, int(events.sum())) for file in files)])


def is_probability_file(path: Path) -> bool:
    """Whether a path is a probability file, not a model or an ARPA file: it begins with a number."""
    if not path.is_file():
        return False
    words = read_bytes(str(path), 4096).split()
    try:
        float(words[0])
    except (IndexError, ValueError):
        return False
    return True


def read_probabilities(path: Path, events: int) -> np.ndarray:
    """Read a probability file: `events` numbers above 0 and up to 1, or their log10, separated by white space."""
    parts: list[np.ndarray] = []
    found = 0
    for block in read_blocks([str(path)], BadLines()):
        try:
            parts.append(np.array(block.split(), np.float64))
        except ValueError as error:
            raise InputError(f"{path}: {shown(error)}; expected one number for every word and sentence end") from error
        found += len(parts[-1])
        if found > events:
            break
    if found != events:
        raise InputError(
            f"{path} has {found:,} numbers{' and maybe more' * (found > events)}; expected one for each of the text's "
            f"{events:,} words and sentence ends"
        )
    p = np.concatenate(parts)
    if (p <= 0).all():
        p = 10.0**p
    if not ((p > 0) & (p <= 1)).all():
        wrong = int(np.flatnonzero(~((p > 0) & (p <= 1)))[0])
        raise InputError(
            f"{path}: number {wrong + 1:,} is {shown(p[wrong].item())}; expected probabilities above 0 and up to 1, "
            f"or only their log10"
        )
    return p


def _manifest(models: list[LanguageModel], folders: list[str], mixed: Mixed, union: _Union) -> dict[str, Any]:
    lacking = not all(words.whole for words in union.words)
    described = {
        **describe_kind(MixtureModel.kind, union.vocabulary),
        **({"shares": union.shares} if lacking else {}),
        "members": folders,
        "weights": mixed.weights.tolist(),
        "dev_perplexity": mixed.dev_perplexity,
        "dev_perplexities": mixed.dev_perplexities,
        "links": sum(size_of(model.manifest)[0] for model in models),
    }
    return requiring(described, *(["union"] if lacking else []))


def add_member(source: Path, target: Path, progress: Progress) -> LanguageModel:
    """Link a model folder, or import an ARPA file, into the folder `target`."""
    if is_arpa(source):
        return import_arpa(source, target, progress=progress)
    storage.link_files(source, target)
    return load(target)
