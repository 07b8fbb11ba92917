"""One beam search: its arrays, the calls of the model between frames, and its results."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from snm.decoding.results import Beam, Frames
from snm.decoding.scores import WordScores
from snm.kernels import decoding as kernels
from snm.layouts.decoding import (
    ALL_WORDS,
    BEAM,
    BEAMS,
    CANDIDATES,
    COUNTERS,
    CUT,
    DONE,
    FIRST_LABEL,
    FRAME,
    GROW,
    NONE,
    PENDING,
    PIECE,
    PIECES,
    SCORE,
    SPAN,
    SPANS,
    WORD,
    WORDS,
    HotWords,
    Labels,
    Limits,
    Search,
    Trie,
)
from snm.layouts.tokens import UNKNOWN
from snm.model import IDS

_TREES = {"words": WORDS, "pieces": PIECES, "spans": SPANS}


class Task(NamedTuple):
    """What a search works with: the same for all utterances of a call."""

    limits: Limits
    labels: Labels
    texts: list[str]
    separator: str
    """Between words: a space; of a token-level model, nothing."""
    lexicon: Trie
    hot: HotWords
    scores: WordScores | None
    boundary: bool
    """Whether texts are whole sentences."""
    compatible: bool
    """Whether a text that ends with a space has one more, unknown word, as in pyctcdecode."""


def make_arrays(width: int, labels: int, state_width: int) -> Search:
    """Arrays for a search of `width` beams. `room` makes larger ones when they are needed."""
    room, nodes = 16 * width, max(1024, 16 * width)
    return Search(
        np.zeros(COUNTERS, np.int64), np.zeros(width, BEAM), np.zeros(width, BEAM), np.zeros(room, BEAM),
        np.zeros((2, room), np.int64), np.zeros(4 * room, np.int64), np.zeros(labels, np.int64),
        np.zeros(nodes, WORD), np.zeros((nodes, state_width), IDS), _table(nodes), np.zeros(nodes, PIECE),
        np.zeros(nodes, SPAN), np.zeros(nodes, np.int64),
    )  # fmt: skip


def _table(nodes: int) -> np.ndarray:
    return np.full(1 << (2 * nodes - 1).bit_length(), NONE, np.int64)


class BeamSearch:
    """A search over one utterance, frame by frame."""

    def __init__(self, task: Task, arrays: Search, state: bytes | None = None) -> None:
        self.task, self.arrays = task, arrays
        arrays.counters[:] = 0
        arrays.children[:] = NONE
        arrays.words[0], arrays.beams[0] = np.zeros((), WORD), np.zeros((), BEAM)
        for name in ("parent", "piece"):
            arrays.words[name][0] = NONE
        for name in ("label", "piece", "span", "begin", "end"):
            arrays.beams[name][0] = NONE
        arrays.counters[WORDS] = 1
        arrays.counters[BEAMS] = 1
        if task.scores is not None:
            arrays.states[0] = task.scores.state(state, task.boundary)[0]

    def feed(self, log_probabilities: np.ndarray) -> None:
        """Go through frames. (frames, labels) float64"""
        wanted, done = GROW, 0
        while wanted != DONE:
            t, a = self.task, self.arrays
            wanted, done = kernels.advance(log_probabilities, done, t.limits, a, t.labels, t.lexicon, t.hot)
            if wanted == SCORE:
                self._score_pending()
            elif wanted == GROW:
                self._make_room(int((log_probabilities[done] >= t.limits.min_token).sum()) + 1)

    def _score_pending(self) -> None:
        arrays, scores = self.arrays, self.task.scores
        pending = arrays.pending[: arrays.counters[PENDING]]
        if not len(pending) or scores is None:
            return
        words = arrays.words[pending]
        log10_p, states = scores.step(arrays.states[words["parent"]], words["id"].astype(IDS))
        arrays.states[pending] = states
        kernels.settle(log10_p, self.task.limits, arrays)

    def _make_room(self, tokens: int) -> None:
        """Forget what no beam uses; where that is not enough for the next frames, make larger arrays."""
        counters, arrays = self.arrays.counters, self.arrays
        beams = int(counters[BEAMS])
        self.compact()
        room = {"words": beams * tokens, "pieces": len(arrays.beams), "spans": len(arrays.beams)}
        larger: dict[str, np.ndarray] = {}
        for name, more in room.items():
            nodes, used = getattr(arrays, name), int(counters[_TREES[name]])
            if len(nodes) < 2 * (used + more):
                larger[name] = _grown(nodes, 4 * (used + more))
        if "words" in larger:
            n = len(larger["words"])
            larger |= {"states": _grown(arrays.states, n), "pending": np.zeros(n, np.int64), "children": _table(n)}
        if len(arrays.candidates) < len(arrays.beams) * tokens:
            n = 2 * len(arrays.beams) * tokens
            larger |= {"candidates": np.zeros(n, BEAM), "order": np.zeros((2, n), np.int64)}
            larger["table"] = np.zeros(4 * n, np.int64)
        self.arrays = arrays._replace(**larger)
        if "words" in larger:
            kernels.reindex(self.arrays)

    def compact(self) -> None:
        """Forget nodes that no beam uses, and those before the depth that `forget` set."""
        longest = max(int(self.arrays.counters[i]) for i in _TREES.values())
        kernels.compact(self.arrays, np.zeros((3, max(1, longest)), np.int64))

    def forget(self, depth: int) -> None:
        """Let `compact` forget words and frames before this depth, but for those that the model can see."""
        order = self.task.limits.order
        self.arrays.counters[CUT] = max(0, depth - max(2, order if order < ALL_WORDS else 0))

    # ---------------------------------------------------------------------------------------------
    # results

    @property
    def frames(self) -> int:
        return int(self.arrays.counters[FRAME])

    def stable(self) -> int:
        """The node of the last word that all beams have."""
        return int(kernels.stable_word(self.arrays))

    def depth(self, node: int) -> int:
        return int(self.arrays.words[node]["depth"])

    def words_to(self, node: int, depth: int = 0) -> list[str]:
        """The words up to a node, without the first `depth` ones."""
        words, found = self.arrays.words, []
        while node != NONE and words[node]["depth"] > depth:
            found.append(self.word(node))
            node = int(words[node]["parent"])
        return found[::-1]

    def word(self, node: int) -> str:
        """The letters of a word."""
        piece = int(self.arrays.words[node]["piece"])
        return self.task.texts[FIRST_LABEL - piece] if piece <= FIRST_LABEL else self.letters(piece)

    def letters(self, piece: int) -> str:
        """The letters of a word whose last piece this is."""
        found = []
        while piece != NONE:
            parent, label = self.arrays.pieces[piece].tolist()
            found.append(self.task.texts[label])
            piece = parent
        return "".join(reversed(found))

    def text_of(self, words: list[str]) -> str:
        """Words as one text; tokens have their spaces."""
        return self.task.separator.join(words).strip(" ")

    def frames_to(self, span: int, depth: int = 0) -> list[Frames]:
        """The frames of each word up to a span, without those of the first `depth` words."""
        found = []
        while span != NONE:
            parent, level, begin, end = self.arrays.spans[span].tolist()
            if level <= depth:
                break
            found.append((begin, end))
            span = parent
        return found[::-1]

    def finish(self, best: int | None = None) -> list[Finished]:
        """End the utterance: the results, the best first, at most `best` of them."""
        limits, arrays, scores = self.task.limits, self.arrays, self.task.scores
        if arrays.counters[WORDS] + arrays.counters[BEAMS] > len(arrays.words):
            self._make_room(1)
            arrays = self.arrays
        kernels.finish(limits, arrays, self.task.lexicon, self.task.hot)
        self._score_pending()
        found = arrays.candidates[: arrays.counters[CANDIDATES]]
        words, states = arrays.words[found["word"]], arrays.states[found["word"]]
        totals = found["acoustic"] + words["score"] + words["hot"]
        open_end = np.flatnonzero(found["finishes"] == 0)
        totals[open_end] += found["bonus"][open_end]
        if scores is not None and self.task.compatible and len(open_end):
            log10_p, states[open_end] = scores.step(states[open_end], np.full(len(open_end), UNKNOWN, IDS))
            totals[open_end] += limits.alpha * math.log(10) * (log10_p + limits.unknown) + limits.beta
        if scores is not None and self.task.boundary:
            totals += limits.alpha * math.log(10) * scores.end(states)
        order = np.argsort(-totals, kind="stable")
        order = order[totals[order] >= totals[order[0]] + limits.prune][: limits.width if best is None else best]
        return [self._finished(found[i], float(totals[i]), states[i]) for i in order]

    def _finished(self, candidate: np.void, total: float, after: np.ndarray) -> Finished:
        before, node = self.arrays.beams[candidate["before"]], int(candidate["word"])
        last = [(int(before["begin"]), int(before["end"]))] if candidate["finishes"] else []
        state = after.tobytes() if self.task.scores is not None else None
        return Finished(node, int(before["span"]), last, float(candidate["acoustic"]), total, state)

    def beam(self, found: Finished, words: list[str], frames: list[Frames], depth: int = 0) -> Beam:
        """A result as a beam. `words`, `frames`: those that the search has forgotten, of the first `depth` words."""
        words = words + self.words_to(found.word, depth)
        frames = frames + self.frames_to(found.span, depth) + found.last
        return Beam(
            self.text_of(words), found.state, list(zip(words, frames, strict=False)), found.acoustic, found.total
        )


class Finished(NamedTuple):
    """A result of a search: its last word, the span before it, the frames of a word that the end finished, scores."""

    word: int
    span: int
    last: list[Frames]
    acoustic: float
    total: float
    state: bytes | None


def _grown(array: np.ndarray, length: int) -> np.ndarray:
    larger = np.zeros((length, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
