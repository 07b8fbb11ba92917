"""Pruning the matrix of an SNM: links leave by the mass that they bring, rows with them.

The worth of a link is C_i* M_ij: how often the model expects the feature to predict the target in a text like that of
training. It is the link count as the adjustment has discounted it, so a link that was seen as often as another is worth
less if its kind misleads. A byte of the file has to be worth a limit: a link stays if it is worth its own bytes, and a
row if its links are worth those that the row adds. Row sums are those of the links that are left, so probabilities sum
to one as before. What else was tried: docs/pruning.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from snm import parallel
from snm.kernels import matrix_pruning as kernels
from snm.kernels import matrix_writing as writing_kernels
from snm.layouts.counts import Counts
from snm.layouts.matrix import Matrix, page_bits
from snm.manifest import SPELLING
from snm.matrix.writing import PageWriter
from snm.progress import Advance, Progress, silent
from snm.pruning.budget import Budget, Smaller, describe, too_small
from snm.storage import ModelWriter

PART_BYTES = 16 << 20  # of pages that are read together, before their long rows
LIMITS = 16  # that are tried in one walk over the matrix
WALKS = 4  # each narrows the limit to one of the steps between those of the walk before
LOWEST, HIGHEST = 1e-7, 1e9  # worth of a byte
STARTS_BYTES = 4 / 6  # of a row, in `starts`: six rows a page on average
PAGE_ARRAYS = "data", "long_links", "starts"


@dataclass(frozen=True)
class Kept:
    """What stays with a limit."""

    limit: float
    rows: int
    links: int
    bytes: int  # of pages and long rows

    @property
    def starts_bytes(self) -> int:
        return 4 * ((1 << page_bits(self.rows + 1)) + 1)


NOTHING = Kept(np.inf, 0, 0, 0)


class MatrixPruner:
    """Finds the links that stay, and writes them."""

    def __init__(self, matrix: Matrix, threads: int = 1, progress: Progress = silent) -> None:
        self.matrix, self.threads, self.progress = matrix, threads, progress
        self.single_types = len(matrix.singles) > 0
        codes = matrix.singles[:, :] if self.single_types else np.zeros((0, 0), np.uint8)
        # which type of feature a row has is not known: its key is cut
        self.single_weights = matrix.values[codes].mean(axis=0).astype(np.float32) if self.single_types else codes[0:0]
        self.single_weights = np.ascontiguousarray(self.single_weights, np.float32).ravel()
        self.pages = len(matrix.starts) - 1
        self._how = (
            self.single_types, np.int64(matrix.long_links.dtype.itemsize), np.int64(matrix.code_bytes), STARTS_BYTES,
        )  # fmt: skip

    def keep(self, budget: Budget, rest: int, words: int) -> Kept:
        """What stays of a budget of bytes or links. rest: bytes of everything that is no page; words: unigrams."""

        def fits(kept: Kept) -> bool:
            if budget.size is not None:
                return rest + kept.bytes + kept.starts_bytes <= budget.size
            return budget.links is not None and words + kept.links <= budget.links

        self.check_rest(budget, rest, words)
        limits, best = np.geomspace(LOWEST, HIGHEST, LIMITS), NOTHING
        with self.progress("measuring", WALKS * self.pages) as bar:
            for _ in range(WALKS):
                measured = self.measure(limits, bar)
                found = [i for i, kept in enumerate(measured) if fits(kept)]
                if not found:
                    break
                best = measured[found[0]]
                limits = np.geomspace(limits[max(0, found[0] - 1)], limits[found[0]], LIMITS)
        return best

    @staticmethod
    def check_rest(budget: Budget, rest: int, words: int) -> None:
        """Raise an error if a budget is too small for what always stays; see `keep`."""
        least = Smaller(rest + NOTHING.starts_bytes, words, 0.0)
        if not least.fits(budget):
            raise too_small(budget, least, "the vocabulary, the unigrams and the gate")

    def measure(self, limits: np.ndarray, advance: Advance) -> list[Kept]:
        """What stays with each limit."""
        totals = np.zeros((len(limits), 4))

        def work(pages: tuple[int, int]) -> tuple[np.ndarray, int]:
            rows, worth, sums = *self.read(*pages), np.zeros_like(totals)
            kernels.measure(rows, worth, limits, *self._how, sums)
            return sums, pages[1] - pages[0]

        for sums, pages in parallel.ordered(work, self.parts(1), self.threads):
            totals += sums
            advance(pages)
        return [
            Kept(float(limit), int(rows), int(links), int(size - STARTS_BYTES * rows) + (1 << page_bits(int(rows) + 1)))
            for limit, (rows, links, size, _) in zip(limits, totals, strict=True)
        ]

    def parts(self, multiple: int) -> Iterator[tuple[int, int]]:
        """Ranges of pages that are read together; each begins at a multiple of this number of pages."""
        share = max(1, int(self.matrix.starts[-1]) // PART_BYTES)
        step = -(-self.pages // share // multiple) * multiple
        return ((first, min(first + step, self.pages)) for first in range(0, self.pages, step))

    def read(self, first: int, last: int) -> tuple[kernels.Rows, np.ndarray]:
        """The rows of a range of pages, and the worth of their links."""
        n, links = kernels.count_links(first, last, self.matrix)
        rows = kernels.Rows(
            np.empty(n, np.uint64), np.empty(n, np.uint8), np.empty(n + 1, np.int64), np.empty(links, np.uint32),
            np.empty(links, f"<u{self.matrix.code_bytes}"),
        )  # fmt: skip
        kernels.read_pages(first, last, self.matrix, self.single_types, rows)
        worth = np.empty(links, np.float32)
        kernels.weigh(rows, self.matrix, self.single_weights, worth)
        return rows, worth

    def write(self, kept: Kept, writer: ModelWriter, description: dict[str, Any]) -> dict[str, Any]:
        """Write the arrays of the smaller matrix. `description`: the entry `pages` of the manifest; returns the new."""
        pages = PageWriter(writer, self.matrix.singles.shape[1] if self.single_types else len(self.matrix.unigrams))
        bits = pages.begin(kept.rows + 1, int(self.matrix.code_bytes))
        together = max(1, self.pages >> bits)
        seen_once = False
        with self.progress("pruning", self.pages) as bar:
            for first, last in self.parts(together):
                seen_once |= self._write_part(first, last, kept.limit, pages)
                bar(last - first)
        pages.finish(bits)
        m, types = self.matrix, description["single_types"] if seen_once else []
        writer.array("singles", f"<u{m.code_bytes}").append(m.singles.ravel() if seen_once else m.singles.ravel()[:0])
        writer.array("values", "<f4").append(m.values)
        writer.array("unigrams", "<f4").append(m.unigrams)
        return {**description, "bits": bits, "single_types": types, "shadowed": pages.shadowed, "orphans": True}

    def _write_part(self, first: int, last: int, limit: float, pages: PageWriter) -> bool:
        """Write what stays of a range of pages; return whether a feature seen once is among it."""
        rows, worth = self.read(first, last)
        n, links = kernels.keep(rows, worth, limit, *self._how)
        if not n:
            return False
        codes = rows.count_codes[:n]
        seen = np.where(codes == 0, 1, 2)  # only whether it is one matters
        part = Counts(rows.keys[:n], seen, rows.offsets[: n + 1], rows.targets[:links], np.empty(0, np.int64))
        page_of_row = (part.features >> pages.shift).astype(np.int64)
        begin = int(page_of_row[0])
        sizes = np.zeros(int(page_of_row[-1]) + 1 - begin, np.int64)
        how = self.single_types, np.int64(pages.code_bytes)
        size, positions = writing_kernels.measure_pages(0, n, part, pages.shift, *how, pages.spread, sizes)
        data, long_links = np.empty(size, np.uint8), np.zeros(positions, pages.spread.link_type)
        extremes = writing_kernels.write_pages(
            0, n, part, codes, rows.codes, self.matrix.values, pages.shift, *how, 0, data, pages.spread, 0,
            pages.n_long, long_links,
        )  # fmt: skip
        pages.append(begin, sizes, data, long_links, *extremes)
        return self.single_types and bool((codes == 0).any())


def rest_bytes(files: dict[str, dict[str, Any]], spelling: float) -> int:
    """Bytes of the files of a model that are no pages. `files`: the entry of its manifest.

    spelling: bytes that the words of the spelling model may take.
    """
    rest = {name: entry["bytes"] for name, entry in files.items() if name.removesuffix(".npy") not in PAGE_ARRAYS}
    return int(sum(min(size, spelling) if name == SPELLING else size for name, size in rest.items()))


def describe_pruned(manifest: dict[str, Any], kept: Kept, words: int, budget: Budget) -> dict[str, Any]:
    """The manifest of a model whose matrix has been pruned. words: links of the empty feature."""
    of_types = "rows_by_type", "singles_by_type", "links_by_type"
    entries = {name: value for name, value in manifest.items() if name not in ("files", *of_types)}
    limit = kept.limit if np.isfinite(kept.limit) else None
    return {
        **entries,
        "rows": kept.rows + 1,
        "links": words + kept.links,
        "pruning": describe(budget, "mass", limit=limit, rows=manifest["rows"], links=manifest["links"]),
        "requires": sorted({*manifest.get("requires", []), "orphans"}),
    }
