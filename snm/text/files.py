"""Reading text: files, folders, globs, URLs and standard input, decompressed and validated as UTF-8.

Memory does not depend on the input: words have a largest length, and so has a line where it is needed as a whole.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeGuard

from snm.arguments import choice
from snm.errors import InputError, InputNotFound, MissingExtra
from snm.progress import Notify
from snm.remote import files_at, is_url, open_url, size_at

BLOCK = 2 << 20  # bytes read at a time
MAX_WORD = 1 << 20  # bytes
MAX_LINE = 16 << 20  # bytes of a line that is needed as a whole
PACKED_BLOCK = 2 << 10  # bytes decompressed at a time; of zst, they may become 64 MB
MAX_XZ_BYTES = 256 << 20  # memory that decompressing an xz file may take: its header asks for up to 4 GB
ON_ERROR = ("fail", "replace", "skip-line")
"""What can be done with lines that are not UTF-8, or have a NUL byte."""
STDIN = "-"
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One file, folder, glob, URL or `-` for standard input, or a list of them."""
Sources = Files | Iterable[Any]
"""Where text comes from: files, or an iterable of sentences (see `snm.text.encoding.as_lines`)."""
_MAGIC = {b"BZh": "bz2", b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
UNREADABLE = OSError, EOFError, lzma.LZMAError, zlib.error  # what reading a damaged or compressed file raises
NEWLINE = b"\n"
_WHITE_SPACE = re.compile(rb"[ \t-\r]")
_KENLM = b"mmap lm http://kheafield.com/code"


def are_files(sources: Sources) -> TypeGuard[Files]:
    """Whether these name files: a string or a path, or a list of those. Iterators and other lists are sentences."""
    if isinstance(sources, str | os.PathLike):
        return True
    return isinstance(sources, list | tuple) and all(isinstance(source, str | os.PathLike) for source in sources)


def are_given(sources: Sources | None) -> TypeGuard[Sources]:
    """Whether there are any sources: not None, and no empty list, tuple or string."""
    return sources is not None and not (isinstance(sources, str | list | tuple) and not sources)


def find_files(sources: Files) -> list[str]:
    """The files that `sources` name. A folder stands for all files below it that are not hidden, sorted."""
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    if not sources:
        raise InputError("no text given; name files, folders or globs, or - for standard input")
    files: list[str] = []
    for named in sources:
        source = os.fspath(named)
        try:
            found = _files_named(source)
        except OSError as error:  # such as a name that is too long
            raise InputError(f"cannot read {_short(error.filename or source)}: {error.strerror}") from error
        if not source:
            raise InputError("the name of a text is empty; name a file, a folder or a glob, or - for standard input")
        if not found:
            if Path(source).is_dir():
                raise InputError(f"{source}: the folder is empty")
            hint = "; if it is a sentence, give sentences as an iterator" if " " in source else ""
            raise InputNotFound(f"{_short(source)}: no such file, folder or glob{hint}")
        files.extend(found)
    return files


def is_text(source: str) -> bool:
    """Whether there is a file, a folder or a glob of this name."""
    try:
        return bool(source) and bool(_files_named(source) or Path(source).exists())
    except (OSError, ValueError):  # such as a name that is too long
        return False


def is_read_once(source: str | os.PathLike[str]) -> bool:
    """Whether a file has its text only once: standard input, a pipe or a device."""
    name = os.fspath(source)
    return name == STDIN or (not is_url(name) and (Path(name).is_fifo() or Path(name).is_char_device()))


def check_read_twice(sources: Sources, why: str) -> None:
    """Raise an error if a file that is needed more than once can be read only once. `why`: for the message."""
    for name in find_files(sources) if are_files(sources) else []:
        if is_read_once(name):
            raise InputError(f"{name} can be read only once; {why}: give files")


def _files_named(source: str) -> list[str]:
    if is_url(source):
        return files_at(source)
    path = Path(source)
    if source == STDIN or path.is_file() or path.is_fifo() or path.is_char_device():
        return [source]
    if path.is_dir():
        return sorted(_files_below(path))
    return sorted(p for p in glob.glob(source, recursive=True) if Path(p).is_file())


def _files_below(folder: Path) -> Iterator[str]:
    """Files that are not hidden. A folder that cannot be read is an error, not an empty one."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path))
            elif entry.is_file():
                yield entry.path


def names(sources: Sources) -> str:
    """The sources, for a message."""
    if not are_files(sources):
        return "the sentences given"
    return _short(str(sources) if isinstance(sources, str | os.PathLike) else ", ".join(map(str, sources)))


def _short(text: str, most: int = 200) -> str:
    """Text for a message, cut where it is long."""
    return text if len(text) <= most else f"{text[:most]} ..."


@contextmanager
def open_text(name: str) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes. Its first bytes say whether and how it is compressed."""
    with _open_file(name) as raw, _unpacked(raw, name) as stream:
        yield stream


@contextmanager
def _unpacked(raw: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """What an open file has, decompressed."""
    try:
        head = raw.peek(6) if hasattr(raw, "peek") else b""
    except OSError as error:
        raise InputError(f"cannot read {_short(name)}: {error.strerror}") from error
    if head.startswith(_KENLM):
        raise InputError(
            f"{name} is a KenLM binary, which cannot be turned back into n-grams; give the ARPA file that it was "
            f"built from, to snm import or in place of a model"
        )
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if kind is None:
        yield raw
    elif kind == "gz":
        with gzip.open(raw) as unpacked:
            yield unpacked  # type: ignore[misc]
    else:
        with io.BufferedReader(_Unpacked(raw, kind)) as stream:
            yield stream


def _open_file(name: str) -> AbstractContextManager[IO[bytes]]:
    if is_url(name):
        return open_url(name)
    if name != STDIN:
        try:
            return open(name, "rb")
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise InputError(f"cannot read {_short(name)}: {getattr(error, 'strerror', error)}") from error
    if sys.stdin is None:
        raise InputError("standard input is closed; name a file, or pipe text into the program")
    try:
        handle = sys.stdin.fileno()
    except OSError:  # sys.stdin was replaced by something that is no file
        return nullcontext(sys.stdin.buffer)
    return open(handle, "rb", closefd=False)  # Python aborts at exit if a thread still reads from sys.stdin


def read_bytes(name: str, most: int = -1) -> bytes:
    """The beginning of a file, decompressed: at most `most` bytes, or all."""
    parts = []
    with open_text(name) as stream:
        try:
            while most and (part := stream.read(BLOCK if most < 0 else most)):
                parts.append(part)
                most -= len(part) if most > 0 else 0
        except UNREADABLE as error:
            raise InputError(f"cannot read {name}: {error}") from error
    return b"".join(parts)


def read_head(name: str) -> bytes:
    """The first bytes of a file, as they are."""
    with _open_file(name) as raw:
        return raw.read(6)


def read_beginning(name: str, most: int) -> tuple[bytes, float]:
    """At most `most` bytes of a file, decompressed; and about how many bytes all of it has, decompressed."""
    with _open_file(name) as raw, _unpacked(raw, name) as stream:
        try:
            data = stream.read(most)
            if not stream.read(1):
                return data, len(data)
            return data, len(data) * Path(name).stat().st_size / raw.tell()
        except UNREADABLE as error:
            raise InputError(f"cannot read {_short(name)}: {error}") from error


class _Unpacked(io.RawIOBase):
    """Decompresses the bz2, xz or zst streams of a file, one after another.

    Raises an error if the last one is cut short, or something else follows. Python's own readers of bz2 and xz ignore
    what follows.
    """

    def __init__(self, raw: IO[bytes], kind: str) -> None:
        self._raw, self._kind = raw, kind
        self._make, self._error = _decompressor(kind)
        self._limit = () if kind == "zst" else (BLOCK,)  # bytes to make at a time: 242 of bz2 may become 300 MB
        self._stream: Any = None
        self._packed = b""  # read and not yet decompressed
        self._ready = memoryview(b"")  # decompressed and not yet passed on

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            more = self._stream is not None and self._limit and not self._stream.needs_input
            packed = b"" if more else self._packed or self._raw.read(PACKED_BLOCK)
            if not packed and not more:
                if self._stream is not None:
                    raise EOFError(f"the {self._kind} file ends in the middle of its data")
                return 0
            if self._stream is None:
                packed, self._packed = packed.lstrip(b"\0"), b""  # streams may be padded
                if not packed:
                    continue
                self._stream = self._make()
            try:
                self._ready = memoryview(self._stream.decompress(packed, *self._limit))
            except self._error as error:
                raise OSError(str(error)) from error
            self._packed = self._stream.unused_data
            if self._stream.eof:
                self._stream = None
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def _decompressor(kind: str) -> tuple[Callable[[], Any], type[Exception]]:
    """What makes the decompressor of one stream, and the error that it raises."""
    if kind == "bz2":
        return bz2.BZ2Decompressor, OSError
    if kind == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_XZ_BYTES), lzma.LZMAError
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("zstandard", "zst", "reading zst files") from None
    return lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError


@dataclass
class BadLines:
    """Lines that are not UTF-8, or have a NUL byte: what is done with them, and how many there were."""

    on_error: str = "fail"
    count: int = 0
    advice: str = (
        "leave out such lines with --on-error skip-line, or replace the bytes with --on-error replace (in Python "
        "on_error=...); if all of the text is in another encoding, convert it, for instance with: "
        "iconv -f latin1 -t utf-8"
    )
    _last: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        choice("on_error", self.on_error, ON_ERROR)

    def check(self, block: bytes, where: str, number: int, blank: bool = False) -> bytes:
        """The block, repaired where it must be. Its first line has this number.

        `blank`: a line that is left out becomes a blank one.
        """
        at = block.find(b"\0")
        if at < 0:
            try:
                block.decode()
                return block
            except UnicodeDecodeError as error:
                at = error.start
        if self.on_error == "fail":
            what = f"invalid UTF-8 (byte 0x{block[at]:02x})" if block[at] else "a NUL byte"
            raise InputError(f"{where}, line {number + block.count(NEWLINE, 0, at)}: {what}; {self.advice}")
        lines: list[bytes] = []
        for line in block.split(NEWLINE):
            mended = line.decode(errors="replace").replace("\0", "\ufffd").encode()
            if mended != line:
                self.count += self._last != (where, number)
                self._last = where, number
            number += 1
            if mended == line or self.on_error == "replace":
                lines.append(mended)
            elif blank:
                lines.append(b"")
        return NEWLINE.join(lines)

    def report(self, where: str, notify: Notify) -> None:
        """Say how many there were, if any."""
        if self.count:
            lines = "1 line" if self.count == 1 else f"{self.count:,} lines"
            done = "left out" if self.on_error == "skip-line" else "they were replaced by U+FFFD"
            notify(f"{where}: {lines} with bytes that are not UTF-8, or NUL: {done}")


def read_lines(sources: Files, bad: BadLines | None = None) -> Iterator[list[str]]:
    """Validated lines of text, blank ones included, as many at a time as are available.

    A line that is left out is a blank one here, so that results can be matched with lines.
    """
    for name in find_files(sources):
        yield from file_lines(name, bad or BadLines())


def file_lines(name: str, bad: BadLines) -> Iterator[list[str]]:
    """See `read_lines`."""
    for block in line_blocks(name, bad):
        yield block.decode().split("\n")[:-1]


def numbered_lines(path: str | os.PathLike[str], expected: str) -> Iterator[tuple[int, str]]:
    """The lines of a small file of UTF-8, blank ones included, and their numbers. `expected`: for messages."""
    number = 0
    for lines in file_lines(os.fspath(path), BadLines(advice=f"expected {expected}")):
        for line in lines:
            number += 1
            yield number, line.removesuffix("\r")


def line_blocks(name: str, bad: BadLines, eager: bool = True) -> Generator[bytes, None, None]:
    """The same as validated UTF-8, whole lines. `eager`: what standard input has is passed on at once."""
    yield from _file_blocks(name, bad, whole=True, blank=True, eager=eager and name == STDIN)


def read_blocks(files: Sequence[str], bad: BadLines, whole: bool = False) -> Iterator[bytes]:
    """Validated UTF-8 text in blocks, see `_file_blocks`; a blank line follows each file. `whole`: of whole lines."""
    for name in files:
        yield from _file_blocks(name, bad, whole=whole or bad.on_error == "skip-line")
        yield NEWLINE


def _file_blocks(
    name: str, bad: BadLines, whole: bool = False, blank: bool = False, eager: bool = False
) -> Iterator[bytes]:
    """Validated text in blocks of whole lines, or of a part of one line that is longer than a block.

    A part is cut after white space; the last part ends with the line. `whole`: lines are not cut. `blank`: see
    `BadLines.check`. `eager`: do not wait for a whole block, pass on at once what a pipe contains.
    """
    where = "standard input" if name == STDIN else name
    number, parts, size, inside = 1, [b""], 0, False
    with open_text(name) as stream:
        read = stream.read1 if eager else stream.read  # type: ignore[attr-defined]
        first = True
        while True:
            try:
                data = read(BLOCK)
            except UNREADABLE as error:
                raise InputError(f"cannot read {where} past line {number}: {error}") from error
            if first:
                data, first = _without_mark(data, where), False
            parts.append(data)
            size += len(data)
            if data and NEWLINE not in data and size < (MAX_LINE if whole else BLOCK):
                continue
            text = b"".join(parts)
            if not data and (text or inside):
                text += NEWLINE  # the last line of the file lacks one
            start = 0
            for end in _cuts(text, inside, whole):
                block = text[start:end]
                _check_words(block, where, number)
                checked = bad.check(block, where, number, blank)
                if checked:
                    yield checked
                number += block.count(NEWLINE)
                start, inside = end, not block.endswith(NEWLINE)
            if not data:
                return
            if not start and len(text) > (MAX_LINE if whole else MAX_WORD):
                raise _too_long(where, number, whole)
            parts, size = [text[start:]], len(text) - start


def _without_mark(data: bytes, where: str) -> bytes:
    """The beginning of a file without its byte order mark."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{where} is UTF-16; expected UTF-8: convert it, with: iconv -f utf-16 -t utf-8")
    return data.removeprefix(b"\xef\xbb\xbf")


def _cuts(text: bytes, inside: bool, whole: bool) -> list[int]:
    """Where blocks end. `inside`: the text begins inside of a line. `whole`: lines are not cut."""
    last = text.rfind(NEWLINE) + 1
    if last and inside:
        return sorted({text.find(NEWLINE) + 1, last})
    if not last and not whole:
        last = max(map(text.rfind, (b" ", b"\t", b"\r", b"\v", b"\f"))) + 1
    return [last] if last else []


def _check_words(block: bytes, where: str, number: int) -> None:
    """Raise an error if a word is longer than MAX_WORD: then it has one of these ranges."""
    half = max(1, MAX_WORD // 2)
    for start in range(0, len(block) - half, half):
        if not _WHITE_SPACE.search(block, start, start + half):
            longest = max(block.split(), key=len)
            if len(longest) > MAX_WORD:
                raise _too_long(where, number + block.count(NEWLINE, 0, block.find(longest)), whole=False)
            return


def _too_long(where: str, number: int, whole: bool) -> InputError:
    what, most, hint = ("line", MAX_LINE, "shorter lines") if whole else ("word", MAX_WORD, "words with spaces between")
    return InputError(
        f"{where}, line {number}: a {what} of more than {most:,} bytes; expected text, {hint} (is it binary?)"
    )


def is_packed(name: str) -> bool:
    """Whether a file is compressed, by its first bytes."""
    return read_head(name).startswith(tuple(_MAGIC))


def plain_size(sources: Sources) -> int:
    """Bytes of text to read; 0 for compressed files and standard input, where it is unknown."""
    files = find_files(sources) if are_files(sources) else [STDIN]
    if any(name == STDIN or Path(name).suffix in (".bz2", ".gz", ".xz", ".zst") for name in files):
        return 0
    return sum(size_at(name) if is_url(name) else Path(name).stat().st_size for name in files)
