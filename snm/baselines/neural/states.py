"""States of neural models, for scoring word by word: the last words, and the memory of the recurrent layer."""

from __future__ import annotations

import numpy as np

from snm.baselines.neural.layer import RecurrentLayer
from snm.layouts.tokens import BEGIN, END

IDS = np.dtype(np.uint32)


class NetworkStates:
    """A state as 32-bit numbers: the ids of the last words, XOR a tag, then the layer's memory as float32.

    The words are those that hashed features see, at least one; without a layer there is nothing else.
    """

    def __init__(self, words: int, layer: RecurrentLayer | None, tag: int) -> None:
        self.words, self.layer, self.tag = words, layer, IDS.type(tag)
        self.sizes = [] if layer is None else [part.shape[1] for part in layer.start(1)]
        self.width: int = words + sum(self.sizes)

    def start(self) -> np.ndarray:
        """The state after `<S>`. (1, width)"""
        memory = () if self.layer is None else self.layer.start(1)
        return self._follow(np.full((1, self.words), BEGIN, IDS), memory, np.array([BEGIN], IDS))

    def null(self) -> np.ndarray:
        """The state before any word. `</S>` stands for the words: it is in no context. (1, width)"""
        state = np.zeros((1, self.width), IDS)
        state[:, : self.words] = END ^ self.tag
        return state

    def ids(self, states: np.ndarray) -> np.ndarray:
        """The last words. (n, words)"""
        found: np.ndarray = states[:, : self.words] ^ self.tag
        return found

    def hidden(self, states: np.ndarray) -> np.ndarray:
        """The hidden state of the layer; without one, no columns. (n, hidden) float32"""
        memory = self._memory(states)
        return memory[0] if memory else np.zeros((len(states), 0), np.float32)

    def follow(self, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """The states after one more word each. (n, width)"""
        return self._follow(self.ids(states), self._memory(states), ids)

    def _memory(self, states: np.ndarray) -> tuple[np.ndarray, ...]:
        edges = np.cumsum([self.words, *self.sizes])
        parts = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        return tuple(np.ascontiguousarray(states[:, a:b]).view(np.float32) for a, b in parts)

    def _follow(self, words: np.ndarray, memory: tuple[np.ndarray, ...], ids: np.ndarray) -> np.ndarray:
        after = np.empty((len(ids), self.width), IDS)
        after[:, : self.words - 1] = words[:, 1:] ^ self.tag
        after[:, self.words - 1] = ids ^ self.tag
        if self.layer is not None and len(ids):
            made = self.layer.step(ids.astype(np.int64), memory)
            after[:, self.words :] = np.concatenate(made, axis=1).view(IDS)
        return after
