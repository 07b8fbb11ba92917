"""The paper in plain Python: the reference of the tests.

Nothing here is fast, and nothing is approximate. Features are tuples of words, counts are dictionaries, and every sum
runs over all its terms. The hashes that give features their keys and metafeatures their slots are part of the model, so
they are the kernels' hashes, computed over Python integers. Equations have the names of the paper.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from snm.features.specification import FeatureSpec
from snm.layouts.keys import FEATURE_SALT, MIX_MULTIPLIERS, MULTIPLIER, REMOTE_MULTIPLIER, TARGET_SALT, KeyLayout
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.layouts.weights import (
    BUCKETS_PER_LINE,
    DIVERSITY,
    FEATURE,
    FLOOR_CODES,
    LINK_COUNT,
    LINK_COUNT_2,
    PAIR_CODES,
    SLOTS_PER_COUNT,
    SLOTS_PER_LINE,
    TARGET,
    TYPE,
)

Sentence = Sequence[int]  # token ids, <S> first and </S> last
Feature = tuple[int, tuple[int, ...]]  # type index, and words from left to right
Counts = dict[Feature, dict[int, int]]  # C_ij by feature and target
Matrix = dict[Feature, dict[int, float]]  # M_ij by feature and target
_64_BITS = (1 << 64) - 1


def features_of(
    spec: FeatureSpec, context: Sentence, classes: Sequence[int] = (), fields: dict[str, int] | None = None
) -> set[Feature]:
    """All features of an event, the paper's f: each (r, s, a) of the specification that fits into the context.

    `classes`: the class of each word, which class features use in place of remote words. `fields`: the values of the
    sentence's fields, which stand before the words of a feature that has one.
    """
    found: set[Feature] = set()
    n = len(context)
    for term in spec.terms:
        if term.kind == "side":
            for i, t in enumerate(spec.types):
                if t.side == term.side and t.side in (fields or {}) and t.a <= n:
                    found.add((i, ((fields or {})[t.side], *context[n - t.a :])))
            continue
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
                    type_index = next(
                        i for i, t in enumerate(spec.types)
                        if (t.r, t.a, t.s, t.classes) == (r, a, None if term.tied else s, by_class)
                        and t.family is t.side is None
                    )  # fmt: skip
                    found.add((type_index, (*remote, *adjacent)))
    return found


def events(sentences: Sequence[Sentence]) -> Iterator[tuple[Sentence, int]]:
    """(context, target) of each position after `<S>`."""
    for sentence in sentences:
        for k in range(1, len(sentence)):
            yield sentence[:k], sentence[k]


def count(spec: FeatureSpec, sentences: Sequence[Sentence], words: int) -> Counts:
    """The feature-target count matrix C over a vocabulary of `words`.

    In the row of the empty feature, a word that was not seen has the count 1. `<UNK>`, if it was not seen, has the
    number of words that were seen once.
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
    x = (x ^ (x >> 30)) * MIX_MULTIPLIERS[0] & _64_BITS
    x = (x ^ (x >> 27)) * MIX_MULTIPLIERS[1] & _64_BITS
    return x ^ (x >> 31)


def _chain(words: Sequence[int]) -> int:
    chain = 0
    for word in reversed(words):
        chain = ((chain ^ mix64(word + 1)) * MULTIPLIER) & _64_BITS
        chain ^= chain >> 32
    return chain


def key_of(spec: FeatureSpec, layout: KeyLayout, feature: Feature) -> int:
    """The 64-bit key of a feature, see `snm.layouts.keys`."""
    type_index, words = feature
    if not words:
        return 1
    t = spec.types[type_index]
    first = 1 if t.side is not None else t.r
    remote, adjacent = words[:first], words[first:]
    h = mix64(((_chain(adjacent) * REMOTE_MULTIPLIER) & _64_BITS) ^ _chain(remote) ^ t.salt)
    return (h & layout.hash_mask) | (type_index << layout.type_shift) | 1


def log2_bucket(n: int) -> tuple[int, float]:
    """Floor and fractional part of log2(n)."""
    return n.bit_length() - 1, math.log2(n) - (n.bit_length() - 1)


def half_octaves(n: int) -> int:
    """The half-octave bucket of n: 1 | 2 | 3 | 4-5 | 6-7 | 8-11 | 12-15 | …; the first is 1."""
    bounds = [1, *(step * 2**octave for octave in range(1, 40) for step in (1, 1.5))]
    return sum(bound <= n for bound in bounds)


class Adjustment:
    """A(i, j) = sum over k of theta(hash[alpha_k(i, j, C_i*, C_ij)])."""

    def __init__(
        self, spec: FeatureSpec, layout: KeyLayout, masks: dict[int, int], table: np.ndarray,
        buckets: tuple[str, str], bucket_hashes: tuple[np.ndarray, ...], start: float = 0.0,
        classes: Sequence[tuple[np.ndarray, int]] = (),
    ) -> None:  # fmt: skip
        """`masks`: conjunctions as bit masks of the seven elementary metafeatures, with their multiplicities.

        `buckets`: how feature counts and link counts are bucketed. `start`: the initial value of every A(i, j).
        `bucket_hashes`: of feature counts, link counts and diversities. `classes`: of links, by type and target, and
        the salt of each such metafeature.
        """
        self.classes, self.has_diversity = classes, any(mask >> DIVERSITY & 1 for mask in masks)
        self.spec, self.layout, self.masks, self.table = spec, layout, masks, table
        self.buckets, self.bucket_hashes, self.start = buckets, bucket_hashes, start

    def metafeatures(
        self, feature: Feature, target: int, feature_count: int, link_count: int, seen: int | None = None,
        diversity: int = 1,
    ) -> list[tuple[int, int, float, int]]:  # fmt: skip
        """(conjunction, slot, weight, multiplicity) of each metafeature alpha_k(i, j, C_i*, C_ij).

        `seen`: C_i* with the event that leave-one-out removes from `feature_count`. `diversity`: of the feature.
        """
        (feature_bucket, feature_rest), (link_bucket, link_rest) = log2_bucket(feature_count), log2_bucket(link_count)
        double_feature, double_link = (how == "double" for how in self.buckets)
        if self.buckets[1] == "half":
            link_bucket = half_octaves(link_count)
        # hash and weight of each elementary metafeature, in the order of its bit
        elementary = [
            (key_of(self.spec, self.layout, feature) ^ int(FEATURE_SALT), 1.0),
            (self.spec.types[feature[0]].salt, 1.0),
            (int(self.bucket_hashes[0][feature_bucket]), 1.0 - feature_rest if double_feature else 1.0),
            (mix64(target ^ int(TARGET_SALT)), 1.0),
            (0, 1.0 - link_rest if double_link else 1.0),
            (int(self.bucket_hashes[0][feature_bucket + 1]), feature_rest if double_feature else 0.0),
            (0, link_rest if double_link else 0.0),
            *[(0, 0.0)] * 2,  # bits that stand for other components
            (int(self.bucket_hashes[2][half_octaves(diversity)]) if len(self.bucket_hashes) > 2 else 0, 1.0),
            *((mix64(int(values[feature[0] % len(values), target]) ^ salt), 1.0) for values, salt in self.classes),
        ]
        found = []
        for mask, multiplicity in self.masks.items():
            h, weight = 0, 1.0
            for bit, (value, part) in enumerate(elementary):
                if mask >> bit & 1:
                    h ^= self._component_hash(mask, bit, value, feature, seen or feature_count)
                    weight *= part
            line, code = self._link_slot(mask >> LINK_COUNT & 1, mask >> LINK_COUNT_2 & 1, link_bucket)
            if weight:
                found.append((mask, ((h ^ line) >> 32) * len(self.table) >> 32 ^ code, weight, multiplicity))
        return found

    def _component_hash(self, mask: int, bit: int, value: int, feature: Feature, seen: int) -> int:
        """The component of a conjunction's hash that stands for one of its elementary metafeatures.

        The upper bits of a hash choose the slot. A target beside the feature is an offset in the feature's window: of
        twice as many slots as the feature was seen, at least eight, without the feature's own. Where such conjunctions
        have link counts, the window has lines in place of slots. A type beside the target is an offset in lines.
        """
        slot = 1 << 64 - int(math.log2(len(self.table)))
        has_feature, has_target = mask >> FEATURE & 1, mask >> TARGET & 1
        if bit == TARGET and has_feature:
            links = 1 << LINK_COUNT | 1 << LINK_COUNT_2
            in_lines = any(m >> FEATURE & 1 and m >> TARGET & 1 and m & links for m in self.masks)
            step = SLOTS_PER_LINE * slot if in_lines else slot
            window = min(max(SLOTS_PER_COUNT << int(math.log2(seen)), SLOTS_PER_LINE) * step, 2**64)
            return (step + (value >> 32) * (window - step) // 2**32) // step * step % 2**64
        if bit == TYPE and has_target and not has_feature:
            return (feature[0] + 1) * SLOTS_PER_LINE * slot % 2**64
        return value

    def _link_slot(self, floor: int, ceiling: int, bucket: int) -> tuple[int, int]:
        """Hash of the line, and code of the slot in it, for a link count's bucket, the next bucket, or both."""
        if not floor and not ceiling:
            return 0, 0
        bucket += not floor
        line, rest = divmod(bucket, BUCKETS_PER_LINE[self.buckets[1]])
        codes = range(8) if self.buckets[1] == "half" else PAIR_CODES if floor and ceiling else FLOOR_CODES
        return (int(self.bucket_hashes[1][line]) if line else 0), codes[rest]

    def __call__(
        self, feature: Feature, target: int, feature_count: int, link_count: int, lexical: bool = True,
        seen: int | None = None, diversity: int = 1,
    ) -> float:  # fmt: skip
        """A(i, j); without `lexical`, metafeatures that contain the feature's identity are left out."""
        found = self.metafeatures(feature, target, feature_count, link_count, seen, diversity)
        return self.start + sum(
            m * w * float(self.table[slot, 0]) for mask, slot, w, m in found if lexical or not mask >> FEATURE & 1
        )


def continuation(spec: FeatureSpec, counts: Counts, words: int) -> np.ndarray:
    """The half octave of how many features of each type each target follows, 0 for none. (types, words) uint32"""
    made = np.zeros((len(spec.types), words), np.uint32)
    for (type_index, _), row in counts.items():
        for target in row:
            made[type_index, target] += 1
    return np.array([[half_octaves(int(n)) if n else 0 for n in row] for row in made], np.uint32)


def matrix(counts: Counts, adjustment: Adjustment, leave_one_out: bool = False) -> Matrix:
    """M_ij = exp(A(i, j)) C_ij / C_i*.

    Leave-one-out never trains the identity of a feature seen once, so its weights are left out.
    """
    m = {}
    for feature, row in counts.items():
        n = sum(row.values())
        lexical = n > 1 or not leave_one_out
        m[feature] = {
            j: math.exp(adjustment(feature, j, n, c, lexical, diversity=len(row))) * c / n for j, c in row.items()
        }
    return m


def prediction(m: Matrix, features: set[Feature]) -> dict[int, float]:
    """y = M f, without the words whose y is 0."""
    y: dict[int, float] = defaultdict(float)
    for feature in features:
        for j, value in m.get(feature, {}).items():
            y[j] += value
    return y


def probability(m: Matrix, features: set[Feature], target: int) -> float:
    """Eq. prob: y_j over the sum of all y_u."""
    y = prediction(m, features)
    return y.get(target, 0.0) / sum(y.values())


def gate_weights(rows: Sequence[tuple[float, float, float] | None], gate: Sequence[np.ndarray]) -> list[float]:
    """exp(B) of each template; 0 where it has no row.

    `rows` has (C_i*, number of links, row sum) for each template, or None. `gate`: see `snm.layouts.gate.Gate`.
    """
    hidden_weights, hidden_biases, output_weights, output_biases = (part.tolist() for part in gate)
    inputs = []
    for row in rows:
        if row is None:
            inputs.append((0.0, 0.0, 0.0, 0.0))
        else:
            feature_count, links, row_sum = row
            log_count = round(8 * math.log2(feature_count)) / 8 * math.log(2)  # count codes are eighths of an octave
            inputs.append((0.2 * log_count, 0.2 * (math.log(links) - log_count), 0.2 * math.log(row_sum), 1.0))
    hidden = []
    for u, bias in enumerate(hidden_biases):
        summed = sum(
            x * w[u] for xs, ws in zip(inputs, hidden_weights, strict=True) for x, w in zip(xs, ws, strict=True)
        )
        hidden.append(max(0.0, bias + summed))
    sums = [
        b + sum(h * w for h, w in zip(hidden, ws, strict=True))
        for ws, b in zip(output_weights, output_biases, strict=True)
    ]
    return [math.exp(max(-15.0, min(15.0, b))) if row else 0.0 for b, row in zip(sums, rows, strict=True)]


def poisson_loss(y: dict[int, float], target: int) -> float:
    """L_Poisson(y, t) = sum of y_u - log(y_j); without the logarithm if y_j is 0."""
    y_j = y.get(target, 0.0)
    return sum(y.values()) - (math.log(y_j) if y_j > 0 else 0.0)


def multinomial_loss(y: dict[int, float], target: int) -> float:
    """L_multi(y, t) = log(sum of y_u) - log(y_j)."""
    return math.log(sum(y.values())) - math.log(y[target])


def left_out_prediction(
    spec: FeatureSpec, counts: Counts, adjustment: Adjustment, context: Sentence, target: int
) -> dict[int, float]:
    """y' = M' f: the prediction for a training event from the counts without that event."""
    y: dict[int, float] = defaultdict(float)
    for feature in features_of(spec, context):
        seen = sum(counts[feature].values())
        n, diversity = seen - 1, len(counts[feature]) - (counts[feature][target] == 1)
        for j, c in counts[feature].items():
            c -= j == target
            if n and c:
                y[j] += math.exp(adjustment(feature, j, n, c, seen=seen, diversity=diversity)) * c / n
    return y


def negative_parts(
    row: dict[int, int], adjustment: Adjustment, feature: Feature, target: int
) -> list[tuple[int, float]]:
    """The negative part of a feature's gradient with leave-one-out, by the feature's diversity.

    The negative part stands for the events of other targets, each left out. One whose target was seen once takes the
    target with it, so the diversity is one less. Diversities of one bucket are one part.
    """
    n, c, diversity = sum(row.values()), row[target], len(row)
    lost = sum(other == 1 for j, other in row.items() if j != target)
    shares = {diversity: (n - c - lost) / (n - 1), diversity - 1: lost / (n - 1)}
    if not adjustment.has_diversity or not lost or half_octaves(diversity) == half_octaves(diversity - 1):
        shares = {diversity: (n - c) / (n - 1)}
    return [
        (d, share * math.exp(adjustment(feature, target, n - 1, c, seen=n, diversity=d))) for d, share in shares.items()
    ]


def gradients(
    spec: FeatureSpec,
    counts: Counts,
    adjustment: Adjustment,
    context: Sentence,
    target: int,
    leave_one_out: bool = True,
) -> dict[Feature, tuple[float, float]]:
    """The two parts of the gradient of the Poisson loss with respect to A(i, j), for each feature of an event.

    With leave-one-out, Eq. gradient_agg: the negative part, taken at (C_i* - 1, C_ij), and the positive part, at
    (C_i* - 1, C_ij - 1). Without: the two terms of f_i t_j M_ij (C_i* / C_ij - 1 / y_j).
    """
    negative, positive = {}, {}
    for feature in features_of(spec, context):
        n, c = sum(counts[feature].values()), counts[feature][target]
        if leave_one_out:
            if n == 1:
                continue
            negative[feature] = sum(part for _, part in negative_parts(counts[feature], adjustment, feature, target))
            positive[feature] = 0.0
            if c > 1:
                e = math.exp(adjustment(feature, target, n - 1, c - 1, seen=n, diversity=len(counts[feature])))
                positive[feature] = (c - 1) / (n - 1) * e
        else:
            m = math.exp(adjustment(feature, target, n, c, diversity=len(counts[feature]))) * c / n
            negative[feature], positive[feature] = m * n / c, m
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
    """Take the online steps of a group of events, each (context, target, features in order).

    The optimiser is AdaGrad if the table has two columns, else SGD. All gradients are computed before the first step.
    Steps by positive parts with metafeatures of their own come last.
    """
    parts = [gradients(spec, counts, adjustment, context, target, leave_one_out) for context, target, _ in group]
    negatives = [
        {f: negative_parts(counts[f], adjustment, f, target) if leave_one_out else [(len(counts[f]), g)]
         for f, (g, _) in of_event.items()}
        for (_, target, _), of_event in zip(group, parts, strict=True)
    ]  # fmt: skip
    last = []
    for (_, target, order), of_event, of_features in zip(group, parts, negatives, strict=True):
        for feature in order:
            for i, (diversity, g_n) in enumerate(of_features.get(feature, ())):
                both = g_n, 0.0 if i else of_event[feature][1]
                last += _train_feature(counts, adjustment, feature, target, both, rate, leave_one_out, diversity)
    for slot, g in last:
        _step(adjustment.table, slot, g, rate)


def _train_feature(
    counts: Counts, adjustment: Adjustment, feature: Feature, target: int,
    parts: tuple[float, float], rate: float, leave_one_out: bool, diversity: int,
) -> list[tuple[int, float]]:  # fmt: skip
    """Take the steps of one feature's metafeatures; return (slot, gradient) of those that come last.

    A conjunction that has the same slot in both parts of the gradient takes one step by their sum. Otherwise it takes
    a step by the negative part, and the step by the positive part comes last.
    """
    g_n, g_p = parts
    seen, c = sum(counts[feature].values()), counts[feature][target]
    n = seen - leave_one_out
    c_p = c - 1 if leave_one_out else c
    found = adjustment.metafeatures(feature, target, n, c, seen, diversity)
    at_n, at_p = {mask: (slot, w) for mask, slot, w, _ in found}, {}
    if c_p and g_p:
        found = adjustment.metafeatures(feature, target, n, c_p, seen, diversity)
        at_p = {mask: (slot, w) for mask, slot, w, _ in found}
    last = []
    for mask in dict.fromkeys([*at_n, *at_p]):
        (slot_n, w_n), (slot_p, w_p) = at_n.get(mask, (None, 0.0)), at_p.get(mask, (None, 0.0))
        if slot_n == slot_p or slot_p is None:
            _step(adjustment.table, slot_n, g_n * w_n + g_p * w_p, rate)
        else:
            last.append((slot_p, g_p * w_p))
            if slot_n is not None:
                _step(adjustment.table, slot_n, g_n * w_n, rate)
    return last


def _step(table: np.ndarray, slot: int | None, gradient: float, rate: float) -> None:
    if table.shape[1] == 2:
        squares = float(table[slot, 1]) + gradient * gradient
        table[slot, 1] = squares
        table[slot, 0] = float(table[slot, 0]) - rate * gradient / math.sqrt(squares)
    else:
        table[slot, 0] = float(table[slot, 0]) - rate * gradient


def perplexity(spec: FeatureSpec, m: Matrix, sentences: Sequence[Sentence]) -> float:
    """Eq. basic_lm:ppl over all events."""
    logs = [math.log(probability(m, features_of(spec, context), target)) for context, target in events(sentences)]
    return math.exp(-sum(logs) / len(logs))


def to_sentences(tokens: np.ndarray) -> list[list[int]]:
    """The sentences of a token array."""
    sentences: list[list[int]] = []
    for token in tokens.tolist():
        if token == BEGIN:
            sentences.append([])
        sentences[-1].append(token)
    assert all(sentence[-1] == END for sentence in sentences)
    return sentences
