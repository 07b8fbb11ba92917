"""Adding up the probabilities of the words of each line."""

import math

import numpy as np

from snm.kernels.compile import kernel
from snm.kernels.fastmath import log10_in_place
from snm.layouts.tokens import BEGIN, UNKNOWN

_AT_ONCE = 1024  # logarithms, which stay in the first-level cache
_LOG10_E = math.log10(math.e)


@kernel
def add_up_lines(tokens, probabilities, spellings, first_field, closed, logs, scored, oov):
    """Of each line, which begins with `<S>`: log10 of its probability, its tokens and its `<UNK>`s.

    spellings: ln P(its string | `<UNK>`) of each `<UNK>`, or empty. Tokens from `first_field` up are values of fields,
    which are no targets. `closed`: `<UNK>` has no probability. logs, scored, oov: (lines,), zero.
    """
    line, unknown, part = np.int64(-1), np.int64(0), np.empty(_AT_ONCE)
    for start in range(0, len(tokens), _AT_ONCE):
        n = min(_AT_ONCE, len(tokens) - start)
        for k in range(n):
            part[k] = probabilities[start + k]
        log10_in_place(part[:n])
        for k in range(n):
            token = tokens[start + k]
            if token == BEGIN:
                line += 1
                continue
            if token >= first_field:
                continue
            scored[line] += 1
            if token == UNKNOWN:
                oov[line] += 1
                if len(spellings):
                    part[k] += spellings[unknown] * _LOG10_E
                    unknown += 1
                if closed:
                    continue
            logs[line] += part[k] if probabilities[start + k] > 0.0 else -math.inf
