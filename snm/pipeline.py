"""The road from text to model: text, tokens, counts C, adjustment, matrix M, a folder on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from snm import calibration, corpus, engines, storage
from snm.baselines import neural
from snm.baselines.neural import NetworkSettings
from snm.calibration import Gate, GateReport
from snm.classes import CLASSES, FREQUENT, PASSES, learn_classes
from snm.corpus import Sources, Text
from snm.counting import Counts, unigram_counts
from snm.engines import ENGINES, Engine
from snm.errors import InputError, SettingsError
from snm.features import DEFAULT_PRESET, MAX_WORDS, Extractor, FeatureSpec, KeyLayout
from snm.model import LanguageModel, SnmModel, load
from snm.pages import ARRAYS, Pages
from snm.parallel import default_threads
from snm.progress import Progress, silent
from snm.rows import RowIndex
from snm.scoring import Scorer
from snm.storage import VOCABULARY, ModelWriter
from snm.training import MOST_BY_DEFAULT, Annotated, HeldOut, TrainingReport, TrainingSettings, train_adjustment
from snm.vocabulary import UNKNOWN, Vocabulary, read_word_list

HELD_OUT_SHARE, HELD_OUT_MOST = 0.05, 300_000  # of the training text, where the user gives none
RETURNED_SHARE = 0.01  # a slice larger than this is counted in the end
NEURAL = ("hsme", "rnn")
MODELS = ("snm", "kn", "katz", "sbo", *NEURAL)
DEFAULT_ORDER = 5
DISCOUNTS = ("modified", "single")
LEAST_MEMORY = 512 << 20
READING = 128 << 20  # bytes of memory that a thread takes to read text, for most vocabularies
GATE_SHARE = 0.25  # of the memory, for what rows say of held-out events
EVENTS_FOR_THREADS = 1_000_000  # below, training takes one thread: it is seconds, and the same every time
DIVERGED = 100.0  # a loss an event, in nats, that no model comes near

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """Everything that `train` can be asked for beside the text. `memory` is in bytes.

    `model` is `snm`, `kn` (Kneser-Ney), `katz`, `sbo` (stupid backoff), `hsme` (maximum entropy with a hierarchical
    softmax) or `rnn`; `network` is for the last two. `features` is SNM's specification, the
    preset `small` where nothing is said; `order` asks for n-grams up to that order instead, and is what the other
    models have, 5 where nothing is said (9 beside an RNN). `discounts` are Kneser-Ney's:
    `modified` or `single`. `gate` is the number of hidden units of SNM's gate, 0 for none.
    `prune`: an SNM leaves out features seen less often than this, n-grams of up to five words aside.
    `weight_bits`: 8 or 16, of a weight in the model file.
    `engine`: `cpu`, `gpu`, or `auto`, which is a GPU where there is one and the text is worth it.
    `classes`: how many word classes are learned where the features use them. `document`: the text has documents, a
    blank line between two, and features reach across their sentences.
    """

    model: str = "snm"
    features: str | None = None
    order: int | None = None
    discounts: str = "modified"
    min_count: int = 3
    max_words: int | None = None
    vocabulary: Path | None = None
    closed: bool = False
    document: bool = False
    training: TrainingSettings = field(default_factory=TrainingSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    memory: int = 4 << 30
    threads: int = field(default_factory=default_threads)
    partitions: int | None = None
    seed: int = 1
    gate: int = 64
    prune: int = 2
    classes: int = CLASSES
    weight_bits: int = 8
    engine: str = "auto"

    def __post_init__(self) -> None:
        for name, low in (
            ("min_count", 1),
            ("max_words", 1),
            ("memory", LEAST_MEMORY),
            ("threads", 1),
            ("partitions", 1),
            ("seed", 0),
            ("gate", 0),
            ("prune", 1),
            ("classes", 4),
        ):
            value = getattr(self, name)
            if value is not None and value < low:
                raise SettingsError(f"{name} is {value:,}; expected {low:,} or more")
        if self.weight_bits not in (8, 16):
            raise SettingsError(f"weight_bits is {self.weight_bits}; expected 8 or 16")
        if self.engine not in ENGINES:
            raise SettingsError(f"engine {self.engine!r} is not known; expected one of {', '.join(ENGINES)}")
        if self.model not in MODELS:
            raise SettingsError(f"model {self.model!r} is not known; expected one of {', '.join(MODELS)}")
        if self.discounts not in DISCOUNTS:
            raise SettingsError(f"discounts {self.discounts!r} are not known; expected {' or '.join(DISCOUNTS)}")
        if self.model != "snm" and self.features is not None:
            raise SettingsError(f"features are for SNM; a model of kind {self.model!r} has n-grams up to its order")
        if self.model != "snm" and self.document:
            raise SettingsError(f"documents are for SNM; a model of kind {self.model!r} has sentences")
        if self.order is not None and self.features is not None:
            raise SettingsError("features and order exclude each other; give one of them")
        if self.order is not None and not 1 <= self.order <= MAX_WORDS:
            raise SettingsError(f"order is {self.order}; expected 1 to {MAX_WORDS}")
        if self.vocabulary is not None and self.max_words is not None:
            raise SettingsError("a vocabulary file and max_words exclude each other; give one of them")

    @property
    def specification(self) -> str:
        if self.model == "snm" and self.order is None:
            return DEFAULT_PRESET if self.features is None else self.features
        return f"ngram(0..{(self.order or DEFAULT_ORDER) - 1})"


def train(
    sources: Sources,
    output: str | Path,
    settings: Settings | None = None,
    dev: Sources = (),
    overwrite: bool = False,
    progress: Progress = silent,
    notify: Notify = lambda message: None,
) -> LanguageModel:
    """Train a model on text and write it to the folder `output`.

    `dev` is held-out text: SNM's gate and multinomial loss are learned on it, and it says which pass was
    best. Without it a slice of the training text is set aside where it is needed. `notify` is told in words what
    is done, `progress` how far it is.
    """
    settings = settings or Settings()
    spec = FeatureSpec(settings.specification)
    if dev and settings.model not in ("snm", *NEURAL):
        raise SettingsError(
            f"held-out text is for SNM and neural models; a model of kind {settings.model!r} has no use for it"
        )
    if settings.model in NEURAL:
        neural.require_torch()  # a mistake is told before the work begins
    if settings.engine == "gpu":
        engines.find_gpu()
    with engines.memory_watched(), ModelWriter(output, overwrite) as writer:
        run = _Run(settings, spec, writer, progress, notify)
        run.read(sources, dev)
        if settings.model in NEURAL:
            run.fit(dev)
            return load(output)
        run.prepare(dev)
        run.count()
        if settings.model == "snm":
            run.adjust()
            run.build()
            run.calibrate()
            if run.slice_counts:
                run.count_everything()
            run.finish()
        else:
            run.smooth()
    return load(output)


class _Run:
    """One training run; each method is a step of the road."""

    def __init__(
        self, settings: Settings, spec: FeatureSpec, writer: ModelWriter, progress: Progress, notify: Notify
    ) -> None:
        self.settings, self.spec, self.writer = settings, spec, writer
        self.progress, self.notify = progress, notify
        self.annotations: Annotated | None = None
        self.engine: Engine
        self.adjusted = False
        self.held_out: dict[str, Text] = {}  # "fitted": the multinomial loss's; "dev": stops training
        self.gate_text: Text | None = None
        self.gate: tuple[np.ndarray, GateReport] | None = None
        self.whole: Text | None = None  # the training text before a slice of it was set aside

    # -- text to tokens

    def read(self, sources: Sources, dev: Sources) -> None:
        s = self.settings
        if dev:
            corpus.find_files(dev)  # a mistake there is told before the work begins
        with self.progress("reading", _size_of(sources)) as bar:
            if s.vocabulary is None:
                self.text, self.vocabulary = corpus.read_corpus(
                    sources, s.min_count, s.max_words, s.closed, bar, s.document,
                    min(s.threads, s.memory // READING), self.writer.spool,
                )  # fmt: skip
            else:
                self.vocabulary = Vocabulary(read_word_list(Path(s.vocabulary)), s.closed, s.document)
                self.text = corpus.encode_files(sources, self.vocabulary, bar, self.writer.spool)
        if not self.text.events:
            raise InputError(f"{corpus.names(sources)}: no words; expected one sentence a line")

    def prepare(self, dev: Sources) -> None:
        self.held_out = self._held_out_text(dev)
        self._report_text(self.whole or self.text)
        self._make_extractor()
        self.engine = engines.make(self.settings, self.text.events, self.progress, self.notify)

    def _report_text(self, text: Text) -> None:
        unknown = sum(int(np.count_nonzero(piece == self.vocabulary.unknown)) for piece in text.pieces())
        self.figures: dict[str, Any] = {"sentences": text.sentences, "tokens": text.events, "oov": unknown}
        documents = "" if text.documents is None else f"{text.documents:,} documents, "
        self.notify(
            f"{documents}{text.sentences:,} sentences, {text.events:,} tokens, {len(self.vocabulary):,} words, "
            f"{unknown / text.events:.2%} out of vocabulary"
        )

    def _held_out_text(self, dev: Sources) -> dict[str, Text]:
        """Text set aside or given: the gate's is kept, what the adjustment function's training needs is returned."""
        s = self.settings
        multinomial = s.training.loss == "multinomial"
        if s.model != "snm" or not (dev or s.gate or multinomial):
            return {}
        text = self._given(dev) if dev else self._set_aside(required=multinomial)
        if text is None:
            return {}
        if not multinomial:
            self.gate_text = text
            return {"dev": text} if s.training.passes > 1 else {}
        if text.units < 5:
            return {"fitted": text}
        fitted, rest = corpus.split_sentences(text, text.events // 5)
        self.gate_text = rest
        return {"fitted": fitted, "dev": rest}

    def _given(self, dev: Sources) -> Text:
        text = corpus.encode_files(dev, self.vocabulary)
        if not text.events:
            raise InputError(f"{corpus.names(dev)}: no words; expected held-out text, one sentence a line")
        if text.events > HELD_OUT_MOST:
            text = corpus.sample_sentences(text, HELD_OUT_MOST, self.settings.seed)
            self.notify(f"of the held-out text, {text.events:,} tokens drawn at random are used")
        return text

    def _set_aside(self, required: bool) -> Text | None:
        """The end of the training text, or nothing where that would be too little."""
        wanted = min(int(self.text.events * HELD_OUT_SHARE) + 1, HELD_OUT_MOST)
        if self.text.units < 2:
            what = "sentence" if self.text.documents is None else "document"
            said = f"one {what} is too little to set held-out text aside; give some with --dev"
            if required:
                raise InputError(said)
            self.notify(said)
            return None
        if not required and wanted < calibration.LEAST_EVENTS:
            self.notify(f"{self.text.events:,} tokens are too few to set some aside for a gate; give --dev to have one")
            return None
        self.whole = self.text
        self.text, text = corpus.split_sentences(self.text, wanted)
        if self.settings.vocabulary is None:
            # A word that the rest hardly has would not be in the vocabulary, were the slice not part of the text
            rare = corpus.count_words(self.text, len(self.vocabulary)) < self.settings.min_count
            rare[: UNKNOWN + 1] = False
            text = replace(text, tokens=np.where(rare[text.tokens], np.uint32(UNKNOWN), text.tokens))
        self.notify(f"no held-out text given: the last {text.events:,} tokens of the training text are set aside")
        return text

    def _make_extractor(self) -> None:
        types, slots = len(self.spec.types), len(self.spec.slots)
        layout = KeyLayout.for_work(len(self.vocabulary), types, (self.whole or self.text).events * slots)
        classes = self._learn_classes() if self.spec.has_classes else None
        self.extractor = Extractor(self.spec, layout, self.vocabulary, classes)
        self.extractor.check_families(self.text.tokens)

    def _learn_classes(self) -> np.ndarray:
        with self.progress("word classes", PASSES * min(len(self.vocabulary), FREQUENT)) as bar:
            return learn_classes(self.text, len(self.vocabulary), self.settings.classes, self.settings.seed, bar)

    # -- tokens to counts, and events annotated with them

    def count(self) -> None:
        s, writer = self.settings, self.writer
        unigrams = unigram_counts(self.text, self.extractor)
        learned = s.model == "snm" and s.training.loss != "multinomial" and s.training.passes and not self.adjusted
        if learned:
            self.annotations = self.engine.choose_events(self.text, self.extractor, unigrams, writer)
        prune = s.prune if s.model == "snm" else 1
        counter = self.engine.count(self.text, self.extractor, prune, self.annotations, writer)
        self.notify(f"{counter.links:,} features of events, {len(self.spec.slots)} an event at most")
        for name, dtype in (
            ("features", "<u8"), ("offsets", "<i8"), ("targets", "<u4"), ("totals", "<u4"), ("counts", "<u4"),
        ):  # fmt: skip
            writer.array(name, dtype)
        self.n_links = self.n_rows = 0
        self.rows_by_type, self.singles_by_type = np.zeros((2, len(self.spec.types)), np.int64)
        self._add(unigrams)
        told = False
        for part in counter:
            if not told and counter.done:
                self._check_disk(len(part.features), len(part.targets), counter.done)
                told = True
            self._add(part)
        writer.append("offsets", np.array([self.n_links]))

    def _check_disk(self, rows: int, links: int, share: float) -> None:
        """Say from the first partition, before it is written, what disk all of them will take."""
        of_row, of_link = 30, 13  # bytes in all arrays, those included that are needed on the way only
        needed = (of_row * rows + of_link * links) / share + of_link * len(self.vocabulary)
        free = shutil.disk_usage(self.writer.folder).free
        said = f"about {needed / 1e6:,.0f} MB of disk are needed, {free / 1e6:,.0f} MB are free"
        self.notify(said)
        if needed > free:
            raise SettingsError(f"{said}: choose fewer features, or prune more (--prune)")

    def _add(self, part: Counts) -> None:
        """Write a part of the counts."""
        self.writer.append("features", part.features)
        self.writer.append("totals", part.totals)
        self.writer.append("offsets", part.offsets[:-1] + self.n_links)
        self.writer.append("targets", part.targets)
        self.writer.append("counts", part.counts)
        self.n_links += len(part.targets)
        self.n_rows += len(part.features)
        types, kinds = self.extractor.layout.type_of(part.features), len(self.spec.types)
        self.rows_by_type += np.bincount(types, minlength=kinds)
        self.singles_by_type += np.bincount(types[part.totals == 1], minlength=kinds)

    # -- counts to adjustment

    def adjust(self) -> None:
        s = self.settings
        slots = s.training.table_slots(self.n_links, self.engine.most_slots)
        fitting = ", as many as fit into memory" if slots == self.engine.most_slots < MOST_BY_DEFAULT else ""
        self.notify(
            f"{self.n_rows:,} features, {self.n_links:,} links; {slots:,} slots for metafeature weights{fitting}"
        )
        self.adjustment = self.engine.adjustment(self.extractor, s.training, slots)
        held_out = self._held_out_rows()
        self.report: TrainingReport = train_adjustment(
            self.adjustment, s.training, self.annotations, held_out.get("fitted"), held_out.get("dev"),
            s.threads if self.text.events >= EVENTS_FOR_THREADS else 1, s.seed, self.progress,
        )  # fmt: skip
        self.annotations, self.adjusted, self.held_out = None, True, {}
        self.trained = self._describe_training()
        kept = self.report.losses[: self.report.best_pass]
        if kept and not kept[-1] < DIVERGED:
            raise SettingsError(f"training diverged: its loss is {kept[-1]:.3g} an event; lower --rate")
        if kept:
            self.notify(f"mean loss {kept[-1]:.4f} an event")
        if self.report.perplexities:
            steps = " → ".join(f"{p:.2f}" for p in self.report.perplexities)
            self.notify(f"held-out perplexity {steps}; kept pass {self.report.best_pass}")

    def _held_out_rows(self) -> dict[str, HeldOut]:
        if not self.held_out:
            return {}
        counts = Counts(*(self.writer.load(name) for name in Counts._fields))
        index = RowIndex.build(counts.features)
        return {name: HeldOut(text, self.extractor, counts, index) for name, text in self.held_out.items()}

    # -- counts and adjustment to the matrix

    def build(self) -> None:
        s = self.settings
        made = self.engine.pages(self.writer, self.extractor, self.adjustment)
        with self.progress("building", self.n_links) as bar:
            self.pages = made.write(self.n_rows, self.singles_by_type, s.weight_bits // 8, bar)
        if not self.slice_counts:
            del self.adjustment  # and its table: the gate needs memory too

    # -- the matrix to a gate

    def calibrate(self) -> None:
        """Learn the gate on held-out text."""
        s, text = self.settings, self.gate_text
        if not s.gate or text is None:
            return
        if text.events < calibration.LEAST_EVENTS:
            self.notify(f"{text.events:,} held-out tokens are too few for a gate; {calibration.LEAST_EVENTS:,} are not")
            return
        most = int(GATE_SHARE * s.memory) // calibration.Events.bytes_needed(self.extractor.n_slots)
        events = self._find(corpus.sample_sentences(text, most, s.seed))
        with self.progress("gating", calibration.PASSES * len(events)) as bar:
            flat, report = self.engine.fit_gate(events, s.gate, s.seed, bar)
        steps = f"{report.ungated:.2f} → {min(report.perplexities):.2f}"
        self.notify(f"held-out perplexity {steps} with a gate" if report.helps else f"a gate does not help: {steps}")
        if report.helps:
            self.gate = flat, report

    def _find(self, text: Text) -> calibration.Events:
        """What the rows of the events of a text say."""
        self.writer.close()
        opened = Pages.open(self.writer.folder, self.pages, self.extractor)
        slots = self.extractor.n_slots
        scorer = Scorer(self.extractor, opened, Gate.of(np.zeros(slots, np.float32), slots), self.settings.prune)
        made, n = calibration.Events.empty(text.events, slots), 0
        for start, stop in self.extractor.blocks(0, len(text.tokens)):
            found = scorer.find(self.extractor.keys(text.tokens, start, stop), text.tokens[start:stop])
            events = np.flatnonzero(found.row_sum[0] > 0)
            here = slice(n, n + len(events))
            made.codes[here], made.lengths[here] = found.code.T[events], found.length.T[events]
            made.sums[here], made.weights[here] = found.row_sum.T[events], found.weight.T[events]
            n += len(events)
        return made.first(n)

    # -- the slice that was set aside back into the counts

    @property
    def slice_counts(self) -> bool:
        """Whether a slice was set aside that is too much of the text to leave out."""
        return self.whole is not None and self.text.events < (1 - RETURNED_SHARE) * self.whole.events

    def count_everything(self) -> None:
        """Count the text anew with the slice, and build M of that: the adjustment and the gate stay."""
        assert self.whole is not None
        self.notify("counting again, with the text that was set aside")
        for name in (*Counts._fields, *ARRAYS):
            self.writer.drop(name)
        self.text = self.whole
        self.count()
        self.build()

    def finish(self) -> None:
        """Write what is left of an SNM model: its gate, and what it reads of the rows."""
        gate = None
        if self.gate is not None:
            flat, report = self.gate
            self.writer.array("gate", "<f4").append(flat)
            gate = {"units": self.settings.gate, **asdict(report)}
        for name in ("features", "offsets", "targets"):
            self.writer.drop(name)
        self._finish(SnmModel.kind, {"pages": self.pages, "training": self.trained, "gate": gate})

    # -- counts to a backoff model

    def smooth(self) -> None:
        """Kneser-Ney, Katz or stupid backoff."""
        from snm.baselines import katz, kneser_ney, stupid_backoff
        from snm.baselines.backoff import BackoffModel, Training

        s = self.settings
        counts = Counts(*(self.writer.load(name) for name in Counts._fields))
        index = RowIndex.build(counts.features)
        training = Training(self.text, self.extractor, counts, index, s.threads, self.progress)
        if s.model == "kn":
            made = kneser_ney.estimate(training, s.discounts == "modified")
        else:
            made = {"katz": katz, "sbo": stupid_backoff}[s.model].estimate(training)
        for warning in made.warnings:
            self.notify(warning)
        self.writer.array("probabilities", "<f4").append(made.probabilities)
        self.writer.array("backoffs", "<f4").append(made.backoffs)
        self.writer.array("index", index.places.dtype.str).append(index.places)
        how = {"index": index.description, "estimation": {"model": s.model, **made.details}}
        self._finish(BackoffModel.kind, how)

    # -- tokens to a network

    def fit(self, dev: Sources) -> None:
        """Maximum entropy with a hierarchical softmax, or a recurrent network."""
        s = self.settings
        held_out = self._given(dev) if dev else self._set_aside(required=True)
        assert held_out is not None
        self._report_text(self.whole or self.text)
        made = neural.train(
            s.model, s.network, s.order, s.seed, self.text, held_out, self.vocabulary, self.writer,
            engines.device_of(s.engine), self.progress, self.notify,
        )  # fmt: skip
        self.vocabulary.write(self.writer.folder / VOCABULARY)
        self.writer.finish({**storage.describe_kind(s.model, self.vocabulary), "text": self.figures, **made}, s.threads)
        neural.clear_checkpoint(self.writer.path)

    # -- the folder

    def _finish(self, kind: str, how: dict[str, Any]) -> None:
        self.writer.drop("counts")
        self.writer.drop("totals")
        if self.extractor.classes is not None:
            self.writer.array("classes", "<u2").append(self.extractor.classes)
        self.vocabulary.write(self.writer.folder / VOCABULARY)
        manifest = storage.describe(
            self.extractor, self.rows_by_type, self.n_links, kind, {"text": self.figures, **how}
        )
        self.writer.finish(manifest, self.settings.threads)

    def _describe_training(self) -> dict[str, Any]:
        """The settings and figures of the adjustment function's training."""
        training = self.settings.training
        recorded = {k: v for k, v in asdict(training).items() if k != "metafeatures"}
        return {
            **recorded,
            "rate": training.learning_rate(),
            "start": self.adjustment.start,
            "slots": len(self.adjustment.table),
            "metafeatures": str(training.metafeatures),
            "feature_buckets": training.metafeatures.feature_buckets,
            "link_buckets": training.metafeatures.link_buckets,
            "merged": training.metafeatures.merged,
            "seed": self.settings.seed,
            "engine": self.engine.name,
            "prune": self.settings.prune,
            "losses": self.report.losses,
            "dev_perplexities": self.report.perplexities,
            "best_pass": self.report.best_pass,
        }


def _size_of(sources: Sources) -> int:
    """Bytes of plain text to read, 0 where that cannot be known before."""
    files = corpus.find_files(sources)
    if any(name == corpus.STDIN or Path(name).suffix in (".bz2", ".gz", ".xz", ".zst") for name in files):
        return 0
    return sum(Path(name).stat().st_size for name in files)
