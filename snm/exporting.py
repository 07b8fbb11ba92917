"""ARPA files of any model: backoff models as they are, others projected on n-grams, pruned to a size on the way."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from snm.arguments import MAX_THREADS, file_path, functions, shown, whole_number
from snm.baselines.backoff import arpa
from snm.baselines.backoff.model import BackoffModel
from snm.errors import InputError, SettingsError
from snm.features.specification import MAX_WORDS
from snm.layouts.tokens import UNKNOWN
from snm.model import LanguageModel
from snm.pipeline import train
from snm.progress import Notify, Progress, ignore, silent
from snm.projection import extractor_for, ngram_order, rows_of_snm, rows_of_text, write_rows
from snm.pruning.arpa import limit_for_arpa
from snm.pruning.backoff import PrunedBackoff
from snm.scoring.model import SnmModel
from snm.settings import Settings
from snm.storage import VOCABULARY, ModelWriter
from snm.text.encoding import encode_files
from snm.text.files import Sources, are_given, names

LONGEST = 5  # n-grams of a projection, where the model has none of its own


def export_arpa(
    model: LanguageModel, path: str | Path, *, text: Sources | None = None, order: int | None = None,
    size: int | None = None, threads: int = 1, on_error: str = "fail", progress: Progress = silent,
    notify: Notify = ignore,
) -> None:  # fmt: skip
    """Write any model as an ARPA file. A file of that name is replaced when the new one is complete.

    A backoff model is written as it is. An SNM is written as its n-grams, up to `order`, with its probabilities after
    their contexts alone. With `text`, and for every other model, the n-grams are those of the text; probabilities of
    other models are means over places of the text. `size`: most bytes of the file; n-grams are pruned by entropy.
    """
    if not isinstance(model, LanguageModel):
        raise SettingsError(f"{shown(model)} is no model; open one with snm.load")
    functions(progress=progress, notify=notify)
    threads = whole_number("threads", threads, 1, MAX_THREADS)
    size = None if size is None else whole_number("size", size, 1)
    order = None if order is None else whole_number("order", order, 1, MAX_WORDS)
    if isinstance(model, SnmModel) and model.spec.caches:
        raise SettingsError(f"{model.path} has a cache, which an ARPA file cannot have; train a model without")
    given = are_given(text)
    name = str(file_path("path", path))
    if isinstance(model, BackoffModel) and not given:
        if order is not None:
            raise SettingsError(f"{model.path} is a backoff model already, written as it is; leave out the order")
        return _write(model, name, size, threads, progress, notify)
    if not given and not (isinstance(model, SnmModel) and ngram_order(model) > 1):
        raise SettingsError(
            f"{model.path} has no n-grams of its own; give the text whose n-grams are to be written (--text)"
        )
    with tempfile.TemporaryDirectory(prefix="snm-") as folder:
        place = Path(folder) / "projected"
        if given:
            assert text is not None
            _project_text(model, place, text, order or _order_of(model), threads, on_error, progress, notify)
        else:
            assert isinstance(model, SnmModel)
            _project_snm(model, place, order, threads, progress, notify)
        with BackoffModel(place) as projected:
            _write(projected, name, size, threads, progress, notify)


def _write(model: BackoffModel, name: str, size: int | None, threads: int, progress: Progress, notify: Notify) -> None:
    """Write a backoff model, pruned if a size is given."""
    if size is None:
        return arpa.export_arpa(model, name, progress=progress, notify=notify)
    with tempfile.TemporaryDirectory(prefix="snm-") as folder:
        with ModelWriter(Path(folder) / "pruned") as writer:
            pruned = PrunedBackoff(model, writer, threads, progress)
            least, made = limit_for_arpa(pruned, size)
            notify(
                f"{made.links:,} of {len(model.targets):,} n-grams left; estimated loss of perplexity {made.loss:.2%}"
            )
            pruned.write(least, {})
        with BackoffModel(Path(folder) / "pruned") as smaller:
            arpa.export_arpa(smaller, name, progress=progress, notify=notify)


def _order_of(model: LanguageModel) -> int:
    """Of the n-grams of a projection: the model's longest, else at most five."""
    return ngram_order(model) if isinstance(model, SnmModel) and ngram_order(model) > 1 else LONGEST


def _project_snm(
    model: SnmModel, place: Path, order: int | None, threads: int, progress: Progress, notify: Notify
) -> None:
    longest = ngram_order(model)
    if order is not None and order > longest:
        notify(f"{model.path} has n-grams of up to {longest} words; longer ones need --text")
    order = min(order or longest, longest)
    if len(model.spec.templates) > longest:
        notify("the model has other features than n-grams: much is lost; snm5 exports with hardly a loss")
    with ModelWriter(place) as writer:
        with progress("projecting", int(model.manifest["links"])) as bar:
            rows = rows_of_snm(model, order, bar)
        figures = dict(model.manifest["text"])
        write_rows(writer, extractor_for(model, order, len(rows.targets)), rows, figures, threads)


def _project_text(
    model: LanguageModel, place: Path, text: Sources, order: int, threads: int, on_error: str, progress: Progress,
    notify: Notify,
) -> None:  # fmt: skip
    """A Kneser-Ney model of the text has its n-grams; then their probabilities are replaced."""
    encoded = encode_files(text, model.vocabulary, on_error=on_error, notify=notify)
    if not encoded.events:
        raise InputError(f"{names(text)}: no words; expected text whose n-grams are to be written")
    with tempfile.TemporaryDirectory(prefix="snm-") as folder:
        words, v = Path(folder) / VOCABULARY, model.vocabulary
        words.write_text("".join(f"{word}\n" for word in v.words[UNKNOWN + 1 :]), encoding="utf-8")
        settings = Settings(model="kn", order=order, closed=v.closed, tokenizer=v.tokenizer, threads=threads)
        settings = replace(settings, on_error=on_error, vocab=None if settings.alphabet is not None else words)
        skeleton = train(text, Path(folder) / "ngrams", settings, progress=progress, notify=notify)
        assert isinstance(skeleton, BackoffModel)
        with ModelWriter(place) as writer:
            with progress("projecting", len(encoded.tokens)) as bar:
                rows = rows_of_text(model, skeleton, encoded, writer, advance=bar)
            write_rows(writer, skeleton.extractor, rows, dict(skeleton.manifest["text"]), threads)
        skeleton.close()
