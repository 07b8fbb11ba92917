"""Training on several threads at once.

Threads share the table of weights without locks (Hogwild). Nearly every event changes the weights of conjunctions
without feature and target, and those of the empty feature without target; their cache lines would move from core to
core all the time. So each thread has private copies of these weights, in rows behind the shared slots. From time to
time it adds what it has learned to the shared weights, and takes over what other threads have added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from snm.adjustment.function import Adjustment
from snm.kernels import adjustment as adjustment_kernels
from snm.kernels import fast_training as fast_kernels
from snm.layouts.counts import Unigrams
from snm.layouts.keys import EMPTY_KEY, FEATURE_SALT
from snm.layouts.weights import (
    BUCKETS,
    COUNT_ROWS,
    FLOOR_CODES,
    HAS_FEATURE,
    HAS_FEATURE_COUNT,
    HAS_TARGET,
    HAS_TARGET_OFFSET,
    HAS_TYPE,
    AdjustmentTable,
    FastPlan,
    PrivateWeights,
    half_octave,
)

EXCHANGE_EVENTS = 2048  # events of a thread between two exchanges, at least
EARLY_EVENTS = 1 << 15  # events of a thread during which weights change fast, and are exchanged after every PIECE
PIECE = 512  # events
NO_GRADIENTS = np.empty((0, 0, 2), np.float64)
NO_DIVERSITIES = np.empty((0, 0), np.uint32)


def private_weights(plan: FastPlan, total: int, a: AdjustmentTable) -> tuple[np.ndarray, np.ndarray]:
    """Rows and slots of `PrivateWeights`. No feature was seen more than `total` times."""
    largest, slots = total.bit_length() - 1, int(a.slots)
    last = half_octave(total + 1) if a.link_halved else (total + 1).bit_length() - 1
    codes = [k & 7 if a.link_halved else FLOOR_CODES[k & 3] for k in range(last + 1)]
    lines = [(int(a.line_hashes[k >> int(a.line_shift)]), code) for k, code in enumerate(codes)]
    types, counts = ([int(h) for h in hashes] for hashes in (a.type_hashes, a.count_hashes[: largest + 1]))
    rows: list[int] = []
    shared: list[int] = []

    def add(row: int, h: int, linked: bool, most: int) -> None:
        """A conjunction, for all buckets of link counts up to `most`."""
        last = half_octave(most) if a.link_halved else most.bit_length() - 1
        for bucket, (line, code) in enumerate(lines[: last + 1] if linked else [(0, 0)]):
            rows.append(row + bucket)
            shared.append(((h ^ line) >> 32) * slots >> 32 ^ code)

    masks, nth = plan.bare + plan.linked, 0
    for c, mask in enumerate(masks):
        linked = c >= len(plan.bare)
        if not mask & (HAS_FEATURE | HAS_TARGET):
            for number, type_hash in enumerate(types if mask & HAS_TYPE else [0]):
                for bucket, count_hash in enumerate(counts if mask & HAS_FEATURE_COUNT else [0]):
                    row = len(masks) + (nth * len(types) + number) * COUNT_ROWS + bucket
                    most = 2 << bucket if mask & HAS_FEATURE_COUNT else total + 1
                    add(row * BUCKETS, type_hash ^ count_hash, linked, most)
            nth += 1
        elif not mask & HAS_TARGET_OFFSET:
            h = int(EMPTY_KEY ^ FEATURE_SALT)
            h ^= (types[0] if mask & HAS_TYPE else 0) ^ (counts[largest] if mask & HAS_FEATURE_COUNT else 0)
            add(c * BUCKETS, h, linked, total + 1)
    return np.array(rows, np.int64), np.array(shared, np.int64)


@dataclass
class _Thread:
    private: PrivateWeights | None = None
    arguments: tuple[Any, ...] = ()  # of the trainer: the fast one's first private row, scratch memory
    events: int = 0
    exchanged: int = 0  # events before the last exchange


class AdjustmentTrainer:
    """Takes steps of an adjustment's weights, by blocks of events.

    By the fast trainer where conjunctions are unweighted, otherwise by the plain one, which serves every case.
    """

    def __init__(
        self, adjustment: Adjustment, templates: int, unigrams: Unigrams, leave_one_out: bool, rate: float,
        threads: int = 1,
    ) -> None:  # fmt: skip
        """`adjustment` has private rows for this many threads; events have up to `templates` features."""
        table, plan = adjustment.for_kernels, adjustment.fast_plan
        self._arguments, self._table = (unigrams, leave_one_out, rate, table), table.table
        self._idle: list[_Thread] = []
        self._diversities = adjustment.diversities
        if plan is None:
            self._train = self._train_plain
            links = adjustment_kernels.GROUP_EVENTS * templates * (2 if table.has_diversity else 1)
            self._idle = [_Thread(None, (adjustment_kernels.make_scratch(links, table),)) for _ in range(threads)]
            return
        self._train = fast_kernels.fast_trainer(plan)
        rows, slots = private_weights(plan, max(1, int(unigrams.total) - leave_one_out), table)
        for i in range(threads):
            before = np.empty((len(rows), self._table.shape[1]), np.float32)
            private = PrivateWeights(np.int64(adjustment.first_private_row(i)), rows, slots, before)
            self._idle.append(_Thread(private, (private.first, fast_kernels.make_scratch(templates, plan))))

    def train(
        self, keys: np.ndarray, words: np.ndarray, annotations: np.ndarray, gradients: np.ndarray = NO_GRADIENTS
    ) -> float:
        """Steps for a block of events; returns their summed loss. At most `threads` threads may call it at once."""
        thread = self._idle.pop()
        try:
            if thread.private is None or thread.events >= EARLY_EVENTS:
                return self._train_piece(thread, keys, words, annotations, gradients, EXCHANGE_EVENTS)
            loss = 0.0
            for start in range(0, len(words), PIECE):
                part = slice(start, start + PIECE)
                piece = np.ascontiguousarray(keys[:, part]), words[part], annotations[part], gradients[part]
                loss += self._train_piece(thread, *piece, 0)
            return loss
        finally:
            self._idle.append(thread)

    def _train_piece(
        self, thread: _Thread, keys: np.ndarray, words: np.ndarray, annotations: np.ndarray, gradients: np.ndarray,
        between_exchanges: int,
    ) -> float:  # fmt: skip
        """Train on some events, then exchange private weights if the last exchange was long enough ago."""
        if thread.private is not None and not thread.events:
            fast_kernels.copy_shared(self._table, thread.private)
        loss: float = self._train(keys, words, annotations, *self._arguments, gradients, *thread.arguments)
        thread.events += len(words)
        if thread.private is not None and thread.events - thread.exchanged >= between_exchanges:
            fast_kernels.exchange(self._table, thread.private)
            thread.exchanged = thread.events
        return loss

    def _train_plain(self, keys: np.ndarray, words: np.ndarray, annotations: np.ndarray, *more: Any) -> float:
        diversities = NO_DIVERSITIES if self._diversities is None else self._diversities.of(keys)
        loss: float = adjustment_kernels.train_plain(keys, words, annotations, diversities, *more)
        return loss

    def finish(self) -> None:
        """Add what threads have learned since their last exchanges to the shared weights."""
        for thread in self._idle:
            if thread.private is not None and thread.events:
                fast_kernels.exchange(self._table, thread.private)
