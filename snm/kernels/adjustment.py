"""The adjustment function A(i, j): its exponent, the plain trainer, rows of M, and the multinomial loss.

The slots of a group of events or of a batch of links are all computed and prefetched before the table is read, so that
cache misses overlap.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from snm.kernels.bits import floor_log2
from snm.kernels.compile import helper, kernel
from snm.kernels.counts import unpack_count
from snm.kernels.fastmath import clamped_exp
from snm.kernels.hashing import mix64, slot_of
from snm.kernels.simd import prefetch
from snm.layouts.keys import ABSENT, FEATURE_SALT, TARGET_SALT
from snm.layouts.weights import CLASSES, COMPONENTS, DIVERSITY, FLOOR_CODES, PAIR_CODES

BATCH = 64  # links of rows that are located together
GROUP_EVENTS = 16  # events of training whose gradients are taken at the same weights
_DIVERSITY, _CLASSES = COMPONENTS.index(DIVERSITY), COMPONENTS.index(CLASSES)
_32 = np.uint64(32)
_LOG2 = np.log2(np.maximum(np.arange(4096), 1))
_FRACTIONS = _LOG2 - np.floor(_LOG2)  # of log2 of small counts


class Scratch(NamedTuple):
    """Memory for some links: the features of a group of events, or a batch of links of rows.

    Link i has the conjunctions [0, last_n[i]) in the negative part of its gradient, with their slots from
    slots[begin[i]] on. The first shared[i] are the same metafeatures in the positive part. Where the bucket of the
    positive part's link count differs, its conjunctions [ends[0], last_p[i]) have other slots, which follow.
    """

    component_hash: np.ndarray  # (components,) uint64: of one link, in the order of COMPONENTS
    base_hash: np.ndarray  # (bases,) uint64: of one link
    line: np.ndarray  # (4,) uint64: hash of the line, for each group of conjunctions, see ConjunctionPlan
    code: np.ndarray  # (4,) uint32: slot in the line
    begin: np.ndarray  # (links,) int64
    last_n: np.ndarray
    shared: np.ndarray
    last_p: np.ndarray
    slots: np.ndarray  # uint32
    factor_n: np.ndarray  # (links, 16) float64: factor of each weight class in the negative part
    factor_p: np.ndarray  # (links, 16) float64: in the positive part
    negative: np.ndarray  # (links,) float64: the two parts of the gradient, at first their factors
    positive: np.ndarray
    template: np.ndarray  # (links,) int64


def make_scratch(links: int, a: Any) -> Scratch:
    """Scratch memory for so many links. Not a kernel: making arrays takes long to compile."""
    begin, last_n, shared, last_p, template = (np.zeros(links, np.int64) for _ in range(5))
    return Scratch(
        np.zeros(len(COMPONENTS), np.uint64), np.zeros(len(a.parent), np.uint64), np.zeros(4, np.uint64),
        np.zeros(4, np.uint32), begin, last_n, shared, last_p, np.zeros(links * 2 * a.ends[3], np.uint32),
        np.ones((links, 16)), np.ones((links, 16)), np.zeros(links), np.zeros(links), template,
    )  # fmt: skip


@helper
def log2_bucket(count):
    """Floor and fraction of log2 of a count above zero."""
    floor = floor_log2(count)
    return floor, _FRACTIONS[count] if count < len(_FRACTIONS) else math.log2(count) - floor


@helper
def half_bucket(count):
    """`snm.layouts.weights.half_octave` of a count above zero."""
    floor = floor_log2(count)
    return max(2 * floor + (count >> max(floor - 1, 0) & 1), 1)


@helper
def link_bucket(count, a):
    """Bucket of a link count, and the fraction of its log2, 0 for half octaves."""
    if not a.link_halved:
        return log2_bucket(count)
    return half_bucket(count), 0.0


@helper
def link_code(bucket, a):
    """The slot of a link count's bucket in its line."""
    return np.uint32(bucket & 7) if a.link_halved else np.uint32(FLOOR_CODES[bucket & 3])


@helper
def set_factors(factor, i, feature_count, link_fraction, a):
    """factor[i, weight class]: how close both counts are to the buckets of the class."""
    if not (a.count_doubled or a.link_doubled):
        return  # all are 1, see `make_scratch`
    _, fraction = log2_bucket(feature_count)
    if not a.count_doubled:
        fraction = 0.0
    if not a.link_doubled:
        link_fraction = 0.0
    of_count = (1.0, 1.0 - fraction, fraction, fraction * (1.0 - fraction))
    of_link = (1.0, 1.0 - link_fraction, link_fraction, link_fraction * (1.0 - link_fraction))
    for g in range(4):
        for v in range(4):
            factor[i, 4 * g + v] = of_link[g] * of_count[v]


@helper
def find_slots(first, bucket, fraction, at, a, s):
    """Slots of the conjunctions from `first` on, for a link count of this bucket, from slots[at] on.

    Returns where the conjunctions end: a link count without a fraction has no ceiling bucket.
    """
    s.line[1] = s.line[3] = a.line_hashes[bucket >> a.line_shift]
    s.code[1] = link_code(bucket, a)
    if not a.link_halved:
        s.line[2] = a.line_hashes[(bucket + 1) >> a.line_shift]
        s.code[2] = FLOOR_CODES[(bucket + 1) & 3]
        s.code[3] = PAIR_CODES[bucket & 3]
    last = a.ends[3] if fraction > 0.0 and a.link_doubled else a.ends[1]
    for c in range(first, last):
        group = a.weight_class[c] >> 2
        h = s.base_hash[a.base[c]] ^ s.line[group]
        slot = np.uint32(slot_of(h, a.slots)) ^ s.code[group]
        s.slots[at + c - first] = slot
        prefetch(a.table, slot)
    return last


@helper
def target_hash(target):
    return mix64(np.uint64(target) ^ TARGET_SALT)


@helper
def target_offset(target, count, window):
    """The hash of TARGET_OFFSET, from a target's hash and the count of the feature beside it."""
    span = window.spans[floor_log2(count)]
    return ((window.step + ((target >> _32) * span >> _32)) & -window.step) << _32


@helper
def locate_link(i, at, key, seen, feature_count, diversity, word, target, link_count, a, s):
    """Find the conjunctions of link i, with slots from slots[at] on; return where the slots end.

    The feature was `seen` so often, which chooses its window; `feature_count` is one less with leave-one-out. It has
    `diversity` targets. `target` is the hash of the target, `word`.
    """
    bucket, _ = log2_bucket(feature_count)
    type_index = (key >> a.type_shift) & a.type_mask
    s.component_hash[0] = key ^ FEATURE_SALT
    s.component_hash[1] = a.type_hashes[type_index]
    s.component_hash[2] = a.count_hashes[bucket]
    s.component_hash[3] = target
    s.component_hash[4] = a.count_hashes[bucket + 1]
    s.component_hash[5] = target_offset(target, seen, a.window)
    s.component_hash[6] = a.type_offsets[type_index]
    if a.has_diversity:
        s.component_hash[_DIVERSITY] = a.diversity_hashes[half_bucket(diversity)]
    for m in range(len(a.classes.salts)):
        value = a.classes.values[a.classes.rows[m, type_index], word]
        s.component_hash[_CLASSES + m] = mix64(np.uint64(value) ^ a.classes.salts[m])
    for b in range(1, len(a.parent)):
        s.base_hash[b] = s.base_hash[a.parent[b]] ^ s.component_hash[a.component[b]]
    bucket, fraction = link_bucket(link_count, a)
    set_factors(s.factor_n, i, feature_count, fraction, a)
    s.begin[i] = at
    s.last_n[i] = s.shared[i] = find_slots(np.int64(0), bucket, fraction, at, a, s)
    s.last_p[i] = a.ends[0]
    return at + s.last_n[i]


@helper
def locate_positive_part(i, at, feature_count, link_count, link_count_p, a, s):
    """Continue `locate_link` for the positive part, whose link count is `link_count_p`; return where the slots end."""
    bucket, _ = link_bucket(link_count, a)
    bucket_p, fraction = link_bucket(link_count_p, a)
    set_factors(s.factor_p, i, feature_count, fraction, a)
    if bucket_p == bucket:
        return at
    s.shared[i] = a.ends[0]
    s.last_p[i] = find_slots(a.ends[0], bucket_p, fraction, at, a, s)
    return at + s.last_p[i] - a.ends[0]


@helper
def add_thetas(exponent, first, last, at, factor, i, a, s):
    """Add theta times its factors, for the conjunctions [first, last) with slots from slots[at] on."""
    for c in range(first, last):
        exponent += factor[i, a.weight_class[c]] * a.multiplicity[c] * a.table[s.slots[at + c - first], 0]
    return exponent


@helper
def take_step(slot, gradient, rate, table):
    """A step of one weight, by SGD, or by AdaGrad where the table has a second column."""
    g = np.float32(gradient)
    if table.shape[1] == 1:
        table[slot, 0] -= rate * g
    else:
        squares = table[slot, 1] + g * g
        table[slot, 1] = squares
        table[slot, 0] -= rate * g / math.sqrt(squares)


@helper
def counts_of(k, q, words, annotations, unigrams):
    """C_i* and C_ij of template q of event k; 0 where there is no feature."""
    if q == 0:
        return unigrams.total, np.int64(unigrams.counts[words[k]])
    packed = annotations[k, q - 1]
    return unpack_count(packed >> np.uint32(16)), unpack_count(packed & np.uint32(0xFFFF))


@helper
def factors_of(seen, link_count, leave_one_out):
    """C_i* and C_ij of the positive part, and the factors of both parts of a feature's gradient.

    The factors are (C_i* - C_ij) / (C_i* - 1) and (C_ij - 1) / (C_i* - 1) with leave-one-out, 1 and C_ij / C_i*
    without.
    """
    if not leave_one_out:
        return seen, link_count, 1.0, link_count / seen
    share = 1.0 / (seen - 1)
    return seen - 1, link_count - 1, (seen - link_count) * share, (link_count - 1) * share


@helper
def diversity_of(k, q, diversities):
    """How many targets template q's feature of event k has, and how many of them it was seen with once."""
    packed = diversities[k, q]
    return unpack_count(packed >> np.uint32(16)), unpack_count(packed & np.uint32(0xFFFF))


@helper
def targets_lost(diversity, once, link_count):
    """In how many events of other targets leaving the event out changes the bucket of the diversity.

    An event of a target that was seen once takes the target with it.
    """
    others = once - (1 if link_count == 1 else 0)
    return others if others > 0 and half_bucket(diversity) != half_bucket(diversity - 1) else 0


@helper
def locate_event(k, n, at, keys, words, annotations, unigrams, diversities, leave_one_out, a, s):
    """Locate the features of event k that training uses, as links n and on, with slots from slots[at] on.

    A feature is two links if its negative part has two diversities. Returns where links and slots end.
    """
    target = target_hash(words[k])
    for q in range(keys.shape[0] if keys[0, k] != ABSENT else 0):
        seen, link_count = counts_of(k, q, words, annotations, unigrams)
        if link_count == 0 or (leave_one_out and seen == 1):
            continue
        feature_count, link_count_p, s.negative[n], s.positive[n] = factors_of(seen, link_count, leave_one_out)
        s.template[n] = q
        diversity, once = diversity_of(k, q, diversities) if a.has_diversity else (np.int64(1), np.int64(0))
        at = locate_link(n, at, keys[q, k], seen, feature_count, diversity, words[k], target, link_count, a, s)
        if link_count_p > 0:
            at = locate_positive_part(n, at, feature_count, link_count, link_count_p, a, s)
        n += 1
        lost = targets_lost(diversity, once, link_count) if leave_one_out and a.has_diversity else np.int64(0)
        if lost > 0:
            share = lost / (seen - 1)
            s.negative[n - 1] -= share
            s.negative[n], s.positive[n], s.template[n] = share, 0.0, q
            at = locate_link(n, at, keys[q, k], seen, feature_count, diversity - 1, words[k], target, link_count, a, s)
            n += 1
    return n, at


@helper
def predict_event(first, stop, a, s):
    """Multiply the factors of the links [first, stop) by exp(A); return y', the sum of the positive parts."""
    predicted = 0.0
    for i in range(first, stop):
        begin, shared, last = s.begin[i], s.shared[i], s.last_n[i]
        a_n = a_p = a.start
        for c in range(shared):
            theta = a.multiplicity[c] * a.table[s.slots[begin + c], 0]
            a_n += s.factor_n[i, a.weight_class[c]] * theta
            a_p += s.factor_p[i, a.weight_class[c]] * theta
        a_n = add_thetas(a_n, shared, last, begin + shared, s.factor_n, i, a, s)
        a_p = add_thetas(a_p, a.ends[0], s.last_p[i], begin + last, s.factor_p, i, a, s)
        s.negative[i] *= clamped_exp(a_n)
        if s.positive[i] > 0.0:
            s.positive[i] *= clamped_exp(a_p)
        predicted += s.positive[i]
    return predicted


@helper
def take_steps(first, last, at, gradient, factor, i, rate, a, s):
    """Take the steps of the conjunctions [first, last) in one part of the gradient."""
    for c in range(first, last):
        take_step(s.slots[at + c - first], gradient * factor[i, a.weight_class[c]], rate, a.table)


@helper
def take_all_steps(n, rate, a, s):
    """Take the steps of n links by the gradients in `negative` and `positive`.

    The steps of conjunctions in the positive part alone come last.
    """
    for i in range(n):
        begin, shared, g_n, g_p = s.begin[i], s.shared[i], s.negative[i], s.positive[i]
        for c in range(shared):
            gradient = g_n * s.factor_n[i, a.weight_class[c]] + g_p * s.factor_p[i, a.weight_class[c]]
            take_step(s.slots[begin + c], gradient, rate, a.table)
        take_steps(shared, s.last_n[i], begin + shared, g_n, s.factor_n, i, rate, a, s)
    for i in range(n):
        take_steps(a.ends[0], s.last_p[i], s.begin[i] + s.last_n[i], s.positive[i], s.factor_p, i, rate, a, s)


@kernel
def train_plain(keys, words, annotations, diversities, unigrams, leave_one_out, rate, a, gradients, s):
    """Take the steps of a block of events by Eq. gradient_agg, in order; return the summed loss.

    The gradients of GROUP_EVENTS events are taken at the same weights, then their steps follow.

    With `leave_one_out` the negative part of a feature's gradient is taken at (C_i* - 1, C_ij) and the positive part
    at (C_i* - 1, C_ij - 1); without, both at (C_i*, C_ij). A conjunction that is the same metafeature in both parts
    takes one step by their sum, otherwise one step for each part. Unless it is empty, gradients[event, template]
    receives both parts. `diversities`: packed as `annotations`, for all templates; empty if no conjunction has them.
    `s`: scratch memory for GROUP_EVENTS times all templates, or twice as much with diversities.
    """
    ends = np.zeros(GROUP_EVENTS + 1, np.int64)
    loss = 0.0
    for start in range(0, keys.shape[1], GROUP_EVENTS):
        stop = min(start + GROUP_EVENTS, keys.shape[1])
        n = at = np.int64(0)
        for k in range(start, stop):
            n, at = locate_event(k, n, at, keys, words, annotations, unigrams, diversities, leave_one_out, a, s)
            ends[k - start + 1] = n
        for k in range(start, stop):
            first, last = ends[k - start], ends[k - start + 1]
            predicted = predict_event(first, last, a, s)
            if predicted > 0.0:
                loss -= math.log(predicted)
            for i in range(first, last):
                loss += s.negative[i] + (s.positive[i] if leave_one_out else 0.0)
                if s.positive[i] > 0.0:
                    # without leave-one-out `negative` has the whole first term of the gradient
                    s.positive[i] *= (1.0 if leave_one_out else 0.0) - 1.0 / predicted
                if len(gradients) and i > first and s.template[i] == s.template[i - 1]:
                    gradients[k, s.template[i], 0] += s.negative[i]
                elif len(gradients):
                    gradients[k, s.template[i], 0] = s.negative[i]
                    gradients[k, s.template[i], 1] = s.positive[i]
        if rate > 0.0:
            take_all_steps(n, np.float32(rate), a, s)
    return loss


@kernel
def weigh_singles(type_index, a, weights, s):
    """Fill weights[target]: M_ij of a feature of this type that was seen once, with that target.

    Leave-one-out never uses such a feature, so the weights of its identity are untrained and left out. The others
    depend on type and target alone. `s`: scratch memory for one link.
    """
    key, zero, one = np.uint64(type_index) << a.type_shift, np.int64(0), np.int64(1)
    for target in range(len(weights)):
        locate_link(zero, zero, key, one, one, one, target, target_hash(target), one, a, s)
        exponent = a.start
        for c in range(s.last_n[0]):
            if not a.lexical[c]:
                exponent += s.factor_n[0, a.weight_class[c]] * a.multiplicity[c] * a.table[s.slots[c], 0]
        weights[target] = clamped_exp(exponent)


@kernel
def weigh_rows(first, last, c, a, singles, weights, sums, s):
    """M_ij = exp(A(i, j)) C_ij / C_i* for the links of rows [first, last) of counts c, and the row sums.

    singles[type, target]: the weights of features seen once; empty where those are like all others.
    `s`: scratch memory for BATCH links.
    """
    row = first
    for start in range(c.offsets[first], c.offsets[last], BATCH):
        stop, at = min(start + BATCH, c.offsets[last]), np.int64(0)
        for link in range(start, stop):
            while link >= c.offsets[row + 1]:
                row += 1
            i, feature_count, link_count = link - start, np.int64(c.feature_counts[row]), np.int64(c.link_counts[link])
            if feature_count == 1 and len(singles):
                weights[link] = singles[(c.features[row] >> a.type_shift) & a.type_mask, c.targets[link]]
                s.last_n[i] = 0
                continue
            word, diversity = c.targets[link], c.offsets[row + 1] - c.offsets[row]
            at = locate_link(
                i, at, c.features[row], feature_count, feature_count, diversity, word, target_hash(word), link_count,
                a, s,
            )  # fmt: skip
            weights[link] = link_count / feature_count
        for link in range(start, stop):
            i = link - start
            if s.last_n[i]:
                exponent = a.start + add_thetas(0.0, 0, s.last_n[i], s.begin[i], s.factor_n, i, a, s)
                weights[link] *= clamped_exp(exponent)
    for row in range(first, last):
        row_sum = 0.0
        for link in range(c.offsets[row], c.offsets[row + 1]):
            row_sum += weights[link]
        sums[row] = row_sum


@kernel
def multinomial_loss(rows, links, weights, sums, row_gradients, link_gradients):
    """Summed multinomial loss of events, from M and its row sums; rows[event, template], -1 for none; links likewise.

    Adds 1 / sum(y) to the gradient of each row of an event, and -1 / y to that of each link.
    """
    loss = 0.0
    for k in range(rows.shape[0]):
        denominator = 0.0
        numerator = 0.0
        for q in range(rows.shape[1]):
            if rows[k, q] >= 0:
                denominator += sums[rows[k, q]]
                if links[k, q] >= 0:
                    numerator += weights[links[k, q]]
        if not numerator > 0.0:
            return math.inf  # y has underflowed, or is NaN
        loss += math.log(denominator) - math.log(numerator)
        for q in range(rows.shape[1]):
            if rows[k, q] >= 0:
                row_gradients[rows[k, q]] += 1.0 / denominator
                if links[k, q] >= 0:
                    link_gradients[links[k, q]] -= 1.0 / numerator
    return loss


@kernel
def multinomial_gradient(row_gradients, link_gradients, weights, c, a, gradient, apply, rate, s):
    """Add the gradient by all weights of the rows of counts c to `gradient` (slots,); with `apply`, step by it instead.

    Steps set `gradient` back to zero. `s`: scratch memory for one link.
    """
    zero = np.int64(0)
    for row in range(len(c.features)):
        feature_count, diversity = np.int64(c.feature_counts[row]), c.offsets[row + 1] - c.offsets[row]
        for link in range(c.offsets[row], c.offsets[row + 1]):
            word, link_count = c.targets[link], np.int64(c.link_counts[link])
            locate_link(
                zero, zero, c.features[row], feature_count, feature_count, diversity, word, target_hash(word),
                link_count, a, s,
            )  # fmt: skip
            g = weights[link] * (row_gradients[row] + link_gradients[link])
            for t in range(s.last_n[0]):
                slot = s.slots[t]
                if not apply:
                    gradient[slot] += g * s.factor_n[0, a.weight_class[t]]
                elif gradient[slot] != 0.0:
                    take_step(slot, gradient[slot], np.float32(rate), a.table)
                    gradient[slot] = 0.0
