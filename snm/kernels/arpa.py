"""Reading the n-grams of ARPA files: lines of a number, words and a number that may be missing."""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.text import EMPTY, find_word, word_hash

_TAB, _NEWLINE, _SPACE, _PLUS, _MINUS, _POINT, _ZERO, _NINE = b"\t\n +-.09"
_LOWER_E, _UPPER_E = b"eE"
_POWERS = 10.0 ** np.arange(23)  # all exact
_EXACT = 1 << 53  # integers up to this one are exact as float64
_FAILED = 0.0, np.int64(-1)


@helper
def is_digit(byte):
    return _ZERO <= byte <= _NINE


@helper
def read_number(data, i):
    """The decimal number from data[i] on, and where it ends; -1 if it is none, or not exact as a quotient of floats."""
    negative = data[i] == _MINUS
    if negative or data[i] == _PLUS:
        i += 1
    mantissa, digits, exponent = np.int64(0), 0, 0
    while is_digit(data[i]) and mantissa < _EXACT:
        mantissa, digits, i = 10 * mantissa + np.int64(data[i] - _ZERO), digits + 1, i + 1
    if data[i] == _POINT:
        i += 1
        while is_digit(data[i]) and mantissa < _EXACT:
            mantissa, digits, i = 10 * mantissa + np.int64(data[i] - _ZERO), digits + 1, i + 1
            exponent -= 1
    if not digits or mantissa >= _EXACT:
        return _FAILED
    if data[i] == _LOWER_E or data[i] == _UPPER_E:
        i += 1
        below = data[i] == _MINUS
        if below or data[i] == _PLUS:
            i += 1
        given, digits = 0, 0
        while is_digit(data[i]) and digits < 3:
            given, digits, i = 10 * given + np.int64(data[i] - _ZERO), digits + 1, i + 1
        if not digits:
            return _FAILED
        exponent += -given if below else given
    if abs(exponent) >= len(_POWERS):
        return _FAILED
    number = mantissa * _POWERS[exponent] if exponent >= 0 else mantissa / _POWERS[-exponent]
    return -number if negative else number, i


@kernel
def read_ngrams(data, at, hashes, ids, words, values, found):
    """Read lines from data[at:] into words[found:] (n, length) and values[found:] (n, 2): log10 P and backoff.

    Stops at a line that is not of the usual form, and where `words` is full. Returns where that line begins, and how
    many n-grams there are now. `hashes` and `ids` are the table of words. `data` ends with a line break.
    """
    length = words.shape[1]
    while found < len(words) and at < len(data):
        values[found, 0], i = read_number(data, at)
        if i < 0 or data[i] != _TAB:
            break
        read = 0
        while read < length and data[i] == (_SPACE if read else _TAB):
            start = i + 1
            i = start
            while data[i] > _SPACE:
                i += 1
            entry = find_word(hashes, ids, word_hash(data, start, i))
            if i == start or ids[entry] == EMPTY:
                break
            words[found, read] = ids[entry]
            read += 1
        values[found, 1] = 0.0
        if read == length and data[i] == _TAB:
            values[found, 1], i = read_number(data, i + 1)
        if read < length or i < 0 or data[i] != _NEWLINE:
            break
        at, found = i + 1, found + 1
    return at, found
