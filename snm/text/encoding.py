"""Files, folders, globs and standard input to sentences, and sentences to one array of tokens.

One sentence a line; words are separated by ASCII white space; blank lines are skipped. Text is read
once, in blocks, decompressed and checked in a thread of its own, so that standard input works like
a file. Tokens take four bytes each, in memory (eight while the array is put together) or, where one likes, on disk:
what is done with a text here is done a piece at a time, and holds no more of it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from snm import parallel
from snm.errors import InputError
from snm.kernels import text as text_kernels
from snm.layouts.tokens import BEGIN, END, SPECIAL, UNKNOWN
from snm.text.files import Sources, find_files, names, read_blocks
from snm.text.vocabulary import Vocabulary, word_table

PIECE = 1 << 22  # tokens that are looked at together
Join = Callable[[Iterable[np.ndarray]], np.ndarray]
"""Makes one array of chunks of tokens, in memory or on disk."""


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
    def segments(self) -> int:
        """Number of `<S>`: what no feature reaches across."""
        return self.sentences if self.documents is None else self.documents

    @property
    def events(self) -> int:
        """Number of targets: every word and every `</S>`."""
        return len(self.tokens) - self.segments

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

        self.kernel, self.learn, self.documents = text_kernels, learn, documents
        self.hashes, self.ids = hashes, ids
        self.state = np.zeros(text_kernels.STATE_FIELDS, np.int64)
        self.state[text_kernels.WORDS] = len(SPECIAL)
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
