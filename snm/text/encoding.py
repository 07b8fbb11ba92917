"""From text to one array of tokens, with a given vocabulary or with one learned from the text.

Text is one sentence a line; ASCII white space separates words; blank lines are skipped, or separate documents. Text is
read once, in blocks, so standard input works like a file. A thread reads and decompresses ahead of encoding.
Tokens take four bytes each, in memory (eight while chunks are joined) or on disk.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from snm import parallel
from snm.arguments import shown
from snm.errors import InputError, SettingsError
from snm.kernels import text as text_kernels
from snm.layouts.tokens import BEGIN, END, SPECIAL, UNKNOWN
from snm.progress import Advance, Notify, ignore
from snm.text.fields import MARK, FieldMarker, name_of, others
from snm.text.files import BLOCK, BadLines, Sources, are_files, find_files, names, read_blocks, read_lines
from snm.text.spelling import RareWords, Spelling
from snm.text.tokenizers import Tokenizer, divided_lines
from snm.text.vocabulary import Vocabulary, has_white_space, split_words, word_table

Sentence = str | Sequence[str] | np.ndarray
Sentences = Iterable[Sentence] | os.PathLike[str]
PIECE = 1 << 22  # tokens processed at a time
ENTRY_BYTES = 26  # memory of an entry of the table of words, while it grows and while words are sorted
POOL_COPIES = 3  # of the spellings, at the same times
WORDS_PER_JOIN = 1 << 16
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
    bad_lines: int = 0  # that were repaired or left out, see `snm.text.files.BadLines`
    bytes: int = 0  # of its words in UTF-8, and one for the space or line end after each; 0 if not known
    words: int = 0  # before a tokenizer divided them; 0 if there is none, or they are not known
    spellings: np.ndarray | None = None  # ln P(its string | `<UNK>`) of each `<UNK>`, (`<UNK>`s,) float64; if spelled
    first_field: int | None = None  # the first id of a field's value, where lines have fields
    lines: int = 0  # that were read, blank ones included; 0 if not known

    @property
    def segments(self) -> int:
        """Number of `<S>`."""
        return self.sentences if self.documents is None else self.documents

    @cached_property
    def events(self) -> int:
        """Number of targets: every word and every `</S>`."""
        values = 0
        if self.first_field is not None:
            values = sum(int(np.count_nonzero(piece >= self.first_field)) for piece in self.pieces())
        return len(self.tokens) - self.segments - values

    def targets(self) -> np.ndarray:
        """Which tokens are targets. (tokens,) bool"""
        return are_targets(self.tokens, self.first_field)

    def pieces(self) -> Iterator[np.ndarray]:
        """All tokens, PIECE at a time."""
        return (self.tokens[start : start + PIECE] for start in range(0, len(self.tokens), PIECE))


class Words(str):
    """A sentence that was given as words: no tokenizer divides it."""


class Block(NamedTuple):
    """A part of a text, whose words have white space between them."""

    data: bytes
    words: int | None = None  # before a tokenizer divided them; None where there is none
    bytes: int = 0  # of these words, and one after each


def divide_block(block: bytes, tokenizer: Tokenizer | None, threads: int = 1) -> Block:
    """A block of text, of whole lines, as a tokenizer divides it."""
    if tokenizer is None:
        return Block(block)
    return Block(tokenizer.divide(block, threads), *_size_of(block))


def _size_of(block: bytes) -> tuple[int, int]:
    """The number of words that white space separates, and that of their bytes, and one after each."""
    space = _SPACES[np.frombuffer(block, np.uint8)]
    words = int(np.count_nonzero(space[1:] & ~space[:-1])) + int(len(space) > 0 and not space[-1])
    return words, len(space) - int(np.count_nonzero(space)) + words


_SPACES = np.isin(np.arange(256), [*range(9, 14), 32])


def are_targets(tokens: np.ndarray, first_field: int | None) -> np.ndarray:
    """Which tokens are targets: neither `<S>` nor a field's value. (tokens,) bool"""
    found: np.ndarray = tokens != BEGIN
    return found if first_field is None else found & (tokens < first_field)


def count_words(text: Text, words: int) -> np.ndarray:
    """Occurrences of each word of a vocabulary of `words` in a text. (words,) int64"""
    counts = np.zeros(words, np.int64)
    for piece in text.pieces():
        counts += np.bincount(piece, minlength=words)
    return counts


def in_memory(chunks: Iterable[np.ndarray]) -> np.ndarray:
    """Join chunks in memory. Each chunk is freed as soon as it is copied."""
    left = list(chunks)
    if len(left) == 1:
        return left[0]
    tokens = np.empty(sum(map(len, left)), np.uint32)
    end = len(tokens)
    while left:
        chunk = left.pop()
        tokens[end - len(chunk) : end] = chunk
        end -= len(chunk)
    return tokens


class _Encoder:
    """Passes blocks to the encoding kernel, and grows its hash table and its pool of spellings.

    With `learn`, new words are numbered from 3 up in the order of their first occurrence. `memory`: bytes that learning
    them may take.
    """

    def __init__(
        self, hashes: np.ndarray, ids: np.ndarray, learn: bool, documents: bool, memory: int | None = None
    ) -> None:
        self.hashes, self.ids, self.learn, self.documents, self.memory = hashes, ids, learn, documents, memory
        self.state = np.zeros(text_kernels.STATE_FIELDS, np.int64)
        self.state[text_kernels.WORDS] = len(SPECIAL)
        self.counts = np.zeros(len(ids) // 2 if learn else 1, np.int64)  # the table is never more than half full
        self.starts = np.zeros(len(ids) // 2 + 1 if learn else 1, np.int64)  # of words in the pool
        self.pool = np.empty(1 << 20 if learn else 1, np.uint8)
        self.out = np.empty(0, np.uint32)
        self._unknown = np.empty(0, np.int64)

    def encode(self, block: bytes) -> Iterator[np.ndarray]:
        data = np.frombuffer(block, np.uint8)
        if len(self.out) < len(data) * 3 // 2 + 4:
            self.out = np.empty(len(data) * 3 // 2 + 4, np.uint32)
        if not self.learn and len(self._unknown) < len(data) + 2:  # two for a word, which has two bytes or more
            self._unknown = np.empty(len(data) + 2, np.int64)
        i = 0
        while True:
            i = text_kernels.encode(
                data, i, self.learn, self.documents, self.hashes, self.ids, self.counts, self.starts, self.pool,
                self._unknown, self.state, self.out,
            )  # fmt: skip
            yield self.out[: self.state[text_kernels.WRITTEN]].copy()
            status = self.state[text_kernels.STATUS]
            if status == text_kernels.DONE:
                return
            if status == text_kernels.TABLE_FULL:
                self._grow_table()
            else:
                self._grow_pool(max(len(self.pool), len(data)))

    def _check_memory(self, entries: int, pool: int) -> None:
        """Raise an error if a table and a pool of these sizes would take too much memory."""
        if self.memory is not None and entries * ENTRY_BYTES + pool * POOL_COPIES > self.memory:
            raise SettingsError(
                f"the text has too many different words for --memory: {self.words:,} were read by one thread, whose "
                f"share is {self.memory >> 20:,} MB; give more --memory, fewer --threads, or a vocabulary (--vocab)"
            )

    def _grow_pool(self, more: int) -> None:
        self._check_memory(len(self.ids), len(self.pool) + more)
        self.pool = np.concatenate([self.pool, np.empty(more, np.uint8)])

    def _grow_table(self) -> None:
        size = 2 * len(self.ids)
        self._check_memory(size, len(self.pool))
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

    @property
    def bytes(self) -> int:
        """Of the words that were read, and one after each."""
        return int(self.state[text_kernels.TEXT_BYTES])

    @property
    def unknown(self) -> np.ndarray:
        """Where each `<UNK>` of the block begins and ends, one after another; -1 and -1 for `<unk>`. int64"""
        return self._unknown[: 2 * self.state[text_kernels.UNKNOWNS]]

    @property
    def lines(self) -> int:
        return int(self.state[text_kernels.LINES])

    @property
    def words(self) -> int:
        """Number of words that were learned."""
        return int(self.state[text_kernels.WORDS]) - len(SPECIAL)

    def take_words(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What was learned, by the words' numbers: hashes, counts, and in the pool of bytes where each begins, and one
        more end. The table is given up."""
        first, last = len(SPECIAL), len(SPECIAL) + self.words
        learned = (self.ids >= first) & (self.ids < last)
        hashes = np.empty(self.words, np.uint64)
        hashes[self.ids[learned] - first] = self.hashes[learned]
        self.hashes, self.ids = np.empty(0, np.uint64), np.empty(0, np.uint32)
        return hashes, self.counts[first:last], self.pool[: self.starts[last]], self.starts[first : last + 1]

    def forget_words(self) -> None:
        self.counts, self.starts, self.pool = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)


def encode_files(
    sources: Sources, vocabulary: Vocabulary, advance: Advance = ignore, join: Join = in_memory,
    on_error: str = "fail", notify: Notify = ignore, spelling: Spelling | None = None, rare: RareWords | None = None,
) -> Text:  # fmt: skip
    """Encode text with a given vocabulary; words outside it become `<UNK>`. `on_error`: see `files.ON_ERROR`.

    With `spelling`, the text has `spellings`; with `rare`, the words outside the vocabulary are added there.
    """
    bad = BadLines(on_error)
    blocks = _blocks(sources, bad, vocabulary.tokenizer, vocabulary)
    text = encode_blocks(blocks, vocabulary, advance, join, spelling, rare)
    bad.report(names(sources), notify)
    return replace(text, bad_lines=bad.count)


def as_lines(sentences: Sentences, vocabulary: Vocabulary | None = None, on_error: str = "fail") -> Iterator[str]:
    """Sentences as strings, `Words` where words are given. A sentence is a string, a list of words, or an array of ids.

    `sentences` are any iterable of them, or the path of a file with one a line. `vocabulary` has the words of ids.
    """
    if isinstance(sentences, str | bytes):
        raise InputError(f"a {type(sentences).__name__} where sentences are expected; put it into a list")
    if isinstance(sentences, os.PathLike):
        for lines in read_lines(Path(sentences), BadLines(on_error)):
            yield from lines
        return
    if not isinstance(sentences, Iterable) or getattr(sentences, "shape", None) == ():
        raise InputError(f"{type(sentences).__name__} is no text; expected sentences, or the path of a file")
    if isinstance(sentences, Mapping | Set) or hasattr(sentences, "columns"):
        raise InputError(f"a {type(sentences).__name__} where sentences are expected; give a list, or one column of it")
    for number, sentence in enumerate(sentences):
        yield _as_line(sentence, number, vocabulary)


def _as_line(sentence: Sentence, number: int, vocabulary: Vocabulary | None) -> str:
    if isinstance(sentence, str):
        return sentence
    words = sentence.tolist() if isinstance(sentence, np.ndarray) else sentence
    if isinstance(words, list | tuple) and vocabulary is not None and all(map(_is_id, words)):
        wrong = [word for word in words if not 0 <= word < len(vocabulary)]
        if wrong:
            raise InputError(f"sentence {number}: id {wrong[0]}; expected ids below {len(vocabulary):,}")
        return Words(" ".join(vocabulary.words[word] for word in words))
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise InputError(f"sentence {number} is a {type(sentence).__name__}; expected a string, words, or word ids")
    if any(not word or has_white_space(word) for word in words):
        raise InputError(f"sentence {number}: a word is empty or has white space in it; expected one word a string")
    return Words(" ".join(words))


def _is_id(word: object) -> bool:
    return isinstance(word, int | np.integer) and not isinstance(word, bool)


def _blocks(
    sources: Sources, bad: BadLines, tokenizer: Tokenizer | None, vocabulary: Vocabulary | None = None
) -> Iterator[bytes | Block]:
    """Blocks of UTF-8 text, of files or of sentences, for `_divided`."""
    if are_files(sources):
        yield from _read_ahead(read_blocks(find_files(sources), bad, whole=tokenizer is not None))
        return
    number = 1
    for some in _batches(as_lines(cast("Iterable[Sentence]", sources), vocabulary)):
        block = _joined(some, "\n", strict=bad.on_error == "fail")
        if bad.on_error != "fail":
            block = bad.check(block, names(sources), number)
        elif b"\0" in block:
            raise InputError("a sentence has a NUL character; expected text")
        number += len(some)
        if block:
            yield block if tokenizer is None or not isinstance(some[0], Words) else _given_block(block, tokenizer)


def _given_block(block: bytes, tokenizer: Tokenizer) -> Block:
    """A block of sentences that were given as pieces."""
    text = "".join(tokenizer.join(split_words(line)) + "\n" for line in block.decode().split("\n")[:-1])
    return Block(block, *_size_of(text.encode()))


def _divided(block: bytes | Block, tokenizer: Tokenizer | None, threads: int = 1) -> Block:
    return block if isinstance(block, Block) else divide_block(block, tokenizer, threads)


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines, some at a time, of which all or none are `Words`."""
    some: list[str] = []
    size = 0
    for line in lines:
        if some and type(line) is not type(some[-1]):
            yield some
            some, size = [], 0
        some.append(line)
        size += len(line) + 1
        if size >= BLOCK:
            yield some
            some, size = [], 0
    if some:
        yield some


def _joined(lines: Iterable[str], separator: str, strict: bool = True) -> bytes:
    """Sentences as UTF-8 text, one a line; line breaks inside a sentence are white space.

    Without `strict`, what is no character becomes bytes that are not UTF-8.
    """
    text = separator.join(line.replace("\n", " ") for line in lines) + "\n"
    try:
        return text.encode(errors="strict" if strict else "surrogatepass")
    except UnicodeEncodeError as error:
        raise InputError(f"a sentence has {text[error.start]!r}, which is no character; expected text") from None


def divide_lines(lines: Iterable[str], tokenizer: Tokenizer | None) -> list[str]:
    """Lines with white space between their words: those of text are divided, `Words` stay as they are."""
    listed = list(lines)
    if tokenizer is None:
        return listed
    divided = iter(divided_lines([line for line in listed if not isinstance(line, Words)], tokenizer))
    return [line if isinstance(line, Words) else next(divided) for line in listed]


def encode_lines(lines: Iterable[str], vocabulary: Vocabulary) -> Text:
    """Encode sentences, one a string; blank strings are skipped, or separate documents."""
    return encode_blocks(iter([Block(_joined(divide_lines(lines, vocabulary.tokenizer), "\n"))]), vocabulary)


def encode_sentences(sentences: Iterable[str], vocabulary: Vocabulary, spelling: Spelling | None = None) -> Text:
    """Encode divided lines, each as a segment of its own even where `<S>` opens documents."""
    return encode_blocks(iter([Block(_joined(sentences, "\n\n"))]), vocabulary, spelling=spelling)


def encode_blocks(
    blocks: Iterable[bytes | Block], vocabulary: Vocabulary, advance: Advance = ignore, join: Join = in_memory,
    spelling: Spelling | None = None, rare: RareWords | None = None,
) -> Text:  # fmt: skip
    """Encode blocks of text, which the vocabulary's tokenizer divides, or that are divided."""
    encoder = _Encoder(*vocabulary.table, learn=False, documents=vocabulary.document)
    spellings: list[np.ndarray] = []
    sizes, marker = _Sizes(), vocabulary.marker()

    def encoded() -> Iterator[np.ndarray]:
        for given in blocks:
            block = _divided(given, vocabulary.tokenizer)
            data = block.data if marker is None else marker(block.data)
            yield from encoder.encode(data)
            if spelling is not None:
                spellings.append(spelling.log_probabilities(data, encoder.unknown))
            if rare is not None:
                rare.add(data, encoder.unknown)
            sizes.add(block)
            advance(len(given) if isinstance(given, bytes) else len(data))

    tokens = join(encoded())
    documents = encoder.documents_read if vocabulary.document else None
    spelled = None if spelling is None else np.concatenate([np.empty(0), *spellings])
    first_field, of_fields = (None, 0) if marker is None else (vocabulary.first_field, marker.bytes)
    return Text(
        tokens, encoder.sentences, documents, bytes=sizes.bytes_of([encoder]) - of_fields, words=sizes.words,
        spellings=spelled, first_field=first_field, lines=encoder.lines,
    )  # fmt: skip


@dataclass
class _Sizes:
    """What is added up of the words of a text, before a tokenizer divided them."""

    divided: bool = False
    words: int = 0
    bytes: int = 0

    def add(self, block: Block) -> None:
        if block.words is not None:
            self.divided, self.words, self.bytes = True, self.words + block.words, self.bytes + block.bytes

    def bytes_of(self, encoders: Sequence[_Encoder]) -> int:
        return self.bytes if self.divided else sum(encoder.bytes for encoder in encoders)


def read_corpus(
    sources: Sources,
    min_count: int = 3,
    max_words: int | None = None,
    closed: bool = False,
    advance: Advance = ignore,
    documents: bool = False,
    threads: int = 1,
    join: Join = in_memory,
    on_error: str = "fail",
    memory: int | None = None,
    notify: Notify = ignore,
    rare: RareWords | None = None,
    fields: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
) -> tuple[Text, Vocabulary]:
    """Read a training text once, learn its vocabulary, and encode it.

    Each thread numbers the words that it reads. In the end these numbers are replaced by the ids of the vocabulary, so
    the result does not depend on the number of threads. Documents are read by one thread: they may span blocks.
    `memory`: bytes that learning the words may take, in all threads together. `on_error`: see `files.ON_ERROR`.
    `rare`: words that are too rare for the vocabulary are added there. `fields`: names of fields before lines, whose
    values are added to the vocabulary if they occur `min_count` times. `tokenizer`: what divides text into words.
    """
    marker = FieldMarker(fields) if fields else None
    cores, threads = threads, 1 if documents else threads
    share = None if memory is None else memory // threads
    encoders = [_Encoder(*word_table(), learn=True, documents=documents, memory=share) for _ in range(threads)]
    idle: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(encoders)):
        idle.put(number)

    def encode(given: bytes | Block) -> tuple[Block, int, int, list[np.ndarray]]:
        block = _divided(given, tokenizer, cores)
        number = idle.get()
        try:
            if not documents:
                encoders[number].state[text_kernels.IN_SENTENCE] = 0
            size = len(given) if isinstance(given, bytes) else len(block.data)
            return block, size, number, list(encoders[number].encode(block.data))
        finally:  # after an error too, or other threads would wait for ever
            idle.put(number)

    chunks: list[tuple[int, int]] = []  # (number of the encoder, tokens)
    bad, continued, sizes = BadLines(on_error), 0, _Sizes()

    def encoded() -> Iterator[np.ndarray]:
        nonlocal continued
        inside = False  # of a sentence that goes on in the next block
        blocks = _blocks(sources, bad, tokenizer)
        if marker is not None:  # in the order of the text: a line may go on in the next block
            blocks = (marker(block) for block in blocks if isinstance(block, bytes))
        for block, size, number, made in parallel.ordered(encode, blocks, threads):
            began, ends = any(map(len, made)), block.data.endswith(b"\n")
            if inside:
                made = _continue_sentence(made, ends)
                continued += began
            inside = not documents and not ends and (inside or began)
            sizes.add(block)
            chunks.extend((number, len(chunk)) for chunk in made)
            yield from made
            advance(size)

    tokens = join(encoded())
    bad.report(names(sources), notify)
    if not any(encoder.sentences for encoder in encoders):
        raise InputError(f"{names(sources)}: no words; expected one sentence a line")
    text_bytes = sizes.bytes_of(encoders) - (0 if marker is None else marker.bytes)
    lines, ids = _merge(encoders, min_count, max_words, rare, fields)
    ends = np.cumsum([length for _, length in chunks]).tolist()

    def renumber(chunk: int) -> None:
        number, length = chunks[chunk]
        part = tokens[ends[chunk] - length : ends[chunk]]
        part[:] = ids[number][part]

    parallel.run(renumber, range(len(chunks)), threads)
    sentences = sum(encoder.sentences for encoder in encoders) - continued
    n_documents = sum(encoder.documents_read for encoder in encoders) if documents else None
    vocabulary = Vocabulary.of_lines(lines, closed, documents, tokenizer)
    first_field = vocabulary.first_field if fields else None
    return Text(
        tokens, sentences, n_documents, bad.count, text_bytes, sizes.words, first_field=first_field
    ), vocabulary  # fmt: skip


def _continue_sentence(made: list[np.ndarray], ends: bool) -> list[np.ndarray]:
    """The tokens of a block that goes on in a sentence, without its `<S>`. `ends`: the block ends the line."""
    tokens = np.concatenate(made)
    return [tokens[1:] if len(tokens) else np.full(int(ends), END, np.uint32)]


def _merge(
    encoders: list[_Encoder], min_count: int, max_words: int | None, rare: RareWords | None, fields: Sequence[str]
) -> tuple[bytes, list[np.ndarray]]:
    """The words to keep, one a line, by decreasing count and then spelling; and the id of each encoder's numbers.

    The values of fields come behind all words.
    """
    sizes = [encoder.words for encoder in encoders]
    hashes, counts, pool, starts, ends = _take_words(encoders)
    order = np.argsort(hashes, kind="stable")
    new = np.append(True, np.diff(hashes[order]) != 0)[: len(order)]  # where another word begins in this order
    del hashes
    first = order[new]  # of each word, a number that it has
    word_of = np.empty(len(order), np.uint32)  # of each number
    word_of[order] = np.cumsum(new, dtype=np.uint32) - np.uint32(1)
    counts = np.add.reduceat(counts[order], np.flatnonzero(new), dtype=np.int64) if len(order) else counts
    del order, new
    often, is_value = counts >= max(min_count, 1), np.zeros(len(first), bool)
    if fields:
        is_value = pool[starts[first]] == ord(MARK)
    spans = pool, starts[first], ends[first]
    values, numbers_of_values = _values(fields, np.flatnonzero(is_value), often, *spans)
    kept, seldom = np.flatnonzero(often & ~is_value), first[~often & ~is_value]
    if rare is not None:
        _add_some(rare, pool, starts[seldom], ends[seldom])
    starts, ends, counts = starts[first[kept]], ends[first[kept]], counts[kept]
    ranked = _by_count_and_spelling(counts, pool, starts, ends)
    chosen, others = ranked[:max_words], np.sort(ranked[len(ranked) if max_words is None else max_words :])
    if rare is not None:
        _add_some(rare, pool, starts[others], ends[others])
    final = np.full(len(first), UNKNOWN, np.uint32)
    final[kept[chosen]] = np.arange(len(SPECIAL), len(SPECIAL) + len(chosen))
    final[is_value] = len(SPECIAL) + len(chosen) + numbers_of_values
    special = np.array([BEGIN, END, UNKNOWN], np.uint32)
    edges = np.cumsum([0, *sizes])
    ids = [np.concatenate([special, final[word_of[a:b]]]) for a, b in pairwise(edges)]
    return _joined_words(pool, starts[chosen], ends[chosen]) + values, ids


def _values(
    fields: Sequence[str], words: np.ndarray, often: np.ndarray, pool: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[bytes, np.ndarray]:
    """The values of fields that a vocabulary has, one a line, and the number among them of each of `words`.

    Those that are not frequent have the number of their field's other values. often, starts, ends: of all words.
    """
    spelled = [bytes(pool[starts[i] : ends[i]]).decode() for i in words.tolist()]
    kept = {others(name) for name in fields} | {value for value, i in zip(spelled, words, strict=True) if often[i]}
    listed = sorted(kept, key=lambda value: (fields.index(name_of(value)), value))
    numbers = {value: number for number, value in enumerate(listed)}
    found = [numbers[value if value in numbers else others(name_of(value))] for value in spelled]
    return "".join(value + "\n" for value in listed).encode(), np.array(found, np.int64)


def _add_some(rare: RareWords, pool: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
    """Add words in the order of their hashes, as many as can be kept."""
    rare.add(pool, np.stack([starts[: rare.most], ends[: rare.most]], axis=1).reshape(-1))


def _take_words(encoders: list[_Encoder]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Hashes and counts of the words of all encoders, a pool of bytes, and where each word begins and ends there."""
    taken = [encoder.take_words() for encoder in encoders]
    offsets = np.cumsum([0, *(len(pool) for _, _, pool, _ in taken)])
    hashes, counts, pool = (np.concatenate([words[i] for words in taken]) for i in range(3))
    starts = np.concatenate([words[3][:-1] + offset for words, offset in zip(taken, offsets[:-1], strict=True)])
    ends = np.concatenate([words[3][1:] + offset for words, offset in zip(taken, offsets[:-1], strict=True)])
    for encoder in encoders:
        encoder.forget_words()
    return hashes, counts, pool, starts, ends


def _by_count_and_spelling(counts: np.ndarray, pool: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The order of words by decreasing count and then by their bytes, which sort like their characters.

    Eight bytes are compared at a time, of words that are still tied: Python's bytes would take much more memory.
    """
    order = np.argsort(-counts, kind="stable")
    new = np.append(True, np.diff(counts[order]) != 0)[: len(order)]  # where a word differs from the one before
    at = 0
    while len(tied := np.flatnonzero(~(new & np.append(new[1:], True)))):
        words, keys = order[tied], np.zeros(len(tied), np.uint64)
        for i in range(at, at + 8):
            place = starts[words] + i
            keys = (keys << np.uint64(8)) | np.where(place < ends[words], pool[np.minimum(place, len(pool) - 1)], 0)
        by_key = np.lexsort((keys, np.cumsum(new)[tied]))
        order[tied], keys = words[by_key], keys[by_key]
        new[tied[1:]] |= np.diff(keys) != 0
        at += 8
    return order


def _joined_words(pool: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> bytes:
    """Words of the pool, one a line."""
    data, made = memoryview(pool.data), []
    for some in range(0, len(starts), WORDS_PER_JOIN):
        part = slice(some, some + WORDS_PER_JOIN)
        spelled = (data[a:b] for a, b in zip(starts[part].tolist(), ends[part].tolist(), strict=True))
        made.append(b"\n".join([*spelled, b""]))
    return b"".join(made)


def read_vocabulary(
    path: Path, closed: bool = False, document: bool = False, on_error: str = "fail", memory: int | None = None,
    notify: Notify = ignore, tokenizer: Tokenizer | None = None,
) -> Vocabulary:  # fmt: skip
    """Read a user's vocabulary, one word (of a tokenizer: one piece) a line; repeats and special words are dropped.

    `memory`: bytes that this may take. `on_error`: see `files.ON_ERROR`.
    """
    bad, last, number = BadLines(on_error), END, 1
    encoder = _Encoder(*word_table(), learn=True, documents=False, memory=memory)
    for block in read_blocks([str(path)], bad):
        tokens = np.concatenate([[last], *encoder.encode(block)])
        is_word = tokens > END
        if (is_word[1:] & is_word[:-1]).any():
            raise _several_words(path, block, number)
        last, number = tokens[-1], number + block.count(b"\n")
    bad.report(str(path), notify)
    if not encoder.words:
        raise InputError(f"the vocabulary {path} holds no words; expected one word a line")
    _, _, pool, starts = encoder.take_words()
    return Vocabulary.of_lines(_joined_words(pool, starts[:-1], starts[1:]), closed, document, tokenizer)


def _several_words(path: Path, block: bytes, number: int) -> InputError:
    """The error of a vocabulary that has a line of several words in this block, which begins with that line number."""
    for i, line in enumerate(block.decode().split("\n")):
        words = split_words(line)
        if len(words) > 1:
            return InputError(
                f"{path}, line {number + i}: {len(words)} words, {shown(words[0])} and {shown(words[1])} among them; "
                f"expected a vocabulary, one word a line"
            )
    return InputError(f"{path}, line {number}: several words; expected a vocabulary, one word a line")
