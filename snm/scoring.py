"""Scoring text with rows in pages, many events at a time. See `snm.kernels.scoring`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from snm import parallel
from snm.calibration import Gate
from snm.features import Extractor
from snm.pages import Pages

MOST_EVENTS = 1 << 17  # at a time
MOST_BYTES = 1 << 28  # of working memory for each thread


def over(
    tokens: np.ndarray, extractor: Extractor, threads: int, use: Callable[[slice, np.ndarray, Any], None]
) -> None:  # fmt: skip
    """Call use(part, words, work) for all parts of a text: the words of the part, and what the kernels need of them."""
    size = min(MOST_EVENTS, MOST_BYTES // _bytes_an_event(extractor), -(-len(tokens) // max(1, threads)))
    size = max(1, -(-size // extractor.block)) * extractor.block if size > extractor.block else max(1, size)
    unused: list[Any] = []

    def score_part(part: tuple[int, int]) -> None:
        work = unused.pop() if unused else _make_work(extractor, size)
        for block, (start, stop) in enumerate(extractor.blocks(*part)):
            work.keys[block, :, : stop - start] = extractor.keys(tokens, start, stop)
        use(slice(*part), tokens[slice(*part)], work)
        unused.append(work)

    parallel.run(score_part, [(k, min(k + size, len(tokens))) for k in range(0, len(tokens), size)], threads)


def find(keys: np.ndarray, words: np.ndarray, extractor: Extractor, pages: Pages, gate: Gate) -> Any:
    """What the rows of a few events say of themselves and of the events' words. See `snm.kernels.scoring.Found`."""
    from snm.kernels import scoring

    work = _make_work(extractor, len(words))
    for start, stop in parallel.between([*range(0, len(words), work.keys.shape[2]), len(words)]):
        work.keys[start // work.keys.shape[2], :, : stop - start] = keys[:, start:stop]
    return scoring.find(words, pages, gate, work)


def _bytes_an_event(extractor: Extractor) -> int:
    slots, rounds = extractor.n_slots, extractor.rounds
    return 9 * slots + 24 * (slots - 1) + 24 * max(map(len, rounds), default=0)  # see `_make_work`


def _make_work(extractor: Extractor, events: int) -> Any:
    from snm.kernels.scoring import MEMO_BITS, PART_BITS, Work
    from snm.kernels.vectors import TOGETHER

    slots, rounds = extractor.n_slots, extractor.rounds
    longest = max(map(len, rounds), default=0)
    in_block = min(-(-events // TOGETHER) * TOGETHER, extractor.block)
    return Work(
        slots=np.array([q for slots in rounds for q in slots], np.int64),
        rounds=np.cumsum([0, *map(len, rounds)]),
        keys=np.empty((-(-events // in_block), slots, in_block), np.uint64),
        state=np.empty(-(-events // TOGETHER) * TOGETHER * slots, np.uint8),
        first=np.empty((len(rounds), -(-events // TOGETHER) + 1), np.int64),
        whose=np.empty(events * (slots - 1) + 1, np.uint64),
        found=np.empty(2 * events * (slots - 1), np.uint64),
        listed=np.empty(events * longest + 1, np.uint64),
        items=np.empty(2 * events * longest, np.uint64),
        ends=np.empty(1 << PART_BITS, np.int64),
        memo=np.zeros(2 << MEMO_BITS, np.uint64),
    )
