"""N-best lists: JSON lines, or a folder of Kaldi's text archives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snm.arguments import shown
from snm.errors import InputError, InputNotFound
from snm.storage import replaced_file
from snm.text.files import numbered_lines

WORDS, ACOUSTIC, LANGUAGE = "words_text", "ac_cost", "lm_cost"
"""The files of a Kaldi folder, as its script lmrescore_nbest makes them. Costs are -ln P."""


@dataclass
class Hypothesis:
    """A text with natural log probabilities: the recogniser's acoustic and language score, and the model's."""

    text: str
    acoustic: float = 0.0
    language: float = 0.0
    model: float = 0.0
    total: float = 0.0

    @property
    def words(self) -> list[str]:
        return self.text.split()


@dataclass
class NBest:
    """The hypotheses of one utterance."""

    id: str
    hypotheses: list[Hypothesis] = field(default_factory=list)
    reference: str | None = None


def read_nbest(path: str | Path) -> list[NBest]:
    """The lists of a file of JSON lines, or of a Kaldi folder."""
    path = Path(path)
    if not path.exists():
        raise InputNotFound(f"{path} does not exist; expected n-best lists: JSON lines, or a folder of Kaldi's")
    found = _read_kaldi(path) if path.is_dir() else [_parsed(*line) for line in _lines(path)]
    if not found:
        raise InputError(f"{path} has no n-best lists; expected one utterance a line")
    return found


def read_references(path: str | Path) -> dict[str, str]:
    """Kaldi's text: an utterance's name and its words on each line."""
    return {name: words for _, _, name, words in _archive(Path(path))}


def write_nbest(lists: Iterable[NBest], path: str | Path) -> None:
    """Write lists as JSON lines, or, if the name ends in .txt, each utterance's name and best text."""
    path = Path(path)
    lines = (_best_line(one) if path.suffix == ".txt" else _json_line(one) for one in lists)
    with replaced_file(str(path)) as file:
        file.writelines(f"{line}\n" for line in lines)


def _best_line(one: NBest) -> str:
    return f"{one.id} {one.hypotheses[0].text}".rstrip() if one.hypotheses else one.id


def _json_line(one: NBest) -> str:
    record: dict[str, Any] = {"id": one.id}
    if one.reference is not None:
        record["reference"] = one.reference
    record["nbest"] = [
        {"text": h.text, "acoustic": h.acoustic, "language": h.language, "model": h.model, "total": h.total}
        for h in one.hypotheses
    ]
    return json.dumps(record, ensure_ascii=False)


def _lines(path: Path) -> Iterator[tuple[Path, int, str]]:
    """The lines of a text file that are not blank, with their numbers."""
    if not path.exists():
        raise InputNotFound(f"{path} does not exist; expected a text file")
    for number, line in numbered_lines(path, "text in UTF-8"):
        if line.strip():
            yield path, number, line


def _parsed(path: Path, number: int, line: str) -> NBest:
    where, form = f"{path}, line {number}", '{"id": "a", "nbest": [{"text": "some words", "acoustic": -1.5}]}'
    try:
        record = json.loads(line)
        hypotheses = [
            Hypothesis(str(one["text"]), *(_number(one, name) for name in ("acoustic", "language", "model")))
            for one in record["nbest"]
        ]
        name, reference = str(record.get("id", number)), record.get("reference")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{where}: {shown(line)} is no n-best list ({error}); expected such as {form}") from None
    if not hypotheses:
        raise InputError(f"{where}: the list of {name!r} is empty; expected a hypothesis or more")
    return NBest(name, hypotheses, None if reference is None else str(reference))


def _number(record: dict[str, Any], name: str) -> float:
    number = float(record.get(name, 0.0))
    if number != number or abs(number) == float("inf"):
        raise ValueError(f"{name} is {number}")
    return number


def _archive(path: Path) -> Iterator[tuple[Path, int, str, str]]:
    """The keys and values of a text archive of Kaldi's."""
    for _, number, line in _lines(path):
        key, _, value = line.strip().partition(" ")
        yield path, number, key, value.strip()


def _read_kaldi(folder: Path) -> list[NBest]:
    """Texts and costs of utterance-1, utterance-2, and so on."""
    costs: dict[str, dict[str, float]] = {}
    for name in (ACOUSTIC, LANGUAGE):
        costs[name] = {}
        if name == ACOUSTIC or (folder / name).exists():
            for path, number, key, value in _archive(folder / name):
                try:
                    costs[name][key] = float(value)
                except ValueError:
                    raise InputError(f"{path}, line {number}: {shown(value)} is no cost; expected a number") from None
    lists: dict[str, NBest] = {}
    for path, number, key, words in _archive(folder / WORDS):
        if key not in costs[ACOUSTIC]:
            raise InputError(f"{path}, line {number}: {key} is not in {ACOUSTIC}; expected the same keys in both files")
        utterance = key.rpartition("-")[0] or key
        one = lists.setdefault(utterance, NBest(utterance))
        one.hypotheses.append(Hypothesis(words, -costs[ACOUSTIC][key], -costs[LANGUAGE].get(key, 0.0)))
    return list(lists.values())
