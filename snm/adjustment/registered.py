"""Metafeatures of the user's own, registered by name: classes of links by their target, or by type and target."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from snm.arguments import shown
from snm.errors import SpecError
from snm.features.specification import FeatureType
from snm.text.vocabulary import Vocabulary

ClassMaker = Callable[..., Any]
BUILT_IN = ("feature", "type", "feature-count", "target", "link-count", "diversity", "continuation")
RESERVED = ("all", "lean", *BUILT_IN)

_registered: dict[str, ClassMaker] = {}


def metafeature(name: str) -> Callable[[ClassMaker], ClassMaker]:
    """Register a metafeature under `name`, to be used in `MetafeatureSet.parse`, such as "lean, type+name+link-count".

    The decorated function takes the vocabulary and the list of feature types, and returns whole numbers from 0 to
    2^32 - 1: the class of each word as a target, of shape (words,), or of each feature type with each target, (types,
    words). Links of one class share a weight. The function is called when a model is trained; the model does not need
    it.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in RESERVED:
        raise SpecError(
            f"metafeature name {shown(name)}: expected lower-case letters, digits and _, starting with a letter, other "
            f"than {', '.join(RESERVED)}"
        )

    def register(make: ClassMaker) -> ClassMaker:
        _registered[name] = make
        return make

    return register


def registered() -> list[str]:
    """The names of all registered metafeatures."""
    return sorted(_registered)


def classes_of(name: str, vocabulary: Vocabulary, types: Sequence[FeatureType]) -> np.ndarray:
    """The classes of a registered metafeature. (types, words), or (1, words) if they are the same for all; uint32"""
    made = np.asarray(_registered[name](vocabulary, list(types)))
    words = len(vocabulary)
    if made.dtype.kind not in "ui" or made.shape not in ((words,), (len(types), words)):
        raise SpecError(
            f"metafeature {name!r} returned {made.dtype} of shape {made.shape}; expected whole numbers of shape "
            f"({words},) or ({len(types)}, {words})"
        )
    if made.size and (made.min() < 0 or made.max() >= 1 << 32):
        raise SpecError(f"metafeature {name!r} returned {made.min()} to {made.max()}; expected 0 to 2^32 - 1")
    return np.ascontiguousarray(np.atleast_2d(made), np.uint32)
