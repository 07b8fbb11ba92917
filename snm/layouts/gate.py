"""The gate: a network of one hidden layer that weighs the rows of an event. See `snm.gate.fitting`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from snm.layouts.matrix import CODES_PER_OCTAVE

INPUTS = 4  # of a template: log C_i*, log(links / C_i*), log of the row sum, and 1; all 0 where there is no row
SCALE = 0.2  # of the logarithms, which brings them near 1
MAX_GATE = 15.0  # of |B|
LANES = 16  # hidden units that kernels compute together
_SMALLEST = np.finfo(np.float32).tiny


class Gate(NamedTuple):
    """The network's weights; one flat array on disk."""

    hidden: np.ndarray  # (templates, INPUTS, units) float32
    bias: np.ndarray  # (units,)
    output: np.ndarray  # (templates, units)
    offset: np.ndarray  # (templates,)

    @property
    def is_finite(self) -> bool:
        return all(bool(np.isfinite(part).all()) for part in self)

    @classmethod
    def of(cls, flat: np.ndarray, templates: int) -> Gate:
        """Views of a flat array; the gate of `templates` zeros has no units and changes nothing."""
        units = (len(flat) - templates) // (templates * INPUTS + 1 + templates)
        ends = np.cumsum([templates * INPUTS * units, units, templates * units])
        hidden, bias, output, offset = np.split(flat, ends)
        return cls(hidden.reshape(templates, INPUTS, units), bias, output.reshape(templates, units), offset)

    def folded(self, count_code: int, links: float, row_sum: float) -> Gate:
        """The gate as kernels take it: the row of the empty feature, always the same, is part of the bias.

        Units without weights fill up the last LANES.
        """
        inputs = row_inputs(np.array([count_code], np.uint8), np.array([links]), np.array([row_sum]))[0]
        bias = self.bias + inputs @ self.hidden[0]
        missing = -len(bias) % LANES

        def padded(part: np.ndarray) -> np.ndarray:
            return np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, missing)]).astype(np.float32)

        return Gate(padded(self.hidden), padded(bias), padded(self.output), self.offset)


def gate_size(templates: int, units: int) -> int:
    """Numbers in the flat array of a gate."""
    return templates * INPUTS * units + units + templates * units + templates


def log_of_code() -> np.ndarray:
    """SCALE times the logarithm of the count of each count code. (256,) float32"""
    return (np.arange(256) / CODES_PER_OCTAVE * (math.log(2) * SCALE)).astype(np.float32)


def row_inputs(count_codes: np.ndarray, lengths: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The gate's inputs of rows; all zero where the row sum is zero. (..., INPUTS) float32"""
    here = (sums > 0).astype(np.float32)  # multiplying is faster than choosing
    inputs = np.empty((*sums.shape, INPUTS), np.float32)
    inputs[..., 0] = log_counts = here * np.take(log_of_code(), count_codes)
    inputs[..., 1] = here * (SCALE * np.log(np.maximum(lengths, 1))) - log_counts
    inputs[..., 2] = here * (SCALE * np.log(np.maximum(sums, _SMALLEST)))
    inputs[..., 3] = here
    return inputs
