"""Words and their ids: 0 is `<S>`, 1 `</S>`, 2 `<UNK>`, then the words, the most frequent first."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from snm.arguments import flag, shown
from snm.errors import FormatError, InputError
from snm.kernels import text as text_kernels
from snm.layouts.tokens import BEGIN, END, SPECIAL, UNKNOWN
from snm.storage import read_file
from snm.text.fields import MARK, FieldMarker, name_of, start_of_values
from snm.text.tokenizers import Tokenizer, write_tokenizer

_WHITE_SPACE = re.compile(r"[ \t-\r]+")
ALIASES_OF_UNKNOWN = ("<unk>", "<UNK>")
MARKERS = ("<s>", "</s>", "<S>", "</S>")
"""Skipped wherever they stand in a text: every sentence gets its own."""


def split_words(text: str) -> list[str]:
    """The words of a line, without markers. ASCII white space separates them; a no-break space is part of a word."""
    return [word for word in _WHITE_SPACE.split(text) if word and word not in MARKERS]


def has_white_space(word: str) -> bool:
    return _WHITE_SPACE.search(word) is not None


class Vocabulary:
    """An immutable list of words. In a closed vocabulary `<UNK>` occurs in contexts but is never predicted.

    `tokenizer` divides text into these words; None for white space.
    """

    begin, end, unknown = BEGIN, END, UNKNOWN

    def __init__(
        self, words: Iterable[str], *, closed: bool = False, document: bool = False, tokenizer: Tokenizer | None = None
    ) -> None:  # fmt: skip
        """`words`: all but the three special ones, in the order of their ids. `document`: `<S>` opens a document."""
        listed = [*SPECIAL, *_as_words(words)]
        for word in listed:
            if not isinstance(word, str) or not word or "\n" in word:
                raise InputError(f"{shown(word)} is no word; expected strings without line breaks")
        if len(set(listed)) < len(listed):
            raise InputError(f"a word is there twice, or is {', '.join(SPECIAL)}; expected each once, without these")
        try:
            self._lines = "".join(word + "\n" for word in listed).encode()
        except UnicodeEncodeError as error:
            wrong = error.object[error.start]
            raise InputError(f"a word has {wrong!r}, which is no character; expected text") from None
        self.closed, self.document = flag("closed", closed), flag("document", document)
        self.tokenizer = tokenizer
        self._size = self._lines.count(b"\n")

    def __len__(self) -> int:
        return self._size

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words in the order of their ids. Lazy: 250,000 words take a tenth of a second."""
        try:
            words = self._lines.decode().split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise FormatError(f"the vocabulary is damaged: {error}; restore or rebuild the model") from error
        if "" in words:
            raise FormatError("the vocabulary is damaged: a word is empty; restore or rebuild the model")
        return tuple(words)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return False
        mine, others = ((v._lines, v.closed, v.document, v.tokenizer) for v in (self, other))
        return mine == others

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def tag(self) -> int:
        """A checksum of the words, 32 bits. States have ids XOR tag: those of another vocabulary are noticed."""
        return zlib.crc32(self._lines)

    @cached_property
    def first_field(self) -> int:
        """The id of the first value of a field, which is behind all words; the number of words if there is none."""
        at = -1 if self.tokenizer is not None else start_of_values(self._lines)  # a piece may have the mark
        return self._size if at < 0 else self._lines.count(b"\n", 0, at)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that a line may begin with."""
        return tuple(dict.fromkeys(map(name_of, self.words[self.first_field :])))

    @cached_property
    def field_of(self) -> np.ndarray:
        """The number of the field of each value. (values,) int64"""
        numbers = {name: number for number, name in enumerate(self.fields)}
        return np.array([numbers[name_of(word)] for word in self.words[self.first_field :]], np.int64)

    def marker(self) -> FieldMarker | None:
        """What marks the fields of a text; None if the vocabulary has none."""
        if self.first_field == self._size:
            return None
        return FieldMarker(self.fields, frozenset(self._lines.split(b"\n")[self.first_field : -1]))

    def split(self, line: str) -> tuple[list[str], list[str]]:
        """The values of fields before a line, as the vocabulary has them, and the words of the line."""
        marker = self.marker()
        if marker is None:
            return [], split_words(line)
        words = split_words(marker(line.encode(errors="replace")).decode())
        n = next((i for i, word in enumerate(words) if not word.startswith(MARK)), len(words))
        return words[:n], words[n:]

    @property
    def never_a_target(self) -> int:
        """Id of the word that, beside `<S>`, is no target."""
        return UNKNOWN if self.closed else BEGIN

    @cached_property
    def ids(self) -> dict[str, int]:
        return {w: i for i, w in enumerate(self.words)} | dict.fromkeys(ALIASES_OF_UNKNOWN, UNKNOWN)

    def id_of(self, word: str) -> int:
        """The id of a word; that of `<UNK>` for other words."""
        if not isinstance(word, str):
            raise InputError(f"{shown(word)} is no word; expected a string")
        return self.ids.get(word, UNKNOWN)

    def ids_of(self, words: Iterable[str]) -> np.ndarray:
        """The ids of words. (words,) uint32"""
        return np.array([self.id_of(word) for word in _as_words(words)], np.uint32)

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """See `word_table`."""
        return word_table(self._lines.split(b"\n", len(SPECIAL))[-1])

    def drop_table(self) -> None:
        """Give up the memory of `table`, which is made again where it is needed."""
        self.__dict__.pop("table", None)

    @property
    def lines(self) -> bytes:
        """All words, one a line, in UTF-8."""
        return self._lines

    def write(self, path: Path) -> None:
        """Write the words to a file, and the tokenizer, if it has a file, beside it."""
        path.write_bytes(self._lines)
        write_tokenizer(self.tokenizer, path.parent)

    def like(self, words: Iterable[str]) -> Vocabulary:
        """A vocabulary of other words, all but the special ones, that is otherwise the same."""
        return Vocabulary(words, closed=self.closed, document=self.document, tokenizer=self.tokenizer)

    @classmethod
    def of_lines(cls, lines: bytes, closed: bool, document: bool, tokenizer: Tokenizer | None = None) -> Vocabulary:
        """The vocabulary of words, one a line, all but the special ones, that are known to be different."""
        vocabulary = cls([], closed=closed, document=document, tokenizer=tokenizer)
        vocabulary._lines += lines
        vocabulary._size = vocabulary._lines.count(b"\n")
        return vocabulary

    @classmethod
    def read(
        cls, path: Path, words: int, closed: bool, document: bool, tokenizer: Tokenizer | None = None
    ) -> Vocabulary:  # fmt: skip
        """Read a file of `words` words that `write` wrote; a ValueError says what else it is."""
        vocabulary = cls([], closed=closed, document=document, tokenizer=tokenizer)
        special, lines = vocabulary._lines, read_file(path)
        vocabulary._lines, vocabulary._size = lines, lines.count(b"\n")
        if vocabulary._size != words:
            raise ValueError(f"{vocabulary._size:,} words; expected {words:,}")
        if not lines.startswith(special) or not lines.endswith(b"\n"):
            raise ValueError(f"expected {', '.join(SPECIAL)} and then one word a line")
        return vocabulary


def _as_words(words: Iterable[str]) -> Iterable[str]:
    if isinstance(words, str | bytes) or not isinstance(words, Iterable) or getattr(words, "shape", 1) == ():
        raise InputError(f"words is {shown(words)}; expected a list of words")
    return words


def word_table(lines: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
    """A hash table of words, aliases of `<UNK>` and markers: hashes (size,) uint64, ids (size,) uint32.

    `lines`: the words, one a line, whose ids are 3 and up.
    """
    hashes, ids = _empty_table(lines)
    for alias in ALIASES_OF_UNKNOWN:
        text_kernels.insert_words(*_ends(alias.encode() + b"\n"), UNKNOWN, hashes, ids)
    for marker in MARKERS:
        text_kernels.insert_words(*_ends(marker.encode() + b"\n"), text_kernels.LEFT_OUT, hashes, ids)
    text_kernels.insert_words(*_ends(lines), len(SPECIAL), hashes, ids)
    return hashes, ids


def plain_table(lines: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A hash table of words, one a line, whose ids are 0 and up, without aliases and markers."""
    hashes, ids = _empty_table(lines)
    text_kernels.insert_words(*_ends(lines), 0, hashes, ids)
    return hashes, ids


def _empty_table(lines: bytes) -> tuple[np.ndarray, np.ndarray]:
    size = 1 << max(6, (4 * lines.count(b"\n")).bit_length())
    return np.zeros(size, np.uint64), np.full(size, text_kernels.EMPTY, np.uint32)


def _ends(lines: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of lines (uint8), and where each line ends (int64)."""
    data = np.frombuffer(lines, np.uint8)
    return data, np.flatnonzero(data == ord("\n"))
