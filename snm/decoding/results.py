"""What decoding returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from snm.errors import SettingsError

Frames = tuple[int, int]


class Beam(NamedTuple):
    """A text, as pyctcdecode returns it: the same five values in the same order."""

    text: str
    last_lm_state: bytes | None
    """The model's state after the last word, for `lm_start_state`."""
    text_frames: list[tuple[str, Frames]]
    """Each word with its first frame and the frame after its last."""
    logit_score: float
    """The acoustic score: ln P of the labels."""
    lm_score: float
    """The total, by which beams are ordered."""

    @property
    def language_score(self) -> float:
        """What the model and hot words add to the acoustic score, weighted."""
        return self.lm_score - self.logit_score


class Partial(NamedTuple):
    """What a stream has found so far."""

    stable: str
    """Words that later frames cannot change."""
    text: str
    """The best text so far; it begins with the stable words. Its last word may be unfinished."""
    frames: int


def confidences(beams: Sequence[Beam], scale: float = 1.0) -> list[tuple[str, float]]:
    """The words of the first beam, each with the share of the beams that have it at an overlapping time.

    Beams are weighted by exp(scale * total). A `scale` below 1 makes confidences smaller.
    """
    if not len(beams):
        raise SettingsError("no beams; expected those that decode_beams returned")
    totals = scale * np.array([beam.lm_score for beam in beams])
    weights = np.exp(totals - totals.max())
    weights /= weights.sum()
    found = []
    for word, (begin, end) in beams[0].text_frames:
        has = [any(w == word and a < end and begin < b for w, (a, b) in beam.text_frames) for beam in beams]
        found.append((word, min(1.0, float(weights[has].sum()))))
    return found
