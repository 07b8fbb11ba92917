"""ARPA files of any model: backoff models as they are, others projected on n-grams, pruned to a size on the way."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from snm.arguments import MAX_THREADS, file_path, functions, shown, whole_number
from snm.baselines.backoff import arpa
from snm.baselines.backoff.model import BackoffModel
from snm.errors import InputError, SettingsError
from snm.features.specification import MAX_WORDS
from snm.gate.fitting import MIN_EVENTS
from snm.layouts.tokens import UNKNOWN
from snm.model import LanguageModel
from snm.pipeline import train
from snm.progress import Notify, Progress, ignore, silent
from snm.projection.continuations import Continuations, count_continuations
from snm.projection.gates import GateLearner, needed, own_gates
from snm.projection.mixtures import best_weights, merged_ngrams, mixed_probabilities
from snm.projection.ngrams import Ngrams, write_rows
from snm.projection.own import ngram_order, own_ngrams
from snm.projection.rows import probabilities_of
from snm.projection.sampling import sample_tokens
from snm.projection.texts import means_over_places, ngrams_of
from snm.pruning.arpa import limit_for_arpa
from snm.pruning.backoff import PrunedBackoff
from snm.scoring.mixture import MixtureModel
from snm.scoring.model import SnmModel
from snm.scoring.sources import SourcesModel
from snm.scratch import scratch_folder
from snm.settings import Settings
from snm.sources import ReadTwice
from snm.storage import VOCABULARY, ModelWriter
from snm.text.encoding import Text, encode_files
from snm.text.files import Sources, are_files, are_given, check_read_twice, names
from snm.text.sampling import sample_sentences

SAMPLED = 200_000  # events of the text that an SNM generates
MAX_HELD_OUT = 300_000  # events of held-out text that are used
SEED = 1
LONGEST = 5  # n-grams of a projection, where the model has none of its own


def export_arpa(
    model: LanguageModel, path: str | Path, *, text: Sources | None = None, dev: Sources | None = None,
    order: int | None = None, size: int | None = None, threads: int = 1, on_error: str = "fail",
    progress: Progress = silent, notify: Notify = ignore,
) -> None:  # fmt: skip
    """Write any model as an ARPA file. A file of that name is replaced when the new one is complete.

    - A backoff model is written as it is.
    - An SNM is written as its n-grams, up to `order`, with its probabilities after their contexts alone. If it has
      other features, gates for n-grams are learned: on held-out text, `dev`, or on text that the model generates.
    - Mixtures, and models of several sources with `dev`, have the n-grams of their members.
    - With `text`, and for every other model, the n-grams are those of the text; probabilities of other models than SNMs
      are means over places of the text.

    `size`: most bytes of the file; n-grams are pruned by entropy.
    """
    if not isinstance(model, LanguageModel):
        raise SettingsError(f"{shown(model)} is no model; open one with snm.load")
    functions(progress=progress, notify=notify)
    threads = whole_number("threads", threads, 1, MAX_THREADS)
    size = None if size is None else whole_number("size", size, 1)
    order = None if order is None else whole_number("order", order, 1, MAX_WORDS)
    if isinstance(model, SnmModel) and model.spec.caches:
        raise SettingsError(f"{model.path} has a cache, which an ARPA file cannot have; train a model without")
    if model.vocabulary.fields:
        raise SettingsError(f"{model.path} has fields of lines, which an ARPA file cannot have; train a model without")
    model.check_structure()
    given = are_given(text)
    name = str(file_path("path", path))
    if isinstance(model, BackoffModel) and not given:
        if order is not None:
            raise SettingsError(f"{model.path} is a backoff model already, written as it is; leave out the order")
        return _write(model, name, size, threads, progress, notify)
    if not are_given(dev):
        dev = None
    elif isinstance(model, MixtureModel | SourcesModel):
        dev = _readable_twice(dev, "held-out text")  # by each member
    how = _How(order, dev, threads, on_error, progress, notify)
    if not given:
        _check_own(model, how)
    with scratch_folder(notify) as folder:
        place = folder / "projected"
        if given:
            assert text is not None
            _project_text(model, place, _readable_twice(text, "text"), how)
        else:
            _project_own(model, place, how)
        with BackoffModel(place) as projected:
            _write(projected, name, size, threads, progress, notify)


@dataclass(frozen=True)
class _How:
    """The arguments of `export_arpa` that concern the projection."""

    order: int | None
    dev: Sources | None
    threads: int
    on_error: str
    progress: Progress
    notify: Notify


def _readable_twice(text: Sources, what: str) -> Sources:
    """Text that can be read several times."""
    check_read_twice(text, f"an export reads {what} several times")
    return text if are_files(text) else ReadTwice(what, text)


def _check_own(model: LanguageModel, how: _How) -> None:
    """Raise an error if a model has no n-grams of its own, or if it is not known how to weigh them."""
    if isinstance(model, MixtureModel):
        for member in model.members:
            _check_own(member, how)
    elif type(model) is SourcesModel:
        if how.dev is None:
            raise SettingsError(
                f"{model.path} has several sources, which are weighed by held-out text; give it (--dev), or the text "
                f"whose n-grams are to be written (--text)"
            )
        for source in model.members:
            _check_own(source.model, how)
    elif isinstance(model, SnmModel) and model.spec.caches:
        raise SettingsError(f"{model.path} has a cache, which an ARPA file cannot have; train a model without")
    elif not (isinstance(model, BackoffModel) or (isinstance(model, SnmModel) and ngram_order(model) > 1)):
        raise SettingsError(
            f"{model.path} has no n-grams of its own; give the text whose n-grams are to be written (--text)"
        )


def _write(model: BackoffModel, name: str, size: int | None, threads: int, progress: Progress, notify: Notify) -> None:
    """Write a backoff model, pruned if a size is given."""
    if size is None:
        return arpa.export_arpa(model, name, progress=progress, notify=notify)
    with scratch_folder(notify) as folder:
        with ModelWriter(folder / "pruned") as writer:
            pruned = PrunedBackoff(model, writer, threads, progress)
            least, made = limit_for_arpa(pruned, size)
            notify(
                f"{made.links:,} of {len(model.targets):,} n-grams left; estimated loss of perplexity {made.loss:.2%}"
            )
            pruned.write(least, {})
        with BackoffModel(folder / "pruned") as smaller:
            arpa.export_arpa(smaller, name, progress=progress, notify=notify)


def _order_of(model: LanguageModel) -> int:
    """Of the n-grams of a projection: the model's longest, else at most five."""
    return ngram_order(model) if isinstance(model, SnmModel) and ngram_order(model) > 1 else LONGEST


def _project_own(model: LanguageModel, place: Path, how: _How) -> None:
    """The n-grams of a model itself."""
    if isinstance(model, MixtureModel | SourcesModel):
        return _project_members(model, place, how)
    assert isinstance(model, SnmModel)
    longest = ngram_order(model)
    if how.order is not None and how.order > longest:
        how.notify(f"{model.path} has n-grams of up to {longest} words; longer ones need --text")
    with how.progress("reading n-grams", int(model.manifest["links"])) as bar:
        ngrams = own_ngrams(model, min(how.order or longest, longest), bar)
    with ModelWriter(place) as writer:
        _project_snm(model, ngrams, writer, dict(model.manifest["text"]), how)


def _project_snm(model: SnmModel, ngrams: Ngrams, writer: ModelWriter, figures: dict[str, int], how: _How) -> None:
    """Write n-grams with the probabilities of an SNM.

    One that has n-grams alone keeps its gate, unless there is held-out text. Else gates for n-grams are learned, on
    that text or on text that the model generates.
    """
    parents, held_out = ngrams.parents(), _held_out(model, how)
    if held_out is None and (needed(model) < ngrams.order).all():
        continuations = Continuations.none(ngrams)
        gates = own_gates(model, ngrams)
    else:
        if held_out is None:
            how.notify(f"n-grams are adjusted to {SAMPLED:,} words that the model generates; --dev gives better text")
            held_out = sample_tokens(model, SAMPLED, SEED)
        continuations = count_continuations(ngrams, parents)
        gates = GateLearner(model, ngrams, continuations, held_out).learn(how.progress)
    with how.progress("projecting", len(ngrams.targets)) as bar:
        p = probabilities_of(model, ngrams, continuations, gates, bar)
    write_rows(writer, ngrams, p, parents, figures, how.threads)


def _project_members(model: MixtureModel | SourcesModel, place: Path, how: _How) -> None:
    """The n-grams of all members of a model, of which some may be projected first, mixed linearly."""
    whole = model.members if isinstance(model, MixtureModel) else [member.model for member in model.members]
    maps = model._maps if isinstance(model, MixtureModel) else [member.words for member in model.members]
    with scratch_folder(how.notify) as folder, ExitStack() as opened:
        members = []
        for i, member in enumerate(whole):
            if not isinstance(member, BackoffModel):
                _project_own(member, folder / str(i), how)
                member = opened.enter_context(BackoffModel(folder / str(i)))
            members.append(member)
        if isinstance(model, MixtureModel):
            weights = model.weights
        else:
            weights = best_weights(members, maps, _sample(model, how).tokens)
        ngrams = merged_ngrams(members, model.vocabulary, how.order)
        with how.progress("mixing", len(ngrams.targets)) as bar:
            p = mixed_probabilities(members, maps, weights, ngrams, bar)
        figures = dict(members[0].manifest["text"])
        with ModelWriter(place) as writer:
            write_rows(writer, ngrams, p, ngrams.parents(), figures, how.threads)


def _project_text(model: LanguageModel, place: Path, text: Sources, how: _How) -> None:
    """A Kneser-Ney model of the text has its n-grams; then their probabilities are replaced."""
    encoded = encode_files(text, model.vocabulary, on_error=how.on_error, notify=how.notify)
    if not encoded.events:
        raise InputError(f"{names(text)}: no words; expected text whose n-grams are to be written")
    with scratch_folder(how.notify) as folder:
        words, v = folder / VOCABULARY, model.vocabulary
        words.write_text("".join(f"{word}\n" for word in v.words[UNKNOWN + 1 :]), encoding="utf-8")
        order = how.order or _order_of(model)
        settings = Settings(model="kn", order=order, closed=v.closed, tokenizer=v.tokenizer, threads=how.threads)
        settings = replace(settings, on_error=how.on_error, vocab=None if settings.alphabet is not None else words)
        skeleton = train(text, folder / "ngrams", settings, progress=how.progress, notify=how.notify)
        assert isinstance(skeleton, BackoffModel)
        ngrams, figures = ngrams_of(skeleton), dict(skeleton.manifest["text"])
        with ModelWriter(place) as writer:
            if isinstance(model, SnmModel):
                _project_snm(model, ngrams, writer, figures, how)
            else:
                with how.progress("projecting", len(encoded.tokens)) as bar:
                    p = means_over_places(model, skeleton, encoded, advance=bar)
                write_rows(writer, ngrams, p, ngrams.parents(), figures, how.threads)
        skeleton.close()


def _held_out(model: LanguageModel, how: _How) -> np.ndarray | None:
    """The tokens of held-out text, or of a sample of it; None where there is none, or too little."""
    if how.dev is None:
        return None
    text = _sample(model, how)
    if text.events < MIN_EVENTS:
        what = f"{names(how.dev)} has {text.events:,} tokens, too few to learn from"
        how.notify(f"{what}: the model generates text instead")
        return None
    return text.tokens


def _sample(model: LanguageModel, how: _How) -> Text:
    """The held-out text, or a sample of it."""
    assert how.dev is not None
    text = encode_files(how.dev, model.vocabulary, on_error=how.on_error, notify=how.notify)
    if not text.events:
        raise InputError(f"{names(how.dev)}: no words; expected held-out text, one sentence a line")
    return sample_sentences(text, MAX_HELD_OUT, SEED)
