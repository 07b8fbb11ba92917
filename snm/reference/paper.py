"""The paper, slowly, in plain Python: the oracle of the tests.

Nothing here is fast and nothing is approximate. Features are tuples of words, counts are
dictionaries, every sum runs over everything. Only the hash that places a metafeature in the table of
weights is shared with the kernels by definition, because it is part of the model; it is written out
again here over Python integers. Equations are cited by the names they have in the paper.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from snm.features.specification import FeatureSpec
from snm.layouts.keys import KeyLayout
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.layouts.weights import BUCKETS_PER_LINE, FLOOR_CODES, PAIR_CODES

Sentence = Sequence[int]  # token ids, <S> first and </S> last
Feature = tuple[int, tuple[int, ...]]  # type index, and its words from left to right
Counts = dict[Feature, dict[int, int]]
_64 = (1 << 64) - 1


def features_of(spec: FeatureSpec, context: Sentence, classes: Sequence[int] = ()) -> set[Feature]:
    """All features of an event, f in the paper: every (r, s, a) the specification allows that fits into the context.

    `classes`: the class of every word, by which the remote words of a class feature enter.
    """
    found: set[Feature] = set()
    n = len(context)
    for term in spec.terms:
        longest = n if term.s.high is None else term.s.high
        for r in range(term.r.low, (term.r.high or 0) + 1):
            for a in range(term.a.low, (term.a.high or 0) + 1):
                for s in range(term.s.low, min(longest, term.cap if term.s.high is None else longest) + 1):
                    words = r + a
                    if r + s + a > n or not term.words.low <= words <= (term.words.high or words):
                        continue
                    remote, adjacent = context[n - a - s - r : n - a - s], context[n - a :]
                    by_class = term.kind == "class"
                    if by_class:
                        remote = [classes[word] for word in remote]
                    kind = next(
                        i for i, t in enumerate(spec.types)
                        if (t.r, t.a, t.s, t.classes) == (r, a, None if term.tied else s, by_class) and t.family is None
                    )  # fmt: skip
                    found.add((kind, (*remote, *adjacent)))
    return found


def events(sentences: Sequence[Sentence]) -> Iterator[tuple[Sentence, int]]:
    """(context, target) of every position after `<S>`."""
    for sentence in sentences:
        for k in range(1, len(sentence)):
            yield sentence[:k], sentence[k]


def count(spec: FeatureSpec, sentences: Sequence[Sentence], words: int) -> Counts:
    """The feature-target count matrix C over a vocabulary of `words`.

    In the row of the empty feature a word that was not seen counts as seen once, and `<UNK>`, where it
    was not seen, as often as there are words that were seen once.
    """
    counts: Counts = defaultdict(lambda: defaultdict(int))
    for context, target in events(sentences):
        for feature in features_of(spec, context):
            counts[feature][target] += 1
    empty = counts[(0, ())]
    once = sum(n == 1 for word, n in empty.items() if word > UNKNOWN)
    for word in range(1, words):
        if empty[word] == 0:
            empty[word] = max(1, once) if word == UNKNOWN else 1
    return counts


def mix64(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _64
    return x ^ (x >> 31)


def _chain(words: Sequence[int]) -> int:
    chain = 0
    for word in reversed(words):
        chain = ((chain ^ mix64(word + 1)) * 0x9E3779B97F4A7C15) & _64
        chain ^= chain >> 32
    return chain


def key_of(spec: FeatureSpec, layout: KeyLayout, feature: Feature) -> int:
    """The 64-bit key of a feature."""
    kind, words = feature
    if not words:
        return 1
    t = spec.types[kind]
    remote, adjacent = words[: t.r], words[t.r :]
    h = mix64(((_chain(adjacent) * 0xC2B2AE3D27D4EB4F) & _64) ^ _chain(remote) ^ t.salt)
    return (h & layout.hash_mask) | (kind << layout.type_shift) | 1


def log2_buckets(n: int) -> tuple[int, float]:
    """Floor of log2(n), and what the rounding loses."""
    return n.bit_length() - 1, math.log2(n) - (n.bit_length() - 1)


def half_octaves(n: int) -> int:
    """Number of the half octave of n, by its bounds: 1 | 2 | 3 | 4-5 | 6-7 | 8-11 | 12-15 | …, the first being 1."""
    bounds = [1, *(step * 2**octave for octave in range(1, 40) for step in (1, 1.5))]
    return sum(bound <= n for bound in bounds)


class Adjustment:
    """A(i, j) = sum over k of theta(hash[alpha_k(i, j, C_i*, C_ij)])."""

    def __init__(
        self, spec: FeatureSpec, layout: KeyLayout, masks: dict[int, int], table: np.ndarray,
        buckets: tuple[str, str], bucket_hashes: tuple[np.ndarray, np.ndarray], start: float = 0.0,
    ) -> None:  # fmt: skip
        """`masks`: conjunctions as bit masks over the seven elementary metafeatures, with multiplicity.
        `buckets`: how feature counts and link counts are bucketed. `start`: what every A(i, j) begins at."""
        self.spec, self.layout, self.masks, self.table = spec, layout, masks, table
        self.buckets, self.bucket_hashes, self.start = buckets, bucket_hashes, start

    def metafeatures(
        self, feature: Feature, target: int, total: int, link: int, seen: int | None = None
    ) -> list[tuple[int, int, float, int]]:
        """(conjunction, slot of the table, weight, multiplicity) of every metafeature alpha_k(i, j, C_i*, C_ij).

        The feature was `seen` so often where `total` leaves something out."""
        (bc, lost_c), (bl, lost_l) = log2_buckets(total), log2_buckets(link)
        double_c, double_l = self.buckets[0] == "double", self.buckets[1] == "double"
        if self.buckets[1] == "half":
            bl = half_octaves(link)
        elementary = [
            (key_of(self.spec, self.layout, feature) ^ 1 << 63, 1.0),
            (self.spec.types[feature[0]].salt, 1.0),
            (int(self.bucket_hashes[0][bc]), 1.0 - lost_c if double_c else 1.0),
            (mix64(target ^ 0xA0761D6478BD642F), 1.0),
            (0, 1.0 - lost_l if double_l else 1.0),
            (int(self.bucket_hashes[0][bc + 1]), lost_c if double_c else 0.0),
            (0, lost_l if double_l else 0.0),
        ]
        found = []
        for mask, multiplicity in self.masks.items():
            h, weight = 0, 1.0
            for bit, (value, strength) in enumerate(elementary):
                if mask >> bit & 1:
                    h ^= self._near(mask, bit, value, feature, seen or total)
                    weight *= strength
            line, code = self._link_place(mask >> 4 & 1, mask >> 6 & 1, bl)
            if weight:
                found.append((mask, ((h ^ line) >> 32) * len(self.table) >> 32 ^ code, weight, multiplicity))
        return found

    def _near(self, mask: int, bit: int, value: int, feature: Feature, seen: int) -> int:
        """What an elementary metafeature adds to the hash: less where its weights are to lie near those of others.

        Upper bits of a hash tell its slot. Targets of a feature lie within a window of twice as many slots as it was
        seen, at least eight, but not in its own; where link counts go with them, each in a line of eight slots, and
        so many lines. Types with a target are numbered line by line.
        """
        a_slot = 1 << 64 - int(math.log2(len(self.table)))
        if bit == 3 and mask & 1:
            has_links = any(m & 1 and m >> 3 & 1 and m & 0b1010000 for m in self.masks)
            least = 8 * a_slot if has_links else a_slot
            window = min(max(2 << int(math.log2(seen)), 8) * least, 2**64)
            return (least + (value >> 32) * (window - least) // 2**32) // least * least % 2**64
        if bit == 1 and mask >> 3 & 1 and not mask & 1:
            return (feature[0] + 1) * 8 * a_slot % 2**64
        return value

    def _link_place(self, floor: int, ceiling: int, bucket: int) -> tuple[int, int]:
        """Hash of the line of eight slots, and code of the slot in it, that the link count adds."""
        if not floor and not ceiling:
            return 0, 0
        bucket += not floor
        line, rest = divmod(bucket, BUCKETS_PER_LINE[self.buckets[1]])
        codes = range(8) if self.buckets[1] == "half" else PAIR_CODES if floor and ceiling else FLOOR_CODES
        return (int(self.bucket_hashes[1][line]) if line else 0), codes[rest]

    def __call__(
        self, feature: Feature, target: int, total: int, link: int, lexical: bool = True, seen: int | None = None
    ) -> float:
        """A(i, j); without `lexical`, metafeatures that hold the feature's identity are left out."""
        found = self.metafeatures(feature, target, total, link, seen)
        return self.start + sum(
            m * w * float(self.table[slot, 0]) for mask, slot, w, m in found if lexical or not mask & 1
        )


def matrix(counts: Counts, adjustment: Adjustment, leave_one_out: bool = False) -> dict[Feature, dict[int, float]]:
    """M_ij = exp(A(i, j)) C_ij / C_i*.

    Leave-one-out training never looks at a feature seen once: its identity has no weight.
    """
    made = {}
    for feature, row in counts.items():
        total = sum(row.values())
        lexical = total > 1 or not leave_one_out
        made[feature] = {j: math.exp(adjustment(feature, j, total, c, lexical)) * c / total for j, c in row.items()}
    return made


def prediction(m: dict[Feature, dict[int, float]], features: set[Feature]) -> dict[int, float]:
    """y = M f, the words with y = 0 left out."""
    y: dict[int, float] = defaultdict(float)
    for feature in features:
        for j, value in m.get(feature, {}).items():
            y[j] += value
    return y


def probability(m: dict[Feature, dict[int, float]], features: set[Feature], target: int) -> float:
    """Eq. prob: y_j over the sum of all y_u."""
    y = prediction(m, features)
    return y.get(target, 0.0) / sum(y.values())


def gate_weights(rows: Sequence[tuple[float, int, float] | None], gate: Sequence[np.ndarray]) -> list[float]:
    """exp(B_q) of every slot; `rows` has (C_i*, distinct targets, row sum) of a slot, or None where there is no row.

    `gate` are the weights from inputs to hidden units, their biases, the weights to the slots, theirs.
    """
    hidden_weights, hidden_biases, output_weights, output_biases = (part.tolist() for part in gate)
    inputs = []
    for row in rows:
        if row is None:
            inputs.append((0.0, 0.0, 0.0, 0.0))
        else:
            total, distinct, row_sum = row
            log_total = round(8 * math.log2(total)) / 8 * math.log(2)  # kept to an eighth of an octave
            inputs.append((0.2 * log_total, 0.2 * (math.log(distinct) - log_total), 0.2 * math.log(row_sum), 1.0))
    hidden = []
    for u, bias in enumerate(hidden_biases):
        total_input = sum(
            x * w[u] for xs, ws in zip(inputs, hidden_weights, strict=True) for x, w in zip(xs, ws, strict=True)
        )
        hidden.append(max(0.0, bias + total_input))
    sums = [
        b + sum(h * w for h, w in zip(hidden, ws, strict=True))
        for ws, b in zip(output_weights, output_biases, strict=True)
    ]
    return [math.exp(max(-15.0, min(15.0, b))) if row else 0.0 for b, row in zip(sums, rows, strict=True)]


def poisson_loss(y: dict[int, float], target: int) -> float:
    """L_Poisson(y, t) = sum of y_u - log(y_j); without the logarithm where y_j is zero."""
    y_j = y.get(target, 0.0)
    return sum(y.values()) - (math.log(y_j) if y_j > 0 else 0.0)


def multinomial_loss(y: dict[int, float], target: int) -> float:
    """L_multi(y, t) = log(sum of y_u) - log(y_j)."""
    return math.log(sum(y.values())) - math.log(y[target])


def left_out_prediction(
    spec: FeatureSpec, counts: Counts, adjustment: Adjustment, context: Sentence, target: int
) -> dict[int, float]:
    """y' = M' f: the prediction for an event of the training text from the counts without that event."""
    y: dict[int, float] = defaultdict(float)
    for feature in features_of(spec, context):
        seen = sum(counts[feature].values())
        total = seen - 1
        for j, c in counts[feature].items():
            c -= j == target
            if total and c:
                y[j] += math.exp(adjustment(feature, j, total, c, seen=seen)) * c / total
    return y


def gradients(
    spec: FeatureSpec,
    counts: Counts,
    adjustment: Adjustment,
    context: Sentence,
    target: int,
    leave_one_out: bool = True,
) -> dict[Feature, tuple[float, float]]:
    """Of every feature of an event the gradient of the Poisson loss with respect to A(i, j).

    Eq. gradient_agg with leave-one-out: the negative part, taken at (C_i* - 1, C_ij), and the positive
    part, at (C_i* - 1, C_ij - 1). Without: the two terms of f_i t_j M_ij (C_i* / C_ij - 1 / y_j).
    """
    negative, positive = {}, {}
    for feature in features_of(spec, context):
        total, link = sum(counts[feature].values()), counts[feature][target]
        if leave_one_out:
            if total == 1:
                continue
            e = math.exp(adjustment(feature, target, total - 1, link, seen=total))
            negative[feature] = (total - link) / link * link / (total - 1) * e
            positive[feature] = 0.0
            if link > 1:
                e = math.exp(adjustment(feature, target, total - 1, link - 1, seen=total))
                positive[feature] = (link - 1) / (total - 1) * e
        else:
            m = math.exp(adjustment(feature, target, total, link)) * link / total
            negative[feature], positive[feature] = m * total / link, m
    y = sum(positive.values())
    parts = {}
    for feature, value in positive.items():
        g = 0.0
        if value > 0:
            g = value * (y - 1) / y if leave_one_out else -value / y
        parts[feature] = negative[feature], g
    return parts


def train_group(
    spec: FeatureSpec, counts: Counts, adjustment: Adjustment, group: Sequence[tuple[Sentence, int, Sequence[Feature]]],
    rate: float, leave_one_out: bool = True,
) -> None:  # fmt: skip
    """Online steps for a group of events, each (context, target, features in order): by SGD or (two columns) AdaGrad.

    All gradients are taken before the first step. Positive parts that have metafeatures of their own come last.
    """
    parts = [gradients(spec, counts, adjustment, context, target, leave_one_out) for context, target, _ in group]
    apart = []
    for (_, target, order), of_event in zip(group, parts, strict=True):
        for feature in order:
            if feature in of_event:
                apart += _train_feature(counts, adjustment, feature, target, of_event[feature], rate, leave_one_out)
    for slot, g in apart:
        _step(adjustment.table, slot, g, rate)


def _train_feature(
    counts: Counts, adjustment: Adjustment, feature: Feature, target: int,
    parts: tuple[float, float], rate: float, leave_one_out: bool,
) -> list[tuple[int, float]]:  # fmt: skip
    """Steps of one feature's metafeatures.

    A conjunction that is the same metafeature in both parts of the gradient takes one step by the
    sum; otherwise one by the negative part, and the slots and gradients of the positive part are returned.
    """
    g_n, g_p = parts
    seen, link = sum(counts[feature].values()), counts[feature][target]
    total = seen - leave_one_out
    link_p = link - 1 if leave_one_out else link
    at_n = {mask: (slot, w) for mask, slot, w, _ in adjustment.metafeatures(feature, target, total, link, seen)}
    at_p = {}
    if link_p:
        at_p = {mask: (slot, w) for mask, slot, w, _ in adjustment.metafeatures(feature, target, total, link_p, seen)}
    apart = []
    for mask in dict.fromkeys([*at_n, *at_p]):
        (slot_n, w_n), (slot_p, w_p) = at_n.get(mask, (None, 0.0)), at_p.get(mask, (None, 0.0))
        if slot_n == slot_p or slot_p is None:
            _step(adjustment.table, slot_n, g_n * w_n + g_p * w_p, rate)
        else:
            apart.append((slot_p, g_p * w_p))
            if slot_n is not None:
                _step(adjustment.table, slot_n, g_n * w_n, rate)
    return apart


def _step(table: np.ndarray, slot: int | None, gradient: float, rate: float) -> None:
    if table.shape[1] == 2:
        seen = float(table[slot, 1]) + gradient * gradient
        table[slot, 1] = seen
        table[slot, 0] = float(table[slot, 0]) - rate * gradient / math.sqrt(seen)
    else:
        table[slot, 0] = float(table[slot, 0]) - rate * gradient


def perplexity(spec: FeatureSpec, m: dict[Feature, dict[int, float]], sentences: Sequence[Sentence]) -> float:
    """Eq. basic_lm:ppl over all events."""
    logs = [math.log(probability(m, features_of(spec, context), target)) for context, target in events(sentences)]
    return math.exp(-sum(logs) / len(logs))


def to_sentences(tokens: np.ndarray) -> list[list[int]]:
    """A token array cut into its sentences."""
    sentences: list[list[int]] = []
    for token in tokens.tolist():
        if token == BEGIN:
            sentences.append([])
        sentences[-1].append(token)
    assert all(sentence[-1] == END for sentence in sentences)
    return sentences
