"""The paper's tables on any corpus: what is missing is trained, what is there is taken.

A workspace keeps of every model its probabilities of the valid and test text, its size, and how long it took, so that
a run that was stopped goes on where it was, and mixtures cost nothing. Mixture weights are found on the valid text;
perplexities are the test text's. On another corpus than the paper's, ratios to Kneser-Ney of order 5 are what
compares.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from snm.baselines.neural import CELLS, NetworkSettings
from snm.corpus import encode_files, find_files
from snm.engines import has_gpu
from snm.errors import InputError, MissingExtra, SettingsError
from snm.evaluation import speed
from snm.metafeatures import MetafeatureSet
from snm.mixing import find_weights, perplexity_of
from snm.pipeline import NEURAL, Settings, train
from snm.progress import Progress, silent
from snm.storage import size_of
from snm.training import TrainingSettings
from snm.vocabulary import BEGIN

PARTS = ("valid", "test")
REFERENCE = "kn5"
ORDERS = (5, 6, 7, 8)
PAPER_RATE = 0.02  # of AdaGrad, with all of the paper's metafeatures
SMALL_FOR_NETWORKS = 5_000_000  # bytes of text, compressed or not, that a network is trained on without a GPU
LM1B_TRAINING = "training-monolingual.tokenized.shuffled"
LM1B_HELD_OUT = "heldout-monolingual.tokenized.shuffled"


@dataclass(frozen=True)
class Line:
    """A row of a table: a model, or a mixture of several, and the perplexity that the paper has for it."""

    label: str
    members: tuple[str, ...]
    paper: float


def _by_order(label: str, names: Sequence[str], values: Sequence[float]) -> list[Line]:
    return [
        Line(f"{label} {n}-gram", tuple(name.format(n) for name in names), value)
        for n, value in zip(ORDERS, values, strict=True)
    ]


BENCHMARK = ("kn5", "hsme5", "sbo5", "snm5-skip", "snm10-skip", "rnn256", "rnn512", "rnn1024")
"""All models of the paper's table 3."""

TABLES: dict[str, list[Line]] = {
    "table1": [
        *_by_order("KN", ["kn{}"], [67.6, 64.3, 63.2, 62.9]),
        *_by_order("Katz", ["katz{}"], [79.9, 80.5, 82.2, 83.5]),
        *_by_order("SNM", ["snm{}"], [70.8, 67.0, 65.4, 64.8]),
        *_by_order("KN+SNM", ["kn{}", "snm{}"], [66.5, 63.0, 61.7, 61.4]),
    ],
    "table2": [
        Line("SNM5-skip (no n-grams)", ("snm5-skip-only",), 69.8),
        Line("SNM5-skip", ("snm5-skip",), 54.2),
        Line("KN5+SNM5-skip (no n-grams)", ("kn5", "snm5-skip-only"), 56.5),
        Line("KN5+SNM5-skip", ("kn5", "snm5-skip"), 53.6),
    ],
    "table3": [
        Line("KN5", ("kn5",), 67.6),
        Line("HSME", ("hsme5",), 101.3),
        Line("SBO", ("sbo5",), 87.9),
        Line("SNM5-skip", ("snm5-skip",), 54.2),
        Line("SNM10-skip", ("snm10-skip",), 52.9),
        Line("RNN256", ("rnn256",), 58.2),
        Line("RNN512", ("rnn512",), 54.6),
        Line("RNN1024", ("rnn1024",), 51.3),
        Line("LSTM1024", ("lstm1024",), math.nan),
        Line("SNM10-skip, our estimation", ("snm10-skip, ours",), math.nan),
        Line("SNM10-skip+RNN1024", ("snm10-skip", "rnn1024"), 41.3),
        Line("SNM10-skip+LSTM1024", ("snm10-skip", "lstm1024"), math.nan),
        Line("SNM10-skip, ours+RNN1024", ("snm10-skip, ours", "rnn1024"), math.nan),
        Line("SNM10-skip, ours+LSTM1024", ("snm10-skip, ours", "lstm1024"), math.nan),
        Line("Previous best", ("kn5", "hsme5", "sbo5", "rnn256", "rnn512", "rnn1024"), 43.8),
        Line("ALL", BENCHMARK, 41.0),
        Line("ALL+LSTM1024", (*BENCHMARK, "lstm1024"), math.nan),
    ],
    "ablations": [
        Line("No ablation", ("snm5, both counts doubled",), 70.8),
        Line("Feature", ("snm5, both counts doubled, -feature",), 71.9),
        Line("Feature type", ("snm5, both counts doubled, -type",), 71.4),
        Line("Feature count", ("snm5, both counts doubled, -feature-count",), 70.6),
        Line("Feature count: second bucket", ("snm5, link count doubled",), 70.3),
        Line("Link count", ("snm5, both counts doubled, -link-count",), 73.2),
        Line("Link count: second bucket", ("snm5, feature count doubled",), 70.6),
    ],
}


ALL_EVENTS = 1 << 32


def settings_of(name: str, prune: int = 1, events: int = ALL_EVENTS) -> dict[str, Any]:
    """What `Settings` a model of the tables is trained with: SNM's are the paper's, but for those that say "ours".

    The paper prunes nothing and looks at all events; `prune` and `events` are for texts that would not fit.
    """
    kind, *how = name.split(", ")
    for baseline in ("kn", "katz", "sbo", "hsme"):
        if kind.removeprefix(baseline).isdecimal():
            return {"model": baseline, "order": int(kind.removeprefix(baseline))}
    for cell in CELLS:
        if kind.removeprefix(cell).isdecimal():
            return {"model": "rnn", "network": NetworkSettings(cell=cell, hidden=int(kind.removeprefix(cell)))}
    if how == ["ours"]:
        return {"features": kind, "training": TrainingSettings(events=events), "prune": max(prune, Settings.prune)}
    buckets = {
        "both counts doubled": ("double", "double"),
        "link count doubled": ("single", "double"),
        "feature count doubled": ("double", "single"),
    }[how[0] if how else "link count doubled"]
    chosen = MetafeatureSet.parse(", ".join(["all", *how[1:]]), *buckets)
    training = TrainingSettings(metafeatures=chosen, rate=PAPER_RATE, start=0.0, events=events)
    return {"features": kind, "training": training, "gate": 0, "prune": prune}


@dataclass
class Workspace:
    """A folder of results of one corpus."""

    folder: Path
    corpus: Path
    threads: int = 1
    memory: int = 4 << 30
    keep_models: bool = False
    shard: int = 0
    prune: int = 1
    events: int = ALL_EVENTS
    progress: Progress = silent
    notify: Callable[[str], None] = lambda message: None
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.texts = find_texts(self.corpus, self.shard)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = self.folder / "figures.json"
        if self._file.exists():
            self.figures = json.loads(self._file.read_text())
        tested = f"{self.corpus.name}, {self.texts['test'].name}{self.limits}"
        if self.figures.setdefault("corpus", tested) != tested:
            raise SettingsError(
                f"{self.folder} holds results of {self.figures['corpus']}, not of {tested}; choose another folder"
            )

    @property
    def limits(self) -> str:
        """In words, where SNM is not quite the paper's."""
        pruned = f", features seen fewer than {self.prune} times left out" if self.prune > 1 else ""
        sampled = f", about {self.events:,} events to train on" if self.events < ALL_EVENTS else ""
        return pruned + sampled

    def probabilities(self, name: str) -> dict[str, np.ndarray]:
        """A model's probabilities of the valid and of the test text; trained where they are missing."""
        paths = {part: self.folder / f"{name}.{part}.npy" for part in PARTS}
        if name not in self.figures or not all(path.exists() for path in paths.values()):
            self._train(name, paths)
        return {part: np.load(path) for part, path in paths.items()}

    def _train(self, name: str, paths: dict[str, Path]) -> None:
        self.notify(f"training {name}")
        output = self.folder / f"{name}.model"
        begun = time.perf_counter()
        how = settings_of(name, self.prune, self.events)
        settings = Settings(threads=self.threads, memory=self.memory, **how)
        model = train(self.texts["train"], output, settings, overwrite=output.exists(), progress=self.progress)
        seconds = time.perf_counter() - begun
        if how.get("model") in NEURAL:
            model.move_to("auto")
        for part, path in paths.items():
            text = encode_files(self.texts[part], model.vocabulary)
            np.save(path, model.probabilities(text.tokens, self.threads)[text.tokens != BEGIN])
        size, what = size_of(model.manifest)
        self.figures[name] = {what: size, "seconds": seconds, "speed": round(speed(output, self.texts["test"]))}
        if not self.keep_models:
            shutil.rmtree(output)
        self._save()

    def take(self, folder: Path) -> None:
        """Take over the models of another workspace of the same corpus that this one lacks."""
        try:
            figures = json.loads((folder / "figures.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{folder}: no results to take ({error}); expected a folder of snm reproduce") from error
        theirs, ours = figures.pop("corpus", ""), self.figures["corpus"]
        if theirs.split(", ")[:2] != ours.split(", ")[:2]:
            raise SettingsError(f"{folder} holds results of {theirs}, not of {ours}; they do not compare")
        for name in sorted(figures.keys() - self.figures.keys()):
            if theirs != ours and settings_of(name).get("model", "snm") == "snm":
                self.notify(f"not taken from {folder}: {name}, which was trained with other --prune and --events")
                continue
            for part in PARTS:
                shutil.copyfile(folder / f"{name}.{part}.npy", self.folder / f"{name}.{part}.npy")
            self.figures[name] = figures[name]
            self.notify(f"taken from {folder}: {name}")
        self._save()

    def _save(self) -> None:
        scratch = self._file.with_suffix(".new")
        scratch.write_text(json.dumps(self.figures, indent=1) + "\n")
        os.replace(scratch, self._file)

    def row(self, line: Line) -> dict[str, Any]:
        """Our figures beside the paper's."""
        members = [self.probabilities(name) for name in line.members]
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

    def _is_out_of_reach(self, model: str) -> bool:
        """Whether this is a network that is not there yet and cannot well be trained here."""
        how = settings_of(model)
        if how.get("model") not in NEURAL or model in self.figures:
            return False
        if find_spec("torch") is None:
            return True
        large = sum(Path(file).stat().st_size for file in find_files(self.texts["train"])) > SMALL_FOR_NETWORKS
        return large and not has_gpu()


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


def markdown(name: str, corpus: str, rows: list[dict[str, Any]]) -> str:
    """A table of the paper as Markdown."""
    return f"## {name} on {corpus}\n\n{markdown_table(rows)}\n"


def markdown_table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table, the first row's keys as its head."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([_cell(row[column]) for column in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 0.01 else f"{value:.3f}" if abs(value) < 10 else f"{value:,.2f}"
    if isinstance(value, list):
        return " ".join(f"{w:.2f}" for w in value)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def plot(name: str, corpus: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Our ratios to Kneser-Ney beside the paper's, as a picture."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtra("matplotlib", "plot", "drawing a plot") from None
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.32 * len(rows)), layout="constrained")
    places = np.arange(len(rows))[::-1]
    axes.axvline(1.0, color="#888888", linewidth=0.8, zorder=0)
    axes.hlines(places, 0, 1, transform=axes.get_yaxis_transform(), color="#eeeeee", linewidth=0.8, zorder=0)
    for column, label, style in (
        ("paper / KN5", "paper, on 0.8 G words", {"facecolors": "white", "edgecolors": "#777777"}),
        ("test / KN5", f"here, on {corpus}", {"color": "#1b6ca8"}),
    ):
        axes.scatter([row[column] or np.nan for row in rows], places, 42, label=label, zorder=3, **style)
    for row, place in zip(rows, places, strict=True):
        ours, paper = row["test / KN5"], row["paper / KN5"]
        texts = f"{ours:.3f}", "" if paper is None else f"{paper:.3f}"
        for x, (text, colour) in zip((1.02, 1.10), zip(texts, ("#1b6ca8", "#777777"), strict=True), strict=True):
            axes.text(x, place, text, color=colour, va="center", fontsize=9, transform=axes.get_yaxis_transform())
    axes.set_yticks(places, [row["model"] for row in rows])
    axes.set_xlabel("perplexity relative to 5-gram Kneser-Ney (lower is better)")
    axes.set_title(name, loc="left", fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def plot_frontier(corpus: str, rows: list[dict[str, Any]], path: Path) -> None:
    """Perplexity against words scored a second on one core, of the models of a table whose speed is known."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtra("matplotlib", "plot", "drawing a plot") from None
    known = [row for row in rows if row["words/s"]]
    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    best = [row for row in known if not any(o["words/s"] > row["words/s"] and o["test"] <= row["test"] for o in known)]
    best.sort(key=lambda row: row["words/s"])
    axes.plot([row["words/s"] for row in best], [row["test"] for row in best], color="#cccccc", linewidth=1, zorder=1)
    axes.scatter([row["words/s"] for row in known], [row["test"] for row in known], 42, color="#1b6ca8", zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.yaxis.set_minor_formatter("{x:.0f}")
    axes.set_xlabel("words scored a second on one core")
    axes.set_ylabel("test perplexity")
    axes.set_title(f"perplexity against cost, {corpus}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.2, y=0.12)
    figure.draw_without_rendering()
    _label(axes, [(row["words/s"], row["test"]) for row in known], [row["model"] for row in known])
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _label(axes: Any, points: list[tuple[float, float]], labels: list[str]) -> None:
    """Write each label beside its point, as near as it can be without touching another label or a point."""
    from matplotlib.transforms import Bbox

    taken = [Bbox.from_bounds(x - 8, y - 8, 16, 16) for x, y in axes.transData.transform(points)]
    rows = [y for far in range(12) for y in (3 + 11 * far, -11 * (far + 1))]
    for point, label in zip(points, labels, strict=True):
        for y, (x, side) in itertools.product(rows, ((8, "left"), (-8, "right"))):
            line = {"arrowstyle": "-", "color": "#bbbbbb", "shrinkB": 3} if abs(y) > 11 else None
            note = axes.annotate(label, point, (x, y), textcoords="offset points", ha=side, fontsize=8, arrowprops=line)
            box = note.get_window_extent()
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.figure.bbox.x1 and axes.bbox.y0 <= box.y0
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()
