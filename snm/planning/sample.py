"""A sample of a text: pieces from all of it, ordered such that its first half, quarter and eighth are spread evenly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from snm.errors import InputError
from snm.settings import Settings, given_vocabulary
from snm.text.encoding import Text, encode_files, read_corpus
from snm.text.files import NEWLINE, Files, check_read_twice, find_files, is_packed, names, read_beginning
from snm.text.vocabulary import Vocabulary

PIECES = 64  # of the sample: a power of two


@dataclass(frozen=True)
class Sample:
    """Pieces of a text, in an order in which the first 2^k are spread evenly."""

    folder: Path
    pieces: list[bytes]
    text: Text
    vocabulary: Vocabulary
    text_bytes: float  # of the whole text
    whole: bool  # the sample is the whole text

    @property
    def bytes(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def ratio(self) -> float:
        """How many times as large the whole text is."""
        return 1.0 if self.whole else max(1.0, self.text_bytes / max(1, self.bytes))

    def file(self, name: str, size: float) -> Path:
        """A file with pieces from the first on, at least `size` bytes if there are as many."""
        path, written = self.folder / name, 0
        with open(path, "wb") as file:
            for piece in self.pieces:
                if written < size:
                    file.write(piece + NEWLINE)  # a blank line: documents do not go on in another piece
                    written += len(piece)
        return path


def seekable_files(sources: Files) -> list[str]:
    """The files that `sources` name, if they can be read more than once."""
    files = find_files(sources)
    check_read_twice(files, "a plan reads parts of a text several times")
    return files


def take_sample(files: list[str], folder: Path, most: int, settings: Settings) -> Sample:
    """Read about `most` bytes of text and encode them."""
    sizes = [Path(name).stat().st_size for name in files]
    share, pieces, total = most / max(1, sum(sizes)), list[bytes](), 0.0
    for name, size in zip(files, sizes, strict=True):
        n = max(1, min(PIECES, round(PIECES * size / max(1, sum(sizes)))))
        found, plain = (_packed_pieces if is_packed(name) else _plain_pieces)(name, size, share, n)
        pieces += found
        total += plain
    whole = sum(map(len, pieces)) >= total
    sample = Sample(folder, _spread(pieces), Text(np.empty(0, np.uint32), 0), Vocabulary([]), max(1.0, total), whole)
    path = sample.file("sample", total)
    try:
        text, vocabulary = _encode(path, sample.ratio, settings)
    except InputError as error:
        raise InputError(f"in a sample of {names(files)}: {str(error).removeprefix(f'{path}, ')}") from error
    if not text.events:
        raise InputError(f"{names(files)}: no words; expected one sentence a line")
    return replace(sample, text=text, vocabulary=vocabulary)


def _encode(path: Path, ratio: float, s: Settings) -> tuple[Text, Vocabulary]:
    vocabulary = given_vocabulary(s)
    if vocabulary is not None:
        return encode_files([path], vocabulary, on_error=s.on_error), vocabulary
    min_count = max(1, round(s.min_count / ratio))  # a word is less frequent in the sample than in the text
    return read_corpus(
        [path], min_count, s.max_words, s.closed, documents=s.document, threads=s.threads, on_error=s.on_error,
        fields=s.fields, tokenizer=s.text_tokenizer,
    )  # fmt: skip


def _plain_pieces(name: str, size: int, share: float, n: int) -> tuple[list[bytes], float]:
    """n pieces of whole lines, from all of a file; and its size. Lines longer than a piece are cut between words."""
    if share >= 1:
        return _cut(Path(name).read_bytes(), n), size
    length, pieces = max(1, int(size * share / n)), []
    with open(name, "rb") as file:
        for start in np.linspace(0, size - length, n).astype(int).tolist():
            file.seek(max(0, start - 1))
            rest = file.readline(length) if start else NEWLINE  # of a line that begins before the piece
            piece = file.read(length) + file.readline(length)
            if not rest.endswith(NEWLINE):
                piece = piece[piece.find(b" ") + 1 :]
            if not piece.endswith(NEWLINE) and file.tell() < size:
                piece = piece[: piece.rfind(b" ") + 1]
            pieces.append(piece)
    return pieces, size


def _packed_pieces(name: str, size: int, share: float, n: int) -> tuple[list[bytes], float]:
    """n pieces of the beginning of a compressed file, and about its size when it is decompressed."""
    data, plain = read_beginning(name, max(1 << 16, int(size * share)))
    return _cut(data[: data.rfind(NEWLINE) + 1] if len(data) < plain else data, n), plain


def _cut(data: bytes, n: int) -> list[bytes]:
    """About n pieces of whole lines."""
    edges = [0]
    for i in range(1, n):
        edges.append(max(edges[-1], data.find(NEWLINE, len(data) * i // n) + 1))
    return [data[a:b] for a, b in zip(edges, [*edges[1:], len(data)], strict=True) if a < b]


def _spread(pieces: list[bytes]) -> list[bytes]:
    """The same text in at most PIECES pieces: the first half of them has every second one, and so on."""
    groups = [b"".join(pieces[len(pieces) * i // PIECES : len(pieces) * (i + 1) // PIECES]) for i in range(PIECES)]
    bits = PIECES.bit_length() - 1
    spread = [groups[int(f"{i:0{bits}b}"[::-1], 2)] for i in range(PIECES)]
    return [piece for piece in spread if piece]
