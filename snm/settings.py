"""The settings of `train`: everything but the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import OPTIMISERS, TrainingSettings
from snm.arguments import MAX_THREADS, choice, file_path, flag, set_whole_numbers, shown
from snm.baselines.neural.settings import NetworkSettings
from snm.errors import SettingsError
from snm.features.specification import DEFAULT_PRESET, MAX_WORDS, FeatureSpec
from snm.progress import Notify, ignore
from snm.system import default_threads
from snm.text.encoding import read_vocabulary
from snm.text.fields import field_names
from snm.text.files import ON_ERROR
from snm.text.tokenizers import Tokenizer, open_tokenizer
from snm.text.vocabulary import Vocabulary

NEURAL = ("hsme", "rnn")
HYBRID = "hybrid"
MODELS = ("snm", "kn", "katz", "sbo", *NEURAL, HYBRID)
HYBRIDS = {"hybrid-small": ("small", 256), "hybrid": ("medium", 512), "hybrid-large": ("medium", 1024)}
"""Presets of hybrids: the features of the SNM, and the units of the network."""
CLUSTER = ("ray", "tasks")  # engines of several machines
ENGINES = ("auto", "cpu", "gpu", *CLUSTER)
DISCOUNTS = ("modified", "single")
DEFAULT_ORDER = 5
MIN_MEMORY = 512 << 20
MAX_SEED = (1 << 63) - 1
MAX_UNITS = 1 << 12  # of the gate
MAX_FOLDS = 1 << 10  # of the text that the gate is learned from
ALL_EVENTS = 1 << 32  # more events than a text can have
PAPER_RATE = 0.02  # of AdaGrad with the paper's metafeatures: the paper gives no rate


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of `train`: everything but the text. `memory` is in bytes.

    What is trained:

    - `model`: `snm`, `kn` (Kneser-Ney), `katz`, `sbo` (stupid backoff), `hsme` (maximum entropy with a hierarchical
      softmax), `rnn`, or `hybrid`: an SNM and a recurrent network under one gate.
    - `features`: SNM's specification, by default the preset `small`.
    - `order`: n-grams up to this order instead; for the other models, which have no specification, 5 by default, for an
      RNN 9.
    - `discounts`: Kneser-Ney's, `modified` or `single`.
    - `gate`: hidden units of SNM's gate, 0 for none.
    - `classes`: how many word classes are learned where the features use them; by default 256, from a text of up to 2 M
      tokens 64.
    - `training`: how an SNM's adjustment is learned. `network`: settings of `hsme`, `rnn` and `hybrid`.
    - `tuning`: how `snm.tune` chose the settings, for the manifest.

    The text:

    - `min_count`: words seen less often are `<UNK>`. `max_words`: at most so many words. `vocab`: a file of words
      instead, one a line. `closed`: `<UNK>` is never predicted.
    - `tokenizer`: `characters`, `bytes`, or the file of a SentencePiece model or of a tokenizer of Hugging Face, which
      divides text into words from then on (docs/tokenizers.md).
    - `document`: the text has documents, separated by blank lines, and features reach across their sentences.
    - `fields`: names of fields before lines, such as `speaker=ann`, which become features (docs/features.md).
    - `on_error`: what to do with a line that is not UTF-8 or has a NUL byte: `fail`, `replace` (the bytes, by U+FFFD)
      or `skip-line`; for the text, held-out text and the file of words.
    - `folds`: the gate is learned from this many parts of the text, each under a model of the others, by default 4 from
      a text of 40,000 to 2 M tokens; 0 for a slice that is held out.

    The size of the model:

    - `prune`: features seen less often are left out of an SNM, except n-grams of up to five words.
    - `weight_bits`: 8 or 16, of a weight in the model file.
    - `size`: most bytes of the model folder; what brings least is pruned at the end.

    How it is trained:

    - `memory` (bytes), `threads`, `partitions` (of the counts), `seed` (of all random choices).
    - `engine`: `cpu`, `gpu`, or `auto`, which takes a GPU where there is one and the text is large enough; or several
      machines: `ray`, a Ray cluster at `address`, or `tasks`, which other programs run. `work` is the folder or the URL
      that these machines share (docs/cluster.md).
    - `resume`: what is finished is kept in a folder, and used if the run is killed and started again.
    """

    model: str = "snm"
    features: str | None = None
    order: int | None = None
    discounts: str = "modified"
    min_count: int = 3
    max_words: int | None = None
    vocab: str | Path | None = None
    tokenizer: str | Path | Tokenizer | None = None
    closed: bool = False
    document: bool = False
    fields: str | tuple[str, ...] = ()
    on_error: str = "fail"
    training: TrainingSettings = field(default_factory=TrainingSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    memory: int = 4 << 30
    threads: int = field(default_factory=default_threads)
    partitions: int | None = None
    seed: int = 1
    gate: int = 64
    folds: int | None = None
    prune: int = 2
    classes: int | None = None
    weight_bits: int = 8
    engine: str = "auto"
    address: str | None = None
    work: str | None = None
    resume: bool = False
    size: int | None = None
    tuning: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        set_whole_numbers(
            self, order=(1, MAX_WORDS), min_count=(1, 1 << 62), max_words=(1, 1 << 31), memory=(MIN_MEMORY, 1 << 62),
            threads=(1, MAX_THREADS), partitions=(1, 1 << 31), seed=(0, MAX_SEED), gate=(0, MAX_UNITS),
            folds=(0, MAX_FOLDS), prune=(1, 1 << 31), classes=(4, 1 << 16), weight_bits=(8, 16), size=(1, 1 << 62),
        )  # fmt: skip
        for name, known in (("model", MODELS), ("discounts", DISCOUNTS), ("engine", ENGINES), ("on_error", ON_ERROR)):
            choice(name, getattr(self, name), known)
        none = isinstance(self.fields, str | list | tuple) and not self.fields
        object.__setattr__(self, "fields", () if none else field_names(self.fields))
        for name in ("closed", "document", "resume"):
            object.__setattr__(self, name, flag(name, getattr(self, name)))
        object.__setattr__(self, "tokenizer", open_tokenizer(self.tokenizer))
        if self.alphabet is not None:
            if self.vocab is not None or self.max_words is not None:
                raise SettingsError("bytes are a vocabulary of their own; leave out vocab and max_words")
            object.__setattr__(self, "closed", True)  # no text has other words
        for name, kind in (("training", TrainingSettings), ("network", NetworkSettings)):
            if not isinstance(getattr(self, name), kind):
                raise SettingsError(f"{name} is {shown(getattr(self, name))}; expected snm.{kind.__name__}(...)")
        if self.vocab is not None:
            object.__setattr__(self, "vocab", file_path("vocab", self.vocab))
        if self.features is not None and not isinstance(self.features, str):
            raise SettingsError(f"features is {shown(self.features)}; expected a specification: a string")
        if self.tuning is not None and not isinstance(self.tuning, dict):
            raise SettingsError(f"tuning is {shown(self.tuning)}; expected what snm.tune made")
        for name in ("address", "work"):
            if getattr(self, name) is not None and not isinstance(getattr(self, name), str):
                raise SettingsError(f"{name} is {shown(getattr(self, name))}; expected a string")
        if self.engine in CLUSTER and self.model != "snm":
            raise SettingsError(f"engine {self.engine} is for SNM; a model of kind {self.model!r} is trained here")
        if self.engine == "tasks" and self.work is None:
            raise SettingsError("engine tasks needs a folder that all machines share; name one with --work")
        beyond = self.training.metafeatures.beyond_the_paper
        if beyond and self.engine in ("gpu", *CLUSTER):
            raise SettingsError(
                f"metafeatures {', '.join(beyond)} are for the engine cpu; leave out the engine {self.engine}, or them"
            )
        self._check_fields()
        if self.model == HYBRID:
            self._check_hybrid()
        if self.resume and self.model in NEURAL:
            raise SettingsError(
                f"resume is not for a model of kind {self.model!r}, which has checkpoints (--checkpoint)"
            )
        if self.resume and self.engine == "gpu":
            raise SettingsError("resume is for the other engines than gpu; leave out one of both")
        if self.size is not None and self.model in NEURAL:
            raise SettingsError("size is for SNM and backoff models; a network is as large as its units (hidden)")
        if self.size is not None and self.resume and self.model != "snm":
            raise SettingsError("resume is not for a backoff model with a size; train it, and prune it with snm.prune")
        if self.folds == 1:
            raise SettingsError("folds is 1; expected 2 or more parts of the text, or 0 for a slice that is held out")
        if self.folds and not self.can_fold:
            raise SettingsError(
                "folds are for an SNM with a gate that is trained by leave-one-out in one pass, and without a size; "
                "leave out folds, or the others"
            )
        if self.weight_bits not in (8, 16):
            raise SettingsError(f"weight_bits is {self.weight_bits}; expected 8 or 16")
        if self.model not in ("snm", HYBRID) and self.features is not None:
            raise SettingsError(f"features are for SNM; a model of kind {self.model!r} has n-grams up to its order")
        if self.model != "snm" and self.document:
            raise SettingsError(f"documents are for SNM; a model of kind {self.model!r} has sentences")
        if self.order is not None and self.features is not None:
            raise SettingsError("features and order exclude each other; give one of them")
        if self.vocab is not None and self.max_words is not None:
            raise SettingsError("a vocabulary file and max_words exclude each other; give one of them")

    def _check_fields(self) -> None:
        """Raise an error if fields go with something that does not know them."""
        if not self.fields:
            return
        if self.tokenizer is not None:
            raise SettingsError("fields and a tokenizer exclude each other; leave out one of both")
        if self.model != "snm":
            raise SettingsError(f"fields are for SNM; a model of kind {self.model!r} has no features for them")
        if self.engine in ("gpu", *CLUSTER):
            raise SettingsError(f"fields are for the engine cpu; leave out the engine {self.engine}, or the fields")
        if self.document or self.vocab is not None:
            with_it = "documents" if self.document else "a vocabulary file, which has no values of fields"
            raise SettingsError(f"fields belong to lines, and do not go with {with_it}; leave out one of both")
        if self.spec.caches:
            raise SettingsError("fields belong to lines, a cache to documents; leave out one of both")

    @property
    def can_fold(self) -> bool:
        """Whether a gate can be learned from all of the text."""
        one_pass = self.training.loss == "leave-one-out" and self.training.passes <= 1
        return self.model == "snm" and self.gate > 0 and one_pass and self.size is None

    def _check_hybrid(self) -> None:
        for what, wrong in (
            ("resume", self.resume), ("size", self.size is not None), ("gate=0", not self.gate),
            (f"the {self.training.loss} loss", self.training.loss == "multinomial"),
            ("several passes of the SNM", self.training.passes > 1), ("a cache", bool(self.spec.caches)),
        ):  # fmt: skip
            if wrong:
                raise SettingsError(
                    f"{what} is not for hybrids; leave it out, or train the members and mix them (gated)"
                )

    @property
    def alphabet(self) -> tuple[str, ...] | None:
        """The words, if the tokenizer determines them."""
        return None if self.text_tokenizer is None else self.text_tokenizer.alphabet

    @property
    def text_tokenizer(self) -> Tokenizer | None:
        """The tokenizer, opened; None for white space."""
        assert isinstance(self.tokenizer, Tokenizer | None)
        return self.tokenizer

    @property
    def specification(self) -> str:
        chosen = f"ngram(0..{(self.order or DEFAULT_ORDER) - 1})"
        if self.model in ("snm", HYBRID) and self.order is None:
            chosen = DEFAULT_PRESET if self.features is None else self.features
        used = FeatureSpec(chosen).sides if self.fields else []
        return " + ".join([chosen, *(f"side({field})" for field in self.fields if field not in used)])

    @property
    def spec(self) -> FeatureSpec:
        return FeatureSpec(self.specification)


def given_vocabulary(settings: Settings, memory: int | None = None, notify: Notify = ignore) -> Vocabulary | None:
    """The vocabulary, if it is known before the text is read: a file of words, or what the tokenizer determines.

    `memory`: bytes that reading it may take.
    """
    s, tokenizer = settings, settings.text_tokenizer
    if s.alphabet is not None:
        return Vocabulary(s.alphabet, closed=s.closed, document=s.document, tokenizer=tokenizer)
    if s.vocab is None:
        return None
    return read_vocabulary(Path(s.vocab), s.closed, s.document, s.on_error, memory, notify, tokenizer)


def paper_settings(
    features: str = "snm5", *, metafeatures: str = "all", feature_buckets: str = "double", link_buckets: str = "double",
    merge: bool = False, optimiser: str = "adagrad", **more: Any,
) -> Settings:  # fmt: skip
    """The settings that train as the paper does, unless the arguments say otherwise.

    All conjunctions of metafeatures with both counts in two buckets (127, none merged), every event, nothing pruned,
    no gate, no classes, A(i, j) starting at 0. The paper applies stochastic gradient descent and gives no rate; AdaGrad
    is the default here because it is better, `optimiser="sgd"` is plain SGD.
    """
    if FeatureSpec(features).has_classes:
        raise SettingsError(
            f"features {shown(features)} use word classes, which the paper does not have; leave them out"
        )
    chosen = MetafeatureSet.parse(metafeatures, feature_buckets=feature_buckets, link_buckets=link_buckets, merge=merge)
    if not isinstance(more.get("training", {}), dict):
        raise SettingsError(f"training is {shown(more['training'])}; expected a dictionary of options")
    choice("optimiser", optimiser, OPTIMISERS)
    rate = PAPER_RATE if optimiser == "adagrad" else None
    training = {"events": ALL_EVENTS, "rate": rate, **more.pop("training", {})}
    how = TrainingSettings(metafeatures=chosen, optimiser=optimiser, start=0.0, **training)
    return Settings(features=features, training=how, **{"gate": 0, "prune": 1, "weight_bits": 16, **more})


def departures_from_paper(settings: Settings) -> list[str]:
    """In words, where an SNM's settings differ from the paper's."""
    t, found = settings.training, []
    if t.loss != "leave-one-out":
        found.append(f"{t.loss} loss")
    if t.optimiser != "sgd":
        found.append("AdaGrad instead of SGD")
    if (t.metafeatures.feature_buckets, t.metafeatures.link_buckets) != ("double", "double"):
        found.append(f"feature counts in {t.metafeatures.feature_buckets}, link counts in "
                     f"{t.metafeatures.link_buckets} buckets")  # fmt: skip
    if t.metafeatures.merge:
        found.append("coinciding metafeatures merged")
    if t.events is None or t.events < ALL_EVENTS:
        found.append(
            "trained on a sample of the events" if t.events is None else f"trained on about {t.events:,} events"
        )
    if t.slots is not None:
        found.append(f"{t.slots:,} slots for metafeature weights")
    if settings.prune > 1:
        found.append(f"features seen fewer than {settings.prune} times left out")
    if settings.gate:
        found.append("a gate")
    if settings.spec.has_classes:
        found.append("word classes")
    if settings.fields:
        found.append("fields of lines as features")
    found.append(f"weights of {settings.weight_bits} bits in the model")
    return found
