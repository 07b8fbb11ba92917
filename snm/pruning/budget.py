"""How much of a model is to stay: bytes, links, or the loss of perplexity that is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from snm.arguments import real_number, shown, whole_number
from snm.errors import SettingsError

STEPS = 60  # of a bisection
MAX_LOSS = 10.0
SPELLING_SHARE = 1 / 16  # of a size, at most, for the words that the spelling model is learned from


@dataclass(frozen=True)
class Budget:
    """Exactly one of the three. `size` is in bytes, `loss` a share: 0.01 is 1 %."""

    size: int | None = None
    links: int | None = None
    loss: float | None = None
    tried: tuple[tuple[int, float], ...] = ()
    """The sizes that were tried for a loss, and the loss of each."""

    def __post_init__(self) -> None:
        given = [name for name in ("size", "links", "loss") if getattr(self, name) is not None]
        if len(given) != 1:
            what = " and ".join(given) or "nothing"
            raise SettingsError(f"{what} given; expected one of size, links and loss: what the smaller model may have")
        for name in ("size", "links"):
            if name in given:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        if self.loss is not None:
            loss = real_number("loss", self.loss)
            if not 0 < loss <= MAX_LOSS:
                raise SettingsError(f"loss is {shown(loss)}; expected a share above 0, such as 0.01 for 1 %")
            object.__setattr__(self, "loss", loss)

    @property
    def spelling_bytes(self) -> float:
        """Bytes that the words of the spelling model may take."""
        return math.inf if self.size is None else SPELLING_SHARE * self.size


@dataclass(frozen=True)
class Smaller:
    """What is left of a model if everything worth less than a limit leaves."""

    bytes: int
    links: int
    loss: float  # estimated, a share of the perplexity

    def fits(self, budget: Budget) -> bool:
        within = (budget.size is None or self.bytes <= budget.size, budget.links is None or self.links <= budget.links)
        return all(within) and (budget.loss is None or self.loss <= budget.loss)


def find_limit(measure: Callable[[float], Smaller], budget: Budget, low: float, high: float) -> tuple[float, Smaller]:
    """The limit with the largest model that fits, or for `loss` the smallest; and that model.

    `low` and `high`: the least and the greatest worth above 0. With a higher limit the model is smaller and worse.
    """
    exponents = [math.log(low) - 1, math.log(high) + 1]
    for _ in range(STEPS):
        middle = sum(exponents) / 2
        smaller_wanted = measure(math.exp(middle)).fits(budget) == (budget.loss is not None)
        exponents[0 if smaller_wanted else 1] = middle
    limit = math.exp(exponents[0] if budget.loss is not None else exponents[1])
    return limit, measure(limit)


def too_small(budget: Budget, least: Smaller, rest: str) -> SettingsError:
    """The error for a budget that even the smallest model exceeds."""
    if budget.size is not None:
        return SettingsError(
            f"a size of {budget.size:,} bytes is too small: {rest} alone take {least.bytes:,}; give a larger --size, "
            f"or train with fewer words (--min-count, --max-words)"
        )
    return SettingsError(
        f"{budget.links or 0:,} links are too few: every word has one, {least.links:,} in all; give more --links"
    )


def describe(budget: Budget, criterion: str, **before: Any) -> dict[str, Any]:
    """The entry `pruning` of a manifest: the budget, the criterion, and further figures."""
    names = ("size", "links", "loss")
    given = {name: value for name in names if (value := getattr(budget, name)) is not None}
    tried = {"tried": [list(one) for one in budget.tried]} if budget.tried else {}
    return {"budget": given, "criterion": criterion, **before, **tried}
