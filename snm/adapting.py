"""Adapting a finished model to a new domain, with little text of it, and without the text that it was trained on.

The gate can learn anew (`snm.scoring.adapting`). Or text of the domain joins the model as a source of its own, with
its counts and its new words: `join_text`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from snm.arguments import MAX_THREADS, functions, whole_number
from snm.engines.cpu import PROGRAM_BYTES
from snm.errors import InputError, SettingsError
from snm.gate.fitting import GateEvents
from snm.layouts.gate import Gate
from snm.layouts.tokens import BEGIN, SPECIAL, UNKNOWN
from snm.loading import load
from snm.manifest import write_spelling
from snm.model import LanguageModel
from snm.pipeline import train_source
from snm.progress import Notify, Progress, ignore, silent
from snm.scoring.adapting import start_gate
from snm.scoring.hybrid import HybridModel
from snm.scoring.members import events_of
from snm.scoring.model import SnmModel
from snm.scoring.sources import SourcesModel
from snm.scoring.unions import share_of, union_of
from snm.settings import MAX_SEED, MIN_MEMORY, Settings
from snm.sources import MAX_DEV, Work, check_name, fit_gate, members_of, write
from snm.storage import ModelWriter, link_files, remove_folder
from snm.system import default_threads
from snm.text.encoding import Text, count_words, encode_files, read_corpus
from snm.text.files import Sources, are_given, names
from snm.text.sampling import folds_of, sample_sentences, split_sentences
from snm.text.spelling import RareWords, spans_of, words_to_learn
from snm.text.vocabulary import Vocabulary

BASE = "base"  # the name of a model that had no sources
FOLDS = 5  # of text that the gate is learned on too: each is scored by the counts of the others
MAX_FOLDED = 1_000_000  # tokens; of more text, the end alone is held out
MIN_COUNT = 3


def adapt(
    model: str | Path | LanguageModel, output: str | Path, *, dev: Sources | None = None, text: Sources | None = None,
    name: str = "text", min_count: int = MIN_COUNT, memory: int = 4 << 30, threads: int | None = None, seed: int = 1,
    on_error: str = "fail", force: bool = False, progress: Progress = silent, notify: Notify = ignore,
) -> LanguageModel:  # fmt: skip
    """Adapt an SNM, or a model of several sources, to a domain, and write the new model to `output`.

    With `dev` alone, the gate learns anew: see `LanguageModel.adapt`. `text` joins the model as a source called `name`,
    with its counts and the new words that it has `min_count` times. The gate over both is learned on `dev`, or without
    it on the text itself, a part of which is scored by the counts of the rest. The old model's files are shared with it
    where the disk has hard links.
    """
    functions(progress=progress, notify=notify)
    model = model if isinstance(model, LanguageModel) else load(model, progress=progress)
    if not isinstance(model, SnmModel | SourcesModel):
        raise SettingsError(f"{model.path} is no SNM and no model of several sources; mix it with others (snm mix)")
    dev, text = (part if are_given(part) else None for part in (dev, text))
    if text is None:
        if dev is None:
            raise InputError("no text of the new domain given; expected dev, text, or both")
        how = {"force": force, "seed": seed, "on_error": on_error, "progress": progress, "notify": notify}
        encoded = encode_files(dev, model.vocabulary, on_error=on_error, notify=notify)
        if not encoded.events:
            raise InputError(f"{names(dev)}: no words; expected text of the new domain, one sentence a line")
        return model.adapt(encoded, output, **how)
    if isinstance(model, HybridModel):
        raise SettingsError(
            f"{model.path} is a hybrid, which text cannot join; give dev, or adapt its SNM and mix again"
        )
    settings = _settings_for(
        model, memory=whole_number("memory", memory, MIN_MEMORY), seed=whole_number("seed", seed, 0, MAX_SEED),
        threads=default_threads() if threads is None else whole_number("threads", threads, 1, MAX_THREADS),
        min_count=whole_number("min_count", min_count, 1), on_error=on_error,
    )  # fmt: skip
    work = Work(settings, train_source, progress, notify)
    return _join_text(model, text, dev, check_name(name), output, force, work)


def _settings_for(model: SnmModel | SourcesModel, **given: Any) -> Settings:
    """The settings of a source that joins a model: the features are those of its first member."""
    first = _members(model)[0]
    if first.spec.caches:
        raise SettingsError(f"{model.path} has a cache, which several sources cannot have; give dev instead of text")
    if model.vocabulary.fields:
        raise SettingsError(f"{model.path} has fields, which several sources cannot have; give dev instead of text")
    return Settings(
        features=first.spec.text, prune=max(1, first.manifest["training"]["prune"]), closed=model.vocabulary.closed,
        document=model.vocabulary.document, tokenizer=model.vocabulary.tokenizer, engine="cpu", **given,
    )  # fmt: skip


def _members(model: SnmModel | SourcesModel) -> list[SnmModel]:
    return [model] if isinstance(model, SnmModel) else [member.model for member in model.members]


def _join_text(
    model: SnmModel | SourcesModel, text: Sources, dev: Sources | None, name: str, output: str | Path, force: bool,
    work: Work,
) -> LanguageModel:  # fmt: skip
    """Write a model with a text as one source more, and open it."""
    s = work.settings
    known = [BASE] if isinstance(model, SnmModel) else list(model.manifest["names"])
    if name in known:
        raise SettingsError(f"the model has a source {name} already; give the text another name")
    with ModelWriter(output, force, work.notify) as writer:
        with work.progress("reading", 0) as bar:
            whole, words = read_corpus(
                text, 1, None, s.closed, bar, s.document, 1, writer.spool, s.on_error, s.memory - PROGRAM_BYTES,
                work.notify, None, (), model.vocabulary.tokenizer,
            )  # fmt: skip
        if not whole.events:
            raise InputError(f"{names(text)}: no words; expected text of the new domain, one sentence a line")
        joining = _Joining(model, words, writer, work)
        if dev is None:
            events, shares = joining.folds(whole)
        own = joining.train(whole, f"member{len(known)}", work.progress)
        union = union_of([model.vocabulary, own.vocabulary])
        if dev is not None:
            held_out = _encoded(dev, union, work)
            events, shares = joining.look(own, union, sample_sentences(held_out, MAX_DEV, s.seed))
        start, sizes = _start(model.gate, own.extractor.n_templates, s.seed)
        learned = fit_gate(events, sizes, s, start, work)
        del events
        work.notify(f"{len(union) - len(model.vocabulary):,} new words; {own.manifest['links']:,} links of {name}")
        for i, member in enumerate(joining.bases):
            link_files(Path(os.path.abspath(member.path)), writer.folder / f"member{i}", files=member.manifest["files"])
        linked = [load(writer.folder / f"member{i}") for i in range(len(known))]
        models = [member for member in (*linked, own) if isinstance(member, SnmModel)]
        spelling = joining.spell(whole, union)
        write(writer, union, [*known, name], models, shares, learned, s.threads, more=spelling)
    return load(output)


def _encoded(dev: Sources, union: Vocabulary, work: Work) -> Text:
    text = encode_files(dev, union, on_error=work.settings.on_error, notify=work.notify)
    if not text.events:
        raise InputError(f"{names(dev)}: no words; expected held-out text, one sentence a line")
    return text


def _start(gate: Gate, templates: int, seed: int) -> tuple[np.ndarray, list[int]]:
    """The gate of a model with `templates` more, which it does not see yet, and how many there are: before, and new."""
    before = len(gate.offset)
    old = Gate.of(start_gate(gate, seed), before)
    more = np.zeros((templates, *old.hidden.shape[1:])), old.bias[:0], np.zeros((templates, len(old.bias)))
    parts = zip(old, (*more, np.zeros(templates)), strict=True)
    flat = np.concatenate([np.concatenate([part, new]).ravel() for part, new in parts])
    return flat.astype(np.float32), [before, templates]


@dataclass
class _Joining:
    """A model, and the words of a text that joins it; the text's tokens have their ids, rare words too."""

    model: SnmModel | SourcesModel
    words: Vocabulary
    writer: ModelWriter
    work: Work

    @property
    def bases(self) -> list[SnmModel]:
        return _members(self.model)

    def train(self, text: Text, folder: str, progress: Progress) -> SnmModel:
        """The SNM of a text, in a folder of the writer's."""
        s, (own, vocabulary) = self.work.settings, self._own_words(text)
        classes, first = None, self.bases[0]
        if first.extractor.classes is not None:
            classes = first.extractor.classes[first.vocabulary.ids_of(vocabulary.words)]
        path = self.writer.folder / folder
        train_source(own, vocabulary, classes, path, replace(s, gate=0), progress, ignore)
        model = load(path)
        assert isinstance(model, SnmModel)
        return model

    def _own_words(self, text: Text) -> tuple[Text, Vocabulary]:
        """A text with a vocabulary of its own: the words of it that the model knows, and new ones that are frequent.

        The source has no others: unseen words would take most of the mass of a small text's unigrams.
        """
        counts = count_words(text, len(self.words))
        known = self.model.vocabulary.ids_of(self.words.words) != UNKNOWN
        kept = (counts >= self.work.settings.min_count) | ((counts > 0) & known)
        kept[: len(SPECIAL)] = True
        ids = np.full(len(self.words), UNKNOWN, np.uint32)
        ids[kept] = np.arange(int(kept.sum()), dtype=np.uint32)
        words = [self.words.words[i] for i in np.flatnonzero(kept)[len(SPECIAL) :]]
        return replace(text, tokens=ids[text.tokens]), self.words.like(words)

    def spell(self, text: Text, union: Vocabulary) -> dict[str, Any]:
        """Write the spelling model of the union, of the rare words of the model's texts and of this one."""
        rare, known = RareWords(), self.model.spelling
        rare.add(*spans_of(known.words if known is not None else b""))
        ids, counts = union.ids_of(self.words.words), count_words(text, len(self.words))
        words = zip(self.words.words, ids.tolist(), counts.tolist(), strict=True)
        new = [word for word, i, n in words if n and i == UNKNOWN]
        rare.add(*spans_of("".join(f"{word}\n" for word in new).encode()))
        of_union = np.bincount(ids, counts, len(union))
        return write_spelling(self.writer.folder, words_to_learn(rare.lines, of_union, union), union)

    def look(self, own: SnmModel, union: Vocabulary, text: Text) -> tuple[GateEvents, list[float]]:
        """The rows of a held-out text, of the union's words, and the share that each member gives to words it lacks."""
        models = [*self.bases, own]
        shares = [share_of(member.vocabulary, union, text) for member in models]
        return events_of(members_of(models, map(str, range(len(models))), shares, union), text), shares

    def folds(self, text: Text) -> tuple[GateEvents, list[float]]:
        """The same of the text itself: of parts of it, each with the counts of the rest."""
        found, shares = [], []
        with self.work.progress("folds", FOLDS) as advance:
            for rest, held_out in _parts(text):
                events, given = self._fold(rest, held_out)
                found.append(events)
                shares.append(given)
                advance(1)
        return GateEvents.joined(found), np.mean(shares, axis=0).tolist()

    def _fold(self, rest: Text, held_out: Text) -> tuple[GateEvents, list[float]]:
        """`look` at a part of the text, with the counts of the rest."""
        own = self.train(rest, "fold", silent)
        union = union_of([self.model.vocabulary, own.vocabulary])
        ids = union.ids_of(self.words.words)
        found = self.look(own, union, replace(held_out, tokens=ids[held_out.tokens]))
        own.close()
        remove_folder(self.writer.folder / "fold")
        return found


def _parts(text: Text) -> Iterator[tuple[Text, Text]]:
    """(the rest, a held-out part) of a text: FOLDS times or, where that is enough to hold out, once."""
    begins = np.flatnonzero(text.tokens == BEGIN)
    if len(begins) < 2:
        raise InputError("the text is a single line, none of which can be held out; give more, or held-out text (dev)")
    if text.events >= MAX_FOLDED:
        yield split_sentences(text, MAX_DEV)
        return
    folds = min(FOLDS, len(begins))
    for rest, held_out in folds_of(text, folds):
        yield rest, sample_sentences(held_out, MAX_DEV // folds, 1)
