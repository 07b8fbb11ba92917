"""Decoding while frames arrive: chunks of logits in, stable words and the best text so far out."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from snm.decoding.results import Beam, Frames, Partial
from snm.decoding.search import BeamSearch, Task
from snm.errors import SettingsError
from snm.layouts.decoding import NONE, Search

_KEPT_FRAMES = 1000  # frames after which what no beam needs is forgotten


class Decoding(Protocol):
    """What a stream needs of a `Decoder`."""

    def _task(self, *settings: Any) -> Task: ...

    def _arrays(self, width: int) -> Search: ...

    def _rows(self, logits: Any) -> np.ndarray: ...


class Stream:
    """One utterance whose logits arrive in chunks. It can be pickled between chunks.

    The result is that of the whole utterance, whatever the chunks are. Memory does not grow with the utterance, but
    for the stable words.
    """

    def __init__(self, decoder: Decoding, settings: tuple[Any, ...], lm_start_state: bytes | None) -> None:
        self._decoder, self._settings = decoder, settings
        task = decoder._task(*settings)
        self._search = BeamSearch(task, decoder._arrays(task.limits.width), lm_start_state)
        self._words: list[str] = []
        self._frames: list[Frames] = []
        self._forgotten = 0
        self._finished = False

    def feed(self, logits: Any) -> Partial:
        """Take a chunk of logits. (frames, labels)"""
        self._check()
        search = self._search
        search.feed(self._decoder._rows(logits))
        self._find_stable()
        if search.frames - self._forgotten >= _KEPT_FRAMES:
            search.forget(len(self._words))
            search.compact()
            self._forgotten = search.frames
        return self.partial

    @property
    def partial(self) -> Partial:
        """What has been found so far."""
        self._check()
        search = self._search
        best = search.arrays.beams[0]
        words = self._words + search.words_to(int(best["word"]), len(self._words))
        if best["piece"] != NONE:
            words.append(search.letters(int(best["piece"])))
        return Partial(search.text_of(self._words), search.text_of(words), search.frames)

    def finish(self) -> list[Beam]:
        """End the utterance: the best texts, the best first, as `decode_beams` returns them."""
        self._check()
        self._finished = True
        depth = len(self._words)
        return [self._search.beam(one, self._words, self._frames, depth) for one in self._search.finish()]

    def _find_stable(self) -> None:
        """Words that all beams have are stable. Their frames are those of the best beam."""
        search, known = self._search, len(self._words)
        stable = search.stable()
        new = search.words_to(stable, known)
        if new:
            frames = search.frames_to(int(search.arrays.beams[0]["span"]), known)
            self._words += new
            self._frames += frames[: len(new)]

    def _check(self) -> None:
        if self._finished:
            raise SettingsError("this stream is finished; start another one with decoder.stream()")

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        search = state.pop("_search")
        return {**state, "arrays": search.arrays}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays = state.pop("arrays")
        self.__dict__.update(state)
        self._search = BeamSearch.__new__(BeamSearch)
        self._search.task, self._search.arrays = self._decoder._task(*self._settings), arrays
