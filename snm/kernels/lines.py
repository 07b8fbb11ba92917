"""Lines of text: adding up the logarithms of the probabilities of their words, and copying those of a mask."""

import math

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.simd import lowest_bit, read_u8
from snm.layouts.tokens import BEGIN, UNKNOWN

_LOG10_E = math.log10(math.e)
_THREE = np.uint64(3)
_ONES, _HIGHEST = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_LINE_FEEDS = np.uint64(10 * 0x0101010101010101)


@kernel
def add_up_lines(tokens, log10_p, spellings, first_field, closed, logs, scored, oov):
    """Of each line, which begins with `<S>`: log10 of its probability, its tokens and its `<UNK>`s.

    log10_p: of each token. spellings: ln P(its string | `<UNK>`) of each `<UNK>`, or empty. Tokens from `first_field`
    up are values of fields, which are no targets. `closed`: `<UNK>` has no probability. logs, scored, oov: zeros,
    (lines,).
    """
    line, unknown = np.int64(-1), np.int64(0)
    for k in range(len(tokens)):
        token = tokens[k]
        if token == BEGIN:
            line += 1
            continue
        if token >= first_field:
            continue
        scored[line] += 1
        if token != UNKNOWN:
            logs[line] += log10_p[k]
            continue
        oov[line] += 1
        if not closed:
            logs[line] += log10_p[k]
            if len(spellings):
                logs[line] += spellings[unknown] * _LOG10_E
        unknown += 1


@helper
def after_line(data, start):
    """Where the line that begins at `start`, and ends with a line feed, is over. Eight bytes at a time."""
    i = start
    while i + 8 <= len(data):
        different = read_u8(data, i) ^ _LINE_FEEDS
        found = (different - _ONES) & ~different & _HIGHEST  # its lowest bit set is in the first byte that is equal
        if found:
            return i + 1 + np.int64(np.uint64(lowest_bit(np.int64(found))) >> _THREE)
        i += 8
    while data[i] != 10:
        i += 1
    return i + 1


@kernel
def copy_lines(data, kept, out):
    """Copy the lines of a mask to `out`; return how many bytes they have. Every line ends with a line feed."""
    start = written = 0
    for line in range(len(kept)):
        stop = after_line(data, start)
        if kept[line]:
            for k in range(stop - start):
                out[written + k] = data[start + k]
            written += stop - start
        start = stop
    return written
