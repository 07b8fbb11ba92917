"""Tries for the decoder: the words of a vocabulary, and hot words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from snm.arguments import real_number, shown
from snm.errors import SettingsError
from snm.kernels import tries
from snm.layouts.decoding import DEAD, NONE, ROOT, HotWords, Trie


def lexicon_of(words: Mapping[str, int]) -> Trie:
    """The trie of words and their ids."""
    listed = sorted(words)
    characters, starts = _flat(listed)
    nodes = int(tries.count_nodes(characters, starts)) + 1
    trie = _empty(nodes)
    ids = np.array([words[word] for word in listed], np.int32)
    none = np.zeros(0, np.int64)
    tries.fill(characters, starts, ids, trie, ROOT + 1, none, none)
    return trie


def hot_words_of(phrases: Mapping[str, float]) -> HotWords:
    """The automaton of phrases, each with a bonus. The shortest phrase that may have begun gives the partial bonus."""
    listed = sorted(phrases)
    characters, starts = _flat(listed)
    nodes = int(tries.count_nodes(characters, starts)) + 2
    hot = HotWords(_empty(nodes), np.zeros(nodes, np.int32), np.zeros(nodes), np.zeros(nodes))
    parents, letters = np.zeros(nodes, np.int64), np.zeros(nodes, np.uint32)
    if listed:
        tries.fill(characters, starts, np.arange(len(listed), dtype=np.int32), hot.trie, DEAD + 1, parents, letters)
        weights, lengths = np.array([phrases[phrase] for phrase in listed]), np.diff(starts)
        longest_first = np.argsort(-lengths, kind="stable")
        tries.weigh(characters, starts, weights, longest_first, hot)
    tries.link(parents, letters, hot)
    return hot


def phrases_of(hotwords: Any, weight: float) -> dict[str, float]:
    """Hot words and phrases with their weights. A list is taken as pyctcdecode does: each word of it has `weight`."""
    if hotwords is None:
        return {}
    if isinstance(hotwords, str) or not isinstance(hotwords, Iterable):
        raise SettingsError(f"hotwords is {shown(hotwords)}; expected a list of words, or a dictionary of weights")
    given = list(hotwords)
    wrong = next((phrase for phrase in given if not isinstance(phrase, str)), None)
    if wrong is not None:
        raise SettingsError(f"hotwords has {shown(wrong)}; expected strings")
    if isinstance(hotwords, Mapping):
        weights = {phrase: real_number(f"the weight of {phrase!r}", hotwords[phrase]) for phrase in given}
        return {" ".join(phrase.split()): weight for phrase, weight in weights.items() if phrase.split()}
    weight = real_number("hotword_weight", weight)
    return {word: weight for phrase in given for word in phrase.split()}


def _flat(words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The characters of all words, and where each begins."""
    characters = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), np.uint32)
    return characters, np.cumsum([0, *map(len, words)], dtype=np.int64)


def _empty(nodes: int) -> Trie:
    size = 1 << max(4, (2 * nodes).bit_length())
    return Trie(np.zeros(size, np.uint64), np.zeros(size, np.int32), np.full(nodes, NONE, np.int32))
