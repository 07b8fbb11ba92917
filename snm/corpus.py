"""Files, folders, globs and standard input to sentences, and sentences to one array of tokens.

One sentence a line; words are separated by ASCII white space; blank lines are skipped. Text is read
once, in blocks, decompressed and checked in a thread of its own, so that standard input works like
a file and memory holds four bytes a token (eight while the array is put together).
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

BLOCK = 4 << 20  # bytes read at a time
STDIN = "-"
Sources = str | Path | Sequence[str | Path]
"""Where text comes from: one file, folder, glob or `-` for standard input, or several."""
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
        yield sys.stdin.buffer
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
        while (item := ready.get()) is not None:
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


class _Encoder:
    """Feeds blocks to the encoding kernel and grows its table and pool as needed."""

    def __init__(self, hashes: np.ndarray, ids: np.ndarray, learn: bool, documents: bool) -> None:
        from snm.kernels import text

        self.kernel, self.learn, self.documents = text, learn, documents
        self.hashes, self.ids = hashes, ids
        self.state = np.zeros(text.STATE_FIELDS, np.int64)
        self.state[text.WORDS] = len(SPECIAL)
        self.counts = np.zeros(len(ids) if learn else 1, np.int64)
        self.starts = np.zeros(len(ids) + 1 if learn else 1, np.int64)
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

    def text(self, chunks: list[np.ndarray]) -> Text:
        return Text(_join(chunks), self.sentences, self.documents_read if self.documents else None)

    def hashes_of_words(self) -> np.ndarray:
        """Of every word that was learned, in the order of their numbers."""
        learned = (self.ids >= len(SPECIAL)) & (self.ids < self.state[self.kernel.WORDS])
        hashes = np.empty(int(self.state[self.kernel.WORDS]) - len(SPECIAL), np.uint64)
        hashes[self.ids[learned] - len(SPECIAL)] = self.hashes[learned]
        return hashes

    def words(self) -> list[bytes]:
        """What was learned, in the order of the numbers."""
        data = self.pool.tobytes()
        starts = self.starts[len(SPECIAL) : int(self.state[self.kernel.WORDS]) + 1].tolist()
        return [data[start:stop] for start, stop in pairwise(starts)]


def encode_files(sources: Sources, vocabulary: Vocabulary, progress: Callable[[int], None] | None = None) -> Text:
    """Encode text with a given vocabulary; words outside it become `<UNK>`."""
    return encode_blocks(_ahead(read_blocks(find_files(sources))), vocabulary, progress)


def encode_lines(lines: Iterable[str], vocabulary: Vocabulary) -> Text:
    """Encode sentences held in memory, one a string; blank ones are skipped, or end a document."""
    joined = "\n".join(line.replace("\n", " ") for line in lines) + "\n"
    return encode_blocks(iter([joined.encode()]), vocabulary)


def encode_sentences(sentences: Iterable[str], vocabulary: Vocabulary) -> Text:
    """The same, every sentence by itself whatever the vocabulary says of documents."""
    joined = "\n\n".join(line.replace("\n", " ") for line in sentences) + "\n"
    return encode_blocks(iter([joined.encode()]), vocabulary)


def encode_blocks(
    blocks: Iterator[bytes], vocabulary: Vocabulary, progress: Callable[[int], None] | None = None
) -> Text:
    encoder = _Encoder(*vocabulary.table, learn=False, documents=vocabulary.document)
    chunks: list[np.ndarray] = []
    for block in blocks:
        chunks.extend(encoder.encode(block))
        if progress:
            progress(len(block))
    return encoder.text(chunks)


def read_corpus(
    sources: Sources,
    min_count: int = 3,
    max_words: int | None = None,
    closed: bool = False,
    progress: Callable[[int], None] | None = None,
    documents: bool = False,
    threads: int = 1,
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

    chunks: list[tuple[int, np.ndarray]] = []
    for size, number, made in parallel.ordered(
        encode, _ahead(read_blocks(find_files(sources), whole_lines=not documents)), len(encoders)
    ):
        chunks.extend((number, chunk) for chunk in made)
        if progress:
            progress(size)
    if not any(encoder.sentences for encoder in encoders):
        raise InputError(f"{names(sources)}: no words; expected one sentence a line")
    words, numberings = _merge(encoders, min_count, max_words)
    ends = np.cumsum([len(chunk) for _, chunk in chunks]).tolist()
    tokens = np.empty(ends[-1], np.uint32)

    def renumber(place: int) -> None:
        number, chunk = chunks[place]
        np.take(numberings[number], chunk, out=tokens[ends[place] - len(chunk) : ends[place]])
        chunks[place] = number, chunk[:0]  # let go as soon as it is copied

    parallel.run(renumber, range(len(chunks)), len(encoders))
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
    spellings = [word for encoder in encoders for word in encoder.words()]
    spelled = [
        (-n, spellings[place], i)
        for n, place, i in zip(counts[kept].astype(np.int64).tolist(), first[kept].tolist(), kept.tolist(), strict=True)
    ]
    spelled.sort()  # UTF-8 sorts as its characters do
    spelled = spelled[:max_words]
    final = np.full(len(distinct), UNKNOWN, np.uint32)
    final[[i for _, _, i in spelled]] = np.arange(3, 3 + len(spelled))
    special = np.array([BEGIN, END, UNKNOWN], np.uint32)
    numberings = [np.concatenate([special, final[where[a:b]]]) for a, b in pairwise(starts)]
    return b"\n".join(word for _, word, _ in spelled).decode().split("\n") if spelled else [], numberings


def _join(chunks: list[np.ndarray]) -> np.ndarray:
    """One array of all chunks; each is let go as soon as it is copied."""
    tokens = np.empty(sum(map(len, chunks)), np.uint32)
    end = len(tokens)
    while chunks:
        chunk = chunks.pop()
        tokens[end - len(chunk) : end] = chunk
        end -= len(chunk)
    return tokens


def draw_sentences(text: Text, events: int, seed: int) -> np.ndarray | None:
    """Whole sentences, or documents, drawn at random until they hold about `events` events: of every token whether
    it is in one. None for all of them. (tokens,) bool
    """
    if events >= text.events:
        return None
    starts, lengths = _sentences(text)
    chosen = np.random.default_rng(seed).permutation(len(starts))
    enough = int(np.searchsorted(np.cumsum(lengths[chosen] - 1), events)) + 1
    keep = np.zeros(len(lengths), bool)
    keep[chosen[:enough]] = True
    return np.repeat(keep, lengths)


def sample_sentences(text: Text, events: int, seed: int) -> Text:
    """The sentences that `draw_sentences` draws, in their order."""
    chosen = draw_sentences(text, events, seed)
    return text if chosen is None else select_tokens(text, chosen)


def split_sentences(text: Text, events: int) -> tuple[Text, Text]:
    """(the rest, a slice of about `events` events), both of whole sentences, or documents, and views of the text.

    The slice is the end of the text: sentences of one document tell of each other, so what is to judge a text is
    better not mixed with it.
    """
    starts, lengths = _sentences(text)
    enough = min(int(np.searchsorted(np.cumsum(lengths[::-1] - 1), events)) + 1, len(starts) - 1)
    cut = starts[len(starts) - enough] if enough else len(text.tokens)
    return select_tokens(text, slice(cut)), select_tokens(text, slice(cut, None))


def _sentences(text: Text) -> tuple[np.ndarray, np.ndarray]:
    """Where each sentence, or document, begins, and how many tokens it has."""
    starts = np.flatnonzero(text.tokens == BEGIN)
    return starts, np.diff(np.append(starts, len(text.tokens)))


def select_tokens(text: Text, chosen: np.ndarray | slice) -> Text:
    """The text of the tokens chosen, which are whole sentences, or documents."""
    tokens = text.tokens[chosen]
    units, ends = (int(np.count_nonzero(tokens == token)) for token in (BEGIN, END))
    return Text(tokens, units) if text.documents is None else Text(tokens, ends, units)
