"""Models of several sources: an SNM of each text, and one gate over the rows of all, learned on a dev text.

The sources have one vocabulary and one set of word classes, which are learned from all texts together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from snm.arguments import shown
from snm.errors import InputError, SettingsError
from snm.gate.fitting import (
    MIN_EVENTS,
    NEW_ROWS_PULL,
    PASSES,
    RATE,
    GateEvents,
    GateReport,
    balance,
    fit,
    initial_gate,
    refit,
)
from snm.layouts.gate import Gate
from snm.loading import load
from snm.manifest import describe_kind, requiring, write_spelling
from snm.model import LanguageModel
from snm.progress import Notify, Progress, ignore, silent
from snm.remote import is_url
from snm.scoring.members import Member, events_of
from snm.scoring.model import SnmModel
from snm.scoring.sources import SourcesModel
from snm.scoring.unions import Words, share_of
from snm.settings import CLUSTER, Settings, given_vocabulary
from snm.storage import VOCABULARY, ModelWriter
from snm.text import classes as word_classes
from snm.text.encoding import Sentences, Text, as_lines, count_words, encode_files, read_corpus
from snm.text.files import (
    BadLines,
    Sources,
    are_files,
    are_given,
    check_read_twice,
    find_files,
    is_text,
    names,
    read_lines,
)
from snm.text.sampling import sample_sentences
from snm.text.spelling import RareWords, words_to_learn
from snm.text.vocabulary import Vocabulary

NAME = re.compile(r"\w[\w.-]{0,63}")
_NAMED = re.compile(r"([^=/\\:]*)=(.*)", re.DOTALL)
MAX_DEV = 300_000  # tokens of the dev text that the gate is learned on
GATE_SHARE = 0.25  # of the memory, for the rows of the dev text
TrainSource = Callable[[Text, Vocabulary, np.ndarray | None, Path, Settings, Progress, Notify], None]
"""`snm.pipeline.train_source`: writes the SNM of a text."""


def named_sources(arguments: Sequence[str]) -> Sequence[str] | dict[str, str]:
    """Arguments NAME=TEXT as a mapping; the arguments themselves if they name files.

    An argument that is the name of a file, a folder or a glob, or a URL, is that file even if it has a `=`.
    """
    found = [None if is_url(a) or is_text(a) else _NAMED.fullmatch(a) for a in arguments]
    if not any(found):
        return arguments
    named: dict[str, str] = {}
    for argument, match in zip(arguments, found, strict=True):
        if match is None:
            raise SettingsError(f"{shown(argument)} has no name, others have; expected NAME=TEXT for each source")
        name, text = match.groups()
        check_name(name)
        if name in named:
            raise SettingsError(
                f"the source {shown(name)} is there twice; give each source a name of its own, and several files of "
                f"one source as a folder or a glob"
            )
        named[name] = text
    return named


def check_name(name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise SettingsError(
            f"a source is named {shown(name)}; expected up to 64 letters, digits, and . _ - after the first character"
        )
    return name


Learned = tuple[np.ndarray, GateReport]
"""A gate as a flat array, and the report of its training."""


@dataclass(frozen=True)
class Work:
    """What training with sources is handed: settings, and who is told about it."""

    settings: Settings
    train: TrainSource
    progress: Progress = silent
    notify: Notify = ignore


def train_sources(
    sources: Mapping[str, Sources], output: str | Path, dev: Sources | None, force: bool, work: Work
) -> LanguageModel:
    """Train a model of several named sources; see `snm.train`."""
    given = _check(sources, dev, work.settings)
    with ModelWriter(output, force, work.notify) as writer:
        vocabulary, classes, spelling = _learn_words(given, writer, work)
        text = _dev_text(given.dev, vocabulary, work)
        members = []
        for i, (name, source) in enumerate(given.texts.items()):
            members.append(_train_one(name, source, vocabulary, classes, writer.folder / f"member{i}", writer, work))
        s, shares = work.settings, [share_of(model.vocabulary, vocabulary, text) for model in members]
        gate = None
        if s.gate:
            rows = members_of(members, given.texts, shares, vocabulary)
            sizes = [member.extractor.n_templates for member in rows]
            gate = fit_gate(dev_events(rows, text, s), sizes, s, None, work)
            del rows
        write(writer, vocabulary, list(given.texts), members, shares, gate, s.threads, more=spelling)
    return load(output)


@dataclass(frozen=True)
class _Given:
    texts: dict[str, Sources]
    dev: Sources


def _check(sources: Mapping[str, Sources], dev: Sources | None, s: Settings) -> _Given:
    """The sources and the dev text, so that they can be read twice; an error where something cannot be right."""
    if not sources:
        raise InputError("no sources given; expected a text for each name")
    for what, wrong in (
        (f"a model of kind {s.model!r}", s.model != "snm"), ("resume", s.resume),
        (f"engine {s.engine}", s.engine in CLUSTER), ("the multinomial loss", s.training.loss == "multinomial"),
        ("several passes", s.training.passes > 1), ("size", s.size is not None), ("a cache", bool(s.spec.caches)),
    ):  # fmt: skip
        if wrong:
            raise SettingsError(f"{what} is not for several sources; leave out the names, or train another model")
    if dev is None:
        raise SettingsError(
            "several sources need a dev text, by which they are weighed; give text of the domain that the model is for "
            "(--dev)"
        )
    texts: dict[str, Sources] = {}
    for name, source in sources.items():
        check_name(name)
        if not are_given(source):
            raise InputError(f"the source {name} has no text; expected files or sentences")
        texts[name] = source if are_files(source) else ReadTwice(name, source)
        check_read_twice(source, "the texts of sources are read several times")
    if are_files(dev):
        find_files(dev)
    for name, source in texts.items():
        if not _has_words(source, s.on_error):
            raise InputError(f"the source {name} ({names(source)}) has no words; expected one sentence a line")
    return _Given(texts, dev)


def _has_words(source: Sources, on_error: str) -> bool:
    """Whether a source has any words; it is read up to the first."""
    if not are_files(source):
        return any(line.strip() for line in as_lines(cast("Sentences", source), None, on_error))
    lines = read_lines(find_files(source), BadLines(on_error))
    return any(line.strip() for some in lines for line in some)


class ReadTwice:
    """Sentences that can be read twice. A list of strings would name files."""

    def __init__(self, name: str, sentences: Any) -> None:
        try:
            self._sentences = list(sentences)
        except TypeError:
            raise InputError(f"the source {name} is {shown(sentences)}; expected files or sentences") from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sentences)


def _learn_words(
    given: _Given, writer: ModelWriter, work: Work
) -> tuple[Vocabulary, np.ndarray | None, dict[str, Any]]:
    """What is learned from all texts: the vocabulary, unless it was given; word classes, or None; the spelling model.

    The classes are None where no features use them. The spelling model is written; its entry of the manifest returns.
    """
    s, whole = work.settings, _together(list(given.texts.values()), work.settings.on_error)
    rare = RareWords()
    with work.progress("reading", 0) as bar:
        if (vocabulary := given_vocabulary(s, None, work.notify)) is not None:
            text = encode_files(whole, vocabulary, bar, writer.spool, s.on_error, work.notify, rare=rare)
        else:
            text, vocabulary = read_corpus(
                whole, s.min_count, s.max_words, s.closed, bar, s.document, 1, writer.spool, s.on_error, None,
                work.notify, rare, (), s.text_tokenizer,
            )  # fmt: skip
    words = words_to_learn(rare.lines, count_words(text, len(vocabulary)), vocabulary)
    spelling = write_spelling(writer.folder, words, vocabulary)
    if not s.spec.has_classes or not text.events:
        return vocabulary, None, spelling
    with work.progress("word classes", word_classes.PASSES * min(len(vocabulary), word_classes.FREQUENT)) as bar:
        classes = word_classes.learn_classes(
            text, len(vocabulary), s.classes or word_classes.default_classes(text.events), s.seed, bar, s.memory // 2
        )
    return vocabulary, classes, spelling


def _together(texts: list[Sources], on_error: str) -> Sources:
    """All texts as one: a list of files, or their lines."""
    if all(are_files(text) for text in texts):
        return [file for text in texts for file in find_files(text)]  # type: ignore[arg-type]

    def lines() -> Iterator[Any]:
        for text in texts:
            if are_files(text):
                for some in read_lines(find_files(text), BadLines(on_error)):
                    yield from some
            else:
                yield from as_lines(cast("Sentences", text), None, on_error)

    return lines()


def _dev_text(dev: Sources, vocabulary: Vocabulary, work: Work) -> Text:
    text = encode_files(dev, vocabulary, on_error=work.settings.on_error, notify=work.notify)
    if not text.events:
        raise InputError(f"{names(dev)}: no words; expected held-out text, one sentence a line")
    return text


def _train_one(
    name: str, source: Sources, vocabulary: Vocabulary, classes: np.ndarray | None, folder: Path, writer: ModelWriter,
    work: Work,
) -> SnmModel:  # fmt: skip
    """The SNM of a source, which has no gate of its own."""
    s = replace(work.settings, gate=0)
    text = encode_files(source, vocabulary, join=writer.spool, on_error=s.on_error, notify=work.notify)
    if not text.events:
        raise InputError(f"the source {name} ({names(source)}) has no words; expected one sentence a line")
    work.train(text, vocabulary, classes, folder, s, work.progress, lambda message: work.notify(f"{name}: {message}"))
    model = load(folder)
    assert isinstance(model, SnmModel)
    return model


# ---------------------------------------------------------------------------------------------
# the gate over the members' rows, and the folder


def write(
    writer: ModelWriter, vocabulary: Vocabulary, member_names: list[str], models: Sequence[LanguageModel],
    shares: list[float], gate: Learned | None, threads: int, kind: str = SourcesModel.kind,
    more: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Finish the folder of a model whose members' folders are in it. more: further entries of the manifest."""
    described = None
    if gate is not None:
        flat, report = gate
        writer.array("gate", "<f4").append(flat)
        templates = sum(model.extractor.n_templates if isinstance(model, SnmModel) else 1 for model in models)
        described = {"units": len(Gate.of(flat, templates).bias), **asdict(report)}
    vocabulary.write(writer.folder / VOCABULARY)
    lacking = any(not Words.of(model.vocabulary, vocabulary, 0.5).whole for model in models)
    manifest = {
        **describe_kind(kind, vocabulary),
        "members": [f"member{i}" for i in range(len(models))],
        "names": member_names,
        "shares": shares,
        "gate": described,
        "links": sum(model.manifest.get("links", 0) for model in models),
        **(more or {}),
    }
    for model in models:  # Windows renames no folder with a file that is mapped
        model.close()
    writer.finish(requiring(manifest, *(["union"] if lacking else [])), threads)


def members_of(
    models: Iterable[SnmModel], member_names: Iterable[str], shares: Iterable[float], vocabulary: Vocabulary
) -> list[Member]:
    return [
        Member(model, name, Words.of(model.vocabulary, vocabulary, share))
        for model, name, share in zip(models, member_names, shares, strict=True)
    ]


def dev_events(members: list[Member], dev: Text, s: Settings) -> GateEvents:
    """The rows of a dev text, or of a sample of it that is long enough."""
    templates = sum(member.extractor.n_templates for member in members)
    most = min(MAX_DEV, int(GATE_SHARE * s.memory) // GateEvents.bytes_needed(templates))
    return events_of(members, sample_sentences(dev, most, s.seed))


def fit_gate(events: GateEvents, sizes: list[int], s: Settings, start: np.ndarray | None, work: Work) -> Learned:
    """The gate over the rows of all members: from `start`, or anew if the dev text is long enough for that.

    sizes: the members' numbers of templates.
    """
    with work.progress("gating", PASSES * len(events)) as bar:
        learned = fit(events, s.gate, s.seed, bar) if start is None and len(events) >= MIN_EVENTS else None
        if learned is None or not learned[1].helps:
            if start is None:
                start = initial_gate(events.templates, s.gate, np.random.default_rng(s.seed))
            groups = list(pairwise(np.cumsum(sizes).tolist()))
            learned = refit(events, balance(events, start, groups), s.seed, bar, RATE, NEW_ROWS_PULL)
    flat, report = learned
    work.notify(f"held-out perplexity {report.ungated:.2f} → {min(report.perplexities):.2f} with a gate")
    return flat, report
