"""Kernels of lines, each against a twin in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snm.kernels.lines import add_up_lines, copy_lines
from snm.layouts.tokens import BEGIN, END, UNKNOWN

FIELD = 9


@given(st.lists(st.tuples(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"\x8a")), st.booleans())))
def test_the_lines_of_a_mask_are_copied(lines: list[tuple[bytes, bool]]) -> None:
    block = b"".join(line + b"\n" for line, _ in lines)
    out, mask = np.zeros(len(block), np.uint8), np.array([kept for _, kept in lines], bool)
    size = copy_lines(np.frombuffer(block, np.uint8), mask, out)
    assert out[:size].tobytes() == b"".join(line + b"\n" for line, kept in lines if kept)


def added_up(
    lines: list[list[int]], logs: list[float], spellings: list[float], closed: bool
) -> list[tuple[float, int, int]]:
    left, unknown, found = iter(logs), iter(spellings), []
    for line in lines:
        total, scored, oov = 0.0, 0, 0
        for token in [BEGIN, *line, END]:
            log = next(left)
            if token == UNKNOWN:
                oov += 1
                log = 0.0 if closed else log + (next(unknown) / math.log(10) if spellings else 0.0)
            if token != BEGIN and token < FIELD:
                total, scored = total + log, scored + 1
        found.append((total, scored, oov))
    return found


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("spelled", [False, True])
def test_probabilities_are_added_up(closed: bool, spelled: bool) -> None:
    random = np.random.default_rng(1)
    lines = [random.integers(UNKNOWN, FIELD + 2, n).tolist() for n in (3, 0, 1, 40, 7)]
    tokens = np.array([token for line in lines for token in [BEGIN, *line, END]], np.uint32)
    p = random.random(len(tokens))
    p[tokens == BEGIN] = 0.0
    p[5] = 0.0  # impossible
    with np.errstate(divide="ignore"):
        logs = np.log10(p)
    spellings = -random.random(int((tokens == UNKNOWN).sum())) * 20 if spelled and not closed else np.empty(0)
    found = np.zeros(5), np.zeros(5, np.int64), np.zeros(5, np.int64)
    add_up_lines(tokens, logs, spellings, FIELD, closed, *found)
    expected = np.array(added_up(lines, logs.tolist(), spellings.tolist(), closed))
    np.testing.assert_allclose(np.stack(found, axis=1), expected, rtol=1e-12)
