"""ARPA files: backoff models as text, the format that n-gram toolkits exchange.

A model has the keys of its n-grams, not their words. They are enumerated from the unigrams up: the n-grams of one
length are the contexts of the next, and the links of a context with its words are n-grams.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from snm import storage
from snm.arguments import file_path, functions, shown
from snm.baselines.backoff.model import BackoffModel
from snm.counts.index import build_row_index
from snm.errors import FormatError, InputError, SettingsError
from snm.features.extraction import Extractor
from snm.features.specification import MAX_WORDS, FeatureSpec
from snm.kernels import arpa as arpa_kernels
from snm.layouts.keys import KeyLayout
from snm.layouts.tokens import BEGIN, END, SPECIAL, UNKNOWN
from snm.manifest import describe_rows
from snm.model import LanguageModel
from snm.progress import Advance, Notify, Progress, ignore, silent
from snm.scratch import scratch_folder
from snm.text.files import BadLines, line_blocks
from snm.text.vocabulary import Vocabulary, has_white_space, plain_table

NAMES = {BEGIN: "<s>", END: "</s>", UNKNOWN: "<unk>"}
LINES_PER_WRITE = 1 << 16
MAX_DIGITS = 18  # of a number of n-grams
LOG_ZERO = -99.0  # log10 of probability 0, by convention
MAX_BACKOFF = 38.0  # log10: the weight is a float32


@dataclass
class Level:
    """All n-grams of one length."""

    words: np.ndarray  # (n, length) uint32
    probabilities: np.ndarray  # (n,): log10
    backoffs: np.ndarray  # (n,): log10 of the n-gram's backoff weight as a context


def levels(model: BackoffModel) -> Iterator[Level]:
    """The n-grams of a model, from the unigrams up; `<s>` is among the unigrams."""
    order = model.extractor.n_templates
    targets, p = model.row(0)
    words = np.concatenate([[BEGIN], targets]).astype(np.uint32)[:, None]
    logs = np.concatenate([[LOG_ZERO], _log10(p)])
    for length in range(1, order + 1):
        rows = model.rows_of(words) if length < order else np.full(len(words), -1)
        weights = model.backoffs[np.maximum(rows, 0)].astype(np.float64)
        backoffs = np.where(rows >= 0, np.log10(np.maximum(weights, 1e-99)), 0.0)
        yield Level(words, logs, backoffs)
        known = np.flatnonzero(rows >= 0)
        starts, lengths = model.offsets[rows[known]], np.diff(model.offsets)[rows[known]]
        links = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        words = np.column_stack([np.repeat(words[known], lengths, axis=0), model.targets[links]])
        logs = _log10(model.link_probabilities[links])


def _log10(p: np.ndarray) -> np.ndarray:
    """log10 of probabilities, that of 0 by convention."""
    logs: np.ndarray = np.log10(np.maximum(p.astype(np.float64), 10.0**LOG_ZERO))
    return logs


def write_arpa(model: BackoffModel, stream: IO[str], advance: Advance = ignore) -> None:
    """Write a backoff model as ARPA text; `advance` receives numbers of n-grams."""
    names = [NAMES.get(i, word) for i, word in enumerate(model.vocabulary.words)]
    counts = np.bincount(np.repeat(model.layout.type_of(model.index.features), np.diff(model.offsets)))
    stream.write("\\data\\\n")
    for length, n in enumerate(counts.tolist(), 1):
        stream.write(f"ngram {length}={n + (length == 1)}\n")
    for length, level in enumerate(levels(model), 1):
        stream.write(f"\n\\{length}-grams:\n")
        last = length == len(counts)
        for start in range(0, len(level.words), LINES_PER_WRITE):
            part = slice(start, start + LINES_PER_WRITE)
            stream.writelines(_lines(level, part, names, last))
            advance(len(level.words[part]))
    stream.write("\n\\end\\\n")


def _lines(level: Level, part: slice, names: list[str], last: bool) -> Iterator[str]:
    rows = zip(level.words[part].tolist(), level.probabilities[part], level.backoffs[part], strict=True)
    for words, p, backoff in rows:
        text = " ".join([names[word] for word in words])
        yield f"{p:.7g}\t{text}\n" if last or words[-1] == END else f"{p:.7g}\t{text}\t{backoff:.7g}\n"


def export_arpa(
    model: LanguageModel, path: str | Path, *, progress: Progress = silent, notify: Notify = ignore
) -> None:
    """Write a backoff model as an ARPA file. A file of that name is replaced when the new one is complete."""
    if not isinstance(model, BackoffModel):
        what = model.path if isinstance(model, LanguageModel) else shown(model)
        raise SettingsError(f"{what} is not a backoff model; only those (kn, katz, sbo) can be written as ARPA")
    functions(progress=progress, notify=notify)
    name = str(file_path("path", path))
    with progress("exporting", len(model.targets) + 1) as advance, storage.replaced_file(name, notify) as stream:
        write_arpa(model, stream, advance)


class ArpaModel(BackoffModel):
    """A backoff model that was opened as an ARPA file.

    The file is converted to a model in the system's temporary folder. Its arrays stay mapped; the folder is removed at
    once, on Windows when the program ends.
    """

    def __init__(self, path: str | Path, *, progress: Progress = silent) -> None:
        with scratch_folder() as folder:
            super().__init__(import_arpa(path, folder / "model", progress=progress).path)
        self.path = Path(path)


def import_arpa(
    path: str | Path, output: str | Path, *, force: bool = False, progress: Progress = silent, notify: Notify = ignore
) -> BackoffModel:
    """Convert an ARPA file to a model, whose vocabulary is closed if the file has no `<unk>`."""
    functions(progress=progress, notify=notify)
    path = file_path("path", path)
    with storage.ModelWriter(output, force, notify) as writer:
        with progress("importing", 0) as advance:
            vocabulary, read = _parse(path, advance)
        spec = FeatureSpec(f"ngram(0..{len(read) - 1})")
        n_links = sum(len(level.words) for level in read)
        extractor = Extractor(spec, KeyLayout.for_work(len(vocabulary), len(spec.types), n_links), vocabulary)
        links = [_links(extractor, level) for level in read]
        keys, targets, p = (np.concatenate(parts) for parts in zip(*links, strict=True))
        order = np.lexsort((targets, keys))
        keys, targets, p = keys[order], targets[order], p[order]
        if ((keys[1:] == keys[:-1]) & (targets[1:] == targets[:-1])).any():
            raise FormatError(f"{path}: an n-gram is there twice; expected each once")
        features, backoffs = _rows(extractor, read, np.unique(keys))
        index = build_row_index(features)
        offsets = np.append(np.searchsorted(keys, features), len(keys))
        for name, dtype, values in (
            ("features", "<u8", features), ("offsets", "<i8", offsets), ("targets", "<u4", targets),
            ("probabilities", "<f4", p), ("backoffs", "<f4", backoffs),
            ("index", index.directory.dtype.str, index.directory),
        ):  # fmt: skip
            writer.array(name, dtype).append(values)
        vocabulary.write(writer.folder / storage.VOCABULARY)
        by_type = np.bincount(extractor.layout.type_of(features), minlength=len(spec.types))
        writer.finish(describe_rows(extractor, by_type, len(targets), BackoffModel.kind, {
            "text": {"sentences": 0, "tokens": 0, "oov": 0, "bad_lines": 0}, "index": index.description,
            "estimation": {"model": "arpa", "file": Path(path).name},
        }))  # fmt: skip
    return BackoffModel(output)


def _parse(path: Path, advance: Advance) -> tuple[Vocabulary, list[Level]]:
    read: list[Level] = []
    ids: dict[str, int] = {}
    with closing(_ArpaLines(path, advance)) as lines:
        expected = _header(lines, path)
        for length, n in enumerate(expected, 1):
            words, values, found = np.zeros((0, length), np.uint32), np.zeros((0, 2)), 0
            for line in _section(lines, length, path):
                parts = line.split("\t") if "\t" in line else line.split(" ")
                gram = parts[1].split(" ") if "\t" in line else parts[1 : 1 + length]
                rest = parts[2:] if "\t" in line else parts[1 + length :]
                if len(gram) != length or found == n:
                    raise FormatError(f"{path}, {length}-grams: cannot read {_short(line)!r}; expected {n:,} n-grams")
                if found == len(words):  # not as many as the header claims: that may be anything
                    more = min(n, max(1024, 2 * found))
                    words, values = np.resize(words, (more, length)), np.resize(values, (more, 2))
                if length == 1:
                    if not gram[0] or has_white_space(gram[0]):
                        raise FormatError(f"{path}: a 1-gram is {_short(gram[0])!r}; expected a word")
                    ids.setdefault(gram[0], len(ids))
                try:
                    words[found] = [ids[word] for word in gram]
                    values[found] = float(parts[0]), float(rest[0]) if rest else 0.0
                except (KeyError, ValueError):
                    raise FormatError(
                        f"{path}, {length}-grams: cannot read {_short(line)!r}; expected numbers, and words of the "
                        f"1-grams"
                    ) from None
                found += 1
                if length > 1:
                    found = lines.read_ngrams(words, values, found)
            if found != n:
                raise FormatError(f"{path}: {found:,} {length}-grams; expected {n:,}, as its header says")
            if length == 1 and len(ids) != n:
                raise FormatError(f"{path}: a word is there twice among the 1-grams; expected each once")
            if length == 1:
                lines.table = plain_table("".join(f"{word}\n" for word in ids).encode())
            fine = (
                (values[:n, 0] <= 0)
                & (values[:n, 0] > -np.inf)
                & (values[:n, 1] <= MAX_BACKOFF)
                & (values[:n, 1] > -np.inf)
            )
            wrong = np.flatnonzero(~fine)
            if len(wrong):
                numbers = values[wrong[0]].tolist()
                raise FormatError(
                    f"{path}, {length}-gram {wrong[0] + 1:,} has the log10 probability and backoff {numbers}; expected "
                    f"finite numbers, the first not above 0, the other not above {MAX_BACKOFF:.0f}"
                )
            read.append(Level(words[:n], values[:n, 0], values[:n, 1]))
        end = next((line.strip() for line in lines if line.strip()), "the end of the file")
        if end != "\\end\\":
            raise FormatError(f"{path}: found {_short(end)!r} after the {len(read)}-grams; expected \\end\\")
    if not any(word not in ("<s>", "<S>") for word in ids):
        raise FormatError(f"{path} has no words; expected 1-grams")
    return _renumber(ids, read)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."


class _ArpaLines:
    """The lines of a file, without their ends; an error of the file is one of its format."""

    def __init__(self, path: Path, advance: Advance) -> None:
        """`advance` receives bytes."""
        self._blocks = line_blocks(str(path), BadLines(advice="expected an ARPA file as text"))
        self._block, self._at, self._advance = b"", 0, advance
        self.table = np.empty(0, np.uint64), np.empty(0, np.uint32)
        """Of the words, see `plain_table`."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while self._at == len(self._block):
            try:
                self._block, self._at = next(self._blocks), 0
            except InputError as error:
                raise FormatError(str(error)) from error
            self._advance(len(self._block))
        start, self._at = self._at, self._block.index(b"\n", self._at) + 1
        return self._block[start : self._at - 1].decode()

    def read_ngrams(self, words: np.ndarray, values: np.ndarray, found: int) -> int:
        """Read the next lines, if they are plain n-grams, into words[found:] and values[found:]; return how many."""
        data = np.frombuffer(self._block, np.uint8)
        self._at, found = arpa_kernels.read_ngrams(data, self._at, *self.table, words, values, found)
        return found

    def close(self) -> None:
        self._blocks.close()


def _renumber(ids: dict[str, int], read: list[Level]) -> tuple[Vocabulary, list[Level]]:
    """The vocabulary, and the n-grams with its ids in place of the ids by order of appearance."""
    special = {"<s>": BEGIN, "</s>": END, "<unk>": UNKNOWN, "<S>": BEGIN, "</S>": END, "<UNK>": UNKNOWN}
    plain = [word for word in ids if word not in special]
    closed = not any(special.get(word) == UNKNOWN for word in ids)
    vocabulary = Vocabulary(plain, closed=closed)
    places = {word: i for i, word in enumerate(plain, len(SPECIAL))}
    final = np.array([special.get(word, places.get(word, 0)) for word in ids], np.uint32)
    for level in read:
        level.words = final[level.words]
    return vocabulary, read


def _header(lines: Iterator[str], path: Path) -> list[int]:
    counts: list[int] = []
    for line in lines:
        text = line.strip()
        if text.startswith("ngram "):
            number = text.partition("=")[2].strip()
            if not number.isdecimal() or len(number) > MAX_DIGITS or len(counts) == MAX_WORDS:
                raise FormatError(
                    f"{path}: cannot read {_short(text)!r}; expected up to {MAX_WORDS} lines ngram N=COUNT"
                )
            counts.append(int(number))
        elif counts and not text:
            return counts
        elif counts or (text and text != "\\data\\"):
            break
    raise FormatError(
        f"{path} is neither a model nor an ARPA file; expected a folder that snm train wrote, "
        f"or a file that begins with \\data\\ and lines such as 'ngram 1=1000'"
    )


def _section(lines: Iterator[str], length: int, path: Path) -> Iterator[str]:
    for line in lines:
        if line.strip():
            if line.strip() != f"\\{length}-grams:":
                raise FormatError(f"{path}: found {_short(line.strip())!r}; expected \\{length}-grams:")
            break
    for line in lines:
        text = line.rstrip("\r\n")
        if not text:
            return
        yield text


def _links(extractor: Extractor, level: Level) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Context keys, targets and probabilities of a level's n-grams, without those that predict `<s>`."""
    keep = level.words[:, -1] != BEGIN
    words = level.words[keep]
    return extractor.context_keys(words[:, :-1]), words[:, -1], 10.0 ** level.probabilities[keep]


def _rows(extractor: Extractor, read: list[Level], features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys of all rows, sorted, and the backoff weight of each, 1 where the file has none.

    features: keys of the contexts that have links. An n-gram with a backoff weight is a row even if it begins no longer
    n-gram: the weight counts when the model backs off from it.
    """
    keys = np.concatenate([extractor.context_keys(level.words) for level in read[:-1]] or [features[:0]])
    weights = np.concatenate([level.backoffs for level in read[:-1]] or [np.zeros(0)])
    weighing = weights != 0
    features = np.union1d(features, keys[weighing])
    backoffs = np.ones(len(features), np.float64)
    backoffs[np.searchsorted(features, keys[weighing])] = 10.0 ** weights[weighing]
    return features, backoffs
