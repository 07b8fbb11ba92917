"""Words and their ids: 0 is `<S>`, 1 `</S>`, 2 `<UNK>`, then the words, the most frequent first."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from snm.errors import InputError
from snm.kernels import text as text_kernels
from snm.layouts.tokens import BEGIN, END, SPECIAL, UNKNOWN

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
    """An immutable list of words. In a closed vocabulary `<UNK>` occurs in contexts but is never predicted."""

    begin, end, unknown = BEGIN, END, UNKNOWN

    def __init__(self, words: Iterable[str], closed: bool = False, document: bool = False) -> None:
        """`words`: all but the three special ones, in the order of their ids. `document`: `<S>` opens a document."""
        self._lines = "".join(word + "\n" for word in (*SPECIAL, *words)).encode()
        self.closed, self.document = closed, document
        self._size = self._lines.count(b"\n")

    def __len__(self) -> int:
        return self._size

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words in the order of their ids. Lazy: 250,000 words take a tenth of a second."""
        return tuple(self._lines.decode().split("\n")[:-1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return False
        return (self._lines, self.closed, self.document) == (other._lines, other.closed, other.document)

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def tag(self) -> int:
        """A checksum of the words, 32 bits. States have ids XOR tag: those of another vocabulary are noticed."""
        return zlib.crc32(self._lines)

    @property
    def never_a_target(self) -> int:
        """Id of the word that, beside `<S>`, is no target."""
        return UNKNOWN if self.closed else BEGIN

    @cached_property
    def ids(self) -> dict[str, int]:
        return {w: i for i, w in enumerate(self.words)} | dict.fromkeys(ALIASES_OF_UNKNOWN, UNKNOWN)

    def id_of(self, word: str) -> int:
        return self.ids.get(word, UNKNOWN)

    def ids_of(self, words: Sequence[str]) -> np.ndarray:
        return np.array([self.id_of(word) for word in words], np.uint32)

    @cached_property
    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """See `word_table`."""
        return word_table(self._lines.split(b"\n", len(SPECIAL))[-1])

    def write(self, path: Path) -> None:
        path.write_bytes(self._lines)

    @classmethod
    def read(cls, path: Path, closed: bool, document: bool) -> Vocabulary:
        """Read a file that `write` wrote."""
        vocabulary = cls([], closed, document)
        vocabulary._lines = path.read_bytes()
        vocabulary._size = vocabulary._lines.count(b"\n")
        return vocabulary


def word_table(lines: bytes = b"") -> tuple[np.ndarray, np.ndarray]:
    """A hash table of words, aliases of `<UNK>` and markers: hashes (size,) uint64, ids (size,) uint32.

    `lines`: the words, one a line, whose ids are 3 and up.
    """
    size = 1 << max(6, (4 * lines.count(b"\n")).bit_length())
    hashes, ids = np.zeros(size, np.uint64), np.full(size, 0xFFFFFFFF, np.uint32)
    for alias in ALIASES_OF_UNKNOWN:
        text_kernels.insert_words(*_ends(alias.encode() + b"\n"), UNKNOWN, hashes, ids)
    for marker in MARKERS:
        text_kernels.insert_words(*_ends(marker.encode() + b"\n"), text_kernels.LEFT_OUT, hashes, ids)
    text_kernels.insert_words(*_ends(lines), len(SPECIAL), hashes, ids)
    return hashes, ids


def _ends(lines: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of lines (uint8), and where each line ends (int64)."""
    data = np.frombuffer(lines, np.uint8)
    return data, np.flatnonzero(data == ord("\n"))


def read_word_list(path: Path) -> list[str]:
    """Read a user's vocabulary, one word a line; repeats and special words are dropped."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"cannot read the vocabulary {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"the vocabulary {path} is not UTF-8 (byte {error.start}); convert it first") from error
    words: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        parts = split_words(line)
        if len(parts) > 1:
            raise InputError(
                f"{path}, line {number}: {line.strip()!r} has {len(parts)} words; expected one word a line"
            )
        if parts and parts[0] not in ALIASES_OF_UNKNOWN:
            words.setdefault(parts[0])
    if not words:
        raise InputError(f"the vocabulary {path} holds no words; expected one word a line")
    return list(words)
