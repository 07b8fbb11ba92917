"""Learning from blocks of annotated events, on several threads at once.

Threads share the table of weights, without locks. What nearly every event moves would go from one core to another all
the time, and each would wait for the other: the weights of conjunctions without feature and target, and those of the
empty feature without target. Of these a thread has its own copies, behind the shared weights in the table. From time to
time it adds to the shared ones what it has learned, and takes over what others have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from snm.metafeatures import BUCKETS, FLOOR_CODES, MetafeatureSet, half_octave

FEATURE, TYPE, COUNT, TARGET, _, NEAR_TARGET, NEAR_TYPE = (1 << u for u in range(7))  # see `snm.metafeatures.UNITS`
COUNTS = BUCKETS + 1  # of a type, so that types do not lie whole pages apart
EVENTS_ALONE = 2048  # that a thread learns from between two exchanges, at least
EVENTS_EARLY = 1 << 15  # of a thread: so long weights change fast, and are exchanged after every PIECE of a block
PIECE = 512
NO_GRADIENTS = np.empty((0, 0, 2), np.float64)


class Plan(NamedTuple):
    """Of the conjunctions without, and of those with a link count, the units each holds, as bits, and how often.

    Constants to LLVM, which writes out all loops over them.
    """

    bare: tuple[int, ...]
    bare_times: tuple[float, ...]
    linked: tuple[int, ...]
    linked_times: tuple[float, ...]

    @classmethod
    def of(cls, metafeatures: MetafeatureSet) -> Plan | None:
        """None where conjunctions have weights, or all have a link count, or none."""
        plan = metafeatures.plan()
        bare, units, times = int(plan.ends[0]), plan.units(), tuple(plan.multiplicity.tolist())
        if "double" in (metafeatures.feature_buckets, metafeatures.link_buckets) or not 0 < bare < len(units):
            return None
        return cls(units[:bare], times[:bare], units[bare:], times[bare:])

    def own_rows(self, kinds: int) -> int:
        """Rows of the table that a thread needs for its own copies.

        First BUCKETS for each conjunction, of the empty feature; then BUCKETS for every type and bucket of the feature
        count, for each that has no feature and no target.
        """
        units = self.bare + self.linked
        return (len(units) + sum(not u & (FEATURE | TARGET) for u in units) * kinds * COUNTS) * BUCKETS


class Own(NamedTuple):
    """Which weights a thread has copies of."""

    first: np.int64  # row of the table at which its copies begin
    rows: np.ndarray  # (copies,) int64: from there on
    places: np.ndarray  # (copies,) int64: of the shared ones
    before: np.ndarray  # (copies, 1 or 2) float32: what they were at the last exchange


def own_weights(plan: Plan, total: int, a: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows and places of `Own`, for the adjustment function `a`. No feature was seen more than `total` times."""
    from snm.kernels.extraction import EMPTY_KEY
    from snm.kernels.hashing import FEATURE_SALT

    largest, slots = total.bit_length() - 1, int(a.slots)
    last = half_octave(total + 1) if a.link_halved else (total + 1).bit_length() - 1
    codes = [k & 7 if a.link_halved else FLOOR_CODES[k & 3] for k in range(last + 1)]
    lines = [(int(a.line_hashes[k >> int(a.line_shift)]), code) for k, code in enumerate(codes)]
    kinds, counts = ([int(h) for h in hashes] for hashes in (a.type_hashes, a.count_hashes[: largest + 1]))
    rows: list[int] = []
    places: list[int] = []

    def add(row: int, h: int, linked: bool, most: int) -> None:
        """A conjunction for all buckets of the link count that there may be: of counts up to `most`."""
        last = half_octave(most) if a.link_halved else most.bit_length() - 1
        for bucket, (line, code) in enumerate(lines[: last + 1] if linked else [(0, 0)]):
            rows.append(row + bucket)
            places.append(((h ^ line) >> 32) * slots >> 32 ^ code)

    all_units, nth = plan.bare + plan.linked, 0
    for c, units in enumerate(all_units):
        linked = c >= len(plan.bare)
        if not units & (FEATURE | TARGET):
            for kind, of_kind in enumerate(kinds if units & TYPE else [0]):
                for count, of_count in enumerate(counts if units & COUNT else [0]):
                    row = len(all_units) + (nth * len(kinds) + kind) * COUNTS + count
                    add(row * BUCKETS, of_kind ^ of_count, linked, 2 << count if units & COUNT else total + 1)
            nth += 1
        elif not units & NEAR_TARGET:
            h = int(EMPTY_KEY ^ FEATURE_SALT)
            h ^= (kinds[0] if units & TYPE else 0) ^ (counts[largest] if units & COUNT else 0)
            add(c * BUCKETS, h, linked, total + 1)
    return np.array(rows, np.int64), np.array(places, np.int64)


class Learner:
    """Steps of the weights of an adjustment function, by blocks of events."""

    def __init__(
        self, adjustment: Any, slots: int, unigrams: Any, leave_one_out: bool, rate: float, threads: int = 1
    ) -> None:  # fmt: skip
        """`adjustment` has room for copies of so many threads; events have so many slots; kernels take `unigrams`."""
        from snm.kernels import adjustment as weighted
        from snm.kernels import plain_training as plain

        function, plan = adjustment.function, Plan.of(adjustment.metafeatures)
        self._how, self._table = (unigrams, leave_one_out, rate, function), function.table
        self._unused: list[_Thread] = []
        if plan is None:
            self._learn = weighted.train_weighted
            self._unused = [_Thread() for _ in range(threads)]
            return
        self._learn = plain.plain_trainer(plan)
        rows, places = own_weights(plan, max(1, int(unigrams.total) - leave_one_out), function)
        for i in range(threads):
            before = np.empty((len(rows), self._table.shape[1]), np.float32)
            own = Own(np.int64(adjustment.first_own_row(i)), rows, places, before)
            self._unused.append(_Thread(own, (own.first, plain.make_group(slots, plan))))

    def learn(
        self, keys: np.ndarray, words: np.ndarray, annotations: np.ndarray, gradients: np.ndarray = NO_GRADIENTS
    ) -> float:
        """Steps by a block of events; return their summed loss. As many threads may call it as were announced."""
        thread = self._unused.pop()
        try:
            if thread.own is None or thread.events >= EVENTS_EARLY:
                return self._learn_piece(thread, keys, words, annotations, gradients, EVENTS_ALONE)
            loss = 0.0
            for start in range(0, len(words), PIECE):
                piece = slice(start, start + PIECE)
                of_piece = np.ascontiguousarray(keys[:, piece]), words[piece], annotations[piece], gradients[piece]
                loss += self._learn_piece(thread, *of_piece, 0)
            return loss
        finally:
            self._unused.append(thread)

    def _learn_piece(
        self, thread: _Thread, keys: np.ndarray, words: np.ndarray, annotations: np.ndarray, gradients: np.ndarray,
        alone: int,
    ) -> float:  # fmt: skip
        """Learn from events, and exchange copies where there were more than `alone` since the last time."""
        from snm.kernels.plain_training import borrow, exchange

        if thread.own is not None and not thread.events:
            borrow(self._table, thread.own)
        loss: float = self._learn(keys, words, annotations, *self._how, gradients, *thread.more)
        thread.events += len(words)
        if thread.own is not None and thread.events - thread.exchanged >= alone:
            exchange(self._table, thread.own)
            thread.exchanged = thread.events
        return loss

    def finish(self) -> None:
        """Put together what the threads have learned since their last exchanges."""
        from snm.kernels.plain_training import exchange

        for thread in self._unused:
            if thread.own is not None and thread.events:
                exchange(self._table, thread.own)


@dataclass
class _Thread:
    own: Own | None = None
    more: tuple[Any, ...] = ()  # what the kernel takes of a thread
    events: int = 0
    exchanged: int = 0  # of the events, before the last exchange
