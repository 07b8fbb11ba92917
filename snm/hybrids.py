"""Hybrids: SNMs and models of other kinds, such as a network, under one gate that weighs them by context.

A model's distribution P(w | h) is a row whose sum is one, so it stands beside the rows of SNMs under the gate, which is
learned on held-out text. `mix_gated` makes a hybrid of finished models; `snm train --model hybrid` trains its members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from snm import storage
from snm.arguments import MAX_THREADS, functions, whole_number
from snm.errors import InputError, SettingsError
from snm.loading import load
from snm.mixing import add_member, paths_of
from snm.model import LanguageModel
from snm.progress import Notify, Progress, ignore, silent
from snm.scoring.hybrid import HybridModel
from snm.scoring.members import Other, events_of
from snm.scoring.model import SnmModel
from snm.scoring.unions import Words, share_of, union_of
from snm.settings import MAX_SEED, MAX_UNITS, Settings
from snm.sources import MAX_DEV, Learned, Work, fit_gate, members_of, write
from snm.text.encoding import Text, encode_files
from snm.text.files import Sources, names
from snm.text.sampling import sample_sentences
from snm.text.tokenizers import check_same
from snm.text.vocabulary import Vocabulary


def mix_gated(
    models: Iterable[str | Path | LanguageModel], dev: Sources, output: str | Path, *, units: int = 64,
    seed: int = 1, force: bool = False, threads: int = 1, on_error: str = "fail", progress: Progress = silent,
    notify: Notify = ignore,
) -> HybridModel:  # fmt: skip
    """Mix models with weights that depend on the context, and write the hybrid to `output`.

    At least one must be an SNM: the gate sees which rows it has, and their counts. An SNM's own gate is not used. The
    new gate, of so many hidden `units`, is learned on `dev`, held-out text of 2,000 words or more. The hybrid contains
    its members, as a mixture does; vocabularies may differ (docs/sources.md).
    """
    functions(progress=progress, notify=notify)
    paths, threads = paths_of(models), whole_number("threads", threads, 1, MAX_THREADS)
    settings = Settings(
        gate=whole_number("units", units, 1, MAX_UNITS), seed=whole_number("seed", seed, 0, MAX_SEED), threads=threads,
        on_error=on_error,
    )  # fmt: skip
    with storage.ModelWriter(output, force, notify) as writer, ExitStack() as opened:
        members = [
            opened.enter_context(add_member(path, writer.folder / f"member{i}", progress))
            for i, path in enumerate(paths)
        ]
        check_members(members, paths)
        vocabulary = union_of([member.vocabulary for member in members])
        text = encode_files(dev, vocabulary, on_error=on_error, notify=notify)
        if not text.events:
            raise InputError(f"{names(dev)}: no words; expected held-out text, one sentence a line")
        work = Work(settings, lambda *_: None, progress, notify)
        write_hybrid(writer, vocabulary, _names_of(paths), members, text, work)
    model = load(output)
    assert isinstance(model, HybridModel)
    return model


def check_members(members: Sequence[LanguageModel], paths: Sequence[Path]) -> None:
    """Raise an error if one gate cannot weigh the rows of these models."""
    if not any(isinstance(member, SnmModel) for member in members):
        raise SettingsError(
            "no member is an SNM, whose rows a gate would see; leave out gated (--gated) for weights that are the "
            "same after every context"
        )
    for member, path in zip(members, paths, strict=True):
        check_same(members[0].vocabulary.tokenizer, member.vocabulary.tokenizer, str(paths[0]), str(path))
        if member.vocabulary.fields:
            raise SettingsError(f"{member.path} has fields of lines, which a hybrid cannot have; mix models without")
        if isinstance(member, SnmModel) and member.spec.caches:
            raise SettingsError(f"{path} has a cache, which a member of a hybrid cannot have; train it without one")


def _names_of(paths: Sequence[Path]) -> list[str]:
    """A name for each model, by the names of their folders."""
    plain = [re.sub(r"[^\w.-]", "_", path.name)[:60].lstrip(".-") or "model" for path in paths]
    return [name if plain.count(name) == 1 else f"{name}.{i}" for i, name in enumerate(plain)]


def write_hybrid(
    writer: storage.ModelWriter, vocabulary: Vocabulary, member_names: list[str], members: list[LanguageModel],
    dev: Text, work: Work, more: dict[str, object] | None = None,
) -> None:  # fmt: skip
    """Learn the gate on held-out text, and finish the folder of a hybrid whose members' folders are in it.

    more: further entries of the manifest.
    """
    s, shares = work.settings, [share_of(member.vocabulary, vocabulary, dev) for member in members]
    gate = _learn_gate(vocabulary, member_names, members, shares, dev, work)
    write(writer, vocabulary, member_names, members, shares, gate, s.threads, HybridModel.kind, more)


def _learn_gate(
    vocabulary: Vocabulary, member_names: list[str], members: list[LanguageModel], shares: list[float], dev: Text,
    work: Work,
) -> Learned:  # fmt: skip
    """The gate over the rows of SNMs, which come first, and one row of each other member."""
    s = work.settings
    given = list(zip(members, member_names, shares, strict=True))
    snms = [(model, name, share) for model, name, share in given if isinstance(model, SnmModel)]
    rows = members_of([m for m, _, _ in snms], [n for _, n, _ in snms], [share for _, _, share in snms], vocabulary)
    others = [
        Other(model, name, Words.of(model.vocabulary, vocabulary, share))
        for model, name, share in given if not isinstance(model, SnmModel)
    ]  # fmt: skip
    with work.progress("scoring held-out text", 0):
        events = events_of(rows, sample_sentences(dev, MAX_DEV, s.seed), others, s.threads)
    sizes = [*(member.templates for member in rows), *(1 for _ in others)]
    return fit_gate(events, sizes, replace(s, model="snm"), None, work)
