"""Finding the rows of a few events: of the states of a beam, of a word to be explained, of the held-out text."""

from typing import NamedTuple

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.gate import add_row, add_unigram, compute_gate, make_rows
from snm.kernels.matrix import (
    NO_ROW,
    is_long,
    prefetch_page,
    prefetch_record,
    read_long,
    read_short,
    read_words,
    record_at,
)
from snm.kernels.simd import TILE, prefetch
from snm.layouts.gate import Gate
from snm.layouts.keys import ABSENT
from snm.layouts.matrix import Matrix

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@helper
def find_rows(n, keys, matrix, records, rows):
    """Fill records[template, state], NO_ROW where there is no row, and `rows` without weights.

    All pages are prefetched before the first is read.
    """
    templates = len(keys)
    for q in range(1, templates):
        for c in range(n):
            prefetch(matrix.starts, keys[q, c] >> matrix.shift)
    for q in range(1, templates):
        for c in range(n):
            records[q, c] = prefetch_page(keys[q, c], matrix)
    for q in range(1, templates):
        parent = matrix.parent_of_template[q]
        for c in range(n):
            record = record_at(keys[q, c], records[q, c], matrix)
            if parent > 0 and records[parent, c] == NO_ROW and keys[parent, c] != ABSENT:
                record = np.int64(NO_ROW)  # a stored feature's parents are stored too
            records[q, c] = record
            prefetch_record(record, matrix)
    i = rows.last[0]
    for q in range(1, templates):
        rows.first[q] = i
        for c in range(n):
            record = records[q, c]
            if record == NO_ROW:
                continue
            if is_long(record, matrix):
                count_code, links, row_sum = read_long(record, matrix)
            else:
                count_code, links, row_sum, _ = read_short(q, record, np.uint32(0), matrix)
            i = add_row(rows, i, c, count_code, links, row_sum, _ZERO)
        rows.last[q] = i


class Found(NamedTuple):
    """The rows of events. All arrays (templates, events) float32."""

    code: np.ndarray  # count code
    length: np.ndarray  # number of links; 1 where there is no row
    row_sum: np.ndarray  # 0 where there is no row
    weight: np.ndarray  # M of the event's target, 0 where the row has no such link
    scale: np.ndarray  # the gate's factor exp(B), 0 where there is no row


def find(keys: np.ndarray, targets: np.ndarray, matrix: Matrix, gate: Gate, cached: np.ndarray | None = None) -> Found:
    """The rows of events, as `Found`. keys: (templates, events) uint64, targets: (events,) uint32

    cached: rows of caches, which follow those of templates. (4, caches, events) float32
    """
    templates, n = len(keys), len(keys) + (0 if cached is None else cached.shape[1])
    found = Found(*np.zeros((len(Found._fields), n, keys.shape[1]), np.float32))
    found.length[:] = 1
    rows, records = make_rows(n, len(gate.bias)), np.empty((templates, TILE), np.int64)
    fill(keys, targets, matrix, rows, records, found)
    if cached is not None:
        for part, values in zip(found, cached, strict=False):
            part[templates:] = values
        found.scale[templates:] = found.row_sum[templates:]
        found.length[found.row_sum == 0] = 1
    if len(gate.bias):
        weigh(found, rows, gate)
    return found


@kernel
def fill(keys, targets, matrix, rows, records, found):
    """Fill in `found`, with factors of 1. The gate is a kernel of its own, which training need not compile."""
    for start in range(0, len(targets), TILE):
        stop = min(start + TILE, len(targets))
        here, words = keys[:, start:stop], targets[start:stop]
        rows.first[0] = rows.last[0] = 0
        for c in range(len(words)):
            if here[0, c] != ABSENT:
                rows.last[0] = add_unigram(rows, rows.last[0], c, words[c], matrix)
        find_rows(len(words), here, matrix, records, rows)
        for q in range(len(keys)):
            for i in range(rows.first[q], rows.last[q]):
                c = np.int64(rows.event[i])
                k = start + c
                found.code[q, k], found.length[q, k] = rows.code[i], rows.length[i]
                found.row_sum[q, k], found.scale[q, k] = rows.row_sum[i], _ONE
                if q:
                    read_words(q, records[q, c], words[c : c + 1], matrix, found.weight[q, k : k + 1])
                else:
                    found.weight[q, k] = rows.weight[i]


@kernel
def weigh(found, rows, gate):
    """Fill in found.scale where there is a row."""
    templates, events = found.row_sum.shape
    for start in range(0, events, TILE):
        stop, i = min(start + TILE, events), np.int64(0)
        for q in range(templates):
            rows.first[q] = i
            for k in range(start, stop):
                code, length, row_sum = found.code[q, k], found.length[q, k], found.row_sum[q, k]
                i = add_row(rows, i, k - start, code, length, row_sum, found.weight[q, k])
            rows.last[q] = i
        compute_gate(stop - start, rows, gate)
        for q in range(templates):
            for i in range(rows.first[q], rows.last[q]):
                found.scale[q, start + np.int64(rows.event[i])] = rows.scale[i]
