"""Files, folders, globs and standard input to sentences, and sentences to one array of tokens.

One sentence a line; words are separated by ASCII white space; blank lines are skipped. Text is read
once, in blocks, decompressed and checked in a thread of its own, so that standard input works like
a file. Tokens take four bytes each, in memory (eight while the array is put together) or, where one likes, on disk:
what is done with a text here is done a piece at a time, and holds no more of it.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import queue
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from snm import parallel
from snm.errors import InputError, MissingExtra
from snm.vocabulary import BEGIN, END, SPECIAL, UNKNOWN, Vocabulary, word_table

BLOCK = 2 << 20  # bytes read at a time
STDIN = "-"
PIECE = 1 << 22  # tokens that are looked at together
Sources = str | Path | Sequence[str | Path]
"""Where text comes from: one file, folder, glob or `-` for standard input, or several."""
Join = Callable[[Iterable[np.ndarray]], np.ndarray]
"""Makes one array of chunks of tokens, in memory or on disk."""
_MAGIC = {b"BZh": "bz2", b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}


def find_files(sources: Sources) -> list[str]:
    """The files that `sources` name: files, folders (every file below that is not hidden, sorted), globs, `-`."""
    if isinstance(sources, str | Path):
        sources = [sources]
    if not sources:
        raise InputError("no text given; name files, folders or globs, or - for standard input")
    files: list[str] = []
    for source in map(str, sources):
        path = Path(source)
        if source == STDIN or path.is_file() or path.is_fifo() or path.is_char_device():
            found = [source]
        elif path.is_dir():
            found = sorted(
                str(p) for p in path.rglob("*")
                if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts)
            )  # fmt: skip
        else:
            found = sorted(p for p in glob.glob(source, recursive=True) if Path(p).is_file())
        if not source:
            raise InputError("the name of a text is empty; name a file, a folder or a glob, or - for standard input")
        if not found:
            what = "the folder is empty" if path.is_dir() else "no such file, folder or glob"
            raise InputError(f"{source}: {what}")
        files.extend(found)
    return files


def names(sources: Sources) -> str:
    """The sources in a message."""
    return str(sources) if isinstance(sources, str | Path) else ", ".join(map(str, sources))


@contextmanager
def open_text(name: str) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed by what its first bytes say."""
    if name == STDIN:
        try:
            handle = sys.stdin.fileno()
        except OSError:  # no file, as when Python put something else in its place
            yield sys.stdin.buffer
            return
        with open(handle, "rb", closefd=False) as own:  # a thread that waits for Python's own would abort its end
            yield own
        return
    try:
        raw = open(name, "rb")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from error
    with raw:
        head = raw.peek(6) if raw.seekable() else b""
        kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
        if kind is None:
            yield raw
        else:
            openers: dict[str, Any] = {"bz2": bz2.open, "gz": gzip.open, "xz": lzma.open, "zst": _ZstReader}
            with openers[kind](raw) as unpacked:
                yield unpacked


class _ZstReader:
    """Reads zst frames, and knows when the last one is cut short."""

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingExtra("zstandard", "zst", "reading zst files") from None
        self.raw, self.make = raw, zstandard.ZstdDecompressor
        self.error: type[Exception] = zstandard.ZstdError
        self.frame: Any = None
        self.left = b""  # of the file, after the frame that ended last

    def read(self, size: int) -> bytes:
        """At least a byte, about as many as asked; nothing at the end."""
        while True:
            packed = self.left or self.raw.read(size)
            self.left = b""
            if not packed:
                if self.frame is not None:
                    raise EOFError("the zst file ends in the middle of a frame")
                return b""
            self.frame = self.frame or self.make().decompressobj()
            try:
                data: bytes = self.frame.decompress(packed)
            except self.error as error:
                raise OSError(str(error)) from error
            if self.frame.eof:
                self.left, self.frame = self.frame.unused_data, None
            if data:
                return data

    def __enter__(self) -> _ZstReader:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def read_lines(sources: Sources) -> Iterator[list[str]]:
    """Checked lines of text, blank ones too, as many at a time as there are to be had."""
    for name in find_files(sources):
        rest = ""
        for block in _file_blocks(name, eager=name == STDIN):
            *lines, rest = (rest + block.decode()).split("\n")
            if lines:
                yield lines
        if rest:
            yield [rest]


def read_blocks(files: Sequence[str], whole_lines: bool = False) -> Iterator[bytes]:
    """Checked UTF-8 text, cut at white space or between lines, a blank line between files."""
    for name in files:
        yield from _file_blocks(name, whole_lines=whole_lines)
        yield b"\n\n"


def _file_blocks(name: str, eager: bool = False, whole_lines: bool = False) -> Iterator[bytes]:
    """`eager` does not wait for a whole block: what a pipe has to give is passed on at once."""
    line, parts, first = 1, [], True
    with open_text(name) as stream:
        read = stream.read1 if eager else stream.read  # type: ignore[attr-defined]
        while True:
            try:
                data = read(BLOCK)
            except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise InputError(f"cannot read {name} past line {line}: {error}") from error
            if first and data.startswith(b"\xef\xbb\xbf"):
                data = data[3:]
            first = False
            cut = max(-1 if whole_lines else data.rfind(b" "), data.rfind(b"\n")) + 1
            if data and not cut:  # a word longer than the block, or a line
                parts.append(data)
                continue
            block = b"".join([*parts, data[:cut]])
            if whole_lines and not data and block:
                block += b"\n"  # at the end of the file
            parts = [data[cut:]]
            _check(block, name, line)
            line += block.count(b"\n")
            if block:
                yield block
            if not data:
                return


def _check(block: bytes, name: str, line: int) -> None:
    if b"\0" in block:
        line += block.count(b"\n", 0, block.index(b"\0"))
        raise InputError(f"{name}, line {line}: a NUL byte; expected UTF-8 text (is it binary, or UTF-16?)")
    try:
        block.decode()
    except UnicodeDecodeError as error:
        line += block.count(b"\n", 0, error.start)
        raise InputError(
            f"{name}, line {line}: invalid UTF-8 (byte 0x{block[error.start]:02x}); "
            f"convert the file first, for instance with: iconv -f latin1 -t utf-8"
        ) from None


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, read in a thread so that decompression and encoding overlap."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=4)
    stopped = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for block in blocks:
                if not put(block):
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = ready.get(timeout=0.2)  # a signal that comes just before it waits is seen when it wakes
            except queue.Empty:
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()  # the thread is not joined: it may be waiting for standard input


@dataclass
class Text:
    """An encoded text. `tokens` opens each sentence with `<S>` and closes it with `</S>`. (uint32)

    A text of documents opens each document with `<S>` and closes its sentences with `</S>`, so that features reach
    back across sentences; `documents` is None for other texts.
    """

    tokens: np.ndarray
    sentences: int
    documents: int | None = None

    @property
    def units(self) -> int:
        """Number of `<S>`: what no feature reaches across."""
        return self.sentences if self.documents is None else self.documents

    @property
    def events(self) -> int:
        """Number of targets: every word and every `</S>`."""
        return len(self.tokens) - self.units

    def pieces(self) -> Iterator[np.ndarray]:
        """All tokens, PIECE at a time."""
        return (self.tokens[start : start + PIECE] for start in range(0, len(self.tokens), PIECE))


def count_words(text: Text, words: int) -> np.ndarray:
    """How often each word of a vocabulary of so many is in a text. (words,) int64"""
    counts = np.zeros(words, np.int64)
    for piece in text.pieces():
        counts += np.bincount(piece, minlength=words)
    return counts


def in_memory(chunks: Iterable[np.ndarray]) -> np.ndarray:
    """One array of all chunks; each is let go as soon as it is copied."""
    left = list(chunks)
    tokens = np.empty(sum(map(len, left)), np.uint32)
    end = len(tokens)
    while left:
        chunk = left.pop()
        tokens[end - len(chunk) : end] = chunk
        end -= len(chunk)
    return tokens


class _Encoder:
    """Feeds blocks to the encoding kernel and grows its table and pool as needed."""

    def __init__(self, hashes: np.ndarray, ids: np.ndarray, learn: bool, documents: bool) -> None:
        from snm.kernels import text

        self.kernel, self.learn, self.documents = text, learn, documents
        self.hashes, self.ids = hashes, ids
        self.state = np.zeros(text.STATE_FIELDS, np.int64)
        self.state[text.WORDS] = len(SPECIAL)
        self.counts = np.zeros(len(ids) // 2 if learn else 1, np.int64)  # the table is never more than half full
        self.starts = np.zeros(len(ids) // 2 + 1 if learn else 1, np.int64)
        self.pool = np.empty(1 << 20 if learn else 1, np.uint8)
        self.out = np.empty(0, np.uint32)

    def encode(self, block: bytes) -> Iterator[np.ndarray]:
        data = np.frombuffer(block, np.uint8)
        if len(self.out) < len(data) * 3 // 2 + 4:
            self.out = np.empty(len(data) * 3 // 2 + 4, np.uint32)
        i = 0
        while True:
            i = self.kernel.encode(
                data, i, self.learn, self.documents, self.hashes, self.ids, self.counts, self.starts, self.pool,
                self.state, self.out,
            )  # fmt: skip
            yield self.out[: self.state[self.kernel.WRITTEN]].copy()
            status = self.state[self.kernel.STATUS]
            if status == self.kernel.DONE:
                return
            if status == self.kernel.TABLE_FULL:
                self._grow_table()
            else:
                self.pool = np.concatenate([self.pool, np.empty(max(len(self.pool), len(data)), np.uint8)])

    def _grow_table(self) -> None:
        size = 2 * len(self.ids)
        hashes, ids = np.zeros(size, np.uint64), np.full(size, 0xFFFFFFFF, np.uint32)
        self.kernel.rehash(self.hashes, self.ids, hashes, ids)
        self.hashes, self.ids = hashes, ids
        self.counts = np.concatenate([self.counts, np.zeros(len(self.counts), np.int64)])
        self.starts = np.concatenate([self.starts, np.zeros(len(self.starts), np.int64)])

    @property
    def sentences(self) -> int:
        return int(self.state[self.kernel.SENTENCES])

    @property
    def documents_read(self) -> int:
        return int(self.state[self.kernel.DOCUMENTS])

    def hashes_of_words(self) -> np.ndarray:
        """Of every word that was learned, in the order of their numbers."""
        learned = (self.ids >= len(SPECIAL)) & (self.ids < self.state[self.kernel.WORDS])
        hashes = np.empty(int(self.state[self.kernel.WORDS]) - len(SPECIAL), np.uint64)
        hashes[self.ids[learned] - len(SPECIAL)] = self.hashes[learned]
        return hashes

    def word(self, number: int) -> bytes:
        """A word that was learned."""
        return self.pool[self.starts[number] : self.starts[number + 1]].tobytes()


def encode_files(
    sources: Sources, vocabulary: Vocabulary, progress: Callable[[int], None] | None = None, join: Join = in_memory
) -> Text:
    """Encode text with a given vocabulary; words outside it become `<UNK>`."""
    return encode_blocks(_ahead(read_blocks(find_files(sources))), vocabulary, progress, join)


def encode_lines(lines: Iterable[str], vocabulary: Vocabulary) -> Text:
    """Encode sentences held in memory, one a string; blank ones are skipped, or end a document."""
    joined = "\n".join(line.replace("\n", " ") for line in lines) + "\n"
    return encode_blocks(iter([joined.encode()]), vocabulary)


def encode_sentences(sentences: Iterable[str], vocabulary: Vocabulary) -> Text:
    """The same, every sentence by itself whatever the vocabulary says of documents."""
    joined = "\n\n".join(line.replace("\n", " ") for line in sentences) + "\n"
    return encode_blocks(iter([joined.encode()]), vocabulary)


def encode_blocks(
    blocks: Iterator[bytes], vocabulary: Vocabulary, progress: Callable[[int], None] | None = None,
    join: Join = in_memory,
) -> Text:  # fmt: skip
    encoder = _Encoder(*vocabulary.table, learn=False, documents=vocabulary.document)

    def encoded() -> Iterator[np.ndarray]:
        for block in blocks:
            yield from encoder.encode(block)
            if progress:
                progress(len(block))

    tokens = join(encoded())
    return Text(tokens, encoder.sentences, encoder.documents_read if vocabulary.document else None)


def read_corpus(
    sources: Sources,
    min_count: int = 3,
    max_words: int | None = None,
    closed: bool = False,
    progress: Callable[[int], None] | None = None,
    documents: bool = False,
    threads: int = 1,
    join: Join = in_memory,
) -> tuple[Text, Vocabulary]:
    """Read a training text once; learn its vocabulary; encode it.

    Every thread numbers words in the order that it meets them; in the end all numbers become those of the
    vocabulary, so that the result does not depend on the threads. Documents may be longer than a block: they are
    read by one.
    """
    encoders = [_Encoder(*word_table(), learn=True, documents=documents) for _ in range(1 if documents else threads)]
    idle: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(encoders)):
        idle.put(number)

    def encode(block: bytes) -> tuple[int, int, list[np.ndarray]]:
        number = idle.get()
        made = list(encoders[number].encode(block))
        idle.put(number)
        return len(block), number, made

    read: list[tuple[int, int]] = []  # which encoder encoded so many tokens

    def encoded() -> Iterator[np.ndarray]:
        blocks = _ahead(read_blocks(find_files(sources), whole_lines=not documents))
        for size, number, made in parallel.ordered(encode, blocks, len(encoders)):
            read.extend((number, len(chunk)) for chunk in made)
            yield from made
            if progress:
                progress(size)

    tokens = join(encoded())
    if not any(encoder.sentences for encoder in encoders):
        raise InputError(f"{names(sources)}: no words; expected one sentence a line")
    words, numberings = _merge(encoders, min_count, max_words)
    ends = np.cumsum([length for _, length in read]).tolist()

    def renumber(place: int) -> None:
        number, length = read[place]
        part = tokens[ends[place] - length : ends[place]]
        part[:] = numberings[number][part]

    parallel.run(renumber, range(len(read)), len(encoders))
    found = sum(encoder.documents_read for encoder in encoders)
    text = Text(tokens, sum(encoder.sentences for encoder in encoders), found if documents else None)
    return text, Vocabulary(words, closed, documents)


def _merge(encoders: list[_Encoder], min_count: int, max_words: int | None) -> tuple[list[str], list[np.ndarray]]:
    """The words to keep, by decreasing count, equal counts by their spelling; what each encoder's numbers become."""
    learned = [int(encoder.state[encoder.kernel.WORDS]) for encoder in encoders]
    hashes = [encoder.hashes_of_words() for encoder in encoders]
    distinct, where = np.unique(np.concatenate(hashes), return_inverse=True)
    counts = np.bincount(where, np.concatenate([e.counts[3:n] for e, n in zip(encoders, learned, strict=True)]))
    kept = np.flatnonzero(counts >= max(min_count, 1))
    first = np.full(len(distinct), -1, np.int64)
    first[where[::-1]] = np.arange(len(where))[::-1]
    starts = np.concatenate([[0], np.cumsum([len(h) for h in hashes])])
    by_encoder = np.searchsorted(starts, first[kept], "right") - 1
    numbers = first[kept] - starts[by_encoder] + len(SPECIAL)
    spelled = [
        (-n, encoders[e].word(number), i)
        for n, e, number, i in zip(
            counts[kept].astype(np.int64).tolist(), by_encoder.tolist(), numbers.tolist(), kept.tolist(), strict=True
        )
    ]
    spelled.sort()  # UTF-8 sorts as its characters do
    spelled = spelled[:max_words]
    final = np.full(len(distinct), UNKNOWN, np.uint32)
    final[[i for _, _, i in spelled]] = np.arange(3, 3 + len(spelled))
    special = np.array([BEGIN, END, UNKNOWN], np.uint32)
    numberings = [np.concatenate([special, final[where[a:b]]]) for a, b in pairwise(starts)]
    return b"\n".join(word for _, word, _ in spelled).decode().split("\n") if spelled else [], numberings


def draw_sentences(text: Text, events: int, seed: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Whole sentences, or documents, drawn at random until they hold about `events` events.

    Of one piece of the text after another, where it lies, and of each of its tokens whether it is in one of them.
    """
    random, share, seen, drawn = np.random.default_rng(seed), events / max(1, text.events), 0, 0
    for start, stop in _between_sentences(text):
        begins = np.flatnonzero(text.tokens[start:stop] == BEGIN)
        lengths = np.diff(np.append(begins, stop - start))
        seen += stop - start - len(begins)
        chosen = random.permutation(len(lengths))
        held = np.cumsum(lengths[chosen] - 1)
        wanted = round(seen * share) - drawn
        enough = min(int(np.searchsorted(held, wanted)) + 1, len(held)) if wanted > 0 else 0
        drawn += int(held[enough - 1]) if enough else 0
        keep = np.zeros(len(lengths), bool)
        keep[chosen[:enough]] = True
        yield slice(start, stop), np.repeat(keep, lengths)


def _between_sentences(text: Text) -> Iterator[tuple[int, int]]:
    """Pieces of the text, PIECE tokens and up to where the next sentence, or document, begins."""
    start = 0
    while start < len(text.tokens):
        stop = start + PIECE
        while stop < len(text.tokens) and text.tokens[stop] != BEGIN:
            stop += 1
        yield start, min(stop, len(text.tokens))
        start = stop


def sample_sentences(text: Text, events: int, seed: int, join: Join = in_memory) -> Text:
    """The sentences, or documents, that `draw_sentences` draws, in their order; the text itself if they are all."""
    if events >= text.events:
        return text
    units = ends = 0

    def drawn() -> Iterator[np.ndarray]:
        nonlocal units, ends
        for where, chosen in draw_sentences(text, events, seed):
            tokens = text.tokens[where][chosen]
            units += int(np.count_nonzero(tokens == BEGIN))
            ends += int(np.count_nonzero(tokens == END))
            yield tokens

    tokens = join(drawn())
    return Text(tokens, units) if text.documents is None else Text(tokens, ends, units)


def split_sentences(text: Text, events: int) -> tuple[Text, Text]:
    """(the rest, a slice of about `events` events), both of whole sentences, or documents, and views of the text.

    The slice is the end of the text: sentences of one document tell of each other, so what is to judge a text is
    better not mixed with it.
    """
    size, begins, held = 0, *np.empty((2, 0), np.int64)
    while size < len(text.tokens) and not (held >= events).any():  # more and more of the end is looked at
        size = min(2 * max(size, events, 1), len(text.tokens))
        begins = np.flatnonzero(text.tokens[-size:] == BEGIN)
        held = size - begins - np.arange(len(begins), 0, -1)  # events from each of them on
    first = max(int(np.count_nonzero(held >= events)) - 1, int(len(begins) == text.units))  # the rest has some
    cut = len(text.tokens) - size + int(begins[first]) if first < len(begins) else len(text.tokens)
    rest, end = text.tokens[:cut], text.tokens[cut:]
    units, ends = len(begins) - first, int(np.count_nonzero(end == END))
    if text.documents is None:
        return Text(rest, text.units - units), Text(end, units)
    return Text(rest, text.sentences - ends, text.units - units), Text(end, ends, units)
