"""Reading text: files, folders, globs and standard input, decompressed and validated as UTF-8."""

from __future__ import annotations

import bz2
import glob
import gzip
import lzma
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeGuard

from snm.errors import InputError, InputNotFound, MissingExtra

BLOCK = 2 << 20  # bytes read at a time
STDIN = "-"
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One file, folder, glob or `-` for standard input, or a list of them."""
Sources = Files | Iterable[Any]
"""Where text comes from: files, or an iterable of sentences (see `snm.text.encoding.as_lines`)."""
_MAGIC = {b"BZh": "bz2", b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}


def are_files(sources: Sources) -> TypeGuard[Files]:
    """Whether these name files: a string or a path, or a list of those. Iterators and other lists are sentences."""
    if isinstance(sources, str | os.PathLike):
        return True
    return isinstance(sources, list | tuple) and all(isinstance(source, str | os.PathLike) for source in sources)


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
            raise InputError(f"cannot read {_short(source)}: {error.strerror}") from error
        if not source:
            raise InputError("the name of a text is empty; name a file, a folder or a glob, or - for standard input")
        if not found:
            if Path(source).is_dir():
                raise InputError(f"{source}: the folder is empty")
            hint = "; if it is a sentence, give sentences as an iterator" if " " in source else ""
            raise InputNotFound(f"{_short(source)}: no such file, folder or glob{hint}")
        files.extend(found)
    return files


def _files_named(source: str) -> list[str]:
    path = Path(source)
    if source == STDIN or path.is_file() or path.is_fifo() or path.is_char_device():
        return [source]
    if path.is_dir():
        return sorted(
            str(p) for p in path.rglob("*")
            if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts)
        )  # fmt: skip
    return sorted(p for p in glob.glob(source, recursive=True) if Path(p).is_file())


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
    if name == STDIN:
        try:
            handle = sys.stdin.fileno()
        except OSError:  # sys.stdin was replaced by something that is no file
            yield sys.stdin.buffer
            return
        with open(handle, "rb", closefd=False) as own:  # Python aborts at exit if a thread still reads from sys.stdin
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
    """Reads zst frames, and raises an error if the last one is cut short."""

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            raise MissingExtra("zstandard", "zst", "reading zst files") from None
        self.raw, self.make = raw, zstandard.ZstdDecompressor
        self.error: type[Exception] = zstandard.ZstdError
        self.frame: Any = None
        self.left = b""  # bytes of the file read after the end of the last frame

    def read(self, size: int) -> bytes:
        """Read about `size` bytes, at least one; none at the end."""
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


def read_lines(sources: Files) -> Iterator[list[str]]:
    """Validated lines of text, blank ones included, as many at a time as are available."""
    for name in find_files(sources):
        rest = ""
        for block in _file_blocks(name, eager=name == STDIN):
            *lines, rest = (rest + block.decode()).split("\n")
            if lines:
                yield lines
        if rest:
            yield [rest]


def read_blocks(files: Sequence[str], whole_lines: bool = False) -> Iterator[bytes]:
    """Validated UTF-8 text in blocks cut at white space or between lines; a blank line follows each file."""
    for name in files:
        yield from _file_blocks(name, whole_lines=whole_lines)
        yield b"\n\n"


def _file_blocks(name: str, eager: bool = False, whole_lines: bool = False) -> Iterator[bytes]:
    """`eager`: do not wait for a whole block, pass on at once what a pipe contains."""
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
            if data and not cut:  # a word, or a line, longer than a block
                parts.append(data)
                continue
            block = b"".join([*parts, data[:cut]])
            if whole_lines and not data and block:
                block += b"\n"  # the last line of the file lacks one
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


def plain_size(sources: Sources) -> int:
    """Bytes of text to read; 0 for compressed files and standard input, where it is unknown."""
    files = find_files(sources) if are_files(sources) else [STDIN]
    if any(name == STDIN or Path(name).suffix in (".bz2", ".gz", ".xz", ".zst") for name in files):
        return 0
    return sum(Path(name).stat().st_size for name in files)
