"""Building M: weights are computed from the counts, coded, and written as pages and long rows. See docs/format.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from snm import parallel
from snm.adjustment.function import AdjustmentFunction
from snm.counts.store import StoredCounts
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.kernels import matrix_writing as matrix_writing_kernels
from snm.layouts.counts import Counts
from snm.layouts.matrix import INLINE, MAX_ROWS, PADDING, Spread, count_codes, page_bits
from snm.progress import Advance
from snm.storage import LARGE_CHUNK_BYTES, ModelWriter

SAMPLED_ROWS, SAMPLES = 1 << 19, 64  # of more rows, the values of codes are chosen from 64 samples
PAGES_PER_BATCH = 1 << 20  # in computing starts


class PageWriter:
    """Writes pages and long rows, and where each page begins."""

    def __init__(self, writer: ModelWriter, words: int) -> None:
        self.writer, self.words = writer, words

    def begin(self, rows: int, code_bytes: int) -> int:
        """Make the arrays for a matrix of so many rows; return the logarithm of its number of pages."""
        bits = page_bits(rows)
        self.shift, self.code_bytes = np.uint64(64 - bits), code_bytes
        self.spread = Spread.over(self.words, code_bytes)
        self.writer.array("data", "|u1", LARGE_CHUNK_BYTES)
        self.writer.array("long_links", self.spread.link_type, LARGE_CHUNK_BYTES)
        self.writer.array("sizes", "<u4")
        self.n_pages = self.n_bytes = self.n_long = self.shadowed = 0
        return bits

    def finish(self, bits: int) -> None:
        """Write what follows the last page, and where the pages begin."""
        self.writer.append("data", np.zeros(PADDING, np.uint8))
        self._write_starts(1 << bits)

    def append(
        self, first: int, sizes: np.ndarray, data: np.ndarray, long_links: np.ndarray, most_rows: int, max_offset: int,
        shadowed: int,
    ) -> None:  # fmt: skip
        """Append pages from page `first` on. The rest is as `write_pages` returns it."""
        if most_rows > MAX_ROWS or max_offset >= INLINE:
            raise SettingsError(
                f"a page of the model has {most_rows} features and {max_offset:,} bytes; expected at most {MAX_ROWS} "
                f"and {INLINE - 1:,}: the keys are not spread evenly; choose other features"
            )
        self._append_sizes(first, sizes)
        self.n_bytes += len(data)
        self.shadowed += shadowed
        self.n_long += len(long_links)
        self.writer.append("data", data)
        self.writer.append("long_links", long_links)

    def _append_sizes(self, first: int, sizes: np.ndarray) -> None:
        """Append the sizes of pages from page `first` on. Pages between these and the last ones written are empty."""
        self.writer.append("sizes", np.zeros(first - self.n_pages, np.uint32))
        self.writer.append("sizes", sizes)
        self.n_pages = first + len(sizes)

    def _write_starts(self, pages: int) -> None:
        """Write where each page begins, from the sizes on disk, which are dropped."""
        self._append_sizes(pages, np.empty(0, np.int64))
        starts = self.writer.array("starts", "<u4" if self.n_bytes < 1 << 32 else "<u8", LARGE_CHUNK_BYTES)
        end = 0
        starts.append(np.array([end]))
        for page in range(0, pages, PAGES_PER_BATCH):
            ends = end + np.cumsum(self.writer.read("sizes", page, min(page + PAGES_PER_BATCH, pages)), dtype=np.int64)
            starts.append(ends)
            end = int(ends[-1])
        self.writer.drop("sizes")


class MatrixWriter(PageWriter):
    """Writes M from the counts of a model that is being written."""

    def __init__(
        self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction, threads: int,
        rows_per_part: int = 1 << 21,
    ) -> None:  # fmt: skip
        """`rows_per_part`: rows that are in memory at once."""
        super().__init__(writer, len(extractor.vocabulary))
        self.extractor, self.adjustment, self.threads = extractor, adjustment, threads
        self.rows_per_part = rows_per_part
        self.singles = adjustment.singles()

    def write(self, unigrams: Counts, counts: StoredCounts, code_bytes: int, advance: Advance) -> dict[str, Any]:
        """Write all arrays of M; return its entry of the manifest. The disk of the counts is given back meanwhile.

        unigrams: the row of the empty feature. counts: all others.
        """
        rows = 1 + counts.rows
        weights, _ = self.adjustment.weigh(unigrams)
        dense = np.zeros(len(self.extractor.vocabulary), np.float32)
        dense[unigrams.targets] = weights
        types = np.flatnonzero(counts.singles_by_type) if len(self.singles) else np.zeros(0, np.int64)
        bits = self.begin(rows, code_bytes)
        self._set_values(self._choose_values(counts, types))
        self._add_all(counts, bits, advance)
        self.finish(bits)
        self.writer.array("singles", f"<u{code_bytes}")
        for type_index in types:
            self.writer.append("singles", self._code(self.singles[type_index]))
        self.writer.array("values", "<f4").append(self.values)
        self.writer.array("unigrams", "<f4").append(dense)
        return {
            "bits": bits,
            "code_bytes": code_bytes,
            "single_types": types.tolist(),
            "unigram_code": int(count_codes(unigrams.feature_counts)[0]),
            "shadowed": self.shadowed,
        }

    def _choose_values(self, counts: StoredCounts, single_types: np.ndarray) -> np.ndarray:
        """The weight of each code: every weight itself if there are few, else a geometric series. (codes,) float32"""
        sampled, size = counts.rows >= SAMPLED_ROWS, SAMPLED_ROWS // SAMPLES
        firsts = np.linspace(1, 1 + counts.rows - size, SAMPLES).astype(np.int64) - 1 if sampled else np.zeros(1, int)
        parts = [counts.rows_between(row, row + size if sampled else counts.rows) for row in firsts.tolist()]
        weights_of_parts = [self.adjustment.weigh(part, self.threads, self.singles)[0] for part in parts]
        codes, few, weights = 1 << (8 * self.code_bytes), not sampled, np.empty(0, np.float32)
        for more in (*weights_of_parts, *(self.singles[type_index] for type_index in single_types)):
            weights = np.unique(np.append(weights, more))
            check_finite(weights)
            few &= len(weights) <= codes
            if not few and len(weights):
                weights = weights[[0, -1]]
        if not len(weights):
            return np.ones(codes, np.float32)
        if few:
            return np.append(weights, np.full(codes - len(weights), weights[-1])).astype(np.float32)
        return np.geomspace(weights[0], weights[-1], codes).astype(np.float32)

    def _set_values(self, values: np.ndarray) -> None:
        self.values = values
        self.middles = np.sqrt(values[1:].astype(np.float64) * values[:-1]).astype(np.float32)

    def _code(self, weights: np.ndarray) -> np.ndarray:
        """The codes of weights: of the nearest values, by their ratio."""
        return np.searchsorted(self.middles, weights).astype(f"<u{self.code_bytes}")

    def _add_all(self, counts: StoredCounts, bits: int, advance: Advance) -> None:
        """Write the pages of all rows. A page has the rows whose keys have the same top `bits`."""
        for part in counts.parts(self.rows_per_part, bits, self.threads, free=True):
            self._add(part, advance)

    def _add(self, part: Counts, advance: Advance) -> None:
        """Write the pages of the rows of a part."""
        link_codes = np.empty(len(part.targets), f"<u{self.code_bytes}")
        row_codes = np.empty(len(part.features), np.uint8)
        page_of_row = (part.features >> self.shift).astype(np.int64)
        first_page = int(page_of_row[0])
        sizes = np.zeros(int(page_of_row[-1]) + 1 - first_page, np.int64)
        wanted = np.linspace(0, len(page_of_row), 4 * self.threads + 1)[1:-1].astype(np.int64)
        edges = np.searchsorted(page_of_row, page_of_row[wanted]).tolist()
        ranges = parallel.between([0, *edges, len(page_of_row)])
        singles, code_bytes = len(self.singles) > 0, np.int64(self.code_bytes)

        def measure(rows: tuple[int, int]) -> tuple[int, int]:
            weights, sums = self.adjustment.weigh(part.between(*rows), 1, self.singles)
            check_finite(sums)
            matrix_writing_kernels.code_links(*rows, part, weights, self.middles, singles, link_codes)
            row_codes[slice(*rows)] = count_codes(part.feature_counts[slice(*rows)])
            advance(len(weights))
            own = sizes[page_of_row[rows[0]] - first_page : page_of_row[rows[1] - 1] + 1 - first_page]
            measured: tuple[int, int] = matrix_writing_kernels.measure_pages(
                *rows, part, self.shift, singles, code_bytes, self.spread, own
            )
            return measured

        measured = np.array(list(parallel.ordered(measure, ranges, self.threads)), np.int64).reshape(-1, 2)
        at = np.cumsum(measured, axis=0) - measured
        data = np.empty(measured[:, 0].sum(), np.uint8)
        long_links = np.zeros(measured[:, 1].sum(), self.spread.link_type)

        def write(i: int) -> tuple[int, int, int]:
            written: tuple[int, int, int] = matrix_writing_kernels.write_pages(
                *ranges[i], part, row_codes, link_codes, self.values, self.shift, singles, code_bytes,
                at[i, 0], data, self.spread, at[i, 1], self.n_long, long_links,
            )  # fmt: skip
            return written

        written = list(parallel.ordered(write, range(len(ranges)), self.threads))
        most_rows, max_offset, shadowed = np.array(written, np.int64).reshape(-1, 3).T
        extremes = int(most_rows.max()), int(max_offset.max()), int(shadowed.sum())
        self.append(first_page, sizes, data, long_links, *extremes)


def check_finite(weights: np.ndarray) -> None:
    if not np.isfinite(weights).all():
        raise SettingsError("training diverged: some weights are not finite; lower --rate")
