"""Scores of words after histories, as decoders ask for them: what the adapters of decoders share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

from snm.kenlm.engines import Engine, engine_of
from snm.loading import load
from snm.model import LanguageModel


def engine_for(model: str | Path | LanguageModel) -> Engine:
    """The engine for a model, a model folder or an ARPA file."""
    return engine_of(model if isinstance(model, LanguageModel) else load(model))


class Prefixes:
    """The beginnings of words: which strings an unfinished word can be."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(set(words))

    def __contains__(self, prefix: str) -> bool:
        at = bisect_left(self._words, prefix)
        return at < len(self._words) and self._words[at].startswith(prefix)
