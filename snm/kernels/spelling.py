"""Spelling words: the log probability of a string of bytes under an n-gram model of bytes. See `snm.text.spelling`.

An n-gram of up to seven bytes is one integer: its length in the highest byte, then its bytes, the last one lowest.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.hashing import mix64

BOUNDARY = 10  # the byte before and after every word: no word has it
_ONE, _8, _56 = np.uint64(1), np.uint64(8), np.uint64(56)


@helper
def find_code(codes, code):
    """The index of a code in the table, or of the free entry (0) where it belongs."""
    mask = np.uint64(len(codes) - 1)
    at = mix64(code) & mask
    while codes[at] != 0 and codes[at] != code:
        at = (at + _ONE) & mask
    return at


@kernel
def insert_codes(new, codes, places):
    """Insert different codes into the table, and note where."""
    for i in range(len(new)):
        at = find_code(codes, new[i])
        codes[at] = new[i]
        places[i] = at


@helper
def log_symbol(history, length, symbol, codes, logs, backoffs, floor):
    """ln P(symbol | the last `length` bytes of `history`), and the length of the longest n-gram that was found."""
    total = 0.0
    while True:
        context = history & ((_ONE << (_8 * np.uint64(length))) - _ONE)
        at = find_code(codes, (np.uint64(length + 1) << _56) | (context << _8) | symbol)
        if codes[at] != 0:
            return total + logs[at], length + 1
        if length == 0:
            return total + floor, 0
        at = find_code(codes, (np.uint64(length) << _56) | context)
        if codes[at] != 0:
            total += backoffs[at]
        length -= 1


@kernel
def log_spellings(data, spans, order, codes, logs, backoffs, floor, out):
    """ln P of the words data[start:stop], for each pair of `spans`, the end of the word included; 0 for start < 0."""
    for w in range(len(out)):
        start, stop = spans[2 * w], spans[2 * w + 1]
        total, history, length = 0.0, np.uint64(BOUNDARY), 1
        if start >= 0:
            for i in range(start, stop + 1):
                symbol = np.uint64(data[i]) if i < stop else np.uint64(BOUNDARY)
                more, length = log_symbol(history, min(length, order - 1), symbol, codes, logs, backoffs, floor)
                total += more
                history = (history << _8) | symbol
        out[w] = total


@kernel
def log_symbols(history, length, symbols, codes, logs, backoffs, floor, out):
    """ln P(symbol | the last `length` bytes of `history`), for each of `symbols`."""
    for i in range(len(symbols)):
        out[i] = log_symbol(history, length, np.uint64(symbols[i]), codes, logs, backoffs, floor)[0]
