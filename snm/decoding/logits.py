"""Logits as natural log probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from snm.arguments import shown
from snm.decoding.labels import LabelSet
from snm.errors import InputError

LEAST = 1e-15  # probability


def log_probabilities(logits: Any, labels: LabelSet) -> np.ndarray:
    """ln P of each label in each frame, from logits, log probabilities or probabilities. (frames, labels) float64

    Rows that add up to 1 are probabilities. Computed in the precision of the logits, as pyctcdecode does.
    """
    try:
        rows = np.asarray(logits)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, or a tensor on a GPU
        raise InputError(f"logits is {shown(logits)}; expected a NumPy array: frames by labels") from None
    _check_shape(rows, labels)
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float32 if rows.dtype.itemsize < 4 else np.float64)
    wrong = np.isnan(rows) | (rows == np.inf)
    if wrong.any():
        frame, label = np.argwhere(wrong)[0].tolist()
        raise InputError(
            f"the logit of label {labels.names[label]!r} in frame {frame} is {rows[frame, label]}; expected finite "
            f"numbers: look for an overflow in the acoustic model"
        )
    if not len(rows):
        return as_float64(rows)
    if math.isclose(rows.sum(axis=1).mean(), 1) and rows.min() >= 0:
        return as_float64(np.log(np.clip(rows, LEAST, 1)))
    highest = rows.max(axis=1, keepdims=True)
    if not np.isfinite(highest).all():
        frame = int(np.flatnonzero(~np.isfinite(highest[:, 0]))[0])
        raise InputError(f"frame {frame} has minus infinity for every label; expected one that is possible")
    shifted = rows - highest
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return as_float64(np.clip(logs, np.log(LEAST), 0))


def as_float64(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows, np.float64)


def _check_shape(rows: np.ndarray, labels: LabelSet) -> None:
    if rows.ndim != 2:
        hint = "; decode a batch with decode_batch" if rows.ndim == 3 else ""
        raise InputError(f"logits have {rows.ndim} dimensions, shape {rows.shape}; expected frames by labels{hint}")
    if rows.dtype.kind not in "fiu":
        raise InputError(f"logits have the type {rows.dtype}; expected numbers")
    if rows.shape[1] != len(labels.names):
        n = len(labels.names)
        what = f"{n} labels, the last one a blank that was added because none was given" if labels.appended else n
        turned = "; turn the array: it has labels by frames" if rows.shape[0] == n else ""
        raise InputError(f"logits of shape {rows.shape} have {rows.shape[1]} columns; expected {what}{turned}")
