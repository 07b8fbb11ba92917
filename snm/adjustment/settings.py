"""Settings of training the adjustment function, validated when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from snm.adjustment.metafeatures import MetafeatureSet
from snm.arguments import choice, set_real_numbers, set_whole_numbers, shown
from snm.errors import SettingsError
from snm.layouts.weights import SLOTS_PER_LINE

LOSSES = ("leave-one-out", "poisson", "multinomial")
OPTIMISERS = ("adagrad", "sgd")
MAX_DEFAULT_SLOTS = 1 << 28
MAX_SLOTS = 1 << 31  # rows of the table have 32-bit numbers, and private rows follow the slots
DEFAULT_RATES = {"adagrad": 0.1, "sgd": 0.002}


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How the adjustment function is learned.

    By default A(i, j) starts at minus the logarithm of the mean number of features of an event, so that predictions
    sum to about one before the first step.
    """

    loss: str = "leave-one-out"
    optimiser: str = "adagrad"
    rate: float | None = None  # None: that of DEFAULT_RATES
    accumulator: float = 1.0  # initial sum of squared gradients
    passes: int = 1
    slots: int | None = None  # None: by the number of links
    events: int | None = None  # that a pass uses, drawn by sentence; None for all
    batch: int = 4096  # events of a step of the multinomial loss
    start: float | None = None
    metafeatures: MetafeatureSet = field(default_factory=MetafeatureSet.parse)

    def __post_init__(self) -> None:
        choice("loss", self.loss, LOSSES)
        choice("optimiser", self.optimiser, OPTIMISERS)
        set_whole_numbers(self, passes=(0, None), batch=(1, None), slots=(1, MAX_SLOTS), events=(1, None))
        set_real_numbers(self, "rate", "accumulator", "start")
        for name in ("rate", "accumulator"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise SettingsError(f"{name} is {value}; expected a number above 0")
        if not isinstance(self.metafeatures, MetafeatureSet):
            raise SettingsError(f"metafeatures is {shown(self.metafeatures)}; expected snm.MetafeatureSet.parse(...)")
        if self.start is not None and not abs(self.start) < 30:
            raise SettingsError(f"start is {self.start}; expected a number between -30 and 30")
        if self.loss == "multinomial" and self.events is not None:
            raise SettingsError("events are drawn from the training text; the multinomial loss has held-out text only")

    def table_slots(self, links: int, most: int = MAX_DEFAULT_SLOTS) -> int:
        """Slots of the table: `slots` rounded up to whole lines, or a power of two by the links, 2^20 to `most`."""
        if self.slots:
            return -(-self.slots // SLOTS_PER_LINE) * SLOTS_PER_LINE
        return min(max(1 << (links // 2).bit_length(), 1 << 20), most)

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of a slot in the table, in the gradient of the multinomial loss and in the best pass's weights."""
        return 4 * (1 + (self.optimiser == "adagrad") + (self.loss == "multinomial") + (self.passes > 1))

    def learning_rate(self) -> float:
        return DEFAULT_RATES[self.optimiser] if self.rate is None else self.rate
