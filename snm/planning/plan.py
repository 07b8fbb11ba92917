"""The plan of a training: its size, memory, disk and time.

Counts are forecast for an eighth, a quarter, a half and all of a sample, and their growth is continued to the whole
text. Partitions, memory and disk follow from the forecast by the rules of training. Then the settings are tried on two
parts of the sample, with the partitions and slots that the whole text will have, and the time of every stage is
continued in a straight line. Memory and disk are those of the CPU engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from snm import disk, folding, pipeline, preparing
from snm.arguments import functions, shown, whole_number
from snm.counts.counting import ENOUGH_PARTITIONS, MAX_SORTED_TOGETHER, SMALL_PARTITION, SORT_BYTES, VALUE_BYTES
from snm.counts.forecast import Forecast, chosen_buckets
from snm.counts.walks import LINK_BYTES
from snm.engines.cpu import EVENTS_SHARE, GROWTH_BYTES, PROGRAM_BYTES, TOKEN_BYTES, CpuEngine, partition_bytes
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.gate.fitting import MIN_EVENTS
from snm.layouts.keys import KeyLayout
from snm.layouts.tokens import SPECIAL
from snm.planning.growth import grown
from snm.planning.sample import Sample, seekable_files, take_sample
from snm.planning.timing import STAGES, Clock, straight
from snm.progress import Progress, ignore, silent
from snm.scratch import scratch_folder
from snm.settings import HYBRID, NEURAL, Settings
from snm.text import classes
from snm.text.files import Files

SAMPLE_BYTES, MIN_SAMPLE_BYTES = 64 << 20, 1 << 20
DOUBLINGS = 3  # growth is measured from an eighth of the sample on
SAMPLED_LINKS = 1 << 21  # of the whole sample, to forecast its counts
CLASS_TOKENS = 1_000_000  # that word classes are learned from, for the forecast
CLASSES_GROWTH = 0.6  # exponent: of the time of learning word classes, by the tokens
SMALL_BYTES, TIMED_SHARE = 1 << 20, 1 / 4  # the two trainings that are timed: bytes of text, and share of the sample
ORDER_BYTES = 24  # memory of an n-gram of a backoff model: key, number and result
WALK_SHARE = 1 / 3  # of the time of counting, for walks over the text


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
    disk_free: int
    model_bytes: int
    seconds: float
    seconds_by_stage: dict[str, float]
    cpu_seconds: float
    nodes: int
    tasks: int  # of counting, on a cluster: each counts a partition
    moved_bytes: int  # between nodes
    growth: list[tuple[int, int, int]]  # (tokens, rows, links) of texts of doubling lengths; last, of the whole text


def plan(
    sources: Files, output: str | Path = ".", settings: Settings | None = None, *, dev: Files | None = None,
    nodes: int = 1, sample: int = SAMPLE_BYTES, progress: Progress = silent,
) -> Plan:  # fmt: skip
    """Plan a training on text. Arguments are as in `train`.

    `output`: a folder on the disk that would be used. `nodes`: machines that count together. `sample`: bytes of text to
    read.
    """
    settings = Settings() if settings is None else settings
    if not isinstance(settings, Settings):
        raise SettingsError(f"settings is {shown(settings)}; expected snm.Settings(...)")
    functions(progress=progress)
    nodes, sample = whole_number("nodes", nodes, 1), whole_number("sample", sample, MIN_SAMPLE_BYTES)
    if settings.model in (HYBRID, *NEURAL):
        raise SettingsError(f"the training of a network ({settings.model}) cannot be planned; expected another")
    if nodes > 1 and settings.model != "snm":
        raise SettingsError(f"several nodes are for SNM; a model of kind {settings.model!r} is estimated on one")
    files, held_out = seekable_files(sources), None if dev is None else seekable_files(dev)
    folder = _existing(Path(output))
    with scratch_folder(parent=folder) as scratch:
        taken = take_sample(files, scratch, sample, settings)
        return Planner(settings, taken, folder, held_out, progress).plan(nodes)


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


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

    def __init__(
        self, settings: Settings, sample: Sample, folder: Path, dev: list[str] | None, progress: Progress
    ) -> None:
        self.settings, self.sample, self.folder, self.dev, self.progress = settings, sample, folder, dev, progress
        self.free = disk.free_bytes(folder)
        self.templates = len(settings.spec.templates)
        self.events = round(sample.text.events * sample.ratio)
        """Words and sentence ends of the whole text."""
        self.growth: list[tuple[int, int, int]] = []

    def plan(self, nodes: int) -> Plan:
        """The whole plan."""
        f = self.forecast()
        counting = self.counting(f)
        seconds, tasks, moved = self.seconds(f, counting), counting.partitions, 0.0
        tokens = TOKEN_BYTES * f.tokens
        if nodes > 1:
            tasks = max(tasks, nodes)
            seconds["counting"] = _on_nodes(seconds["counting"], counting.partitions, tasks, nodes)
            moved = nodes * tokens + f.counts_bytes + f.events_bytes
        wall = {stage: round(float(both[0]), 1) for stage, both in seconds.items()}
        stages = {"reading": tokens, **{name: round(tokens + n) for name, n in self.disk(f, counting).items()}}
        model = disk.matrix_bytes(f, self.settings) if self.is_snm else disk.backoff_bytes(f)
        return Plan(
            text_bytes=round(self.sample.text_bytes), sample_bytes=self.sample.bytes, tokens=self.events, words=f.words,
            rows=round(1 + f.rows), links=round(f.links + f.words), partitions=counting.partitions,
            spilled_bytes=counting.spill.bytes, memory=round(counting.memory), disk=max(stages.values()),
            disk_by_stage=stages, disk_free=self.free, model_bytes=round(model), seconds=round(sum(wall.values()), 1),
            seconds_by_stage=wall, cpu_seconds=round(float(sum(both[1] for both in seconds.values())), 1), nodes=nodes,
            tasks=tasks, moved_bytes=round(moved), growth=self.growth,
        )  # fmt: skip

    @property
    def is_snm(self) -> bool:
        return self.settings.model == "snm"

    @property
    def held_out(self) -> int:
        """Tokens that are held out, in the whole text."""
        if not self.is_snm or (not self.settings.gate and self.settings.training.loss != "multinomial"):
            return 0
        if self.folds:
            return min(self.events, folding.MAX_EVENTS)
        wanted = min(int(self.events * preparing.HELD_OUT_SHARE) + 1, preparing.MAX_HELD_OUT)
        return wanted if wanted >= MIN_EVENTS or self.settings.training.loss == "multinomial" else 0

    @property
    def folds(self) -> int:
        return preparing.folds_for(self.settings, self.events, self.dev is not None)

    @property
    def counted_again(self) -> bool:
        return self.dev is None and not self.folds and self.held_out > preparing.RECOUNTED_SHARE * self.events

    def forecast(self) -> Forecast:
        """The counts of the whole text."""
        s, text, vocabulary = self.settings, self.sample.text, self.sample.vocabulary
        spec, words, made = s.spec, list[int](), list[Forecast]()
        layout = KeyLayout.for_work(len(vocabulary), len(spec.types), self.events * self.templates)
        extractor = Extractor(spec, layout, vocabulary, self._classes())
        buckets = chosen_buckets(text, extractor, SAMPLED_LINKS)
        with self.progress("forecasting", sum(len(text.tokens) >> k for k in range(DOUBLINGS + 1))) as bar:
            for k in reversed(range(DOUBLINGS + 1)):
                part = replace(text, tokens=text.tokens[: len(text.tokens) >> k])
                made.append(pipeline.forecast_counts(s, part, extractor, bar, buckets))
                found = np.bincount(part.tokens, minlength=len(vocabulary))
                words.append(int(np.count_nonzero(found >= s.min_count)))
        whole = grown(made, words, self.sample.ratio)
        shown = made if self.sample.ratio == 1 else [*made, whole]
        self.growth = [(round(f.tokens), round(f.rows), round(f.links)) for f in shown]
        found_words = len(vocabulary) if self.sample.whole or s.vocab is not None else whole.words
        return replace(whole, words=min(found_words, len(SPECIAL) + (s.max_words or found_words)))

    def _classes(self) -> np.ndarray | None:
        """Word classes that are good enough to count with: learned from little text."""
        if not self.settings.spec.has_classes:
            return None
        words, memory = len(self.sample.vocabulary), CLASS_TOKENS * classes.TOKEN_BYTES
        number = self.settings.classes or classes.default_classes(self.events)
        return classes.learn_classes(self.sample.text, words, number, self.settings.seed, memory=memory)

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
        partition, scratch = self._partition(f, available)
        needed = LINK_BYTES * f.features
        partitions = self.settings.partitions or -(-needed // partition)
        spill = disk.snm_spill(f, self.templates, self.settings, available, self.free)
        slots = training.table_slots(round(f.links + f.words), engine.max_slots)
        while_counting = min(needed, partition) + scratch + in_memory + GROWTH_BYTES
        while_training = slots * training.bytes_per_slot + min(annotated, share)
        peak = program + max(while_counting, while_training)
        return Counting(partitions, spill, events_on_disk, slots, min(peak, memory))

    def _partition(self, f: Forecast, available: int) -> tuple[int, int]:
        """Bytes of a partition's links, and of scratch memory to sort them. See `snm.counts.counting`."""
        threads, tokens = self.settings.threads, self.sample.text.tokens
        largest = round(int(np.bincount(tokens).max()) * self.sample.ratio)  # links of the most frequent word
        together = min(MAX_SORTED_TOGETHER, available // (8 * SORT_BYTES * threads))
        scratch = SORT_BYTES * (threads * min(largest, together) + largest)
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
        if self.folds:  # the gate takes as long for each of its events
            dev = [str(sample.file("held-out", min(sample.bytes, SMALL_BYTES)))]
        elif dev is None and self.held_out:
            dev = [str(sample.file("held-out", sample.bytes * self.held_out / sample.text.events))]
        small = sample.file("small", SMALL_BYTES)
        large = sample.file("large", max(sample.bytes * TIMED_SHARE, 4 * SMALL_BYTES))
        sizes = small.stat().st_size, large.stat().st_size, sample.text_bytes
        tried = self._tried(counting, sizes[2] / sizes[1])
        with self.progress("timing", 3) as bar:
            self._train(small, tried, dev)  # loads compiled kernels
            bar(1)
            short, few = self._train(small, replace(tried, gate=0), dev)
            bar(1)
            long, many = self._train(large, tried, dev)
            bar(1)
        seconds = {stage: straight(short[stage], long[stage], *sizes) for stage in STAGES}
        for stage in ("building", "merging", "writing"):
            seconds[stage] = straight(short[stage], long[stage], few, many, f.links + f.words)
        tokens = np.minimum([self.events * sizes[1] / sizes[2], self.events], classes.MAX_TOKENS)
        seconds["word classes"] = long["word classes"] * (tokens[1] / tokens[0]) ** CLASSES_GROWTH
        seconds["gating"] = long["gating"]
        if self.settings.training.loss == "multinomial":
            seconds["training"] = long["training"]  # on held-out text
        if self.counted_again:
            seconds |= {f"{stage} again": seconds[stage] for stage in ("counting", "building")}
        if self.folds:
            trained = ("counting", "training", "building")
            seconds["folds"] = (self.folds - 1) * sum((seconds[stage] for stage in trained), np.zeros(2))
            seconds["gating"] = (
                seconds["gating"] * self.held_out * sample.bytes / (sample.text.events * min(sample.bytes, SMALL_BYTES))
            )
        return {stage: both for stage, both in seconds.items() if both.any()}

    def _tried(self, counting: Counting, ratio: float) -> Settings:
        """The settings of a training on a part of the text."""
        s = self.settings
        s = replace(s, min_count=max(1, round(s.min_count / ratio)))
        if not self.is_snm:
            return s
        events = None if s.training.events is None else max(1, int(s.training.events / ratio))
        training = replace(s.training, slots=counting.slots, events=events)
        return replace(s, training=training, partitions=counting.partitions, resume=False, folds=0)

    def _train(self, path: Path, settings: Settings, dev: list[str] | None) -> tuple[dict[str, np.ndarray], int]:
        """Train on a file: seconds of each stage, and the number of links."""
        clock, folder = Clock(settings.gate > 0), self.sample.folder / "model"
        with pipeline.train([path], folder, settings, dev=dev, force=True, progress=clock.progress) as model:
            return clock.stop(), int(model.manifest["links"])


def _on_nodes(seconds: np.ndarray, partitions: int, tasks: int, nodes: int) -> np.ndarray:
    """Seconds of counting on several nodes. Every task walks over the text."""
    walk, rest = seconds * WALK_SHARE / partitions, seconds * (1 - WALK_SHARE)
    return -(-tasks // nodes) * (walk + rest / tasks)
