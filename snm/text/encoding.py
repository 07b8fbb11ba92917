"""From text to one array of tokens, with a given vocabulary or with one learned from the text.

Text is one sentence a line; ASCII white space separates words; blank lines are skipped, or separate documents. Text is
read once, in blocks, so standard input works like a file. A thread reads and decompresses ahead of encoding.
Tokens take four bytes each, in memory (eight while chunks are joined) or on disk.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import cast

import numpy as np

from snm import parallel
from snm.errors import InputError
from snm.kernels import text as text_kernels
from snm.layouts.tokens import BEGIN, END, SPECIAL, UNKNOWN
from snm.progress import Advance, ignore
from snm.text.files import Sources, are_files, find_files, names, read_blocks, read_lines
from snm.text.vocabulary import Vocabulary, has_white_space, word_table

Sentence = str | Sequence[str] | np.ndarray
Sentences = Iterable[Sentence] | os.PathLike[str]
LINES_PER_BLOCK = 1 << 14
PIECE = 1 << 22  # tokens processed at a time
Join = Callable[[Iterable[np.ndarray]], np.ndarray]
"""Joins chunks of tokens into one array, in memory or on disk."""


def _read_ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, read in a thread, so that decompression and encoding overlap."""
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
                item = ready.get(timeout=0.2)  # without a timeout, an interrupt just before the wait would go unseen
            except queue.Empty:
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()  # do not join the thread: it may be waiting for standard input


@dataclass
class Text:
    """An encoded text. `</S>` ends each sentence; `<S>` opens each sentence, or each document."""

    tokens: np.ndarray  # (tokens,) uint32
    sentences: int
    documents: int | None = None  # None where `<S>` opens sentences

    @property
    def segments(self) -> int:
        """Number of `<S>`."""
        return self.sentences if self.documents is None else self.documents

    @property
    def events(self) -> int:
        """Number of targets: every word and every `</S>`."""
        return len(self.tokens) - self.segments

    def pieces(self) -> Iterator[np.ndarray]:
        """All tokens, PIECE at a time."""
        return (self.tokens[start : start + PIECE] for start in range(0, len(self.tokens), PIECE))


def count_words(text: Text, words: int) -> np.ndarray:
    """Occurrences of each word of a vocabulary of `words` in a text. (words,) int64"""
    counts = np.zeros(words, np.int64)
    for piece in text.pieces():
        counts += np.bincount(piece, minlength=words)
    return counts


def in_memory(chunks: Iterable[np.ndarray]) -> np.ndarray:
    """Join chunks in memory. Each chunk is freed as soon as it is copied."""
    left = list(chunks)
    tokens = np.empty(sum(map(len, left)), np.uint32)
    end = len(tokens)
    while left:
        chunk = left.pop()
        tokens[end - len(chunk) : end] = chunk
        end -= len(chunk)
    return tokens


class _Encoder:
    """Passes blocks to the encoding kernel, and grows its hash table and its pool of spellings.

    With `learn`, new words are numbered from 3 up in the order of their first occurrence.
    """

    def __init__(self, hashes: np.ndarray, ids: np.ndarray, learn: bool, documents: bool) -> None:
        self.hashes, self.ids, self.learn, self.documents = hashes, ids, learn, documents
        self.state = np.zeros(text_kernels.STATE_FIELDS, np.int64)
        self.state[text_kernels.WORDS] = len(SPECIAL)
        self.counts = np.zeros(len(ids) // 2 if learn else 1, np.int64)  # the table is never more than half full
        self.starts = np.zeros(len(ids) // 2 + 1 if learn else 1, np.int64)  # of words in the pool
        self.pool = np.empty(1 << 20 if learn else 1, np.uint8)
        self.out = np.empty(0, np.uint32)

    def encode(self, block: bytes) -> Iterator[np.ndarray]:
        data = np.frombuffer(block, np.uint8)
        if len(self.out) < len(data) * 3 // 2 + 4:
            self.out = np.empty(len(data) * 3 // 2 + 4, np.uint32)
        i = 0
        while True:
            i = text_kernels.encode(
                data, i, self.learn, self.documents, self.hashes, self.ids, self.counts, self.starts, self.pool,
                self.state, self.out,
            )  # fmt: skip
            yield self.out[: self.state[text_kernels.WRITTEN]].copy()
            status = self.state[text_kernels.STATUS]
            if status == text_kernels.DONE:
                return
            if status == text_kernels.TABLE_FULL:
                self._grow_table()
            else:
                self.pool = np.concatenate([self.pool, np.empty(max(len(self.pool), len(data)), np.uint8)])

    def _grow_table(self) -> None:
        size = 2 * len(self.ids)
        hashes, ids = np.zeros(size, np.uint64), np.full(size, 0xFFFFFFFF, np.uint32)
        text_kernels.rehash(self.hashes, self.ids, hashes, ids)
        self.hashes, self.ids = hashes, ids
        self.counts = np.concatenate([self.counts, np.zeros(len(self.counts), np.int64)])
        self.starts = np.concatenate([self.starts, np.zeros(len(self.starts), np.int64)])

    @property
    def sentences(self) -> int:
        return int(self.state[text_kernels.SENTENCES])

    @property
    def documents_read(self) -> int:
        return int(self.state[text_kernels.DOCUMENTS])

    def hashes_of_words(self) -> np.ndarray:
        """The hash of every learned word, in the order of their numbers. uint64"""
        learned = (self.ids >= len(SPECIAL)) & (self.ids < self.state[text_kernels.WORDS])
        hashes = np.empty(int(self.state[text_kernels.WORDS]) - len(SPECIAL), np.uint64)
        hashes[self.ids[learned] - len(SPECIAL)] = self.hashes[learned]
        return hashes

    def spelling(self, number: int) -> bytes:
        return self.pool[self.starts[number] : self.starts[number + 1]].tobytes()


def encode_files(sources: Sources, vocabulary: Vocabulary, advance: Advance = ignore, join: Join = in_memory) -> Text:
    """Encode text with a given vocabulary; words outside it become `<UNK>`."""
    return encode_blocks(_read_ahead(_blocks(sources, vocabulary)), vocabulary, advance, join)


def as_lines(sentences: Sentences, vocabulary: Vocabulary | None = None) -> Iterator[str]:
    """Sentences as strings. A sentence is a string, a list of words, or an array of word ids.

    `sentences` are any iterable of them, or the path of a file with one a line. `vocabulary` has the words of ids.
    """
    if isinstance(sentences, str | bytes):
        raise InputError(f"a {type(sentences).__name__} where sentences are expected; put it into a list")
    if isinstance(sentences, os.PathLike):
        for lines in read_lines(Path(sentences)):
            yield from lines
        return
    if not isinstance(sentences, Iterable):
        raise InputError(f"{type(sentences).__name__} is no text; expected sentences, or the path of a file")
    for number, sentence in enumerate(sentences):
        yield _as_line(sentence, number, vocabulary)


def _as_line(sentence: Sentence, number: int, vocabulary: Vocabulary | None) -> str:
    if isinstance(sentence, str):
        return sentence
    words = sentence.tolist() if isinstance(sentence, np.ndarray) else sentence
    if isinstance(words, list | tuple) and vocabulary is not None and all(isinstance(word, int) for word in words):
        wrong = [word for word in words if not 0 <= word < len(vocabulary)]
        if wrong:
            raise InputError(f"sentence {number}: id {wrong[0]}; expected ids below {len(vocabulary):,}")
        return " ".join(vocabulary.words[word] for word in words)
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise InputError(f"sentence {number} is a {type(sentence).__name__}; expected a string, words, or word ids")
    if any(not word or has_white_space(word) for word in words):
        raise InputError(f"sentence {number}: a word is empty or has white space in it; expected one word a string")
    return " ".join(words)


def _blocks(sources: Sources, vocabulary: Vocabulary | None = None, whole_lines: bool = False) -> Iterator[bytes]:
    """Blocks of UTF-8 text, of files or of sentences."""
    if are_files(sources):
        yield from read_blocks(find_files(sources), whole_lines)
        return
    lines = iter(as_lines(cast("Iterable[Sentence]", sources), vocabulary))
    while some := list(islice(lines, LINES_PER_BLOCK)):
        block = _joined(some, "\n")
        if b"\0" in block:
            raise InputError("a sentence has a NUL character; expected text")
        yield block


def _joined(lines: Iterable[str], separator: str) -> bytes:
    """Sentences as UTF-8 text, one a line; line breaks inside a sentence are white space."""
    text = separator.join(line.replace("\n", " ") for line in lines) + "\n"
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"a sentence has {text[error.start]!r}, which is no character; expected text") from None


def encode_lines(lines: Iterable[str], vocabulary: Vocabulary) -> Text:
    """Encode sentences, one a string; blank strings are skipped, or separate documents."""
    return encode_blocks(iter([_joined(lines, "\n")]), vocabulary)


def encode_sentences(sentences: Iterable[str], vocabulary: Vocabulary) -> Text:
    """Encode sentences, one a string, each as a segment of its own even where `<S>` opens documents."""
    return encode_blocks(iter([_joined(sentences, "\n\n")]), vocabulary)


def encode_blocks(
    blocks: Iterator[bytes], vocabulary: Vocabulary, advance: Advance = ignore, join: Join = in_memory
) -> Text:
    encoder = _Encoder(*vocabulary.table, learn=False, documents=vocabulary.document)

    def encoded() -> Iterator[np.ndarray]:
        for block in blocks:
            yield from encoder.encode(block)
            advance(len(block))

    tokens = join(encoded())
    return Text(tokens, encoder.sentences, encoder.documents_read if vocabulary.document else None)


def read_corpus(
    sources: Sources,
    min_count: int = 3,
    max_words: int | None = None,
    closed: bool = False,
    advance: Advance = ignore,
    documents: bool = False,
    threads: int = 1,
    join: Join = in_memory,
) -> tuple[Text, Vocabulary]:
    """Read a training text once, learn its vocabulary, and encode it.

    Each thread numbers the words that it reads. In the end these numbers are replaced by the ids of the vocabulary, so
    the result does not depend on the number of threads. Documents are read by one thread: they may span blocks.
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

    chunks: list[tuple[int, int]] = []  # (number of the encoder, tokens)

    def encoded() -> Iterator[np.ndarray]:
        blocks = _read_ahead(_blocks(sources, whole_lines=not documents))
        for size, number, made in parallel.ordered(encode, blocks, len(encoders)):
            chunks.extend((number, len(chunk)) for chunk in made)
            yield from made
            advance(size)

    tokens = join(encoded())
    if not any(encoder.sentences for encoder in encoders):
        raise InputError(f"{names(sources)}: no words; expected one sentence a line")
    words, ids = _merge(encoders, min_count, max_words)
    ends = np.cumsum([length for _, length in chunks]).tolist()

    def renumber(chunk: int) -> None:
        number, length = chunks[chunk]
        part = tokens[ends[chunk] - length : ends[chunk]]
        part[:] = ids[number][part]

    parallel.run(renumber, range(len(chunks)), len(encoders))
    n_documents = sum(encoder.documents_read for encoder in encoders)
    text = Text(tokens, sum(encoder.sentences for encoder in encoders), n_documents if documents else None)
    return text, Vocabulary(words, closed, documents)


def _merge(encoders: list[_Encoder], min_count: int, max_words: int | None) -> tuple[list[str], list[np.ndarray]]:
    """The words to keep, by decreasing count and then spelling, and the id of each encoder's numbers."""
    learned = [int(encoder.state[text_kernels.WORDS]) for encoder in encoders]
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
        (-n, encoders[e].spelling(number), i)
        for n, e, number, i in zip(
            counts[kept].astype(np.int64).tolist(), by_encoder.tolist(), numbers.tolist(), kept.tolist(), strict=True
        )
    ]
    spelled.sort()  # UTF-8 bytes sort like their characters
    spelled = spelled[:max_words]
    final = np.full(len(distinct), UNKNOWN, np.uint32)
    final[[i for _, _, i in spelled]] = np.arange(3, 3 + len(spelled))
    special = np.array([BEGIN, END, UNKNOWN], np.uint32)
    ids = [np.concatenate([special, final[where[a:b]]]) for a, b in pairwise(starts)]
    return [word.decode() for _, word, _ in spelled], ids
