"""Counts that add: folders with a counted text, and their sum.

`snm.pipeline.count_text` writes such a folder, `merge_counts` adds several, and `snm.pipeline.train` makes a model of
one. The counts are not pruned. Features with word classes are not among them: classes are learned from the whole text,
so these features are counted when a model is trained. docs/format.md, section 13, specifies the folder.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from snm import manifest
from snm.arguments import MAX_THREADS, file_path, functions, shown, whole_number
from snm.counts.merging import write_merged
from snm.counts.store import StoredCounts
from snm.engines.cpu import PROGRAM_BYTES, partition_bytes
from snm.errors import FormatError, SettingsError, SpecError
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.layouts.keys import KeyLayout
from snm.progress import Notify, Progress, ignore, silent
from snm.settings import CLUSTER, MIN_MEMORY, Settings
from snm.storage import COUNTS, VOCABULARY, ModelWriter, check_files, open_array, replaced_file
from snm.system import default_threads
from snm.text.encoding import Text, read_corpus
from snm.text.files import Sources, plain_size
from snm.text.tokenizers import Tokenizer, check_same, open_tokenizer
from snm.text.vocabulary import Vocabulary

TOKENS, STORE = "tokens", "counts"
READER_BYTES = 128 << 20  # memory of a thread that reads text, for most vocabularies


class CountedText:
    """A folder with a text and its counts. `manifest` describes it."""

    def __init__(self, path: str | Path) -> None:
        self.path = file_path("counts", path)
        self.manifest = manifest.read_counted(self.path)
        try:
            self.spec = FeatureSpec(self.manifest["features"])
        except SpecError as error:
            raise FormatError(f"{self.path}: {error}") from error
        """Its features."""
        self._figures = self.manifest["text"]

    def __repr__(self) -> str:
        return f"CountedText({str(self.path)!r})"

    def check(self, threads: int = 1) -> None:
        """Raise an error if a file is damaged."""
        check_files(self.path, COUNTS, threads)
        words, store = self.manifest["vocabulary"]["words"], self.store
        layout = layout_of(self.spec, words, self._figures["tokens"])
        if not (
            self.text.events == self._figures["tokens"]
            and all(int(piece.max()) < words for piece in self.text.pieces())
            and len(store.words) == words
            and (store.layout, store.first, store.last) == (layout, 0, 1 << layout.bucket_bits)
            and (store.rows, store.links) == (self.manifest["rows"], self.manifest["links"])
        ):
            raise FormatError(f"{self.path} is damaged: its files contradict each other; {COUNTS.remedy}")

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        return manifest.tokenizer_of(self.path, self.manifest)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return manifest.read_vocabulary(self.path, self.manifest)

    @cached_property
    def text(self) -> Text:
        """The tokens, mapped."""
        figures = (self._figures[name] for name in ("sentences", "documents", "bad_lines"))
        return Text(open_array(self.path / f"{TOKENS}.npy", "<u4"), *figures)

    @cached_property
    def store(self) -> StoredCounts:
        """The counts of all features without word classes."""
        store = StoredCounts(self.path / STORE)
        store.n_words = self.manifest["vocabulary"]["words"]
        return store


def layout_of(spec: FeatureSpec, words: int, events: int) -> KeyLayout:
    """The keys of a text of `events` tokens and a vocabulary of `words`. Only the number of buckets depends on both."""
    return KeyLayout.for_work(words, len(spec.types), events * len(spec.templates))


def extractor_of(spec: FeatureSpec, vocabulary: Vocabulary, events: int) -> Extractor:
    """The features that are counted for a folder: those without word classes."""
    layout = layout_of(spec, len(vocabulary), events)
    return Extractor(spec, layout, vocabulary, np.zeros(len(vocabulary), np.uint16)).part(by_class=False)


def write_folder(
    writer: ModelWriter, spec: FeatureSpec, vocabulary: Vocabulary, families: dict[str, str],
    figures: dict[str, Any], tokens: Iterable[np.ndarray], store: StoredCounts, threads: int,
) -> None:  # fmt: skip
    """Write what is left of a folder whose counts are in `store`, and give the folder its name."""
    array = writer.array(TOKENS, "<u4")
    for piece in tokens:
        array.append(piece)
    vocabulary.write(writer.folder / VOCABULARY)
    described = {
        **manifest.describe_vocabulary(vocabulary),
        "features": spec.text,
        "families": families,
        "text": figures,
        "rows": store.rows,
        "links": store.links,
    }
    writer.finish(described, threads)


def merge_counts(
    folders: Sequence[str | Path | CountedText], output: str | Path, *, memory: int = 4 << 30,
    threads: int | None = None, force: bool = False, progress: Progress = silent, notify: Notify = ignore,
) -> CountedText:  # fmt: skip
    """Add the counts of several folders of `count_text`, and write them to the folder `output`.

    The result is what `count_text` would have written for all the text, in the order of the folders. They must have the
    same features and vocabulary. `memory` is in bytes. `force` replaces a folder of counts at `output`.
    """
    functions(progress=progress, notify=notify)
    memory = whole_number("memory", memory, MIN_MEMORY)
    threads = default_threads() if threads is None else whole_number("threads", threads, 1, MAX_THREADS)
    if isinstance(folders, str | os.PathLike | CountedText) or not isinstance(folders, Sequence) or not folders:
        raise SettingsError(f"folders is {shown(folders)}; expected a list of folders of counts")
    parts = [folder if isinstance(folder, CountedText) else CountedText(folder) for folder in folders]
    for part in parts:
        _check_same(parts[0], part)
    with ModelWriter(output, force, notify, COUNTS) as writer:
        for part in parts:
            part.check(threads)
        figures = _added_figures([part.manifest["text"] for part in parts])
        first = parts[0]
        layout = layout_of(first.spec, len(first.vocabulary), figures["tokens"])
        stores = [part.store for part in parts]
        words = sum((store.words for store in stores[1:]), start=stores[0].words)  # one at a time, however many
        with progress("merging", sum(store.links for store in stores)) as bar:
            available = partition_bytes(memory, 0)
            written = write_merged(writer.folder / STORE, stores, words, layout, available, threads, advance=bar)
        pieces = (piece for part in parts for piece in part.text.pieces())
        notify(f"{figures['tokens']:,} tokens, {written.rows:,} features, {written.links:,} links")
        write_folder(
            writer, first.spec, first.vocabulary, first.manifest["families"], figures, pieces, written, threads
        )
    return CountedText(output)


def _check_same(first: CountedText, other: CountedText) -> None:
    """Raise an error if two folders cannot be added."""
    if first.spec != other.spec:
        raise SettingsError(
            f"{other.path} has the features {shown(other.spec.text)}, {first.path} {shown(first.spec.text)}; count "
            f"both with the same features"
        )
    if first.manifest["families"] != other.manifest["families"]:
        raise SettingsError(
            f"{other.path} and {first.path} have feature families of the same names, but of different definitions; "
            f"count both with the same families"
        )
    for name, what in (("closed", "a closed vocabulary"), ("document", "documents")):
        mine, theirs = (part.manifest["vocabulary"][name] for part in (first, other))
        if mine != theirs:
            one, two = (first, other) if mine else (other, first)
            raise SettingsError(f"{one.path} has {what}, {two.path} does not; count both with or without --{name}")
    check_same(first.tokenizer, other.tokenizer, str(first.path), str(other.path))
    digests = [part.manifest["files"].get(VOCABULARY) for part in (first, other)]
    if digests[0] != digests[1]:
        sizes = [f"{part.manifest['vocabulary']['words']:,} words" for part in (first, other)]
        raise SettingsError(
            f"{other.path} has another vocabulary ({sizes[1]}) than {first.path} ({sizes[0]}); count both with the "
            f"same words in the same order (--vocab)"
        )


def _added_figures(figures: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: None if figures[0][name] is None else sum(text[name] for text in figures)
        for name in ("sentences", "tokens", "oov", "bad_lines", "documents")
    }


def write_vocabulary(
    sources: Sources, output: str | Path, *, min_count: int = 3, max_words: int | None = None, on_error: str = "fail",
    memory: int = 4 << 30, threads: int | None = None, tokenizer: str | Path | Tokenizer | None = None,
    progress: Progress = silent, notify: Notify = ignore,
) -> Vocabulary:  # fmt: skip
    """Write the words of a text to the file `output`, one a line, as `Settings(vocab=...)` reads them.

    The most frequent words come first, equally frequent ones by their spelling: a model that is trained on the same
    text without such a file has the same words in the same order. `min_count`: words seen less often are left out.
    `max_words`: at most so many words. `tokenizer`: see `Settings`; its pieces are written. `output` may be `-`,
    standard output.
    """
    functions(progress=progress, notify=notify)
    min_count = whole_number("min_count", min_count, 1)
    max_words = None if max_words is None else whole_number("max_words", max_words, 1)
    memory = whole_number("memory", memory, MIN_MEMORY)
    threads = default_threads() if threads is None else whole_number("threads", threads, 1, MAX_THREADS)
    tokenizer = open_tokenizer(tokenizer)
    if tokenizer is not None and tokenizer.alphabet is not None:
        raise SettingsError(f"{tokenizer.kind} are a vocabulary of their own; none has to be written")
    name = str(file_path("output", output))
    with replaced_file(name, notify) as file, progress("reading", plain_size(sources)) as bar:
        _, vocabulary = read_corpus(
            sources, min_count, max_words, False, bar, False, min(threads, memory // READER_BYTES), _read_through,
            on_error, memory - PROGRAM_BYTES, notify, None, (), tokenizer,
        )  # fmt: skip
        file.writelines(f"{word}\n" for word in vocabulary.words[3:])
    return vocabulary


def _read_through(chunks: Iterable[np.ndarray]) -> np.ndarray:
    """Read all chunks, and keep none."""
    deque(chunks, maxlen=0)
    return np.empty(0, np.uint32)


def settings_for(counted: CountedText, settings: Settings) -> Settings:
    """The settings with those that a counted text determines; an error where they contradict it."""
    vocabulary = counted.manifest["vocabulary"]
    if settings.resume:
        raise SettingsError(f"{counted.path} is counted already; leave out resume, or train from the text")
    if settings.engine in CLUSTER:
        raise SettingsError(
            f"engine is {settings.engine!r}, which counts text; {counted.path} is counted already: leave out engine, "
            f"or train from the text"
        )
    if settings.vocab is not None or settings.max_words is not None:
        raise SettingsError(f"the vocabulary is that of the counts {counted.path}; leave out vocab and max_words")
    if settings.tokenizer is not None:
        check_same(counted.tokenizer, settings.text_tokenizer, str(counted.path), "the training")
    settings = replace(settings, tokenizer=counted.tokenizer)
    for name in ("closed", "document"):
        if getattr(settings, name) and not vocabulary[name]:
            raise SettingsError(f"{counted.path} was counted without --{name}; count again with it, or leave it out")
    if settings.model != "snm":
        return replace(settings, closed=vocabulary["closed"], document=vocabulary["document"])
    if (settings.features, settings.order) != (None, None) and settings.spec != counted.spec:
        raise SettingsError(
            f"{counted.path} has counts of the features {shown(counted.spec.text)}, not of "
            f"{shown(settings.specification)}; leave out the features, or count the text with these"
        )
    return replace(
        settings, features=counted.spec.text, order=None, closed=vocabulary["closed"], document=vocabulary["document"]
    )
