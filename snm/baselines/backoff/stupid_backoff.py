"""Stupid backoff, normalised.

The score of a word is its relative frequency after the longest context that knows it, times 0.4 for every
longer context that does not. Scores do not sum to one; divided by their sum over the vocabulary they do,
and are a backoff model like any other: a context whose scores sum to Z has the backoff weight 0.4 Z' / Z, with Z'
the sum one word shorter. A context that was never seen brings the same factor to every word, and so none.
"""

from __future__ import annotations

import numpy as np

from snm import parallel
from snm.baselines.backoff.estimation import Estimate, Training
from snm.kernels import backoff as backoff_kernels

FACTOR = 0.4


def estimate(t: Training) -> Estimate:
    """Stupid backoff for the counts of a text."""

    c, tokens = t.counts, t.text.tokens
    lengths = np.diff(c.offsets)
    frequencies = c.link_counts / np.repeat(c.feature_counts.astype(np.float64), lengths)
    sums = t.sum_shorter(frequencies)
    totals, backoffs = np.ones(len(c.features), np.float64), np.zeros(len(c.features), np.float64)

    def work(block: tuple[int, int]) -> None:
        keys, words = t.extractor.keys(tokens, *block), tokens[slice(*block)]
        backoff_kernels.normalise_stupid(keys, words, t.index, c, FACTOR, sums, totals, backoffs)

    parallel.run(work, t.extractor.blocks(0, len(tokens)), t.threads)
    probabilities = frequencies / np.repeat(totals, lengths)
    return Estimate(probabilities.astype(np.float32), backoffs.astype(np.float32), {"factor": FACTOR}, [])
