"""The matrix M as it lies on disk: rows in pages of bytes, weights by codes of one byte or two. See docs/format.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from snm import parallel
from snm.adjustment.function import AdjustmentFunction
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.kernels import matrix_writing as matrix_writing_kernels
from snm.layouts.counts import Counts
from snm.layouts.matrix import INLINE, MAX_ROWS, PADDING, Spread, count_codes
from snm.storage import WRITTEN_TOGETHER, ModelWriter

ROWS_PER_PAGE = 4  # at least, on average; less than twice as many
SAMPLED_ROWS, SAMPLES = 1 << 19, 64  # whose weights tell what codes should stand for
PAGES_TOGETHER = 1 << 20  # whose places are worked out at one time


class MatrixWriter:
    """Writes the pages of M from the counts of a model that is being written."""

    def __init__(
        self, writer: ModelWriter, extractor: Extractor, adjustment: AdjustmentFunction, threads: int,
        rows_at_a_time: int = 1 << 21,
    ) -> None:  # fmt: skip
        self.writer, self.extractor, self.adjustment, self.threads = writer, extractor, adjustment, threads
        self.rows_at_a_time = rows_at_a_time
        self.singles = adjustment.singles()

    def write(
        self, rows: int, singles_by_type: np.ndarray, code_bytes: int, advance: Callable[[int], None]
    ) -> dict[str, Any]:
        """Write all arrays; what the manifest says of them. `rows`: of all counts, the empty feature's among them.

        `singles_by_type`: how many features were seen once, of each type.
        """
        unigrams = self._read(0, 1)
        weights, _ = self.adjustment.weigh(unigrams)
        dense = np.zeros(len(self.extractor.vocabulary), np.float32)
        dense[unigrams.targets] = weights
        types = np.flatnonzero(singles_by_type) if len(self.singles) else np.zeros(0, np.int64)
        bits = max(1, (rows // ROWS_PER_PAGE).bit_length() - 1)
        self.shift, self.code_bytes = np.uint64(64 - bits), code_bytes
        self.spread = Spread.over(len(self.extractor.vocabulary), code_bytes)
        self.values = self._choose_values(rows, types)
        self.middles = np.sqrt(self.values[1:].astype(np.float64) * self.values[:-1]).astype(np.float32)
        self.writer.array("data", "|u1", WRITTEN_TOGETHER)
        self.writer.array("long_links", self.spread.link_type, WRITTEN_TOGETHER)
        self.writer.array("sizes", "<u4")
        self.n_pages = self.n_bytes = self.n_long = self.shadowed = 0
        for row, end in self._parts(rows):
            self._add(self._read(row, end), advance)
        self.writer.append("data", np.zeros(PADDING, np.uint8))
        self._write_starts(1 << bits)
        self.writer.array("singles", f"<u{code_bytes}")
        for kind in types:
            self.writer.append("singles", self._code(self.singles[kind]))
        self.writer.array("values", "<f4").append(self.values)
        self.writer.array("unigrams", "<f4").append(dense)
        return {
            "bits": bits,
            "code_bytes": code_bytes,
            "single_types": types.tolist(),
            "unigram_code": int(count_codes(unigrams.feature_counts)[0]),
            "shadowed": self.shadowed,
        }

    def _read(self, row: int, end: int) -> Counts:
        """Rows of the counts, from disk."""
        offsets = self.writer.read("offsets", row, end + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        return Counts(
            self.writer.read("features", row, end), self.writer.read("feature_counts", row, end), offsets - first,
            self.writer.read("targets", first, last), self.writer.read("link_counts", first, last),
        )  # fmt: skip

    def _parts(self, rows: int) -> Iterator[tuple[int, int]]:
        """All rows but the empty feature's, cut where pages end."""
        row = 1
        while row < rows:
            end = min(row + self.rows_at_a_time, rows)
            pages = self.writer.read("features", row, end) >> self.shift
            if end < rows and pages[0] != pages[-1]:
                end = row + int(np.searchsorted(pages, pages[-1]))
            yield row, end
            row = end

    def _choose_values(self, rows: int, single_types: np.ndarray) -> np.ndarray:
        """What the codes stand for: each weight itself where there are few, else steps of equal ratio."""
        step = -(-rows // SAMPLED_ROWS)
        size = min(rows, SAMPLED_ROWS // SAMPLES)
        firsts = [1] if step <= 1 else np.linspace(1, rows - size, SAMPLES).astype(np.int64).tolist()
        parts = [self._read(row, rows if step <= 1 else row + size) for row in firsts if row < rows]
        seen = [self.adjustment.weigh(part, self.threads, self.singles)[0] for part in parts]
        levels, few, weights = 1 << (8 * self.code_bytes), step <= 1, np.empty(0, np.float32)
        for more in (*seen, *(self.singles[kind] for kind in single_types)):
            weights = np.unique(np.append(weights, more))
            check_finite(weights)
            few &= len(weights) <= levels
            if not few and len(weights):
                weights = weights[[0, -1]]
        if not len(weights):
            return np.ones(levels, np.float32)
        if few:
            return np.append(weights, np.full(levels - len(weights), weights[-1])).astype(np.float32)
        return np.geomspace(weights[0], weights[-1], levels).astype(np.float32)

    def _code(self, weights: np.ndarray) -> np.ndarray:
        """The code whose value is nearest to each weight, by their ratio."""
        return np.searchsorted(self.middles, weights).astype(f"<u{self.code_bytes}")

    def _add(self, part: Counts, advance: Callable[[int], None]) -> None:

        links = np.empty(len(part.targets), f"<u{self.code_bytes}")
        row_codes = np.empty(len(part.features), np.uint8)
        of_rows = (part.features >> self.shift).astype(np.int64)
        first_page = int(of_rows[0])
        sizes = np.zeros(int(of_rows[-1]) + 1 - first_page, np.int64)
        wanted = np.linspace(0, len(of_rows), 4 * self.threads + 1)[1:-1].astype(np.int64)
        ranges = parallel.between([0, *np.searchsorted(of_rows, of_rows[wanted]).tolist(), len(of_rows)])
        singles, small = len(self.singles) > 0, np.int64(self.code_bytes)

        def measure(rows: tuple[int, int]) -> tuple[int, int]:
            weights, sums = self.adjustment.weigh(part.between(*rows), 1, self.singles)
            check_finite(sums)
            matrix_writing_kernels.code_links(*rows, part, weights, self.middles, singles, links)
            row_codes[slice(*rows)] = count_codes(part.feature_counts[slice(*rows)])
            advance(len(weights))
            of_pages = sizes[of_rows[rows[0]] - first_page : of_rows[rows[1] - 1] + 1 - first_page]
            return matrix_writing_kernels.measure_pages(*rows, part, self.shift, singles, small, self.spread, of_pages)  # type: ignore[no-any-return]

        measured = np.array(list(parallel.ordered(measure, ranges, self.threads)), np.int64).reshape(-1, 2)
        at = np.cumsum(measured, axis=0) - measured
        data = np.empty(measured[:, 0].sum(), np.uint8)
        long_links = np.zeros(measured[:, 1].sum(), self.spread.link_type)

        def write(number: int) -> tuple[int, int, int]:
            made: tuple[int, int, int] = matrix_writing_kernels.write_pages(
                *ranges[number], part, row_codes, links, self.values, self.shift, singles, small,
                at[number, 0], data, self.spread, at[number, 1], self.n_long, long_links,
            )  # fmt: skip
            return made

        written = list(parallel.ordered(write, range(len(ranges)), self.threads))
        most, farthest, shadowed = np.array(written, np.int64).reshape(-1, 3).T
        self._append(first_page, sizes, data, long_links, int(most.max()), int(farthest.max()), int(shadowed.sum()))

    def _append(
        self, first: int, sizes: np.ndarray, data: np.ndarray, long_links: np.ndarray, most: int, farthest: int,
        shadowed: int,
    ) -> None:  # fmt: skip
        """Write the pages of a part, from page `first` on: one has the most rows, one the farthest record."""

        if most > MAX_ROWS or farthest >= INLINE:
            raise SettingsError(f"{most} features share a page of the model: their keys do not spread evenly")
        self._append_sizes(first, sizes)
        self.n_bytes += len(data)
        self.shadowed += shadowed
        self.n_long += len(long_links)
        self.writer.append("data", data)
        self.writer.append("long_links", long_links)

    def _append_sizes(self, first: int, sizes: np.ndarray) -> None:
        """Of pages from `first` on; those before it that have not been written are empty."""
        self.writer.append("sizes", np.zeros(first - self.n_pages, np.uint32))
        self.writer.append("sizes", sizes)
        self.n_pages = first + len(sizes)

    def _write_starts(self, pages: int) -> None:
        """Where each page begins: after all before it, whose sizes are on disk."""
        self._append_sizes(pages, np.empty(0, np.int64))
        starts = self.writer.array("starts", "<u4" if self.n_bytes < 1 << 32 else "<u8", WRITTEN_TOGETHER)
        end = 0
        starts.append(np.array([end]))
        for page in range(0, pages, PAGES_TOGETHER):
            ends = end + np.cumsum(self.writer.read("sizes", page, min(page + PAGES_TOGETHER, pages)), dtype=np.int64)
            starts.append(ends)
            end = int(ends[-1])
        self.writer.drop("sizes")


def check_finite(weights: np.ndarray) -> None:
    if not np.isfinite(weights).all():
        raise SettingsError("training diverged: some weights are no numbers any more; lower --rate")
