"""Pages of M over tensors: the same bytes as those of `snm.kernels.matrix_writing.write_pages`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from snm.layouts.counts import Counts
from snm.layouts.matrix import (
    CODES_PER_OCTAVE,
    INLINE,
    LINE,
    LINKS_PER_LINE,
    LONG,
    LONG_BYTES,
    MARK_BITS,
    MAX_IN_PAGE,
    MAX_UNSUMMED,
    WIDE,
    Spread,
)
from snm.matrix.writing import MatrixWriter, check_finite
from snm.tensors.adjustment import RowTensors, TensorAdjustment
from snm.tensors.hashing import array_of, shift_right


class TensorMatrixWriter(MatrixWriter):
    """A `MatrixWriter` whose pages are made on a device."""

    adjustment: TensorAdjustment

    @cached_property
    def _single_weights(self) -> Tensor:
        return torch.from_numpy(self.singles).to(self.adjustment.device)

    def _add(self, part: Counts, advance: Callable[[int], None]) -> None:
        device = self.adjustment.device
        rows = RowTensors.of(part, device)
        weights = self.adjustment.weigh_rows(rows, self._single_weights)
        check_finite(weights.amax().cpu().numpy())
        codes = torch.searchsorted(torch.from_numpy(self.middles).to(device), weights)
        packer = _Packer(rows, codes, len(self.singles) > 0, int(self.shift), self.code_bytes)
        values = torch.from_numpy(self.values).to(device).double()
        data, long_links = packer.pack(values, self.spread, self.n_long)
        self.append(
            packer.first_page, packer.sizes.cpu().numpy(), array_of(data, "|u1"),
            array_of(long_links, "<u8").astype(self.spread.link_type), *packer.extremes(),
        )  # fmt: skip
        advance(len(weights))


class _Packer:
    """Lays out the pages of some rows, then writes their bytes."""

    def __init__(self, rows: RowTensors, codes: Tensor, singles: bool, shift: int, code_bytes: int) -> None:
        """`codes`: weight code of every link. `singles`: rows of features seen once have no codes."""
        self.rows, self.codes, self.code_bytes = rows, codes, code_bytes
        self.lengths = torch.diff(rows.offsets)
        last_targets = rows.targets[rows.offsets[1:] - 1]
        self.single = (rows.feature_counts == 1) & singles
        self.inline = self.single & (last_targets < INLINE)
        self.long = ~self.single & (self.lengths > MAX_IN_PAGE)
        self.summed = ~self.long & (self.lengths > MAX_UNSUMMED)
        self.wide = self.single | (last_targets >= 0x10000)
        link_bytes = torch.where(self.wide, 4, 2) + torch.where(self.single, 0, code_bytes)
        record_bytes = torch.where(self.long, LONG_BYTES, 2 + 4 * self.summed + self.lengths * link_bytes)
        self.record_bytes = torch.where(self.inline, 0, record_bytes)
        self.marks = shift_right(rows.features, shift - MARK_BITS) & ((1 << MARK_BITS) - 1)
        pages = shift_right(rows.features, shift)
        self.first_page = int(pages[0])
        self.page = pages - self.first_page
        n = int(self.page[-1]) + 1
        self.rows_of_page = torch.bincount(self.page, minlength=n)
        self.sizes = (self.rows_of_page > 0) + 5 * self.rows_of_page
        self.sizes.index_add_(0, self.page, self.record_bytes)
        starts = torch.cumsum(self.sizes, 0) - self.sizes
        first_rows = torch.cumsum(self.rows_of_page, 0) - self.rows_of_page
        before = torch.cumsum(self.record_bytes, 0) - self.record_bytes
        self.number = torch.arange(len(self.page), device=pages.device) - first_rows[self.page]  # of a row in its page
        self.offset = before - before[first_rows.clamp(max=len(before) - 1)][self.page]  # of its record, from `records`
        self.start = starts[self.page]
        self.entries = self.start + 1 + 3 * self.rows_of_page[self.page]
        self.records = self.entries + 2 * self.rows_of_page[self.page]

    def extremes(self) -> tuple[int, int, int]:
        """The most rows of a page, the largest offset of a record, and the number of rows whose mark is not unique."""
        shadowed = (self.page[1:] == self.page[:-1]) & (self.marks[1:] == self.marks[:-1])
        farthest = torch.where(self.inline, 0, self.offset).amax()
        return int(self.rows_of_page.amax()), int(farthest), int(shadowed.sum())

    def pack(self, values: Tensor, spread: Spread, long_base: int) -> tuple[Tensor, Tensor]:
        """The bytes of all pages, and the packed links of long rows. `values`: the weight of each code, float64."""
        rows, row_of_link = self.rows, self.rows.row_of_link
        data = torch.zeros(int(self.sizes.sum()), dtype=torch.uint8, device=values.device)
        data[self.start] = self.rows_of_page[self.page].to(torch.uint8)
        _put(data, self.start + 1 + 3 * self.number, self.marks, 3)
        last_targets = rows.targets[rows.offsets[1:] - 1]
        _put(data, self.entries + 2 * self.number, torch.where(self.inline, last_targets, INLINE + self.offset), 2)

        record = self.records + self.offset
        recorded = ~self.inline
        row_codes = (CODES_PER_OCTAVE * torch.log2(rows.feature_counts.double())).round().clamp(max=255).long()
        flags = torch.where(self.long, LONG, self.lengths | torch.where(self.wide, WIDE, 0))
        _put(data, record[recorded], row_codes[recorded], 1)
        _put(data, record[recorded] + 1, flags[recorded], 1)

        sums = torch.zeros(len(rows.features), dtype=torch.float64, device=values.device)
        sums.index_add_(0, row_of_link, values[self.codes])
        sum_bits = sums.float().view(torch.int32).long()
        long, summed = self.long.nonzero().squeeze(1), self.summed.nonzero().squeeze(1)
        _put(data, record[long] + 2, self.lengths[long], 4)
        _put(data, record[long] + 6, sum_bits[long], 4)
        long_links, first_positions = self._long_rows(long, spread)
        _put(data, record[long] + 10, long_base + first_positions, 6)
        _put(data, record[summed] + 2, sum_bits[summed], 4)

        links = (~(self.inline | self.long))[row_of_link].nonzero().squeeze(1)
        row = row_of_link[links]
        number = links - rows.offsets[row]
        width = torch.where(self.wide[row], 4, 2)
        first = record[row] + torch.where(self.summed[row], 6, 2)
        narrow = ~self.wide[row]
        _put(data, (first + 2 * number)[narrow], rows.targets[links[narrow]], 2)
        _put(data, (first + 4 * number)[~narrow], rows.targets[links[~narrow]], 4)
        coded = ~self.single[row]
        codes = first + width * self.lengths[row] + self.code_bytes * number
        _put(data, codes[coded], self.codes[links[coded]], self.code_bytes)
        return data, long_links

    def _long_rows(self, long: Tensor, spread: Spread) -> tuple[Tensor, Tensor]:
        """Packed links of the rows `long`, with zeros at empty positions, and the first position of each row."""
        links = self.long[self.rows.row_of_link].nonzero().squeeze(1)
        factor, mask, bits = int(spread.factor), int(spread.mask), int(spread.code_bits)
        packed = ((self.rows.targets[links] * factor & mask) << bits) | self.codes[links]
        row = torch.repeat_interleave(torch.arange(len(long), device=links.device), self.lengths[long])
        packed, order = torch.sort(packed)
        packed = packed[torch.argsort(row[order], stable=True)]
        # a link is at the first position of its line or, if that is taken, right after the link before it
        lines = -(-self.lengths[long] // LINKS_PER_LINE)
        wanted = LINE * (((packed >> bits) * lines[row]) >> int(spread.bits))
        first = torch.cumsum(self.lengths[long], 0) - self.lengths[long]
        number = torch.arange(len(row), device=row.device) - first[row]
        apart = row * (int(wanted.amax()) + len(row) + 1) if len(row) else row  # the maximum restarts in each row
        position = number + torch.cummax(wanted - number + apart, 0).values - apart
        ends = torch.zeros_like(first).scatter_reduce(0, row, position + 1, "amax")
        sizes = LINE * torch.maximum(lines, ends // LINE + 1)
        first_positions = torch.cumsum(sizes, 0) - sizes
        long_links = torch.zeros(int(sizes.sum()), dtype=torch.int64, device=row.device)
        long_links[first_positions[row] + position] = packed
        return long_links, first_positions


def _put(data: Tensor, at: Tensor, value: Tensor, size: int) -> None:
    """Write `size` bytes of each value, little-endian."""
    for i in range(size):
        data[at + i] = ((value >> (8 * i)) & 255).to(torch.uint8)
