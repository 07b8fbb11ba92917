"""From text to a model folder: one function for each stage, values in, values out.

    read_text -> hold_out -> make_extractor -> count -> adjust -> build -> fit_gate -> finish

Backoff models branch off after counting (`smooth`), neural ones after the text is held out (`fit_network`); a hybrid
trains an SNM and a network. Where a slice of the training text was held out, an SNM is counted a second time with the
whole text: the adjustment and the gate stay. `count_text` ends after counting, and `train` may begin with what it
wrote: then the tokens, and the counts of the whole text, are read from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from snm import devices, disk, engines
from snm.adjustment.events import TrainingEvents
from snm.adjustment.function import AdjustmentFunction
from snm.adjustment.held_out import HeldOut
from snm.adjustment.settings import MAX_DEFAULT_SLOTS, TrainingSettings
from snm.adjustment.statistics import ROW_BYTES
from snm.adjustment.training import TrainingReport, train_adjustment
from snm.arguments import file_path, flag, functions, shown
from snm.baselines.backoff.estimation import Estimator, estimate
from snm.baselines.backoff.katz import Katz
from snm.baselines.backoff.kneser_ney import KneserNey
from snm.baselines.backoff.model import BackoffModel
from snm.baselines.backoff.orders import Orders
from snm.baselines.backoff.stupid_backoff import StupidBackoff
from snm.baselines.neural.settings import NetworkSettings, require_torch
from snm.counted import STORE, CountedText, extractor_of, layout_of, settings_for, write_folder
from snm.counts.counting import unigram_row
from snm.counts.forecast import Forecast, forecast
from snm.counts.merging import write_merged
from snm.counts.store import CountsWriter, StoredCounts
from snm.engines import Engine
from snm.engines.cpu import PROGRAM_BYTES, partition_bytes
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.folding import fold_events
from snm.gate.events import gate_events
from snm.gate.fitting import MIN_EVENTS, PASSES, GateEvents, GateReport
from snm.hybrids import write_hybrid
from snm.layouts.counts import Counts
from snm.layouts.matrix import ARRAYS
from snm.loading import load
from snm.manifest import describe_kind, describe_rows
from snm.matrix.reading import open_matrix
from snm.model import LanguageModel
from snm.preparing import (
    Job,
    Texts,
    check_vocabulary,
    given_text,
    hold_out,
    learn_spelling,
    read_counted,
    read_text,
    slice_off,
    text_figures,
)
from snm.progress import Advance, Notify, Progress, expect, ignore, silent
from snm.pruning.models import prune
from snm.pruning.training import Pruned, check_rest, prune_written
from snm.remote import Folder, check_replaceable, is_url, upload_model
from snm.resuming import keeping
from snm.scoring.model import SnmModel
from snm.scratch import scratch_folder
from snm.settings import CLUSTER, HYBRID, NEURAL, Settings
from snm.sources import Work, train_sources
from snm.storage import COUNTS, VOCABULARY, ModelWriter
from snm.text import classes
from snm.text.encoding import Text, count_words
from snm.text.files import Sources, are_files, are_given, find_files
from snm.text.sampling import sample_sentences
from snm.text.vocabulary import Vocabulary

GATE_SHARE = 0.25  # of the memory, for held-out events
MIN_EVENTS_FOR_THREADS = 1_000_000  # below, one thread trains: it takes seconds, and the result is reproducible
MIN_EVENTS_FOR_FORECAST = 1_000_000  # of the disk; below, it takes little
MIN_SLOTS = 1 << 16  # of the table of weights, beside diversities
DIVERGED_LOSS = 100.0  # nats an event: far beyond the loss of any model
CLASS_STORE = "class-counts"  # folder of counts in that of the model, while it is trained


@dataclass(frozen=True)
class Counted:
    """The counts of a text."""

    unigrams: Counts  # the row of the empty feature
    store: StoredCounts  # all other rows

    @property
    def rows(self) -> int:
        return 1 + self.store.rows

    @property
    def links(self) -> int:
        return len(self.unigrams.targets) + self.store.links

    @property
    def rows_by_type(self) -> np.ndarray:
        rows = self.store.rows_by_type.copy()
        rows[0] += 1  # the empty feature
        return rows

    def describe_types(self, types: list[str]) -> dict[str, dict[str, int]]:
        """Links, and rows of features seen once, by the name of their type, for the manifest."""
        links, described = self.store.links_by_type, {"singles": self.store.singles_by_type}
        if links is not None:
            described["links"] = links.copy()
            described["links"][0] += len(self.unigrams.targets)
        return {f"{what}_by_type": dict(zip(types, n.tolist(), strict=False)) for what, n in described.items()}


def train(
    sources: Sources | Mapping[str, Sources] | None,
    output: str | Path,
    settings: Settings | None = None,
    *,
    counts: str | Path | CountedText | None = None,
    dev: Sources | None = None,
    force: bool = False,
    progress: Progress = silent,
    notify: Notify = ignore,
) -> LanguageModel:
    """Train a model on text and write it to the folder `output`, or to a URL such as s3://bucket/model.

    - `sources`: names of files, folders, globs or URLs; or an iterable of sentences, strings or lists of words (a list
      of strings names files: `iter(sentences)` is an iterable of them). A mapping of names to such texts makes a model
      of several sources, weighed by context for the text `dev` (docs/sources.md).
    - `counts`: a folder that `count_text` or `merge_counts` wrote; `sources` are None then. The model is the one that
      its text would give. Text, vocabulary and an SNM's features come from there; other models use the text alone.
    - `dev`: held-out text. SNM's gate and multinomial loss are learned on it, and training stops by it. Without it a
      slice of the training text is held out where one is needed.
    - `force`: replace a model at `output`.
    - `notify` receives messages, `progress` makes progress bars.
    """
    settings = _checked(Settings() if settings is None else settings)
    functions(progress=progress, notify=notify)
    dev = dev if are_given(dev) else None
    counted = None
    if counts is not None:
        if are_given(sources):
            raise SettingsError("text and counts exclude each other; give one of them")
        counted = counts if isinstance(counts, CountedText) else CountedText(counts)
        settings = settings_for(counted, settings)
    elif sources is None:
        raise SettingsError("no text given; expected text, or counts=...")
    _check(settings, dev)
    if settings.fields and (isinstance(sources, Mapping) or counted is not None):
        raise SettingsError("fields are for one text; a model of several sources, and stored counts, have none")
    if settings.size is not None and settings.model != "snm":
        how = {"counts": counted, "dev": dev, "progress": progress, "notify": notify}
        return _train_to_size(sources, output, settings, flag("force", force), how)
    if is_url(output):
        how = {"counts": counted, "dev": dev, "progress": progress, "notify": notify}
        return _train_to_url(sources, str(output), settings, flag("force", force), how)
    if isinstance(sources, Mapping):
        return train_sources(sources, output, dev, force, Work(settings, train_source, progress, notify))
    with (
        devices.gpu_memory_errors(),
        ModelWriter(output, force, notify) as writer,
        keeping(settings, sources, dev, writer, notify) as kept,
    ):
        job = Job(settings, writer, progress, notify, counted, kept)
        text, vocabulary = read_text(job, sources) if sources is not None and counted is None else read_counted(job)
        learn_spelling(job, text, vocabulary)
        if settings.model in NEURAL:
            fit_network(job, text, vocabulary, dev)
        elif settings.model == HYBRID:
            _train_hybrid(job, text, vocabulary, dev)
        elif settings.model == "snm":
            _train_snm(job, text, vocabulary, dev)
        else:
            _train_backoff(job, text, vocabulary)
    return load(output)


def train_source(
    text: Text, vocabulary: Vocabulary, classes: np.ndarray | None, output: Path, settings: Settings,
    progress: Progress, notify: Notify,
) -> None:  # fmt: skip
    """Write the SNM of an encoded text: one of several sources. `classes`: of words, where the features use them."""
    check_vocabulary(settings, len(vocabulary))
    with devices.gpu_memory_errors(), ModelWriter(output, False, notify) as writer:
        _train_snm(Job(settings, writer, progress, notify, classes=classes), text, vocabulary, None)


def _train_to_url(
    sources: Sources | Mapping[str, Sources] | None, output: str, settings: Settings, force: bool, how: dict[str, Any]
) -> LanguageModel:
    """Train in the system's temporary folder, and copy the model to a URL. `how`: further arguments of `train`."""
    parent, _, name = output.rstrip("/").rpartition("/")
    folder = Folder(output)
    if settings.work is None and settings.engine in CLUSTER:
        settings = replace(settings, work=parent)
    with scratch_folder(how["notify"]) as place:
        check_replaceable(folder, force)
        model = train(sources, place / name, settings, **how)
        check_replaceable(folder, force)  # again: training took its time
        upload_model(place / name, folder)
    model.path = Path(output)
    return model


def _train_to_size(
    sources: Sources | None, output: str | Path, settings: Settings, force: bool, how: dict[str, Any]
) -> LanguageModel:
    """Train a backoff model in a temporary folder, and prune it. `how`: further arguments of `train`."""
    if is_url(output):
        return _train_to_url(sources, str(output), settings, force, how)
    place = file_path("output", output)
    ModelWriter(place, force)  # raises an error if it cannot be written
    place.parent.mkdir(parents=True, exist_ok=True)
    with (
        scratch_folder(how["notify"], place.parent) as folder,
        train(sources, folder / "whole", replace(settings, size=None), **how) as model,
    ):
        return prune(
            model, place, size=settings.size, threads=settings.threads, force=force, progress=how["progress"],
            notify=how["notify"],
        )  # fmt: skip


def count_text(
    sources: Sources,
    output: str | Path,
    settings: Settings,
    *,
    force: bool = False,
    progress: Progress = silent,
    notify: Notify = ignore,
) -> CountedText:
    """Count the features of a text for an SNM, and write text and counts to the folder `output`.

    `train(None, ..., counts=output)` makes a model of it, `merge_counts` adds several. `sources` are those of `train`.
    Of the settings, `vocab` must be given: counts are added only if they have the same vocabulary. Further ones that
    matter are `features`, `closed`, `document`, `on_error`, `memory`, `threads`, `partitions` and `engine`. `force`
    replaces a folder of counts at `output`.
    """
    settings = replace(_checked(settings), prune=1)
    functions(progress=progress, notify=notify)
    if settings.vocab is None and settings.alphabet is None:
        raise SettingsError(
            "counts need a given vocabulary, to be added to others; give vocab (--vocab, which snm vocab writes)"
        )
    if settings.fields:
        raise SettingsError("fields are for training; counts that add have a given vocabulary, without their values")
    if settings.resume:
        raise SettingsError("resume is for training; count the text in parts, and add them with merge_counts")
    if settings.model != "snm":
        raise SettingsError(f"model is {settings.model!r}; counts are those of an SNM, other models use their text")
    _check(settings, None)
    with devices.gpu_memory_errors(), ModelWriter(output, force, notify, COUNTS) as writer:
        job = Job(settings, writer, progress, notify)
        text, vocabulary = read_text(job, sources)
        vocabulary.drop_table()
        figures = {**text_figures(job, text, vocabulary), "documents": text.documents}
        extractor = extractor_of(settings.spec, vocabulary, text.events)
        extractor.check_families(text.tokens)
        engine = engines.make(settings, text.events, progress, notify)
        check_disk(job, Texts(text, text), extractor, engine)
        counted = count(job, engine, text, extractor, count_words(text, len(vocabulary)), None)
        write_folder(
            writer, settings.spec, vocabulary, extractor.family_digests(), figures, text.pieces(), counted.store,
            settings.threads,
        )  # fmt: skip
    return CountedText(output)


def _checked(settings: Settings) -> Settings:
    if not isinstance(settings, Settings):
        raise SettingsError(f"settings is {shown(settings)}; expected snm.Settings(...)")
    return settings


def _check(settings: Settings, dev: Sources | None) -> None:
    """Validate what can be validated before any text is read."""
    if settings.spec.caches and not settings.gate:
        raise SettingsError("a cache has no weight without a gate; leave out the cache, or gate=0 (--gate 0)")
    if dev is not None and settings.model not in ("snm", HYBRID, *NEURAL):
        raise SettingsError(f"held-out text is for SNM and neural models; {settings.model!r} does not use it")
    if dev is not None and settings.folds:
        raise SettingsError("the gate is learned from folds of the text or from the dev text; leave out one of both")
    if dev is not None and are_files(dev):
        find_files(dev)
    if settings.model in (HYBRID, *NEURAL):
        require_torch()
    if settings.engine == "gpu":
        devices.find_gpu()
    if settings.engine == "ray":
        devices.require_ray()


def _train_snm(job: Job, text: Text, vocabulary: Vocabulary, dev: Sources | None) -> None:
    if job.settings.spec.caches and not job.settings.document:
        job.notify("a cache has the words of one line: with --document it has those of a document")
    texts = hold_out(job, text, vocabulary, dev)
    vocabulary.drop_table()
    expect(job.progress, stages_of(job.settings, texts))
    figures = text_figures(job, text, vocabulary)
    extractor = make_extractor(job, texts, vocabulary)
    check_size(job, extractor)
    gate = fold_gate(job, texts, vocabulary) if texts.folds else None
    engine = engines.make(job.settings, texts.train.events, job.progress, job.notify)
    words = count_words(texts.train, len(vocabulary))
    events = choose_events(job, engine, texts.train, extractor, unigram_row(words, vocabulary))
    check_disk(job, texts, extractor, engine, events)
    counted = count(job, engine, texts.train, extractor, words, events)
    adjustment, training = adjust(job, engine, texts, extractor, counted, events)
    del events
    pages, kept = shrink(job, extractor, build(job, engine, extractor, adjustment, counted))
    again = adjustment if texts.counted_again else None
    del adjustment  # the gate needs its memory
    if not texts.folds:
        gate = slice_gate(job, engine, extractor, pages, texts.gate)
    if gate is None and extractor.spec.caches:
        job.notify("the model has no cache, because it has no gate that would weigh it")
    if again is not None:
        how = "counting again" if job.counts is None else "taking the stored counts"
        job.notify(f"{how}, with the text that was held out")
        counted.store.remove()
        for name in ARRAYS:
            job.writer.drop(name)
        counted = count(job, engine, texts.whole, extractor, count_words(texts.whole, len(vocabulary)), None)
        again.measure(counted.unigrams, counted.store, job.settings.threads)
        pages, kept = shrink(job, extractor, build(job, engine, extractor, again, counted))
    finish_snm(job, extractor, counted, figures, pages, training, gate, texts.folds, kept)


def stages_of(settings: Settings, texts: Texts) -> list[str]:
    """The stages of a training with progress bars, by the beginnings of their first labels."""
    if settings.model != "snm":
        return ["reading", *(["counting"] if settings.model != "sbo" else []), "estimating", "merging"]
    count, build = "sizing", ["building", *(["measuring"] if settings.size is not None else [])]
    return [
        "reading",
        *(["word classes"] if settings.spec.has_classes else []),
        *(["folds", "gating"] if texts.folds else []),
        *(["forecasting"] if texts.train.events >= MIN_EVENTS_FOR_FORECAST else []),
        count,
        *(["training"] if settings.training.passes else []),
        *build,
        *(["gating"] if texts.gate is not None else []),
        *([count, *build] if texts.counted_again else []),
    ]


def _train_backoff(job: Job, text: Text, vocabulary: Vocabulary) -> None:
    figures = text_figures(job, text, vocabulary)
    texts = Texts(text, text)
    expect(job.progress, stages_of(job.settings, texts))
    extractor = make_extractor(job, texts, vocabulary)
    check_disk(job, texts, extractor)
    smooth(job, text, extractor, figures)


# ---------------------------------------------------------------------------------------------
# features and counts


def make_extractor(job: Job, texts: Texts, vocabulary: Vocabulary) -> Extractor:
    """The features of the model, with word classes learned where they use them."""
    s, spec = job.settings, job.settings.spec
    layout = layout_of(spec, len(vocabulary), texts.whole.events)
    classes_of_words = None
    if spec.has_classes:
        found = job.kept.load("classes")
        classes_of_words = found[1]["classes"] if found else job.classes
        if classes_of_words is None:
            classes_of_words = learn_classes(job, texts.train, len(vocabulary))
    extractor = Extractor(spec, layout, vocabulary, classes_of_words)
    extractor.check_families(texts.train.tokens)
    if s.model == "snm" and job.counts is not None and job.counts.manifest["families"] != extractor.family_digests():
        raise SettingsError(
            f"{job.counts.path} was counted with other definitions of its feature families; import the same ones, or "
            f"count the text again"
        )
    return extractor


def learn_classes(job: Job, text: Text, words: int) -> np.ndarray:
    """The class of every word. (words,) uint16"""
    s, memory = job.settings, job.settings.memory - PROGRAM_BYTES
    with job.progress("word classes", classes.PASSES * min(words, classes.FREQUENT)) as bar:
        number = s.classes or classes.default_classes(text.events)
        learned = classes.learn_classes(text, words, number, s.seed, bar, memory)
    job.kept.save("classes", {}, classes=learned)
    return learned


def choose_events(
    job: Job, engine: Engine, text: Text, extractor: Extractor, unigrams: Counts
) -> TrainingEvents | None:
    """The events that the adjustment is learned from; None where it is not learned from the training text."""
    training = job.settings.training
    if training.loss == "multinomial" or not training.passes:
        return None
    return engine.choose_events(text, extractor, unigrams, job.writer)


def count(
    job: Job, engine: Engine, text: Text, extractor: Extractor, words: np.ndarray, events: TrainingEvents | None
) -> Counted:
    """Count the features of a text, and annotate `events` with their counts.

    If there are no events to annotate, stored counts of the text are used.

    words: how often each word occurs. (words,) int64
    """
    if job.counts is not None and text is job.counts.text and events is None:
        store = _take_counts(job, job.counts.store, engine, text, extractor, words)
    else:
        store = _count(job, engine, text, extractor, words, events, STORE)
    return Counted(unigram_row(words, extractor.vocabulary), store)


def _take_counts(
    job: Job, stored: StoredCounts, engine: Engine, text: Text, extractor: Extractor, words: np.ndarray
) -> StoredCounts:
    """The stored counts of a text, pruned, and those of features with word classes, which are counted now."""
    s, stores = job.settings, [stored]
    if extractor.spec.has_classes:
        stores.append(_count(job, engine, text, extractor.part(by_class=True), words, None, CLASS_STORE))
    folder, memory, min_counts = job.writer.folder / STORE, partition_bytes(s.memory, 0), extractor.min_counts(s.prune)
    with job.progress("counts", sum(store.links for store in stores)) as bar:
        taken = write_merged(folder, stores, words, extractor.layout, memory, s.threads, min_counts, bar)
    for temporary in stores[1:]:
        temporary.remove()
    return taken


def _count(
    job: Job, engine: Engine, text: Text, extractor: Extractor, words: np.ndarray, events: TrainingEvents | None,
    name: str,
) -> StoredCounts:  # fmt: skip
    """Count the features of a text, and annotate `events`. The counts are in the folder `name` of that of the model."""
    counting = engine.count(text, extractor, job.settings.prune, events, job.writer)
    job.notify(f"{counting.links:,} features of events, {extractor.n_templates} an event at most")
    store = CountsWriter(job.writer.folder / name, extractor.layout)
    try:
        for part in counting:
            store.append(part)
    finally:
        store.close()
    return store.finish(words)


def check_disk(
    job: Job, texts: Texts, extractor: Extractor, engine: Engine | None = None, events: TrainingEvents | None = None
) -> None:
    """Forecast the disk that training or counting takes beside the tokens, and raise an error if less is free.

    A short text is forecast only if the disk might be too small for it. `engine`: None for a backoff model.
    """
    s, text, free = job.settings, texts.whole, disk.free_bytes(job.writer.folder)
    most = disk.most_bytes(len(text.tokens), extractor.n_templates, s)
    if most <= free and text.events < MIN_EVENTS_FOR_FORECAST:
        return
    with job.progress("forecasting", len(text.tokens)) as bar:
        made = forecast_counts(s, text, extractor, bar)
    taken, on_disk = (0, False) if events is None else (events.bytes_in_memory, events.on_disk)
    partition = partition_bytes(s.memory, len(text.tokens), taken)
    if engine is None:
        stages = disk.backoff_stages(made, s, disk.backoff_spill(made, partition, free))
    else:
        spill = disk.Spill()
        if engine.spills:
            spill = disk.snm_spill(made, extractor.n_templates, s, partition, free)
        if job.writer.kind is COUNTS:
            stages = disk.counted_stages(made, spill)
        else:
            stages = disk.snm_stages(made, s, spill, on_disk, texts.counted_again)
    if job.writer.kind is COUNTS:
        what, remedy = "counting", "choose fewer features"
    else:
        what, remedy = "training", "choose fewer features (--prune, --preset)"
    disk.check(max(stages.values()), free, what, remedy, job.notify)


def forecast_counts(
    settings: Settings, text: Text, extractor: Extractor, advance: Advance = ignore, buckets: int | None = None
) -> Forecast:
    """The counts of a text as the settings have them; see `snm.counts.forecast`."""
    prune = settings.prune if settings.model == "snm" else 1
    singles, code_bytes = disk.has_singles(settings), settings.weight_bits // 8
    return forecast(text, extractor, prune, code_bytes, singles, settings.threads, advance, buckets)


# ---------------------------------------------------------------------------------------------
# adjustment, matrix and gate


def adjust(
    job: Job, engine: Engine, texts: Texts, extractor: Extractor, counted: Counted, events: TrainingEvents | None
) -> tuple[AdjustmentFunction, dict[str, Any]]:
    """Learn the adjustment function; its entry of the manifest."""
    s = job.settings
    most = engine.max_slots - diversity_bytes(s.training, counted) // s.training.bytes_per_slot
    if most < MIN_SLOTS:
        raise SettingsError("the diversity of all features does not fit into --memory; give more, or leave it out")
    slots = s.training.table_slots(counted.links, most)
    limited = ", as many as fit into memory" if slots == most < MAX_DEFAULT_SLOTS else ""
    job.notify(f"{counted.rows:,} features, {counted.links:,} links; {slots:,} slots for metafeature weights{limited}")
    adjustment = engine.adjustment(extractor, s.training, slots)
    adjustment.measure(counted.unigrams, counted.store, s.threads)
    if found := job.kept.load("adjustment"):
        training, arrays = found
        adjustment.restore(arrays["weights"])
        adjustment.start = training["start"]
        return adjustment, training
    fitted, dev = _held_out_rows(job, texts, extractor, counted)
    threads = s.threads if texts.train.events >= MIN_EVENTS_FOR_THREADS else 1
    report = train_adjustment(adjustment, s.training, events, fitted, dev, threads, s.seed, job.progress)
    kept = report.losses[: report.best_pass]
    if kept and not kept[-1] < DIVERGED_LOSS:
        raise SettingsError(f"training diverged: its loss is {kept[-1]:.3g} an event; lower --rate")
    if kept:
        job.notify(f"mean loss {kept[-1]:.4f} an event")
    if report.perplexities:
        steps = " → ".join(f"{p:.2f}" for p in report.perplexities)
        job.notify(f"held-out perplexity {steps}; kept pass {report.best_pass}")
    used = (0 if texts.fitted is None else texts.fitted.events) if events is None else events.events
    training = {**_describe_training(s, engine.name, adjustment, report), "events_used": used}
    if job.kept.folder is not None:
        job.kept.save("adjustment", training, weights=adjustment.weights())
    return adjustment, training


def diversity_bytes(training: TrainingSettings, counted: Counted) -> int:
    """Memory of the diversity of all features, where metafeatures need it."""
    if not training.metafeatures.has_diversity:
        return 0
    return ROW_BYTES * int((counted.store.rows_by_type - counted.store.singles_by_type).sum())


def _held_out_rows(
    job: Job, texts: Texts, extractor: Extractor, counted: Counted
) -> tuple[HeldOut | None, HeldOut | None]:
    """The texts `fitted` and `dev` with the rows of the counts that they touch."""
    fitted, dev = (
        None if text is None else HeldOut(text, extractor, counted.unigrams, counted.store, job.settings.threads)
        for text in (texts.fitted, texts.dev)
    )
    return fitted, dev


def _describe_training(
    settings: Settings, engine: str, adjustment: AdjustmentFunction, report: TrainingReport
) -> dict[str, Any]:
    """The settings and figures of the adjustment's training, for the manifest."""
    training = settings.training
    recorded = {k: v for k, v in asdict(training).items() if k != "metafeatures"}
    return {
        **recorded,
        "rate": training.learning_rate(),
        "start": adjustment.start,
        "slots": len(adjustment.table),
        "metafeatures": str(training.metafeatures),
        "feature_buckets": training.metafeatures.feature_buckets,
        "link_buckets": training.metafeatures.link_buckets,
        "merge": training.metafeatures.merge,
        "seed": settings.seed,
        "engine": engine,
        "prune": settings.prune,
        "losses": report.losses,
        "course": report.course,
        "dev_perplexities": report.perplexities,
        "best_pass": report.best_pass,
    }


def build(
    job: Job, engine: Engine, extractor: Extractor, adjustment: AdjustmentFunction, counted: Counted
) -> dict[str, Any]:
    """Write the matrix; its entry of the manifest."""
    writer = engine.matrix_writer(job.writer, extractor, adjustment)
    with job.progress("building", counted.links) as bar:
        code_bytes = job.settings.weight_bits // 8
        return writer.write(counted.unigrams, counted.store, code_bytes, bar)


def check_size(job: Job, extractor: Extractor) -> None:
    """Raise an error if the vocabulary alone takes more than the size that was asked for."""
    settings = job.settings
    if settings.size is not None:
        check_rest(settings.size, extractor, settings.gate, settings.weight_bits // 8, job.writer.folder)


def shrink(job: Job, extractor: Extractor, pages: dict[str, Any]) -> tuple[dict[str, Any], Pruned | None]:
    """Prune the matrix that has been written to the size that was asked for; its entry of the manifest."""
    s = job.settings
    if s.size is None:
        return pages, None
    return prune_written(job.writer, extractor, pages, s.size, s.gate, s.threads, job.progress, job.notify)


def slice_gate(
    job: Job, engine: Engine, extractor: Extractor, pages: dict[str, Any], text: Text | None
) -> tuple[np.ndarray, GateReport] | None:
    """Learn the gate on held-out text; None where there is too little text, or where it does not help."""
    s = job.settings
    if not s.gate or text is None:
        return None
    if text.events < MIN_EVENTS:
        job.notify(f"{text.events:,} held-out tokens are too few for a gate; at least {MIN_EVENTS:,} are needed")
        return None
    most = int(GATE_SHARE * s.memory) // GateEvents.bytes_needed(extractor.n_templates + len(extractor.spec.caches))
    held_out = sample_sentences(text, most, s.seed)
    return fit_gate(job, engine, gate_events(extractor, open_matrix(job.writer.load, pages, extractor), held_out))


def fold_gate(job: Job, texts: Texts, vocabulary: Vocabulary) -> tuple[np.ndarray, GateReport] | None:
    """Learn the gate on the training text itself, in folds; None where it does not help."""
    if found := job.kept.load("gate"):
        return found[1]["gate"], GateReport(**found[0])
    events = fold_events(job, texts.whole, vocabulary, texts.folds, train_source)
    if len(events) < MIN_EVENTS:
        job.notify(f"{len(events):,} tokens are too few for a gate; at least {MIN_EVENTS:,} are needed")
        return None
    made = fit_gate(job, engines.make(job.settings, len(events), job.progress, ignore), events)
    if made is not None:
        job.kept.save("gate", asdict(made[1]), gate=made[0])
    return made


def fit_gate(job: Job, engine: Engine, events: GateEvents) -> tuple[np.ndarray, GateReport] | None:
    """Learn the gate on the rows of held-out events; None where it does not help."""
    s = job.settings
    with job.progress("gating", PASSES * len(events)) as bar:
        flat, report = engine.fit_gate(events, s.gate, s.seed, bar)
    steps = f"{report.ungated:.2f} → {min(report.perplexities):.2f}"
    job.notify(f"held-out perplexity {steps} with a gate" if report.helps else f"a gate does not help: {steps}")
    return (flat, report) if report.helps else None


# ---------------------------------------------------------------------------------------------
# other models


def smooth(job: Job, text: Text, extractor: Extractor, figures: dict[str, Any]) -> None:
    """Estimate Kneser-Ney, Katz or stupid backoff, and write the model."""
    s = job.settings
    kinds: dict[str, Estimator] = {
        "kn": KneserNey(s.discounts == "modified"), "katz": Katz(), "sbo": StupidBackoff(),
    }  # fmt: skip
    estimator = kinds[s.model]

    def free() -> int:
        return partition_bytes(s.memory, len(text.tokens))

    orders = Orders(text, extractor, job.writer, free, s.threads, job.progress, job.notify)
    made = estimate(orders, estimator, unigram_row(count_words(text, len(extractor.vocabulary)), extractor.vocabulary))
    for warning in estimator.warnings:
        job.notify(warning)
    estimation = {"model": s.model, **estimator.details}
    how = {"text": figures, "index": made.index, "estimation": estimation}
    _finish(job, extractor, made.rows_by_order, made.links, BackoffModel.kind, how)


def fit_network(job: Job, text: Text, vocabulary: Vocabulary, dev: Sources | None) -> None:
    """Train a neural model, and write it."""
    from snm.baselines.neural.checkpoints import clear_checkpoint  # these import PyTorch

    train, held_out = _split(job, text, vocabulary, dev)
    figures = text_figures(job, text, vocabulary)
    _write_network(job, job.settings.model, job.writer, train, held_out, vocabulary, figures)
    clear_checkpoint(job.writer.path)


def _split(job: Job, text: Text, vocabulary: Vocabulary, dev: Sources | None) -> tuple[Text, Text]:
    """The text that a network is trained on, and held-out text."""
    if dev is not None:
        return text, given_text(job, dev, vocabulary)
    train, held_out = slice_off(job, text, vocabulary, required=True)
    assert held_out is not None
    return train, held_out


def _write_network(
    job: Job, kind: str, writer: ModelWriter, train: Text, held_out: Text, vocabulary: Vocabulary,
    figures: dict[str, Any], learned: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Train a network, and finish the folder of `writer` as a model of this kind.

    `learned`: the classes of words, if they are known.
    """
    from snm.baselines.neural.training import train_network

    s = job.settings
    made = train_network(
        s.model, s.network, s.order, s.seed, train, held_out, vocabulary, writer, job.writer.path,
        devices.device_of(s.engine), job.progress, job.notify, learned,
    )  # fmt: skip
    vocabulary.write(writer.folder / VOCABULARY)
    spelling = job.spelling if writer is job.writer else {}
    writer.finish({**describe_kind(kind, vocabulary), "text": figures, **spelling, **made}, s.threads)


def _train_hybrid(job: Job, text: Text, vocabulary: Vocabulary, dev: Sources | None) -> None:
    """Train an SNM and a network on one text, and the gate that weighs them."""
    from snm.baselines.neural.checkpoints import clear_checkpoint

    s = job.settings
    train, held_out = _split(job, text, vocabulary, dev)
    figures = text_figures(job, text, vocabulary)
    own = replace(s, model="snm", gate=0, network=NetworkSettings(), vocab=None, max_words=None)
    folders = [job.writer.folder / f"member{i}" for i in range(2)]
    train_source(train, vocabulary, None, folders[0], own, job.progress, lambda line: job.notify(f"snm: {line}"))
    sparse = load(folders[0])
    assert isinstance(sparse, SnmModel)
    number = s.classes or classes.default_classes(train.events)
    shared = sparse.extractor.classes if number == classes.CLASSES else None  # as many as the network would learn
    with ModelWriter(folders[1], False, job.notify) as writer:
        _write_network(job, "rnn", writer, train, held_out, vocabulary, figures, shared)
    members = [sparse, load(folders[1])]
    work = Work(s, train_source, job.progress, job.notify)
    names = ["snm", s.network.cell_of(s.model)]
    write_hybrid(job.writer, vocabulary, names, members, held_out, work, {"text": figures, **job.spelling})
    clear_checkpoint(job.writer.path)


# ---------------------------------------------------------------------------------------------
# the folder


def finish_snm(
    job: Job, extractor: Extractor, counted: Counted, figures: dict[str, Any], pages: dict[str, Any],
    training: dict[str, Any], gate: tuple[np.ndarray, GateReport] | None, folds: int, kept: Pruned | None = None,
) -> None:  # fmt: skip
    """Write what is left of an SNM, and give the folder its name."""
    described = None
    if gate is not None:
        flat, report = gate
        job.writer.array("gate", "<f4").append(flat)
        described = {"units": job.settings.gate, "folds": folds, **asdict(report)}
    counted.store.remove()
    how: dict[str, Any] = {"text": figures, "pages": pages, "training": training, "gate": described}
    how |= counted.describe_types([str(kind) for kind in extractor.spec.types])
    if extractor.spec.caches:
        how["requires"] = ["cache"]
    if extractor.vocabulary.fields:
        how["requires"] = ["fields"]
    if job.settings.tuning is not None:
        how["tuning"] = job.settings.tuning
    rows_by_type = counted.rows_by_type[: len(extractor.spec.types)]
    _finish(job, extractor, rows_by_type, counted.links, SnmModel.kind, how, kept)


def _finish(
    job: Job, extractor: Extractor, rows_by_type: np.ndarray, links: int, kind: str, how: dict[str, Any],
    kept: Pruned | None = None,
) -> None:  # fmt: skip
    if extractor.classes is not None:
        job.writer.array("classes", "<u2").append(extractor.classes)
    extractor.vocabulary.write(job.writer.folder / VOCABULARY)
    manifest = describe_rows(extractor, rows_by_type, links, kind, {**how, **job.spelling})
    manifest = manifest if kept is None else kept.described(manifest)
    job.writer.finish(manifest, job.settings.threads)
