"""The text of a report: all of a short one, an even sample of a long one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from snm.errors import InputError
from snm.progress import Notify, Progress
from snm.text.encoding import as_lines
from snm.text.files import STDIN, BadLines, Sources, are_files, find_files, names, plain_size, read_blocks

PIECE = 1 << 16  # bytes that are kept or left out together, whole lines


@dataclass
class Sample:
    """Lines of a text."""

    name: str
    data: bytes  # whole lines; each piece that is not beside the one before follows a blank line
    read: int  # bytes of all of the text
    kept: int  # bytes of it in `data`
    bad_lines: int = 0

    @property
    def whole(self) -> bool:
        return self.kept == self.read

    @cached_property
    def lines(self) -> list[bytes]:
        return self.data.split(b"\n")[:-1]

    @cached_property
    def words(self) -> np.ndarray:
        """How many words white space separates in each line. (lines,) int64"""
        return np.array([len(line.split()) for line in self.lines], np.int64)


@dataclass
class _Thinned:
    """Every 2^k-th piece of a text, with the smallest k whose pieces have at most `limit` bytes."""

    limit: int
    pieces: list[bytes] = field(default_factory=list)
    step: int = 1
    number: int = 0
    size: int = 0

    def add(self, piece: bytes) -> None:
        if self.number % self.step == 0:
            self.pieces.append(piece)
            self.size += len(piece)
            while self.size > self.limit and len(self.pieces) > 1:
                self.pieces = self.pieces[::2]
                self.size, self.step = sum(map(len, self.pieces)), 2 * self.step
        self.number += 1


def read_sample(sources: Sources, limit: int, on_error: str, progress: Progress, notify: Notify) -> Sample:
    """Read a text, and keep at most `limit` bytes of it, in pieces that are evenly spread."""
    bad, thinned, read = BadLines(on_error), _Thinned(limit), 0
    with progress("reading", plain_size(sources)) as bar:
        for piece in _pieces(_blocks(sources, bad)):
            thinned.add(piece)
            read += len(piece)
            bar(len(piece))
    bad.report(names(sources), notify)
    data = (b"" if thinned.step == 1 else b"\n").join(thinned.pieces)
    if not data.strip():
        raise InputError(f"{names(sources)}: no words to score; expected one sentence a line")
    return Sample(_title(sources), data, read, thinned.size, bad.count)


def _title(sources: Sources) -> str:
    """The name of a text for readers elsewhere: that of its file, without the folders above."""
    if isinstance(sources, str | Path) and str(sources) != STDIN:
        return Path(sources).name or str(sources)
    return "standard input" if str(sources) == STDIN else names(sources)


def _pieces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of whole lines, cut into pieces of whole lines."""
    for block in blocks:
        start = 0
        while start < len(block):
            end = block.find(b"\n", min(start + PIECE, len(block)) - 1) + 1
            yield block[start:end]
            start = end


def _blocks(sources: Sources, bad: BadLines) -> Iterator[bytes]:
    """Validated UTF-8, whole lines."""
    if are_files(sources):
        yield from read_blocks(find_files(sources), bad, whole=True)
        return
    number, some = 1, list[str]()
    for line in as_lines(sources, None):  # type: ignore[arg-type]
        some.append(line.replace("\n", " ") + "\n")
        if len(some) >= 1024:
            yield bad.check("".join(some).encode(errors="surrogatepass"), "sentences", number)
            number, some = number + len(some), []
    if some:
        yield bad.check("".join(some).encode(errors="surrogatepass"), "sentences", number)
