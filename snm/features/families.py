"""Feature families of the user's own, registered by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from snm.arguments import shown, whole_number
from snm.errors import SpecError
from snm.text.vocabulary import Vocabulary

FamilyKeys = Callable[[np.ndarray, np.ndarray], np.ndarray]
FamilyMaker = Callable[[Vocabulary], FamilyKeys]


@dataclass(frozen=True)
class Family:
    """A registered feature family; see `feature_family`."""

    name: str
    make: FamilyMaker
    columns: int
    span: int


_families: dict[str, Family] = {}


def feature_family(name: str, *, columns: int = 1, span: int = 16) -> Callable[[FamilyMaker], FamilyMaker]:
    """Register a feature family under `name`, to be used as `family(name)` in a specification.

    The decorated function takes the vocabulary and returns a function `keys(tokens, position)`. That function gets a
    block of token ids (uint32) and each token's distance to its `<S>` (int32, -1 where the token is no event). It
    returns uint64 values of shape (tokens,) or (columns, tokens): entry k identifies the feature of the event whose
    target is tokens[k]; 0 means no feature. It may read only tokens before k, at most `span` of them, and must be
    deterministic across processes.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise SpecError(f"family name {shown(name)}: expected lower-case letters, digits and _, starting with a letter")
    columns, span = whole_number("columns", columns, 1), whole_number("span", span, 0)

    def register(make: FamilyMaker) -> FamilyMaker:
        _families[name] = Family(name, make, columns, span)
        return make

    return register


def family_named(name: str) -> Family:
    """The family registered under `name`."""
    if name not in _families:
        known = ", ".join(sorted(_families)) or "none"
        raise SpecError(
            f"the feature family {name!r} is not registered (registered: {known}); "
            f"import the module that registers it first (on the command line: --import MODULE)"
        )
    return _families[name]
