"""TODO: docstring."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from snm.adjustment.metafeatures import MetafeatureSet
from snm.errors import SettingsError

LOSSES = ("leave-one-out", "poisson", "multinomial")
OPTIMISERS = ("adagrad", "sgd")
MAX_FEATURES_OF_EVENTS = 1 << 29  # of events, by default; beyond, a sample is drawn (docs/estimation.md)
MAX_DEFAULT_SLOTS = 1 << 28  # slots
MAX_SLOTS = 1 << 31  # places have 32 bits, and threads have copies of weights beyond
DEFAULT_RATES = {"adagrad": 0.1, "sgd": 0.002}


@dataclass(frozen=True)
class TrainingSettings:
    """How the adjustment function is learned.

    None: the optimiser's own rate, slots by the links, as many events as have 2^29 features and fit into memory, and as
    `start` of every A(i, j) minus the logarithm of the mean number of features an event: there predictions have the
    right mass before the first step.
    """

    loss: str = "leave-one-out"
    optimiser: str = "adagrad"
    rate: float | None = None
    accumulator: float = 1.0
    passes: int = 1
    slots: int | None = None
    events: int | None = None
    batch: int = 4096
    start: float | None = None
    metafeatures: MetafeatureSet = field(default_factory=MetafeatureSet.parse)

    def __post_init__(self) -> None:
        _choose("loss", self.loss, LOSSES)
        _choose("optimiser", self.optimiser, OPTIMISERS)
        for name, low in (("passes", 0), ("batch", 1), ("slots", 1), ("events", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise SettingsError(f"{name} is {value}; expected {low} or more")
        for name in ("rate", "accumulator"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise SettingsError(f"{name} is {value}; expected a number above 0")
        if self.start is not None and not abs(self.start) < 30:
            raise SettingsError(f"start is {self.start}; expected a number between -30 and 30")
        if self.loss == "multinomial" and self.events is not None:
            raise SettingsError("events are drawn from the training text; the multinomial loss has held-out text only")
        if self.slots is not None and self.slots > MAX_SLOTS:
            raise SettingsError(f"slots is {self.slots}; the most is {MAX_SLOTS}")

    def table_slots(self, links: int, most: int = MAX_DEFAULT_SLOTS) -> int:
        """Slots of the table: as asked, made up to eights, or a power of two above half the links, 2^20 to `most`."""
        return -(-self.slots // 8) * 8 if self.slots else min(max(1 << (links // 2).bit_length(), 1 << 20), most)

    @property
    def bytes_a_slot(self) -> int:
        """Of the table, and of what is as long: a gradient, and the weights of the best pass."""
        return 4 * (1 + (self.optimiser == "adagrad") + (self.loss == "multinomial") + (self.passes > 1))

    def events_of(self, slots: int) -> int:
        """Events to train on, of those that have up to `slots` features each."""
        return MAX_FEATURES_OF_EVENTS // slots if self.events is None else self.events

    def learning_rate(self) -> float:
        return DEFAULT_RATES[self.optimiser] if self.rate is None else self.rate


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingsError(f"{name} {value!r} is not known; expected one of {', '.join(known)}")
