"""Text that an SNM generates: many sentences at a time, word by word.

A word is drawn in two steps: a row of the event by its share of the denominator, then a link of the row by its weight.
So no distribution over the vocabulary is computed.
"""

from __future__ import annotations

import numpy as np

from snm.kernels import projection as kernels
from snm.kernels import rows as row_kernels
from snm.layouts.tokens import BEGIN, END
from snm.scoring.model import SnmModel

TOGETHER = 512  # sentences
LONGEST = 500  # words of a sentence


def sample_tokens(model: SnmModel, events: int, seed: int = 1) -> np.ndarray:
    """About `events` events: whole sentences, and the beginnings of some, as tokens."""
    random = np.random.default_rng(seed)
    width = max(1, min(model.extractor.span, LONGEST))
    lines = min(TOGETHER, max(1, events // 64))
    last = np.full((lines, width + 1), BEGIN, np.uint32)  # the words before, and a target
    drawn = np.empty((-(-events // lines), lines), np.uint32)
    ages, cumulative = np.zeros(lines, np.int64), np.cumsum(model.matrix.unigrams, dtype=np.float64)
    for step in drawn:
        last[:, -1] = END
        keys = model.extractor.keys(last.ravel(), 0, last.size)[:, width :: width + 1]
        keys = np.ascontiguousarray(keys)
        found = row_kernels.find(keys, last[:, -1], model.matrix, model._folded)
        chances = random.random((2, lines))
        kernels.sample_words(keys, found.scale, found.row_sum, model.matrix, cumulative, chances, step)
        ages += 1
        step[ages >= LONGEST] = END
        last[:, :-2], last[:, -2] = last[:, 1:-1], step
        ended = step == END
        last[ended], ages[ended] = BEGIN, 0
    return _joined(drawn.T)


def _joined(lines: np.ndarray) -> np.ndarray:
    """Each line one sentence after another, with <S> before each. (lines, steps) to (tokens,)"""
    tokens = np.full((len(lines), 1 + lines.shape[1], 2), END, np.uint64)  # END: nothing yet
    nothing = np.uint64(1 << 32)
    tokens[:] = nothing
    tokens[:, 0, 1] = BEGIN
    tokens[:, 1:, 0] = lines
    tokens[:, 1:-1, 1] = np.where(lines[:, :-1] == END, BEGIN, nothing)
    flat = tokens.ravel()
    joined: np.ndarray = flat[flat != nothing].astype(np.uint32)
    return joined
