"""Planning a training: its size, memory, disk and time, from a sample of the text and a short training on this machine.

The sample is taken in pieces from all of the text, ordered such that its first half, quarter and eighth are spread
evenly too. Counts are forecast for these, and their growth is continued to the whole text. The settings are then tried
on the first half, with the partitions and slots that the whole text would have, and every stage's time is multiplied by
what its work grows with.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from snm import disk, pipeline
from snm.arguments import functions, shown
from snm.counts.counting import ENOUGH_PARTITIONS, MAX_SORTED_TOGETHER, SMALL_PARTITION, SORT_BYTES, VALUE_BYTES
from snm.counts.forecast import Forecast, chosen_buckets
from snm.counts.walks import LINK_BYTES
from snm.engines.cpu import EVENTS_SHARE, GROWTH_BYTES, PROGRAM_BYTES, TOKEN_BYTES, CpuEngine, partition_bytes
from snm.errors import InputError, SettingsError
from snm.features.extraction import Extractor
from snm.gate.fitting import MIN_EVENTS
from snm.layouts.keys import KeyLayout
from snm.progress import Advance, Notify, Progress, ignore, silent
from snm.settings import NEURAL, Settings
from snm.text import classes
from snm.text.encoding import Text, encode_files, read_corpus, read_vocabulary
from snm.text.files import NEWLINE, STDIN, Files, find_files, is_packed, read_beginning
from snm.text.vocabulary import Vocabulary

SAMPLE_BYTES = 64 << 20
PIECES = 64  # of the sample: a power of two
DOUBLINGS = 3  # growth is measured from an eighth of the sample on
SAMPLED_LINKS = 1 << 21  # of the whole sample, to forecast its counts
SMALL_BYTES, TIMED_SHARE = 1 << 20, 4  # the two trainings that are timed: bytes of text, and a share of the sample
CLASSES_GROWTH = 0.6  # exponent: of the time of learning word classes, by the tokens
ORDER_BYTES = 24  # memory of an n-gram of a backoff model: key, number and result
CLASS_TOKENS = 1_000_000  # that word classes are learned from, for the forecast
STAGES = ("reading", "word classes", "counting", "training", "building", "gating", "estimating", "merging", "writing")
OF_STAGE = {"sizing": "counting", "writing": "counting", "word": "word classes", "forecasting": "reading"}
"""The stage of a progress bar, by the first word of its label, where they differ."""
AFTER = {"building": "gating", "gating": "writing", "merging": "writing"}
"""The stage that begins when the bar of another ends."""


@dataclass(frozen=True)
class Plan:
    """What a training is going to take. Bytes, seconds, and numbers of things; about as many."""

    text_bytes: int  # decompressed
    sample_bytes: int
    tokens: int  # words and sentence ends
    words: int
    rows: int
    links: int
    partitions: int
    spilled_bytes: int  # links on disk at a time; 0 if the text is walked over for each partition
    memory: int  # at the peak
    disk: int  # at the peak, tokens included
    disk_by_stage: dict[str, int]
    free: int  # disk
    model_bytes: int
    seconds: float
    seconds_by_stage: dict[str, float]
    cpu_seconds: float
    nodes: int
    tasks: int  # of counting, on a cluster: each counts a partition
    moved_bytes: int  # between nodes


def plan(
    sources: Files, output: str | Path = ".", settings: Settings | None = None, *, dev: Files | None = None,
    nodes: int = 1, sample: int = SAMPLE_BYTES, progress: Progress = silent, notify: Notify = ignore,
) -> Plan:  # fmt: skip
    """Plan a training on text, without doing it. Its arguments are those of `train`.

    `output`: a folder on the disk that would be used. `nodes`: machines that count together. `sample`: bytes of text to
    read.
    """
    settings = Settings() if settings is None else settings
    if not isinstance(settings, Settings):
        raise SettingsError(f"settings is {shown(settings)}; expected snm.Settings(...)")
    functions(progress=progress, notify=notify)
    if settings.model in NEURAL:
        raise SettingsError(f"a training of a neural model ({settings.model}) cannot be planned; expected snm, kn, ...")
    if nodes > 1 and settings.model != "snm":
        raise SettingsError(f"--nodes is for SNM: a model of kind {settings.model!r} is estimated on one machine")
    folder = _existing(Path(output))
    with tempfile.TemporaryDirectory(prefix=".snm-plan-", dir=folder) as scratch:
        taken = take_sample(find_files(sources), Path(scratch), sample, settings)
        planner = Planner(settings, taken, folder, dev, progress)
        return planner.plan(nodes)


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


# ---------------------------------------------------------------------------------------------
# the sample


@dataclass(frozen=True)
class Sample:
    """Pieces of a text, in an order in which the first 2^k are spread evenly."""

    folder: Path
    pieces: list[bytes]
    text: Text
    vocabulary: Vocabulary
    text_bytes: float  # of the whole text
    whole: bool  # the sample is the whole text

    @property
    def bytes(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def ratio(self) -> float:
        """How many times as large the whole text is."""
        return 1.0 if self.whole else max(1.0, self.text_bytes / max(1, self.bytes))

    def file(self, name: str, size: float) -> Path:
        """A file with pieces from the first on, at least `size` bytes if there are as many."""
        path, written = self.folder / name, 0
        with open(path, "wb") as file:
            for piece in self.pieces:
                if written < size:
                    written += file.write(piece + NEWLINE)  # a blank line: documents do not go on in another piece
        return path


def take_sample(files: list[str], folder: Path, most: int, settings: Settings) -> Sample:
    """Read about `most` bytes of text and encode them."""
    if STDIN in files or any(not Path(name).is_file() for name in files):
        raise InputError("a plan reads parts of the text, so it needs files; expected no pipe and no standard input")
    sizes = [Path(name).stat().st_size for name in files]
    share, pieces, total = most / max(1, sum(sizes)), list[bytes](), 0.0
    for name, size in zip(files, sizes, strict=True):
        found, plain = _packed_pieces(name, size, share) if is_packed(name) else _plain_pieces(name, size, share)
        pieces += found
        total += plain
    whole = sum(map(len, pieces)) >= total
    pieces = _spread(pieces)
    sample = Sample(folder, pieces, Text(np.empty(0, np.uint32), 0), Vocabulary([]), total, whole)
    path = sample.file("sample", total)
    if settings.vocab is None:
        # a word of the vocabulary is less frequent in the sample than in the text
        min_count = max(1, round(settings.min_count / sample.ratio))
        text, vocabulary = read_corpus(
            [path], min_count, settings.max_words, settings.closed, documents=settings.document,
            threads=settings.threads, on_error=settings.on_error,
        )  # fmt: skip
    else:
        vocabulary = read_vocabulary(Path(settings.vocab), settings.closed, settings.document, settings.on_error)
        text = encode_files([path], vocabulary, on_error=settings.on_error)
    if not text.events:
        raise InputError(f"{', '.join(files)[:200]}: no words; expected one sentence a line")
    return replace(sample, text=text, vocabulary=vocabulary)


def _plain_pieces(name: str, size: int, share: float) -> tuple[list[bytes], float]:
    """Pieces of whole lines, from all of a file; and its size."""
    if share >= 1:
        return _cut(Path(name).read_bytes(), PIECES), size
    length, pieces = max(1, int(size * share / PIECES)), []
    with open(name, "rb") as file:
        for start in np.linspace(0, size - length, PIECES).astype(int).tolist():
            file.seek(max(0, start - 1))
            if start:
                file.readline(size)  # the rest of a line
            pieces.append(file.read(length) + file.readline())
    return pieces, size


def _packed_pieces(name: str, size: int, share: float) -> tuple[list[bytes], float]:
    """Pieces of the beginning of a compressed file, and about its size when it is decompressed."""
    data, plain = read_beginning(name, max(1 << 16, int(size * share)))
    return _cut(data[: data.rfind(NEWLINE) + 1] if len(data) < plain else data, PIECES), plain


def _cut(data: bytes, n: int) -> list[bytes]:
    """About n pieces of whole lines."""
    edges = [0]
    for i in range(1, n):
        edges.append(max(edges[-1], data.find(NEWLINE, len(data) * i // n) + 1))
    return [data[a:b] for a, b in zip(edges, [*edges[1:], len(data)], strict=True) if a < b]


def _spread(pieces: list[bytes]) -> list[bytes]:
    """The same pieces: the first half has every second one, and so on. They are about PIECES."""
    groups = [b"".join(pieces[len(pieces) * i // PIECES : len(pieces) * (i + 1) // PIECES]) for i in range(PIECES)]
    bits = PIECES.bit_length() - 1
    return [groups[int(f"{i:0{bits}b}"[::-1], 2)] for i in range(PIECES)]


# ---------------------------------------------------------------------------------------------
# growth


def continued(values: list[np.ndarray], doublings: float) -> np.ndarray:
    """Where growth leads to: `values` at doubling sizes of a text, continued for some more doublings.

    A value grows by 2^(1 - d) a doubling: d is 0 if everything new is different, and 1 if nothing is. By Heaps' law d
    is constant. In a text that repeats itself d grows, up to twofold a doubling: that of one that is drawn again and
    again from the same sentences. So its growth is measured.
    """
    logs = np.log2(np.maximum(values, 1e-9))
    deficits = np.clip(1 - np.diff(logs, axis=0), 1e-3, 1.0)
    growth = np.clip((deficits[-1] / deficits[0]) ** (1 / max(1, len(deficits) - 1)), 1.0, 2.0)
    deficit, exponent, left = deficits[-1], np.zeros_like(deficits[-1]), doublings
    while left > 0:
        deficit = np.minimum(deficit * growth, 1.0)
        exponent += min(left, 1.0) * (1 - deficit)
        left -= 1
    made: np.ndarray = np.where(values[-1] > 0, values[-1] * 2**exponent, 0.0)
    return made


def grown(forecasts: list[Forecast], words: list[int], ratio: float) -> Forecast:
    """The forecast of the whole text, `ratio` times as long as the last of texts of doubling lengths."""
    last, doublings = forecasts[-1], float(np.log2(ratio))
    rows = continued([f.rows_by_type for f in forecasts], doublings)
    links = continued([f.links_by_type for f in forecasts], doublings)
    links = np.minimum(np.maximum(links, rows), last.tokens * ratio)
    by_links = float(links.sum()) / max(1.0, last.links)
    of_feature = [f.events_bytes / max(1, f.features) for f in forecasts]
    events = of_feature[-1] + doublings * (of_feature[-1] - of_feature[0]) / (len(forecasts) - 1)
    features = round(last.features * ratio)
    return Forecast(
        tokens=round(last.tokens * ratio),
        words=round(float(continued([np.array([float(n)]) for n in words], doublings)[0])),
        features=features,
        rows_by_type=np.minimum(rows, links),
        links_by_type=links,
        codes_bytes=last.codes_bytes * by_links,
        chunks_bytes=last.chunks_bytes,
        events_bytes=min(events, float(disk.MOST_EVENT_BYTES)) * features,
        pages_bytes=last.pages_bytes * by_links,
    )


# ---------------------------------------------------------------------------------------------
# the plan


@dataclass(frozen=True)
class Counting:
    """How the whole text is going to be counted, and the memory of all stages."""

    partitions: int
    spill: disk.Spill
    events_on_disk: bool
    slots: int  # of the table of weights
    memory: float  # at the peak


class Planner:
    """A sample, the settings, and what follows from both."""

    def __init__(self, settings: Settings, sample: Sample, folder: Path, dev: Files | None, progress: Progress) -> None:
        self.settings, self.sample, self.folder, self.dev, self.progress = settings, sample, folder, dev, progress
        self.free = disk.free_bytes(folder)
        self.templates = len(settings.spec.templates)
        self.events = round(sample.text.events * sample.ratio)
        """Words and sentence ends of the whole text."""

    def plan(self, nodes: int) -> Plan:
        """The whole plan."""
        forecast = self.forecast()
        counting = self.counting(forecast)
        seconds = self.seconds(forecast, counting)
        tasks = max(counting.partitions, nodes) if nodes > 1 else counting.partitions
        if nodes > 1:
            seconds["counting"] = _on_nodes(seconds["counting"], counting.partitions, tasks, nodes)
        wall, cpu = {stage: round(float(n[0]), 1) for stage, n in seconds.items()}, sum(n[1] for n in seconds.values())
        tokens = TOKEN_BYTES * forecast.tokens
        stages = {"reading": tokens, **{name: round(tokens + n) for name, n in self.disk(forecast, counting).items()}}
        moved = nodes * tokens + forecast.counts_bytes + forecast.events_bytes if nodes > 1 else 0
        model = disk.matrix_bytes(forecast, self.settings) if self.is_snm else disk.backoff_bytes(forecast)
        return Plan(
            text_bytes=round(self.sample.text_bytes), sample_bytes=self.sample.bytes, tokens=self.events,
            words=forecast.words, rows=round(1 + forecast.rows), links=round(forecast.links + forecast.words),
            partitions=counting.partitions, spilled_bytes=counting.spill.bytes, memory=round(counting.memory),
            disk=max(stages.values()), disk_by_stage=stages, free=self.free, model_bytes=round(model),
            seconds=round(sum(wall.values()), 1), seconds_by_stage=wall, cpu_seconds=round(cpu, 1),
            nodes=nodes, tasks=tasks, moved_bytes=round(moved),
        )  # fmt: skip

    @property
    def is_snm(self) -> bool:
        return self.settings.model == "snm"

    @property
    def held_out(self) -> int:
        """Tokens that are held out, in the whole text."""
        if not self.is_snm or (not self.settings.gate and self.settings.training.loss != "multinomial"):
            return 0
        wanted = min(int(self.events * pipeline.HELD_OUT_SHARE) + 1, pipeline.MAX_HELD_OUT)
        return wanted if wanted >= MIN_EVENTS or self.settings.training.loss == "multinomial" else 0

    @property
    def counted_again(self) -> bool:
        return self.dev is None and self.held_out > pipeline.RECOUNTED_SHARE * self.events

    def forecast(self) -> Forecast:
        """The counts of the whole text."""
        s, text, vocabulary = self.settings, self.sample.text, self.sample.vocabulary
        spec, words, made = s.spec, list[int](), list[Forecast]()
        layout = KeyLayout.for_work(len(vocabulary), len(spec.types), self.events * self.templates)
        extractor = Extractor(spec, layout, vocabulary, self._classes(s, text, vocabulary))
        buckets = chosen_buckets(text, extractor, SAMPLED_LINKS)
        with self.progress("forecasting", sum(len(text.tokens) >> k for k in range(DOUBLINGS + 1))) as bar:
            for k in reversed(range(DOUBLINGS + 1)):
                part = replace(text, tokens=text.tokens[: len(text.tokens) >> k])
                made.append(pipeline.forecast_counts(s, part, extractor, bar, buckets))
                found = np.bincount(part.tokens, minlength=len(vocabulary))
                words.append(int(np.count_nonzero(found >= s.min_count)))
        whole = grown(made, words, self.sample.ratio)
        fixed = self.sample.whole or s.vocab is not None
        most = len(vocabulary) if fixed else whole.words
        return replace(whole, words=most if s.max_words is None else min(most, s.max_words + 3))

    def _classes(self, s: Settings, text: Text, vocabulary: Vocabulary) -> np.ndarray | None:
        """Word classes that are good enough to count with: learned from little text."""
        if not s.spec.has_classes:
            return None
        return classes.learn_classes(
            text, len(vocabulary), s.classes, s.seed, memory=CLASS_TOKENS * classes.TOKEN_BYTES
        )

    def counting(self, f: Forecast) -> Counting:
        """Partitions, memory and what is spilled, by the rules of the CPU engine."""
        program, memory = PROGRAM_BYTES, self.settings.memory
        if not self.is_snm:
            partition = partition_bytes(memory, f.tokens, 0, program)
            needed = ORDER_BYTES * f.tokens
            spill = disk.backoff_spill(f, partition, self.free)
            peak = program + GROWTH_BYTES + min(needed, partition)
            return Counting(-(-needed // partition), spill, False, 0, min(peak, memory))
        engine, training = CpuEngine(self.settings, silent, ignore), self.settings.training
        annotated = VALUE_BYTES * (self.templates - 1) * f.tokens
        if training.loss == "multinomial" or not training.passes:
            annotated = 0
        share = int(EVENTS_SHARE * engine.array_bytes)
        events_on_disk = annotated > share
        in_memory = 0 if events_on_disk else annotated
        available = partition_bytes(memory, f.tokens, in_memory, program)
        partition, scratch = self._partition(f, available, annotated > 0)
        needed = LINK_BYTES * f.features
        partitions = self.settings.partitions or -(-needed // partition)
        spill = disk.snm_spill(f, self.templates, self.settings, available, self.free)
        slots = training.table_slots(round(f.links + f.words), engine.max_slots)
        while_counting = min(needed, partition) + scratch + in_memory + GROWTH_BYTES
        while_training = slots * training.bytes_per_slot + min(annotated, share)
        peak = program + max(while_counting, while_training)
        return Counting(partitions, spill, events_on_disk, slots, min(peak, memory))

    def _partition(self, f: Forecast, available: int, annotated: bool) -> tuple[int, int]:
        """Bytes of a partition's links, and of scratch memory to sort them. See `snm.counts.counting`."""
        threads, tokens = self.settings.threads, self.sample.text.tokens
        largest = round(int(np.bincount(tokens).max()) * self.sample.ratio)  # links of the most frequent word
        together = min(MAX_SORTED_TOGETHER, available // (8 * SORT_BYTES * threads))
        scratch = SORT_BYTES * (threads * min(largest, together) + largest) if annotated else 0
        enough = max(LINK_BYTES * f.features // ENOUGH_PARTITIONS, SMALL_PARTITION)
        return min(max(available - scratch, available // 4), enough), scratch

    def disk(self, f: Forecast, counting: Counting) -> dict[str, float]:
        """Bytes beside the tokens in each stage."""
        if self.is_snm:
            return disk.snm_stages(f, self.settings, counting.spill, counting.events_on_disk, self.counted_again)
        return disk.backoff_stages(f, self.settings, counting.spill)

    def seconds(self, f: Forecast, counting: Counting) -> dict[str, np.ndarray]:
        """Wall and CPU seconds of each stage of the whole training, from two trainings on parts of the sample.

        They have the partitions and slots of the whole training. Held-out text is as long as that will be.
        """
        sample, dev = self.sample, self.dev
        if dev is None and self.held_out:
            dev = sample.file("held-out", sample.bytes * self.held_out / sample.text.events)
        small, large = (
            sample.file("small", SMALL_BYTES),
            sample.file("large", max(sample.bytes / TIMED_SHARE, 4 * SMALL_BYTES)),
        )
        ratio = sample.text_bytes / large.stat().st_size
        with self.progress("timing", 3) as bar:
            self._train(small, self._tried(counting, ratio), dev)  # loads compiled kernels
            bar(1)
            short, few = self._train(small, replace(self._tried(counting, ratio), gate=0), dev)
            bar(1)
            long, links = self._train(large, self._tried(counting, ratio), dev)
            bar(1)
        seconds = {}
        for stage in STAGES:
            of_links = stage in ("building", "merging", "writing")
            sizes = (
                (few, links, f.links) if of_links else (small.stat().st_size, large.stat().st_size, sample.text_bytes)
            )
            seconds[stage] = _continued(short[stage], long[stage], *map(float, sizes))
        tokens = np.minimum([self.events / ratio, self.events], classes.MAX_TOKENS)
        seconds["word classes"] = long["word classes"] * (tokens[1] / tokens[0]) ** CLASSES_GROWTH
        seconds["gating"] = long["gating"]
        if self.settings.training.loss == "multinomial":
            seconds["training"] = long["training"]
        if self.counted_again:
            seconds |= {f"{stage} again": seconds[stage] for stage in ("counting", "building")}
        return {stage: both for stage, both in seconds.items() if both.any()}

    def _tried(self, counting: Counting, ratio: float) -> Settings:
        """The settings of a training on a part of the text."""
        s = self.settings
        s = replace(s, min_count=max(1, round(s.min_count / ratio)))
        if not self.is_snm:
            return s
        events = None if s.training.events is None else max(1, int(s.training.events / ratio))
        training = replace(s.training, slots=counting.slots, events=events)
        return replace(s, training=training, partitions=counting.partitions)

    def _train(self, path: Path, settings: Settings, dev: Files | None) -> tuple[dict[str, np.ndarray], int]:
        """Train on a file: seconds of each stage, and the number of links."""
        clock, folder = Clock(), self.sample.folder / "model"
        with pipeline.train([path], folder, settings, dev=dev, force=True, progress=clock.progress) as model:
            return clock.stop(), int(model.manifest["links"])


def _continued(short: np.ndarray, long: np.ndarray, small: float, large: float, whole: float) -> np.ndarray:
    """The straight line through two times, at another size; from 0 on if both sizes are nearly the same."""
    if large < 2 * small:
        return long * whole / large
    made: np.ndarray = long + np.maximum(long - short, 0) * (whole - large) / (large - small)
    return made


def _on_nodes(seconds: np.ndarray, partitions: int, tasks: int, nodes: int) -> np.ndarray:
    """Seconds of counting on several nodes. A third of a partition's time is its walk, which each task has."""
    walk, rest = seconds / 3 / partitions, seconds * 2 / 3
    return -(-tasks // nodes) * (walk + rest / tasks)


class Clock:
    """Divides the time of a training between its stages, which have progress bars."""

    def __init__(self) -> None:
        self._seconds = {stage: np.zeros(2) for stage in STAGES}
        self._stage, self._begun = STAGES[0], self._now()

    @staticmethod
    def _now() -> np.ndarray:
        return np.array([time.perf_counter(), time.process_time()])

    def _enter(self, stage: str) -> None:
        now = self._now()
        self._seconds[self._stage] += now - self._begun
        self._stage, self._begun = stage, now

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Advance]:
        first = label.split()[0]
        self._enter(OF_STAGE.get(first, first))
        yield ignore
        if self._stage in AFTER:
            self._enter(AFTER[self._stage])

    def stop(self) -> dict[str, np.ndarray]:
        """Wall and CPU seconds of each stage. (2,)"""
        self._enter("writing")
        return self._seconds
