"""Word lattices as text, of OpenFst and of Kaldi, and their best paths with a language model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from snm.arguments import shown, whole_number
from snm.errors import InputError
from snm.layouts.tokens import END
from snm.model import IDS, LanguageModel
from snm.rescoring.nbest import Hypothesis, NBest
from snm.rescoring.weights import Weights
from snm.text.files import numbered_lines

EPSILON = ("<eps>", "<epsilon>", "-", "0", "!SENT_START", "!SENT_END", "<s>", "</s>")
"""Labels that are no words."""
BEAM = 64
NEVER = -100.0 * math.log(10)  # ln P of a word that a model never predicts, as in KenLM


class Arc(NamedTuple):
    """A word, or None, from one node to another, with natural log probabilities."""

    source: int
    target: int
    word: str | None
    acoustic: float
    language: float = 0.0


@dataclass
class Lattice:
    """Nodes are numbers; paths begin at `start` and end where `final` has the node's acoustic and language score."""

    id: str
    arcs: list[Arc] = field(default_factory=list)
    final: dict[int, tuple[float, float]] = field(default_factory=dict)
    start: int = 0

    def order(self) -> list[int]:
        """The nodes, each after those that lead to it."""
        waiting: dict[int, int] = {self.start: 0}
        for arc in self.arcs:
            waiting.setdefault(arc.source, 0)
            waiting[arc.target] = waiting.get(arc.target, 0) + 1
        after = self.arcs_of()
        ready, found = [node for node, n in waiting.items() if n == 0], []
        while ready:
            node = ready.pop()
            found.append(node)
            for arc in after.get(node, []):
                waiting[arc.target] -= 1
                if waiting[arc.target] == 0:
                    ready.append(arc.target)
        if len(found) < len(waiting):
            raise InputError(f"the lattice {self.id!r} has a cycle; expected one without")
        return found

    def arcs_of(self) -> dict[int, list[Arc]]:
        """The arcs that leave each node."""
        found: dict[int, list[Arc]] = {}
        for arc in self.arcs:
            found.setdefault(arc.source, []).append(arc)
        return found


def read_symbols(path: str | Path) -> dict[str, str]:
    """A symbol table of OpenFst or Kaldi: a word and its number on each line. Returns number to word."""
    expected = "a word and its number on each line"
    lines = [line.split() for _, line in numbered_lines(path, expected) if line.strip()]
    wrong = next((line for line in lines if len(line) != 2), None)
    if wrong is not None:
        raise InputError(f"{path}: {shown(' '.join(wrong))}; expected {expected}")
    return {number: word for word, number in lines}


def read_lattices(path: str | Path, symbols: str | Path | None = None) -> Iterator[Lattice]:
    """Lattices as text: one of OpenFst, named for the file, or any number of Kaldi's, each under its name.

    Weights are costs, -ln P: OpenFst's one number is taken as acoustic; Kaldi's are `language,acoustic,...`. `symbols`:
    the table of words, where labels are numbers.
    """
    names = {} if symbols is None else read_symbols(symbols)
    path = Path(path)
    lattice: Lattice | None = None
    for number, line in numbered_lines(path, "lattices as text"):
        parts = line.split()
        if not parts:
            if lattice is not None:
                yield lattice
            lattice = None
        elif len(parts) == 1 and lattice is None and not parts[0].isdecimal():
            lattice = Lattice(parts[0])
        else:
            lattice = lattice or Lattice(path.stem)
            _add_line(lattice, parts, names, f"{path}, line {number}")
    if lattice is not None:
        yield lattice


def _add_line(lattice: Lattice, parts: list[str], names: dict[str, str], where: str) -> None:
    """An arc (source, target, label, perhaps an output label, perhaps a weight) or a final node."""
    try:
        if len(parts) <= 2:
            lattice.final[int(parts[0])] = _scores(parts[1] if len(parts) == 2 else "0")
            return
        if len(parts) > 5:
            raise ValueError("too many columns")
        source, target = int(parts[0]), int(parts[1])
        scores = _scores(parts[-1] if len(parts) == 5 or _is_weight(parts) else "0")
        label = parts[3] if len(parts) == 5 else parts[2]
        word = names.get(label, label)
    except (ValueError, IndexError):
        expected = "an arc such as '0 1 word 3.5', or a final node such as '7 0'"
        raise InputError(f"{where}: {shown(' '.join(parts))}; expected {expected}") from None
    if not lattice.arcs:
        lattice.start = source
    lattice.arcs.append(Arc(source, target, None if word in EPSILON or label == "0" else word, *scores))


def _is_weight(parts: list[str]) -> bool:
    """Whether the last of four parts is a weight: not the output label of an arc without one."""
    if len(parts) != 4:
        return False
    try:
        _scores(parts[3])
    except ValueError:
        return False
    return True


def _scores(weight: str) -> tuple[float, float]:
    """(acoustic, language) score of a weight."""
    costs = [float(part) for part in weight.split(",")[:2] if part]
    if len(costs) == 2:
        return -costs[1], -costs[0]
    return (-costs[0] if costs else 0.0), 0.0


class _Path(NamedTuple):
    """A path to a node: its words as a chain, sums of scores, and the row of its state."""

    words: tuple[object, ...] | None  # (chain before, word)
    acoustic: float
    language: float
    model: float
    length: int
    state: np.ndarray

    def total(self, weights: Weights) -> float:
        return (
            self.acoustic + weights.model * self.model + weights.language * self.language + weights.word * self.length
        )

    def text(self) -> str:
        found, chain = [], self.words
        while chain is not None:
            found.append(str(chain[1]))
            chain = chain[0]  # type: ignore[assignment]
        return " ".join(reversed(found))


def best_path(model: LanguageModel, lattice: Lattice, weights: Weights, *, beam: int = BEAM, n: int = 1) -> NBest:
    """The n best texts of a lattice. At each node the `beam` best paths of different states of the model are kept."""
    whole_number("beam", beam, 1)
    whole_number("n", n, 1)
    if not lattice.final:
        raise InputError(f"the lattice {lattice.id!r} has no final node; expected a line with its number alone")
    after = lattice.arcs_of()
    paths: dict[int, list[_Path]] = {
        lattice.start: [_Path(None, 0.0, 0.0, 0.0, 0, model.state_array([model.start()])[0])]
    }
    ended: list[_Path] = []
    for node in lattice.order():
        kept = _kept(paths.pop(node, []), weights, beam)
        if not kept:
            continue
        if node in lattice.final:
            ended += _ended(model, kept, lattice.final[node])
        for arc, path in _extended(model, kept, after.get(node, [])):
            paths.setdefault(arc.target, []).append(path)
    if not ended:
        raise InputError(f"the lattice {lattice.id!r} has no path to a final node; expected a whole lattice")
    return _as_nbest(lattice.id, ended, weights, n)


def _as_nbest(name: str, ended: list[_Path], weights: Weights, n: int) -> NBest:
    best: dict[str, Hypothesis] = {}
    for path in sorted(ended, key=lambda path: -path.total(weights)):
        text = path.text()
        best.setdefault(text, Hypothesis(text, path.acoustic, path.language, path.model, path.total(weights)))
    return NBest(name, list(best.values())[:n])


def _kept(paths: list[_Path], weights: Weights, beam: int) -> list[_Path]:
    """The best path of each state of the model, at most `beam`."""
    best: dict[bytes, _Path] = {}
    for path in sorted(paths, key=lambda path: -path.total(weights)):
        best.setdefault(path.state.tobytes(), path)
    return list(best.values())[:beam]


def _extended(model: LanguageModel, paths: list[_Path], arcs: list[Arc]) -> Iterator[tuple[Arc, _Path]]:
    """Each path with each arc. The model is asked for all words after all paths in one call."""
    for arc in arcs:
        if arc.word is None:
            for path in paths:
                yield arc, path._replace(acoustic=path.acoustic + arc.acoustic, language=path.language + arc.language)
    worded = [arc for arc in arcs if arc.word is not None]
    if not worded:
        return
    states = np.stack([path.state for path in paths])
    words = model._ids_of([str(arc.word) for arc in worded])
    scores = np.nan_to_num(model.expand(states, words) * math.log(10), nan=NEVER)
    following = model.follow(states, words, np.arange(scores.size)).reshape(*scores.shape, -1)
    for i, path in enumerate(paths):
        for j, arc in enumerate(worded):
            yield arc, _Path(
                (path.words, arc.word), path.acoustic + arc.acoustic, path.language + arc.language,
                path.model + float(scores[i, j]), path.length + 1, following[i, j],
            )  # fmt: skip


def _ended(model: LanguageModel, paths: list[_Path], final: tuple[float, float]) -> list[_Path]:
    """Paths with the scores of the end."""
    states = np.stack([path.state for path in paths])
    scores = model.expand(states, np.array([END], IDS))[:, 0] * math.log(10)
    return [
        path._replace(
            acoustic=path.acoustic + final[0], language=path.language + final[1], model=path.model + float(score)
        )
        for path, score in zip(paths, scores, strict=True)
    ]
