"""Stupid backoff, normalised.

The score of a word is its relative frequency after the longest context that it was seen after, times 0.4 for each
longer context. Scores do not sum to one. Divided by their sum Z over the vocabulary they are a backoff model: the
backoff weight of a context is 0.4 Z' / Z, with Z' the sum for the shorter context. A context that was never seen
multiplies all scores by the same factor, so it changes nothing.
"""

from __future__ import annotations

import numpy as np

from snm import parallel
from snm.baselines.backoff.estimation import Estimate, Training
from snm.kernels import backoff as backoff_kernels

FACTOR = 0.4


def estimate(t: Training) -> Estimate:
    """Estimate a normalised stupid backoff model."""
    c, tokens = t.counts, t.text.tokens
    lengths = np.diff(c.offsets)
    frequencies = c.link_counts / np.repeat(c.feature_counts.astype(np.float64), lengths)
    sums = t.sum_shorter(frequencies)
    score_sums, backoffs = np.ones(len(c.features), np.float64), np.zeros(len(c.features), np.float64)

    def work(block: tuple[int, int]) -> None:
        keys, words = t.extractor.keys(tokens, *block), tokens[slice(*block)]
        backoff_kernels.normalise_stupid(keys, words, t.index, c, FACTOR, sums, score_sums, backoffs)

    parallel.run(work, t.extractor.blocks(0, len(tokens)), t.threads)
    probabilities = frequencies / np.repeat(score_sums, lengths)
    return Estimate(probabilities.astype(np.float32), backoffs.astype(np.float32), {"factor": FACTOR}, [])
