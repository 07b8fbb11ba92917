"""Counts on disk: a folder with the rows of C in a compact code, a chunk for each bucket of keys.

`encode` makes chunks from rows, `CountsWriter` appends them to a folder in the order of keys, and `StoredCounts` reads
any range of buckets. Buckets depend on the top bits of keys alone, so stores of several texts with the same vocabulary
and specification can be read side by side. docs/format.md, section 12, specifies the files.
"""

from __future__ import annotations

import hashlib
import json
import operator
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from snm import parallel, system
from snm.arguments import shown
from snm.errors import FormatError
from snm.kernels import count_codes as kernels
from snm.layouts.counts import CHUNK, Counts
from snm.layouts.keys import KeyLayout
from snm.storage import MAX_MANIFEST, NPY_HEADER, ArrayWriter, file_sha256, read_array, read_file, read_fully

FORMAT, VERSION = "snm-counts", 1
DESCRIPTION, CHUNKS, CODES, WORDS = "counts.json", "chunks.npy", "codes.npy", "words.npy"
SEARCHED_ROWS = 1 << 18  # decoded at a time, by each thread, to find the rows of keys
MAX_WORDS = 1 << 32  # of a vocabulary
FREED_BLOCK = 4096  # bytes: of disk that can be freed
PADDING = np.full(kernels.PADDING, 0xFFFFFFFFFFFFFFFF, np.uint64)


class Encoded(NamedTuple):
    """The codes of neighbouring buckets."""

    first: int  # number of the first bucket
    chunks: np.ndarray  # (buckets,) CHUNK
    codes: np.ndarray  # (words,) uint64
    by_type: np.ndarray  # (3, 2 ** type_bits) int64: of each type, its rows, those of features seen once, its links

    @property
    def rows(self) -> int:
        return int(self.chunks["rows"].sum())

    @property
    def links(self) -> int:
        return int(self.chunks["links"].sum())


def encode(counts: Counts, first: int, last: int, layout: KeyLayout) -> Encoded:
    """The codes of the buckets [first, last), which `counts` has all rows of and no others."""
    starts = np.arange(first, last, dtype=np.uint64) << np.uint64(64 - layout.bucket_bits)
    edges = np.append(np.searchsorted(counts.features, starts), len(counts.features))
    chunks = np.zeros(last - first, CHUNK)
    codes = np.zeros(kernels.plan_chunks(counts, edges, layout.bucket_bits, chunks), np.uint64)
    size = kernels.encode_chunks(counts, edges, first, layout.bucket_bits, chunks, codes)
    types = layout.type_of(counts.features)
    n = 1 << layout.type_bits
    by_type = [np.bincount(few, minlength=n) for few in (types, types[counts.feature_counts == 1])]
    by_type.append(np.bincount(types, np.diff(counts.offsets), n))
    return Encoded(first, chunks, codes[:size].copy(), np.array(by_type, np.int64))


def decode(encoded: Encoded, layout: KeyLayout) -> Counts:
    """The rows that were encoded."""
    counts = Counts.empty(encoded.rows, encoded.links)
    codes = np.append(encoded.codes, PADDING)
    kernels.decode_chunks(codes, encoded.chunks, encoded.first, layout.bucket_bits, MAX_WORDS, 0, 0, counts)
    return counts


class CountsWriter:
    """Writes a folder of counts, bucket by bucket."""

    def __init__(self, folder: Path, layout: KeyLayout, first: int = 0) -> None:
        """A new folder, for the buckets from `first` on."""
        self.folder, self.layout, self.first = folder, layout, first
        folder.mkdir()
        self._chunks: list[np.ndarray] = []
        self._next = first
        self._by_type = np.zeros((3, 1 << layout.type_bits), np.int64)
        self._codes = ArrayWriter(folder / CODES, "<u8")

    def append(self, encoded: Encoded) -> None:
        """Buckets behind all that were appended. Those between have no rows."""
        assert encoded.first >= self._next, "buckets come in their order"
        self._chunks += [np.zeros(encoded.first - self._next, CHUNK), encoded.chunks]
        self._next = encoded.first + len(encoded.chunks)
        self._by_type += encoded.by_type
        self._codes.append(encoded.codes)

    def finish(self, words: np.ndarray, last: int | None = None, **more: Any) -> StoredCounts:
        """Write the rest, and return the counts.

        words: how often each word of the vocabulary occurs. (words,) int64. `last`: the end of the range of buckets; by
        default that of all buckets. `more` goes into the description.
        """
        last = 1 << self.layout.bucket_bits if last is None else last
        chunks = np.concatenate([*self._chunks, np.zeros(last - self._next, CHUNK)])
        self.close()
        for name, array in ((CHUNKS, chunks), (WORDS, words.astype("<i8"))):
            with open(self.folder / name, "wb") as file:
                np.lib.format.write_array(file, array, (1, 0), allow_pickle=False)
        description = {
            "format": FORMAT,
            "version": VERSION,
            "layout": vars(self.layout),
            "buckets": [self.first, last],
            "rows": int(chunks["rows"].sum()),
            "links": int(chunks["links"].sum()),
            "rows_by_type": self._by_type[0].tolist(),
            "singles_by_type": self._by_type[1].tolist(),
            "links_by_type": self._by_type[2].tolist(),
            **more,
            "files": {
                CODES: {"bytes": (self.folder / CODES).stat().st_size},
                **{name: {"sha256": file_sha256(self.folder / name)} for name in (CHUNKS, WORDS)},
            },
        }
        (self.folder / DESCRIPTION).write_bytes(f"{json.dumps(description, indent=1)}\n".encode())
        return StoredCounts(self.folder)

    def close(self) -> None:
        self._codes.close()


class StoredCounts:
    """Counts in a folder. No file stays open; what is read is checked."""

    n_words = MAX_WORDS
    """Of the vocabulary, where it is known: no target is above."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._open()
        except OSError as error:
            raise FormatError(f"cannot read the counts in {folder}: {error.strerror}") from error
        except FormatError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise self._damaged(folder / DESCRIPTION, shown(error)) from error

    def _open(self) -> None:
        self.description: dict[str, Any] = json.loads(read_file(self.folder / DESCRIPTION, MAX_MANIFEST))
        d = self.description
        if (d["format"], d["version"]) != (FORMAT, VERSION):
            raise FormatError(
                f"{self.folder} has format {shown(d['format'])} version {shown(d['version'])}; this program reads "
                f"{FORMAT} version {VERSION}; count the text again"
            )
        for name in (CHUNKS, WORDS):
            if hashlib.sha256(read_file(self.folder / name)).hexdigest() != d["files"][name]["sha256"]:
                raise self._damaged(self.folder / name, "its checksum differs from the description's")
        self.layout = KeyLayout(**d["layout"])
        if not self.layout.is_valid:
            raise self._damaged(self.folder / DESCRIPTION, f"the keys are {self.layout}")
        self.first, self.last = map(operator.index, d["buckets"])
        """The range of buckets whose rows are here."""
        self.rows, self.links = int(d["rows"]), int(d["links"])
        """Of all features but the empty one."""
        self.rows_by_type, self.singles_by_type = (
            np.array(d[name], np.int64) for name in ("rows_by_type", "singles_by_type")
        )
        """Rows, and rows of features seen once, by the index of their type. (2 ** type_bits,) int64"""
        given = d.get("links_by_type")  # counts of older versions have none
        self.links_by_type = None if given is None else np.array(given, np.int64)
        """The same of links."""
        self.chunks = read_array(self.folder / CHUNKS, CHUNK)
        """(buckets,) CHUNK"""
        size = (self.folder / CODES).stat().st_size
        self._check_chunks(size)
        self._sum_up()
        if size != NPY_HEADER + 8 * self._codes[-1]:
            raise self._damaged(self.folder / CODES, f"it has {size} bytes")

    def _check_chunks(self, size: int) -> None:
        """Raise an error if the codes, of `size` bytes, cannot be those of the chunks: a row or a link takes a bit."""
        chunks, most = self.chunks, 8 * size
        sums = [chunks[name].sum(dtype=np.float64) for name in ("words", "rows", "links")]
        least = min((int(chunks[name].min(initial=0)) for name in ("words", "rows", "links")), default=0)
        known = (self.rows, self.links) == (chunks["rows"].sum(), chunks["links"].sum())
        types = {len(a) for a in (self.rows_by_type, self.singles_by_type) if a.ndim == 1}
        fits = 0 <= self.first <= self.last <= 1 << self.layout.bucket_bits and len(chunks) == self.last - self.first
        if least < 0 or max(sums) > most or not known or not fits or types != {1 << self.layout.type_bits}:
            raise self._damaged(self.folder / CHUNKS, "its figures contradict each other")

    def _sum_up(self) -> None:
        """Find the words of code, rows and links before each bucket. (buckets + 1,) int64"""
        edges = [np.concatenate([[0], np.cumsum(self.chunks[name])]) for name in ("words", "rows", "links")]
        self._codes, self._rows, self._links = edges

    def _damaged(self, path: Path, why: str) -> FormatError:
        return FormatError(f"{path} is damaged ({why}); count the text again")

    @property
    def words(self) -> np.ndarray:
        """How often each word of the vocabulary occurs, `<S>` once in each segment. (words,) int64"""
        return read_array(self.folder / WORDS, np.dtype(np.int64))

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def decode(self, first: int, last: int, threads: int = 1) -> Counts:
        """The rows of the buckets [first, last)."""
        first, last = (min(max(bucket, self.first), self.last) - self.first for bucket in (first, max(first, last)))
        begin, end = int(self._codes[first]), int(self._codes[last])
        codes = np.append(np.empty(end - begin, np.uint64), PADDING)
        self._read_codes(begin, codes[: end - begin])
        row, link = self._rows[first], self._links[first]
        counts = Counts.empty(int(self._rows[last] - row), int(self._links[last] - link))
        counts.offsets[-1] = 0

        def work(buckets: tuple[int, int]) -> None:
            a, b = buckets
            damaged = kernels.decode_chunks(
                codes[self._codes[a] - begin :], self.chunks[a:b], self.first + a, self.layout.bucket_bits,
                self.n_words, self._rows[a] - row, self._links[a] - link, counts,
            )  # fmt: skip
            if damaged >= 0:
                raise self._damaged(self.folder / CODES, f"bucket {self.first + a + damaged} has another checksum")

        parallel.run(work, self._even(first, last, threads), threads)
        return counts

    def _read_codes(self, begin: int, codes: np.ndarray) -> None:
        """Read codes from word `begin` on. codes: uint64"""
        with open(self.folder / CODES, "rb", buffering=0) as file:
            read_fully(file, codes, NPY_HEADER + 8 * begin)

    def _even(self, first: int, last: int, n: int) -> list[tuple[int, int]]:
        """About n ranges of buckets, by their place in `chunks`, with nearly equal numbers of links."""
        wanted = np.linspace(self._links[first], self._links[last], n + 1)[1:-1]
        edges = np.clip(np.searchsorted(self._links, wanted), first, last)
        return parallel.between([first, *edges.tolist(), last])

    def parts(self, rows: int, bits: int | None = None, threads: int = 1, free: bool = False) -> Iterator[Counts]:
        """All rows in the order of keys: about `rows` at a time, at least a bucket; no part is empty.

        Keys with the same top `bits` come together. With `free`, the disk of what was read is given back where the
        system can: the counts cannot be read again.
        """
        step = 1 if bits is None else 1 << max(0, self.layout.bucket_bits - bits)
        edges = [0]
        for bucket in range(step, len(self.chunks), step):
            if self._rows[min(bucket + step, len(self.chunks))] - self._rows[edges[-1]] > rows:
                edges.append(bucket)
        for a, b in parallel.between([*edges, len(self.chunks)]):
            if self._rows[a] < self._rows[b]:
                yield self.decode(self.first + a, self.first + b, threads)
                if free:
                    self._free(int(self._codes[a]), int(self._codes[b]))

    def _free(self, begin: int, end: int) -> None:
        """Give the disk of words of codes back."""
        start, stop = ((NPY_HEADER + 8 * at) // FREED_BLOCK * FREED_BLOCK for at in (begin, end))
        if start < stop:
            with open(self.folder / CODES, "r+b", buffering=0) as file:
                system.punch_hole(file, start, stop - start)

    def rows_between(self, row: int, end: int) -> Counts:
        """The rows [row, end), counted from 0 in the order of keys."""
        first = int(np.searchsorted(self._rows, row, "right")) - 1
        last = int(np.searchsorted(self._rows, end))
        before = int(self._rows[first])
        return self.decode(self.first + first, self.first + last).between(row - before, end - before)

    def rows_for(self, keys: np.ndarray, threads: int = 1) -> Counts:
        """The rows of those features that have one. Each bucket with such a feature is decoded once.

        keys: sorted, without repeats. (n,) uint64
        """
        buckets = (keys >> np.uint64(64 - self.layout.bucket_bits)).astype(np.int64)
        n = max(1, -(-self.rows // SEARCHED_ROWS))

        def work(part: tuple[int, int]) -> Counts:
            a, b = (self.first + bucket for bucket in part)
            wanted = keys[np.searchsorted(buckets, a) : np.searchsorted(buckets, b)]
            if not len(wanted):
                return self.decode(0, 0)
            counts = self.decode(a, b)
            places = np.searchsorted(counts.features, wanted)
            places = places[places < len(counts.features)]
            return counts.select(places[counts.features[places] == wanted[: len(places)]])

        return Counts.joined(list(parallel.ordered(work, self._even(0, len(self.chunks), n), threads)))

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder)
