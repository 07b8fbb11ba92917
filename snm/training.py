"""The adjustment function A: its table of weights, and how they are learned.

Training needs of an event only its features and their counts (C_i*, C_ij). Events are annotated with
those counts while each partition of C is in memory; then training streams the annotated events and
never looks at C again. Held-out text needs whole rows (for the sum over the vocabulary), so the rows
that it touches are kept aside: they give its perplexity while training, and the multinomial loss.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np

from snm import parallel
from snm.corpus import Text
from snm.counting import Counts
from snm.errors import SettingsError
from snm.features import Extractor
from snm.learning import Learner, Plan
from snm.metafeatures import BUCKETS, BUCKETS_A_LINE, MetafeatureSet, Nearness, near_types
from snm.progress import Progress, silent
from snm.rows import RowIndex

LOSSES = ("leave-one-out", "poisson", "multinomial")
OPTIMISERS = ("adagrad", "sgd")
FEATURES_LOOKED_AT = 1 << 29  # of events, by default; beyond, a sample is drawn (docs/estimation.md)
MOST_BY_DEFAULT = 1 << 28  # slots
MOST_SLOTS = 1 << 31  # places have 32 bits, and threads have copies of weights beyond
DEFAULT_RATES = {"adagrad": 0.1, "sgd": 0.002}


@dataclass(frozen=True)
class TrainingSettings:
    """How the adjustment function is learned.

    None: the optimiser's own rate, slots by the links, as many events as have 2^29 features and fit into memory, and as
    `start` of every A(i, j) minus the logarithm of the mean number of features an event: there predictions have the
    right mass before the first step.
    """

    loss: str = "leave-one-out"
    optimiser: str = "adagrad"
    rate: float | None = None
    accumulator: float = 1.0
    passes: int = 1
    slots: int | None = None
    events: int | None = None
    batch: int = 4096
    start: float | None = None
    metafeatures: MetafeatureSet = field(default_factory=MetafeatureSet.parse)

    def __post_init__(self) -> None:
        _choose("loss", self.loss, LOSSES)
        _choose("optimiser", self.optimiser, OPTIMISERS)
        for name, low in (("passes", 0), ("batch", 1), ("slots", 1), ("events", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise SettingsError(f"{name} is {value}; expected {low} or more")
        for name in ("rate", "accumulator"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise SettingsError(f"{name} is {value}; expected a number above 0")
        if self.start is not None and not abs(self.start) < 30:
            raise SettingsError(f"start is {self.start}; expected a number between -30 and 30")
        if self.loss == "multinomial" and self.events is not None:
            raise SettingsError("events are drawn from the training text; the multinomial loss has held-out text only")
        if self.slots is not None and self.slots > MOST_SLOTS:
            raise SettingsError(f"slots is {self.slots}; the most is {MOST_SLOTS}")

    def table_slots(self, links: int, most: int = MOST_BY_DEFAULT) -> int:
        """Slots of the table: as asked, made up to eights, or a power of two above half the links, 2^20 to `most`."""
        return -(-self.slots // 8) * 8 if self.slots else min(max(1 << (links // 2).bit_length(), 1 << 20), most)

    @property
    def bytes_a_slot(self) -> int:
        """Of the table, and of what is as long: a gradient, and the weights of the best pass."""
        return 4 * (1 + (self.optimiser == "adagrad") + (self.loss == "multinomial") + (self.passes > 1))

    def events_of(self, slots: int) -> int:
        """Events to train on, of those that have up to `slots` features each."""
        return FEATURES_LOOKED_AT // slots if self.events is None else self.events

    def learning_rate(self) -> float:
        return DEFAULT_RATES[self.optimiser] if self.rate is None else self.rate


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingsError(f"{name} {value!r} is not known; expected one of {', '.join(known)}")


class AdjustmentFunction(Protocol):
    """A(i, j), wherever its weights lie."""

    start: float  # what every A(i, j) begins at
    table: Any  # (slots, 1 or 2) float32: theta and, for AdaGrad, the sum of its squared gradients

    def singles(self) -> np.ndarray:
        """M_ij of features seen once, which leave-one-out never looks at: by type and target. (types, words) float32

        Empty after other losses, where such features are like all others.
        """

    def weigh(
        self, counts: Counts, threads: int = 1, singles: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """M and its row sums for the rows of `counts`: (links,) float32, (rows,) float32."""

    def weights(self) -> Any:
        """A copy of all theta, for `restore`."""

    def restore(self, weights: Any | None) -> None:
        """Go back to these, None for those that training begins with."""


class Annotated(Protocol):
    """Events with the counts of their features."""

    def mean_features(self, leave_one_out: bool) -> float:
        """Mean number of features an event that training looks at."""

    def train(self, adjustment: Any, settings: TrainingSettings, threads: int, advance: Callable[[int], None]) -> float:
        """One pass over all events in their order; returns the mean loss an event."""

    def __len__(self) -> int:
        """Tokens, for `advance`."""


class Adjustment:
    """A(i, j): the flat table of metafeature weights and what the kernels need to use it."""

    def __init__(self, extractor: Extractor, settings: TrainingSettings, slots: int, threads: int = 1) -> None:
        """`threads`: how many may learn at once."""
        layout, types = extractor.layout, extractor.spec.types
        metafeatures = self.metafeatures = settings.metafeatures
        self.plan, self.threads = metafeatures.plan(), threads
        plain = Plan.of(metafeatures)
        self._own_rows = 0 if plain is None else plain.own_rows(len(types))
        self._all = _aligned_zeros(slots + threads * self._own_rows, 2 if settings.optimiser == "adagrad" else 1)
        self.table = self._all[:slots]
        if settings.optimiser == "adagrad":
            self.table[:, 1] = settings.accumulator
        self._layout = layout
        self._type_hashes = np.array([t.salt for t in types], np.uint64)
        self.start = 0.0 if settings.start is None else settings.start
        self._single_alike = settings.loss == "leave-one-out"
        self._vocabulary = len(extractor.vocabulary)
        self._nearness, self._near_types = Nearness.of(slots, self.plan), near_types(slots, len(types))
        link_buckets = metafeatures.link_buckets
        self._buckets = (
            metafeatures.feature_buckets == "double", link_buckets == "double", link_buckets == "half",
            np.int64(BUCKETS_A_LINE[link_buckets].bit_length() - 1),
        )  # fmt: skip

    @property
    def function(self) -> Any:
        """What the adjustment kernels take."""
        from snm.kernels.adjustment import Function

        plan, layout = self.plan, self._layout
        return Function(
            np.uint64(layout.type_shift), np.uint64((1 << layout.type_bits) - 1), self._type_hashes,
            bucket_hashes("feature-count"), line_hashes(), self._nearness, self._near_types, *self._buckets, self.start,
            plan.parent, plan.unit, plan.base, plan.kind, plan.multiplicity, plan.ends, plan.lexical,
            np.uint64(len(self.table)), self._all,
        )  # fmt: skip

    def first_own_row(self, thread: int) -> int:
        """Where a thread's own copies of weights begin in the kernels' table, see `snm.learning`."""
        return len(self.table) + thread * self._own_rows

    def singles(self) -> np.ndarray:
        from snm.kernels import adjustment

        made = np.empty((len(self._type_hashes) if self._single_alike else 0, self._vocabulary), np.float32)
        for kind, weights in enumerate(made):
            adjustment.weigh_singles(kind, self.function, weights)
        return made

    def weigh(
        self, counts: Counts, threads: int = 1, singles: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        from snm.kernels import adjustment

        singles = self.singles() if singles is None else singles
        weights = np.empty(len(counts.targets), np.float32)
        sums = np.empty(len(counts.features), np.float32)

        def work(rows: tuple[int, int]) -> None:
            adjustment.weigh_rows(*rows, counts, self.function, singles, weights, sums)

        parallel.run(work, _even_rows(counts.offsets, 8 * threads), threads)
        return weights, sums

    def weights(self) -> np.ndarray:
        return self.table[:, 0].copy()

    def restore(self, weights: np.ndarray | None) -> None:
        self.table[:, 0] = 0 if weights is None else weights


@cache
def bucket_hashes(name: str) -> np.ndarray:
    """A random 64-bit hash for each log2 bucket of a count."""
    digests = (hashlib.blake2b(f"{name} {b}".encode(), digest_size=8).digest() for b in range(BUCKETS + 1))
    hashes = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    hashes.flags.writeable = False
    return hashes


def line_hashes() -> np.ndarray:
    """What the line of a link count's bucket adds to the hash: nothing for the first line, which is the base's own."""
    hashes = bucket_hashes("link-count").copy()
    hashes[0] = 0
    return hashes


def _aligned_zeros(slots: int, columns: int) -> np.ndarray:
    """A table whose lines of eight slots are lines of the cache. (slots, columns) float32"""
    raw = np.zeros(slots * columns + 16, np.float32)
    skip = -raw.ctypes.data % 64 // 4
    return raw[skip : skip + slots * columns].reshape(slots, columns)


def _even_rows(offsets: np.ndarray, n: int) -> list[tuple[int, int]]:
    """Ranges of rows that hold about the same number of links each."""
    rows = len(offsets) - 1
    wanted = np.linspace(offsets[0], offsets[-1], n + 1)[1:-1]
    return parallel.between([0, *np.searchsorted(offsets[:-1], wanted).tolist(), rows])


class Annotations:
    """Counts of the features of every event of a text, the empty feature's aside: (tokens, slots - 1) uint32.

    (C_i*, C_ij) in sixteen bits each, see `kernels.counting.pack_counts`; 0 where there is no feature. `Counter`
    fills them in.
    """

    def __init__(
        self, text: Text, extractor: Extractor, unigrams: Counts, storage: Callable[[tuple[int, ...]], np.ndarray]
    ) -> None:
        """`storage` makes a zeroed uint32 array of the shape it is given, in memory or on disk."""
        self.text, self.extractor = text, extractor
        self.values = storage((len(text.tokens), extractor.n_slots - 1))
        self.flat = self.values.reshape(-1)
        self.origin_type = np.dtype(np.uint32 if self.flat.size < 1 << 32 else np.uint64)
        self._total = int(unigrams.totals[0])
        self._counts = np.zeros(len(extractor.vocabulary), np.uint32)
        self._counts[unigrams.targets] = unigrams.counts

    @staticmethod
    def bytes_needed(text: Text, extractor: Extractor) -> int:
        return len(text.tokens) * (extractor.n_slots - 1) * 4

    def __len__(self) -> int:
        return len(self.text.tokens)

    @property
    def unigrams(self) -> Any:
        """What the training kernel takes."""
        from snm.kernels.adjustment import Unigrams

        return Unigrams(np.int64(self._total), self._counts)

    def mean_features(self, leave_one_out: bool, most: int = 1 << 20) -> float:
        """Mean number of features an event that training looks at, of about `most` tokens or all there are."""
        chosen = self.values[:: -(-len(self.values) // most)]
        parts = (chosen[start : start + self.extractor.block] for start in range(0, len(chosen), self.extractor.block))
        features = sum(int(np.count_nonzero(part >> np.uint32(16) > leave_one_out)) for part in parts)
        return 1.0 + features / max(1, len(chosen))

    def train(
        self, adjustment: Adjustment, settings: TrainingSettings, threads: int, advance: Callable[[int], None]
    ) -> float:
        tokens, threads = self.text.tokens, min(threads, adjustment.threads)
        learner = Learner(
            adjustment, self.extractor.n_slots, self.unigrams, settings.loss == "leave-one-out",
            settings.learning_rate(), threads,
        )  # fmt: skip
        losses: list[float] = []

        def work(block: tuple[int, int]) -> None:
            start, stop = block
            keys = self.extractor.keys(tokens, start, stop)
            losses.append(learner.learn(keys, tokens[start:stop], self.values[start:stop]))
            advance(stop - start)

        parallel.run(work, self.extractor.blocks(0, len(tokens)), threads)
        learner.finish()
        return sum(losses) / max(1, self.text.events)


class HeldOut:
    """Held-out text with the whole rows of C that its events touch."""

    def __init__(self, text: Text, extractor: Extractor, counts: Counts, index: RowIndex) -> None:
        from snm.kernels import lookup

        self.text, tokens = text, text.tokens
        found = np.empty((len(tokens), extractor.n_slots), np.int64)
        for start, stop in extractor.blocks(0, len(tokens)):
            lookup.find_rows(extractor.keys(tokens, start, stop), index, found[start:stop])
        used, renumbered = np.unique(found, return_inverse=True)
        absent = int(used[0] < 0)
        self.rows = (renumbered.reshape(found.shape) - absent).astype(np.int32)
        self.counts = _select_rows(counts, used[absent:])
        self.links = np.empty(self.rows.shape, np.int64)
        lookup.find_links(self.rows, tokens, self.counts.offsets, self.counts.targets, self.links)
        self.events = np.flatnonzero(self.rows[:, 0] >= 0)

    def perplexity(self, adjustment: AdjustmentFunction, threads: int = 1) -> float:
        """Perplexity of the text under the present weights."""
        from snm.kernels import adjustment as kernel

        weights, sums = adjustment.weigh(self.counts, threads)
        rows, links = self.rows[self.events], self.links[self.events]
        scratch = np.zeros(len(sums)), np.zeros(len(weights))
        return float(np.exp(kernel.multinomial_loss(rows, links, weights, sums, *scratch) / len(self.events)))

    def train(
        self, adjustment: Adjustment, settings: TrainingSettings, seed: int, advance: Callable[[int], None]
    ) -> float:
        """One pass of the multinomial loss over mini-batches drawn in random order; returns the mean loss."""
        weights = np.zeros(len(self.counts.targets), np.float32)
        sums = np.zeros(len(self.counts.features), np.float32)
        gradient = np.zeros(len(adjustment.table), np.float32)
        order = np.random.default_rng(seed).permutation(self.events)
        loss = 0.0
        for start in range(0, len(order), settings.batch):
            batch = np.sort(order[start : start + settings.batch])
            loss += self._train_batch(batch, adjustment, settings.learning_rate(), weights, sums, gradient)
            advance(len(batch))
        return loss / max(1, len(order))

    def _train_batch(
        self, batch: np.ndarray, adjustment: Adjustment, rate: float,
        weights: np.ndarray, sums: np.ndarray, gradient: np.ndarray,
    ) -> float:  # fmt: skip
        from snm.kernels import adjustment as kernel

        rows, links = self.rows[batch], self.links[batch]
        order = np.empty(rows.size, np.int64)
        touched = order[: kernel.mark_rows(rows, np.zeros(len(sums), bool), order)]
        kernel.weigh_listed(touched, self.counts, adjustment.function, weights, sums)
        row_gradients, link_gradients = np.zeros(len(sums)), np.zeros(len(weights))
        loss = kernel.multinomial_loss(rows, links, weights, sums, row_gradients, link_gradients)
        for apply in (False, True) if rate else (False,):
            kernel.multinomial_gradient(
                touched, row_gradients, link_gradients, weights, self.counts, adjustment.function, gradient, apply, rate
            )  # fmt: skip
        return float(loss)


def _select_rows(counts: Counts, rows: np.ndarray) -> Counts:
    """The rows that are listed, as counts of their own."""
    starts, lengths = counts.offsets[rows], counts.offsets[rows + 1] - counts.offsets[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    links = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Counts(counts.features[rows], counts.totals[rows], offsets, counts.targets[links], counts.counts[links])


@dataclass
class TrainingReport:
    """What training did: the mean loss of each pass, and the held-out perplexity before and after each."""

    losses: list[float] = field(default_factory=list)
    perplexities: list[float] = field(default_factory=list)
    best_pass: int = 0


def train_adjustment(
    adjustment: AdjustmentFunction,
    settings: TrainingSettings,
    annotations: Annotated | None,
    fitted: HeldOut | None,
    dev: HeldOut | None,
    threads: int = 1,
    seed: int = 1,
    progress: Progress = silent,
) -> TrainingReport:
    """Run the passes; with `dev`, stop when its perplexity rises and go back to the best weights."""
    report = TrainingReport()
    if settings.start is None and annotations is not None:
        adjustment.start = -math.log(max(1.0, annotations.mean_features(settings.loss == "leave-one-out")))
    best: Any | None = None
    if dev is not None:
        report.perplexities.append(dev.perplexity(adjustment, threads))
    for number in range(1, settings.passes + 1):
        label = f"training {number}/{settings.passes}" if settings.passes > 1 else "training"
        if fitted is not None:
            with progress(label, len(fitted.events)) as bar:
                assert isinstance(adjustment, Adjustment)  # no other learns from rows
                report.losses.append(fitted.train(adjustment, settings, seed + number, bar))
        elif annotations is not None:
            with progress(label, len(annotations)) as bar:
                report.losses.append(annotations.train(adjustment, settings, threads, bar))
        if dev is None:
            report.best_pass = number
            continue
        report.perplexities.append(dev.perplexity(adjustment, threads))
        if not report.perplexities[-1] <= min(report.perplexities[:-1]):  # risen, or no number at all
            break
        report.best_pass = number
        if number < settings.passes:
            best = adjustment.weights()
    if report.best_pass < len(report.losses):
        adjustment.restore(best)  # None: nothing was better than no adjustment
    return report
