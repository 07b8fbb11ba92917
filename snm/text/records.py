"""Records of files: lines of text, lines of JSON with a text in one field, or rows of a Parquet file.

They are read in batches, and a batch gives back the records of a mask as they were in the file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from snm.errors import InputError, MissingExtra, SettingsError
from snm.kernels.lines import copy_lines
from snm.text.files import STDIN, BadLines, line_blocks

FORMATS = ("text", "jsonl", "parquet")
_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
PACKED = (".gz", ".zst")
ROWS, BATCH_BYTES = 1024, 4 << 20  # of Parquet: rows that are read at a time, and bytes that are scored at a time
ROW_GROUP_BYTES = 64 << 20  # of Parquet, written at a time
GZIP_LEVEL, ZST_LEVEL = 4, 2  # half the time of the defaults, 6 and 3, for files that are 4 % larger
_decode_json = json.JSONDecoder().decode  # `json.loads` looks at its arguments first, which takes a third of the time


@dataclass(frozen=True)
class Batch:
    """Some records of a file, one after another."""

    block: bytes  # their text in UTF-8; every line ends with a line feed
    lines: np.ndarray | None  # of each record; None if each has one
    select: Callable[[np.ndarray], Any]  # the records of a mask, as they were: bytes, or a table


def format_of(name: str) -> str:
    """The format that a file's name says: text, if none else."""
    suffixes = Path(name).suffixes
    last = suffixes[-2:-1] if suffixes[-1:] and suffixes[-1] in PACKED else suffixes[-1:]
    return _SUFFIXES.get(last[0], "text") if last else "text"


def read_records(name: str, form: str, field: str, bad: BadLines) -> Iterator[Batch]:
    """The records of a file. `field` of JSON lines and of Parquet has the text."""
    if form == "parquet":
        yield from _rows(name, field)
        return
    number = 1
    for block in _joined(line_blocks(name, bad, eager=False)):
        if form == "text":
            yield Batch(block, None, _Lines(block))
        else:
            lines = block.decode().split("\n")[:-1]
            texts = [_text_of(line, field, name, number + i, bad) for i, line in enumerate(lines)]
            yield Batch(*block_of(texts), _Lines(block))
            number += len(lines)


def _joined(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks, two at a time: long ones are scored faster."""
    for block in blocks:
        yield block + next(blocks, b"")


def block_of(texts: list[str]) -> tuple[bytes, np.ndarray]:
    """Texts of one line or more as a block of lines, and the lines of each."""
    parts = [text.encode(errors="replace") for text in texts]  # one string of them all may have four bytes a character
    return _without_nul(b"\n".join([*parts, b""])), np.array([part.count(b"\n") + 1 for part in parts], np.int64)


def _without_nul(block: bytes) -> bytes:
    return block.replace(b"\0", "\ufffd".encode()) if b"\0" in block else block


class _Lines:
    """Gives back the lines of a mask."""

    def __init__(self, block: bytes) -> None:
        self._block = block

    def __call__(self, mask: np.ndarray) -> bytes:
        out = np.empty(len(self._block), np.uint8)
        kept: bytes = out[: copy_lines(np.frombuffer(self._block, np.uint8), mask, out)].tobytes()
        return kept


def _text_of(line: str, field: str, name: str, number: int, bad: BadLines) -> str:
    """The text of a line of JSON; empty for a blank line, and for a bad one that is left out."""
    if not line or line.isspace():
        return ""
    try:
        text = _decode_json(line)[field]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = None
    if isinstance(text, str):
        return text
    if bad.on_error == "skip-line":
        return ""
    where = "standard input" if name == STDIN else name
    raise InputError(
        f"{where}, line {number}: no JSON object with a string in {field!r}; name the field with --field, or leave out "
        f"such lines with --on-error skip-line"
    )


def _parquet() -> Any:
    try:
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", "reading Parquet files") from None
    return pyarrow


def _rows(name: str, field: str) -> Iterator[Batch]:
    arrow = _parquet()
    try:
        with arrow.parquet.ParquetFile(name) as file:
            _check_field(file.schema_arrow, field, name, arrow)
            for rows in _tables(file.iter_batches(ROWS), arrow):
                yield Batch(*_block_of_column(rows.column(field), arrow), _Rows(rows, arrow))
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"cannot read {name}: {error}") from error


def _tables(batches: Iterator[Any], arrow: Any) -> Iterator[Any]:
    """Tables of some batches each: many rows are scored faster."""
    parts: list[Any] = []
    for batch in batches:
        parts.append(batch)
        if sum(part.nbytes for part in parts) >= BATCH_BYTES:
            yield arrow.Table.from_batches(parts)
            parts = []
    if parts:
        yield arrow.Table.from_batches(parts)


def _block_of_column(column: Any, arrow: Any) -> tuple[bytes, np.ndarray]:
    """The same as `block_of`, without a Python string for each text."""
    texts = column.combine_chunks().fill_null("")
    lines = arrow.compute.count_substring(texts, "\n").to_numpy().astype(np.int64) + 1
    empty, end = (arrow.scalar(part, texts.type) for part in ("", "\n"))
    joined = arrow.compute.binary_join_element_wise(texts, empty, end)
    joined.validate(full=True)  # UTF-8
    return _without_nul(joined.buffers()[2].to_pybytes()), lines


def _check_field(schema: Any, field: str, name: str, arrow: Any) -> None:
    kinds = arrow.types.is_string, arrow.types.is_large_string
    columns = zip(schema.names, schema.types, strict=True)
    texts = [column for column, kind in columns if any(is_kind(kind) for is_kind in kinds)]
    if field not in texts:
        raise InputError(f"{name} has no column {field!r} of strings; name one with --field: {', '.join(texts)}")


class _Rows:
    """Gives back the rows of a mask."""

    def __init__(self, rows: Any, arrow: Any) -> None:
        self._rows, self._arrow = rows, arrow

    def __call__(self, mask: np.ndarray) -> Any:
        return self._rows.filter(self._arrow.array(mask))


# ---------------------------------------------------------------------------------------------
# writing


class RecordWriter(Protocol):
    """Writes what batches select."""

    def pack(self, selected: Any) -> Any:
        """What several threads can do ahead of writing: compress."""

    def write(self, packed: Any) -> None:
        """Write what was packed, in order."""

    def finish(self) -> None:
        """Write what is left."""

    def drop(self) -> None:
        """End after an error: the file is removed."""


def record_writer(stream: IO[bytes], name: str, form: str, source: str) -> RecordWriter:
    """Writes records of this format to a stream, compressed as the name of the file says.

    `source`: the Parquet file that rows come from, whose schema is written.
    """
    if form == "parquet":
        return _RowWriter(stream, source)
    return _LineWriter(stream, Path(name).suffix)


class _LineWriter:
    """Each batch is compressed by itself: the parts of a gz or zst file are decompressed one after another."""

    def __init__(self, stream: IO[bytes], suffix: str) -> None:
        self._stream, self._suffix, self._written = stream, suffix, False
        if suffix == ".zst":
            try:
                import zstandard
            except ImportError:
                raise MissingExtra("zstandard", "zst", "writing zst files") from None
            self._zstandard = zstandard

    def pack(self, selected: bytes) -> bytes:
        return self._compressed(selected) if selected else b""

    def _compressed(self, data: bytes) -> bytes:
        if self._suffix == ".gz":
            return gzip.compress(data, GZIP_LEVEL, mtime=0)  # without the time: the same bytes each time
        if self._suffix == ".zst":
            made: bytes = self._zstandard.ZstdCompressor(ZST_LEVEL).compress(data)
            return made
        return data

    def write(self, packed: bytes) -> None:
        self._stream.write(packed)
        self._written |= bool(packed)

    def finish(self) -> None:
        if not self._written:
            self._stream.write(self._compressed(b""))

    def drop(self) -> None:
        pass


class _RowWriter:
    """Rows are collected until they are a row group."""

    def __init__(self, stream: IO[bytes], source: str) -> None:
        self._arrow = _parquet()
        try:
            schema = self._arrow.parquet.read_schema(source)
        except (self._arrow.ArrowException, OSError) as error:
            raise InputError(f"cannot read {source}: {error}") from error
        self._writer = self._arrow.parquet.ParquetWriter(stream, schema)
        self._rows: list[Any] = []
        self._bytes = 0

    def pack(self, selected: Any) -> Any:
        return selected

    def write(self, packed: Any) -> None:
        self._rows.append(packed)
        self._bytes += packed.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.concat_tables(self._rows))
        self._rows, self._bytes = [], 0

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def drop(self) -> None:
        with suppress(Exception):
            self._writer.close()  # while the stream is open, or Python would try it later


def check_formats(source: str, output: str | None, form: str) -> None:
    """Raise an error where records of a format cannot be read from, or written to, files of these names."""
    if form == "parquet" and STDIN in (source, output):
        raise SettingsError("a Parquet file cannot be read from standard input, or written to standard output; name it")
    if output not in (None, STDIN) and format_of(str(output)) != form and format_of(str(output)) != "text":
        raise SettingsError(f"{output} has records as {source} has them, of the format {form}; name it accordingly")
