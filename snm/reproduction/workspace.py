"""A folder of results: models that are missing are trained, results that exist are used.

A workspace keeps each model's probabilities of the valid and test text, its size and its training time. A stopped run
resumes from there, and mixtures cost nothing. Mixture weights are found on the valid text; perplexities are of the test
text. On another corpus than the paper's, only the ratios to Kneser-Ney of order 5 can be compared.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from snm import storage
from snm.arguments import shown
from snm.devices import has_gpu
from snm.errors import FormatError, InputError, SettingsError
from snm.evaluation import speed
from snm.layouts.tokens import BEGIN
from snm.manifest import size_of
from snm.mixing import find_weights, perplexity_of
from snm.pipeline import train
from snm.progress import Notify, Progress, ignore, silent
from snm.reproduction.tables import PARTS, REFERENCE, TABLES, Limits, Line, settings_of
from snm.settings import ALL_EVENTS, NEURAL, Settings, departures_from_paper
from snm.text.encoding import encode_files
from snm.text.files import find_files

SMALL_FOR_NETWORKS = 5_000_000  # bytes of text, compressed or not, that a network is trained on without a GPU
FIGURES = "figures.json"
LM1B_TRAINING = "training-monolingual.tokenized.shuffled"
LM1B_HELD_OUT = "heldout-monolingual.tokenized.shuffled"


@dataclass
class Workspace:
    """A folder of results of one corpus."""

    folder: Path
    corpus: Path
    threads: int = 1
    memory: int = 4 << 30
    keep_models: bool = False
    shard: int = 0
    limits: Limits = field(default_factory=Limits)
    progress: Progress = silent
    notify: Notify = ignore
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.texts = find_texts(self.corpus, self.shard)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"cannot write to {self.folder}: {error.strerror}; choose another folder") from error
        self._file = self.folder / FIGURES
        if self._file.exists():
            self.figures = read_figures(self._file)
        tested = f"{self.corpus.name}, {self.texts['test'].name}{self.limits}"
        if self.figures.setdefault("corpus", tested) != tested:
            raise SettingsError(
                f"{self.folder} holds results of {self.figures['corpus']}, not of {tested}; choose another folder"
            )

    def probabilities(self, name: str) -> dict[str, np.ndarray]:
        """A model's probabilities of the valid and of the test text; trained where they are missing."""
        paths = {part: self.folder / f"{name}.{part}.npy" for part in PARTS}
        if name in self.figures and all(path.exists() for path in paths.values()):
            try:
                return {part: read_probabilities(path) for part, path in paths.items()}
            except FormatError as error:
                self.notify(f"{error}; training {name} again")
        self._train(name, paths)
        return {part: read_probabilities(path) for part, path in paths.items()}

    def _train(self, name: str, paths: dict[str, Path]) -> None:
        self.notify(f"training {name}")
        output = self.folder / f"{name}.model"
        begun = time.perf_counter()
        settings = settings_of(name, self.limits, threads=self.threads, memory=self.memory)
        model = train(self.texts["train"], output, settings, force=output.exists(), progress=self.progress)
        seconds = time.perf_counter() - begun
        if settings.model in NEURAL:
            model.move_to("auto")
        for part, path in paths.items():
            text = encode_files(self.texts[part], model.vocabulary)
            if not text.events:
                raise InputError(f"{self.texts[part]}: no words; expected one sentence a line")
            np.save(path, model.probabilities(text.tokens, threads=self.threads)[text.tokens != BEGIN])
        size, what = size_of(model.manifest)
        self.figures[name] = {
            what: size,
            "seconds": seconds,
            "speed": round(speed(output, self.texts["test"])),
            "departures": _departures(settings, model.manifest),
        }
        model.close()  # Windows removes no file that is mapped
        if not self.keep_models:
            shutil.rmtree(output)
        self._save()

    def take(self, folder: Path) -> None:
        """Take over the models of another workspace of the same corpus that this one lacks."""
        if not (folder / FIGURES).is_file():
            raise InputError(f"{folder}: no results to take; expected a folder of snm reproduce, with {FIGURES}")
        figures = read_figures(folder / FIGURES)
        theirs, ours = figures.pop("corpus"), self.figures["corpus"]
        if theirs.split(", ")[:2] != ours.split(", ")[:2]:
            raise SettingsError(f"{folder} holds results of {theirs}, not of {ours}; they do not compare")
        known = {member for lines in TABLES.values() for line in lines for member in line.members}
        for name in sorted((figures.keys() & known) - self.figures.keys()):
            if theirs != ours and settings_of(name).model == "snm":
                self.notify(f"not taken from {folder}: {name}, which was trained with other options")
                continue
            for part in PARTS:
                np.save(self.folder / f"{name}.{part}.npy", read_probabilities(folder / f"{name}.{part}.npy"))
            self.figures[name] = figures[name]
            self.notify(f"taken from {folder}: {name}")
        self._save()

    def _save(self) -> None:
        with storage.replaced_file(str(self._file), self.notify) as stream:
            stream.write(json.dumps(self.figures, indent=1) + "\n")

    def row(self, line: Line) -> dict[str, Any]:
        """Our figures beside the paper's."""
        members = [self.probabilities(name) for name in line.members]
        for part in PARTS:
            sizes = {name: len(member[part]) for name, member in zip(line.members, members, strict=True)}
            if len(set(sizes.values())) > 1:
                raise FormatError(
                    f"{self.folder}: probabilities of {sizes} words of the {part} text, which has changed between the "
                    f"runs; choose another folder"
                )
        p = {part: np.array([member[part] for member in members]) for part in PARTS}
        weights = find_weights(p["valid"]) if len(members) > 1 else np.ones(1)
        reference = {part: perplexity_of(values) for part, values in self.probabilities(REFERENCE).items()}
        ours = perplexity_of(weights @ p["test"])
        alone = len(members) == 1
        return {
            "model": line.label,
            "parameters": self._figure(line, "links") or self._figure(line, "parameters"),
            "weights": None if alone else [round(w, 4) for w in weights.tolist()],
            "valid": perplexity_of(weights @ p["valid"]),
            "test": ours,
            "test / KN5": ours / reference["test"],
            "paper": None if math.isnan(line.paper) else line.paper,
            "paper / KN5": None if math.isnan(line.paper) else line.paper / 67.6,
            "seconds": sum(self.figures[name]["seconds"] for name in line.members),
            "words/s": self._speed(line),
        }

    def _figure(self, line: Line, name: str) -> Any:
        """What is kept of a model, of no mixture."""
        return self.figures[line.members[0]].get(name) if len(line.members) == 1 else None

    def _speed(self, line: Line) -> int | None:
        """Words scored a second, by all members one after another."""
        speeds = [self.figures[name].get("speed") for name in line.members]
        return round(1 / sum(1 / speed for speed in speeds)) if all(speeds) else None

    def train_only(self, names: Sequence[str], tables: Sequence[str]) -> None:
        """Train these models of the tables and no others, to be taken elsewhere."""
        known = {member for table in tables for line in self._lines(table) for member in line.members}
        for name in names:
            if name not in known:
                raise SettingsError(f"no model {name!r} in these tables; expected some of {'; '.join(sorted(known))}")
        for name in names:
            self.probabilities(name)

    @staticmethod
    def _lines(table: str) -> list[Line]:
        if table not in TABLES:
            raise SettingsError(f"no table {table!r}; expected one of {', '.join(TABLES)}")
        return TABLES[table]

    def table(self, name: str) -> list[dict[str, Any]]:
        lines = self._lines(name)
        lacking = {model for line in lines for model in line.members if self._is_out_of_reach(model)}
        if lacking:
            why = "PyTorch is not installed" if find_spec("torch") is None else "it would take days without a GPU"
            self.notify(
                f"left out, with the mixtures they are in: {', '.join(sorted(lacking))}: {why}; train them elsewhere "
                f"and bring the results (--take)"
            )
        return [self.row(line) for line in lines if not lacking & set(line.members)]

    def caption(self, name: str) -> str:
        """Which models of a table are trained as the paper does, and where each departs from it."""
        members = {member for line in self._lines(name) for member in line.members}
        by_departure: dict[str, list[str]] = {}
        for member in sorted(members & self.figures.keys()):
            for departure in self.figures[member].get("departures") or ():
                by_departure.setdefault(departure, []).append(member)
        snms = max((len(names) for names in by_departure.values()), default=0)
        parts = [
            departure if len(names) == snms else f"{departure} ({'; '.join(names)})"
            for departure, names in by_departure.items()
        ]
        return f"SNMs are trained as in the paper, except: {', '.join(parts)}." if parts else ""

    def _is_out_of_reach(self, model: str) -> bool:
        """Whether this is a network that is not there yet and cannot well be trained here."""
        if settings_of(model).model not in NEURAL or model in self.figures:
            return False
        if find_spec("torch") is None:
            return True
        large = sum(Path(file).stat().st_size for file in find_files(self.texts["train"])) > SMALL_FOR_NETWORKS
        return large and not has_gpu()


def read_figures(path: Path) -> dict[str, Any]:
    """The figures of a workspace: the corpus, and size, seconds and speed of each model."""
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        for name, entry in figures.items():
            if name == "corpus":
                good = isinstance(entry, str)
            else:
                numbers = [entry["seconds"], *(entry.get(key) or 0 for key in ("speed", "links", "parameters"))]
                departures = entry.get("departures") or []
                good = all(type(number) in (int, float) and 0 <= number < math.inf for number in numbers)
                good &= isinstance(departures, list) and all(isinstance(departure, str) for departure in departures)
            if not good:
                raise ValueError(f"{name} is {shown(entry)}")
        return {"corpus": figures["corpus"], **figures}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path} is damaged ({shown(error)}); restore it, or delete it to train the models again"
        ) from error


def read_probabilities(path: Path) -> np.ndarray:
    """A model's probabilities of a text, from a file of a workspace."""
    p = storage.open_array(path, "<f8")
    if not len(p) or not (p >= 0).all():
        raise FormatError(f"{path} is damaged: it has numbers that are no probabilities, or none")
    return p


def _departures(settings: Settings, manifest: dict[str, Any]) -> list[str] | None:
    """Where an SNM that is meant to be the paper's departs from it; None for other models."""
    if settings.model != "snm" or settings.gate:
        return None
    found = departures_from_paper(settings)
    if manifest["training"]["engine"] == "gpu":
        found.append("mini-batches on a GPU")
    used, tokens = manifest["training"]["events_used"], manifest["text"]["tokens"]
    if settings.training.events == ALL_EVENTS and used < tokens:
        found.append(f"trained on {used:,} of {tokens:,} events, as many as fit into memory")
    return found


def find_texts(corpus: Path, shard: int = 0) -> dict[str, Path]:
    """The training, valid and test text of a corpus folder.

    Files named train, valid and test, plain or compressed; or the One Billion Word Benchmark's folder as it is
    released: its training shards, one held-out shard for test and the next one for valid.
    """
    training = next(iter(sorted(corpus.rglob(LM1B_TRAINING))), None)
    if training is not None:
        held_out = sorted(training.parent.glob(f"{LM1B_HELD_OUT}/news.en.heldout-*"))
        if not 0 <= shard < len(held_out) or len(held_out) < 2:
            raise InputError(f"{corpus}: {len(held_out)} held-out shards; shard {shard} and another one are needed")
        return {"train": training, "test": held_out[shard], "valid": held_out[(shard + 1) % len(held_out)]}
    texts = {}
    for part in ("train", *PARTS):
        found = sorted(corpus.glob(f"{part}.txt*"))
        if len(found) != 1:
            raise InputError(
                f"{corpus}: {len(found)} files named {part}.txt; expected one of train, valid and test each"
            )
        texts[part] = found[0]
    return texts
