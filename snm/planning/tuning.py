"""Settings that suit a text, chosen by held-out text (`snm train --tune`): metafeatures, classes, pruning, rate.

Models are trained on a sample of the text, one setting changed at a time. A change is kept if it lowers the perplexity
of text that neither the counts nor the gates of these models have seen; one that makes models much larger, or their
training much slower, must lower it more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from snm.adjustment.metafeatures import MetafeatureSet
from snm.arguments import real_number, shown
from snm.errors import InputError, SettingsError
from snm.gate.fitting import MIN_EVENTS
from snm.pipeline import train
from snm.planning.sample import Sample, seekable_files, take_sample
from snm.progress import Advance, Notify, Progress, ignore, silent
from snm.scratch import scratch_folder
from snm.settings import CLUSTER, Settings
from snm.text.classes import default_classes
from snm.text.encoding import encode_files
from snm.text.files import Files, are_files

DEFAULT_SECONDS = 300.0
BYTES_PER_SECOND = 30_000  # of the sample: so that about ten models fit into the time
GATE_SHARE = CHOICE_SHARE = 1 / 16  # of the sample's pieces: for the gates, and to choose by
TUNED = ("metafeatures", "classes", "prune", "rate")
NO_LINK_WEIGHTS = "type+feature-count+link-count, type+target+link-count, feature"
MIN_GAIN = 0.001  # by which a change must lower perplexity
MIN_GAINS = {("prune", 1): 0.005, ("metafeatures", "all"): 0.005}  # of those that cost much size or time


@dataclass(frozen=True)
class Trial:
    """A model that was trained on the sample: what was tried, and the perplexity of the text to choose by."""

    setting: str  # empty for the settings that were given
    value: Any
    perplexity: float
    seconds: float
    kept: bool


@dataclass(frozen=True)
class Tuning:
    """The settings that were chosen, and how. `settings` has the rest as its `tuning`, for the manifest."""

    settings: Settings
    chosen: dict[str, Any]
    trials: list[Trial]
    sample_tokens: int
    choice_tokens: int
    complete: bool  # everything was tried within the time


def tune(
    sources: Files,
    settings: Settings | None = None,
    *,
    seconds: float = DEFAULT_SECONDS,
    keep: Sequence[str] = (),
    dev: Files | None = None,
    progress: Progress = silent,
    notify: Notify = ignore,
) -> Tuning:
    """Choose settings for an SNM of this text in about `seconds`: `tune(...).settings` is for `train`.

    `sources` name files, which are read more than once. `keep` names those of TUNED that stay as they are. `dev` is the
    text to choose by; by default it is a part of the sample that the models are not trained on.
    """
    settings, begun = Settings() if settings is None else settings, time.perf_counter()
    _check(sources, settings, seconds, keep)
    files = seekable_files(sources)
    with scratch_folder(notify) as folder, progress("tuning", int(seconds)) as bar:
        sample = take_sample(files, folder, int(seconds * BYTES_PER_SECOND), settings)
        search = _Search(sample, settings, dev or None, begun + seconds, bar, notify)
        kept = (*keep, *(() if sample.whole else ("classes",)))  # a larger text has more classes
        search.run([name for name in TUNED if name not in kept])
    best = search.best if sample.whole else replace(search.best, classes=settings.classes)
    chosen = {name: _value(best, name) for name in TUNED if _value(best, name) is not None}
    made = Tuning(best, chosen, search.trials, search.sample_tokens, search.choice_tokens, search.complete)
    described = {name: value for name, value in asdict(made).items() if name != "settings"}
    final = replace(settings, training=best.training, classes=best.classes, prune=best.prune)
    return replace(made, settings=replace(final, tuning={"seconds": time.perf_counter() - begun, **described}))


def _check(sources: Any, settings: Settings, seconds: float, keep: Sequence[str]) -> None:
    if not isinstance(settings, Settings):
        raise SettingsError(f"settings is {shown(settings)}; expected snm.Settings(...)")
    if not are_files(sources):
        raise SettingsError("tuning reads a text more than once; give files instead of sentences")
    if settings.model != "snm" or settings.training.loss != "leave-one-out":
        raise SettingsError("tuning is for an SNM that is trained by leave-one-out; leave out one of both")
    if settings.resume:
        raise SettingsError("tuning may choose other settings in a second run, so it cannot be resumed; leave out one")
    if not real_number("seconds", seconds) > 0:
        raise SettingsError(f"seconds is {shown(seconds)}; expected a number above 0")
    unknown = [name for name in keep if name not in TUNED]
    if unknown:
        raise SettingsError(f"keep has {shown(unknown[0])}; expected some of {', '.join(TUNED)}")


class _Search:
    """Trains models of a sample, and keeps the best settings."""

    def __init__(
        self, sample: Sample, settings: Settings, dev: Files | None, end: float, bar: Advance, notify: Notify
    ) -> None:
        engine = "auto" if settings.engine in CLUSTER else settings.engine
        classes = settings.classes or default_classes(sample.text.events)
        self.best = replace(settings, engine=engine, classes=classes)
        self.dev, self.end, self.bar, self.notify = dev, end, bar, notify
        self.folder, self.trials, self.complete = sample.folder, list[Trial](), True
        self.sample_tokens = self.choice_tokens = 0
        self._write_parts(sample)

    def _write_parts(self, sample: Sample) -> None:
        n = len(sample.pieces)
        gate, choice = max(1, round(n * GATE_SHARE)), 0 if self.dev is not None else max(1, round(n * CHOICE_SHARE))
        if n < gate + choice + 1:
            raise InputError("this text is too little to choose settings by; leave out tuning, or give more text")
        ends = {"train": (0, n - gate - choice), "gate": (n - gate - choice, n - choice), "choice": (n - choice, n)}
        for name, (first, last) in ends.items():
            (self.folder / name).write_bytes(b"\n".join(sample.pieces[first:last]) + b"\n")

    def run(self, names: list[str]) -> None:
        """Try the settings as they are, then a change of each of the named ones."""
        self._try("", None, self.best)
        for name in names:
            for value in _alternatives(self.best, name):
                if time.perf_counter() + self.trials[0].seconds > self.end:
                    self.complete = False
                    return
                if self._try(name, value, _with(self.best, name, value)):
                    break

    def _try(self, name: str, value: Any, settings: Settings) -> bool:
        """Train a model; whether it is better, and its settings are the best now."""
        begun = time.perf_counter()
        perplexity = self._perplexity(settings)
        seconds = time.perf_counter() - begun
        limit = min((trial.perplexity for trial in self.trials if trial.kept), default=float("inf"))
        kept = perplexity < limit * (1 - MIN_GAINS.get((name, value), MIN_GAIN))
        self.best = settings if kept else self.best
        self.trials.append(Trial(name, value, perplexity, seconds, kept))
        self.bar(int(seconds))
        what = f"{name} {value}: {'kept' if kept else 'not kept'}" if name else "settings as given"
        self.notify(f"tuning: {what}, perplexity {perplexity:.2f}")
        return kept

    def _perplexity(self, settings: Settings) -> float:
        path, s = self.folder / "model", settings
        with train([self.folder / "train"], path, s, dev=[self.folder / "gate"], force=True) as model:
            source = [self.folder / "choice"] if self.dev is None else self.dev
            text = encode_files(source, model.vocabulary, on_error=s.on_error)
            if text.events < MIN_EVENTS:
                raise InputError(
                    f"{text.events:,} tokens are too few to choose settings by; at least {MIN_EVENTS:,} are needed: "
                    f"leave out tuning, or give more text"
                )
            self.sample_tokens, self.choice_tokens = model.manifest["text"]["tokens"], text.events
            return model.perplexity(text, threads=s.threads).ppl


def _alternatives(settings: Settings, name: str) -> list[Any]:
    """Other values of a setting, in the order in which they are tried; the first that is better is kept."""
    now = _value(settings, name)
    if name == "metafeatures":
        return [
            value for value in (NO_LINK_WEIGHTS, "all") if MetafeatureSet.parse(value).conjunctions != _chosen(settings)
        ]
    if name == "classes":
        return [now // 4, now * 4] if settings.spec.has_classes and now >= 16 else []  # at least 4
    if name == "prune":
        return [value for value in (3, 1) if value != now]
    return [now / 2, now * 2]


def _chosen(settings: Settings) -> frozenset[frozenset[str]]:
    return settings.training.metafeatures.conjunctions


def _value(settings: Settings, name: str) -> Any:
    """A setting, as a user would write it."""
    if name == "metafeatures":
        known = {MetafeatureSet.parse(text).conjunctions: text for text in (NO_LINK_WEIGHTS, "all", "lean")}
        return known.get(_chosen(settings), str(settings.training.metafeatures))
    return settings.training.learning_rate() if name == "rate" else getattr(settings, name)


def _with(settings: Settings, name: str, value: Any) -> Settings:
    """The settings with one of them changed."""
    training = settings.training
    if name == "metafeatures":
        conjunctions = MetafeatureSet.parse(value).conjunctions
        changed = replace(training.metafeatures, conjunctions=conjunctions)
        return replace(settings, training=replace(training, metafeatures=changed))
    if name == "rate":
        return replace(settings, training=replace(training, rate=value))
    return replace(settings, **{name: value})
