"""Settings of neural models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec

from snm.arguments import choice, set_real_numbers, set_whole_numbers
from snm.errors import MissingExtra, SettingsError

CELLS = ("rnn", "lstm")
OUTPUTS = ("tree", "adaptive", "classes")
MAX_HIDDEN = 1 << 20


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Settings of a neural model. None: chosen by the model and the size of the text."""

    cell: str | None = None  # rnn or lstm; by default rnn, in a hybrid lstm
    hidden: int = 256  # units
    softmax: str | None = None  # tree, with n-gram features (of rnn, hsme), adaptive (of lstm), classes (of hybrid)
    passes: int | None = None
    rate: float | None = None
    batch: int | None = None  # events
    dropout: float | None = None
    slots: int | None = None  # of the table of feature weights
    checkpoint: float = 600.0  # seconds between checkpoints, 0 for none

    def __post_init__(self) -> None:
        set_whole_numbers(self, hidden=(1, MAX_HIDDEN), passes=(0, None), batch=(1, None), slots=(2, 1 << 40))
        set_real_numbers(self, "checkpoint", "rate", "dropout")
        if self.cell is not None:
            choice("cell", self.cell, CELLS)
        if self.softmax is not None:
            choice("softmax", self.softmax, OUTPUTS)
        if not self.checkpoint >= 0:
            raise SettingsError(f"checkpoint is {self.checkpoint}; expected 0 or more")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise SettingsError(f"rate is {self.rate}; expected a number above 0")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise SettingsError(f"dropout is {self.dropout}; expected 0 or more, and below 1")

    def cell_of(self, model: str) -> str:
        return self.cell or ("lstm" if model == "hybrid" else "rnn")

    def output_of(self, model: str) -> str:
        if model == "hsme":
            return "tree"
        usual = "classes" if model == "hybrid" else {"rnn": "tree", "lstm": "adaptive"}[self.cell_of(model)]
        return self.softmax or usual


def require_torch() -> None:
    if find_spec("torch") is None:
        raise MissingExtra("torch", "neural", "training a neural model, or scoring one on a GPU,")
