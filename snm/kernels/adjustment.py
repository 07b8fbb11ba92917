"""The adjustment function: sums of metafeature weights, gradients, steps, and rows of M.

The hash of a conjunction is the XOR of the hashes of the elementary metafeatures it holds, its weight the
product of their weights. A conjunction with the link count lies in the same line of eight slots as the one
without, so that one fetch from memory serves all that differ in it. The places of all conjunctions of a few
events, or of a batch of links, are computed and asked for before the table is read, so that the fetches overlap.
"""

import math
from typing import NamedTuple

import numpy as np

from snm.kernels.bits import floor_log2
from snm.kernels.compile import helper, kernel
from snm.kernels.counts import unpack_count
from snm.kernels.fastmath import clamped_exp
from snm.kernels.hashing import mix64, slot_of
from snm.kernels.simd import prefetch
from snm.layouts.keys import ABSENT, FEATURE_SALT, TARGET_SALT
from snm.layouts.weights import FLOOR_CODES, PAIR_CODES

BATCH = 64  # links whose places are computed together
GROUP_EVENTS = 16  # in training: their gradients are taken at the same weights
_32 = np.uint64(32)
_SMALL = 4096  # what the floor of log2 loses of counts below this is in a table
_LOST = np.log2(np.maximum(np.arange(_SMALL), 1)) - np.floor(np.log2(np.maximum(np.arange(_SMALL), 1)))


class Scratch(NamedTuple):
    """Working memory for a number of links: the features of an event, or a batch of links of rows.

    Of each link the conjunctions in both parts of the gradient: `last_n` of them, whose places begin at
    `begin`, then those of the positive part alone (from the first with a link count up to `last_p`).
    """

    component: np.ndarray  # (7,) hashes of one link's components, and of its bases
    base_hash: np.ndarray
    line: np.ndarray  # (4,) what each group of conjunctions adds to the hash, and to the place
    code: np.ndarray
    begin: np.ndarray  # (links,)
    last_n: np.ndarray
    last_p: np.ndarray
    slots: np.ndarray
    weight_n: np.ndarray  # (links, 16) weight of every kind of conjunction in the negative part
    weight_p: np.ndarray  # … and in the positive part
    negative: np.ndarray  # (links,) the two parts of the gradient
    positive: np.ndarray
    template: np.ndarray  # (links,) template of the feature


@kernel
def make_scratch(links, a):
    def integers():
        return np.zeros(links, np.int64)

    def weights():
        return np.ones((links, 16), np.float64)

    def numbers():
        return np.zeros(links, np.float64)

    return Scratch(
        np.zeros(7, np.uint64), np.zeros(len(a.parent), np.uint64), np.zeros(4, np.uint64), np.zeros(4, np.uint32),
        integers(), integers(), integers(), np.zeros(links * 2 * a.ends[3], np.uint32), weights(), weights(),
        numbers(), numbers(), integers(),
    )  # fmt: skip


@helper
def log2_bucket(count):
    """Floor of log2 of a count above zero, and what the floor lost."""
    bucket = floor_log2(count)
    return bucket, _LOST[count] if count < _SMALL else math.log2(count) - bucket


@helper
def link_bucket(count, a):
    """Bucket of a link count, and what its floor of log2 lost where that counts."""
    if not a.link_halved:
        return log2_bucket(count)
    return half_bucket(count), 0.0


@helper
def half_bucket(count):
    """`snm.metafeatures.half_octave` of a count above zero."""
    floor = floor_log2(count)
    return max(2 * floor + (count >> max(floor - 1, 0) & 1), 1)


@helper
def set_weights(weight, i, total, link_lost, a):
    """weight[i, kind]: of every kind of conjunction, from what the floor of log2 lost of both counts."""
    if not (a.count_doubled or a.link_doubled):
        return  # they are 1, as `make_scratch` left them
    _, lost = log2_bucket(total)
    if not a.count_doubled:
        lost = 0.0
    if not a.link_doubled:
        link_lost = 0.0
    with_count = (1.0, 1.0 - lost, lost, lost * (1.0 - lost))
    with_link = (1.0, 1.0 - link_lost, link_lost, link_lost * (1.0 - link_lost))
    for g in range(4):
        for v in range(4):
            weight[i, 4 * g + v] = with_link[g] * with_count[v]


@helper
def link_code(bucket, a):
    """Where the weights of a link count's bucket lie in their line."""
    return np.uint32(bucket & 7) if a.link_halved else np.uint32(FLOOR_CODES[bucket & 3])


@helper
def find_slots(first, last, bucket, at, a, s):
    """Places of the conjunctions [first, last), with a link count of this bucket, from place[at] on."""
    s.line[1] = s.line[3] = a.line_hashes[bucket >> a.line_shift]
    s.code[1] = link_code(bucket, a)
    if not a.link_halved:
        s.line[2] = a.line_hashes[(bucket + 1) >> a.line_shift]
        s.code[2] = FLOOR_CODES[(bucket + 1) & 3]
        s.code[3] = PAIR_CODES[bucket & 3]
    for c in range(first, last):
        group = a.weight_class[c] >> 2
        h = s.base_hash[a.base[c]] ^ s.line[group]
        slot = np.uint32(slot_of(h, a.slots)) ^ s.code[group]
        s.slots[at + c - first] = slot
        prefetch(a.table, slot)


@helper
def target_hash(target):
    return mix64(np.uint64(target) ^ TARGET_SALT)


@helper
def target_offset(target, seen, window):
    """What a target with this hash adds to the hash of a feature that was seen so often."""
    span = window.spans[floor_log2(seen)]
    return ((window.step + ((target >> _32) * span >> _32)) & -window.step) << _32


@helper
def locate_link(i, at, key, seen, total, target, link, a, s):
    """Places and weights of all conjunctions of link i, from place[at] on; return where they end.

    The feature was `seen` so often; with leave-one-out its `total` is one less. `target` is the target's hash.
    """
    bucket, _ = log2_bucket(total)
    type_index = (key >> a.type_shift) & a.type_mask
    s.component[0] = key ^ FEATURE_SALT
    s.component[1] = a.type_hashes[type_index]
    s.component[2] = a.count_hashes[bucket]
    s.component[3] = target
    s.component[4] = a.count_hashes[bucket + 1]
    s.component[5] = target_offset(target, seen, a.window)
    s.component[6] = a.type_offsets[type_index]
    for b in range(1, len(a.parent)):
        s.base_hash[b] = s.base_hash[a.parent[b]] ^ s.component[a.component[b]]
    bucket, lost = link_bucket(link, a)
    set_weights(s.weight_n, i, total, lost, a)
    last = a.ends[3] if lost > 0.0 and a.link_doubled else a.ends[1]
    find_slots(0, last, bucket, at, a, s)
    s.begin[i] = at
    s.last_n[i] = last
    return at + last


@helper
def locate_positive_part(i, at, total, link, link_p, a, s):
    """The same for the positive part of the gradient, whose link count is `link_p`."""
    bucket, _ = link_bucket(link, a)
    bucket_p, lost = link_bucket(link_p, a)
    set_weights(s.weight_p, i, total, lost, a)
    if bucket_p == bucket:  # the same metafeatures, other weights
        return at
    last = a.ends[3] if lost > 0.0 and a.link_doubled else a.ends[1]
    find_slots(a.ends[0], last, bucket_p, at, a, s)
    s.last_p[i] = last
    return at + last - a.ends[0]


@helper
def sum_thetas(first, last, at, weight, i, a, s):
    """Sum of weight times theta over the conjunctions [first, last) whose places begin at place[at]."""
    total = 0.0
    for c in range(first, last):
        total += weight[i, a.weight_class[c]] * a.multiplicity[c] * a.table[s.slots[at + c - first], 0]
    return total


@helper
def take_step(slot, gradient, rate, table):
    """A step of one weight, by SGD, or by AdaGrad where the table has a second column."""
    g = np.float32(gradient)
    if table.shape[1] == 1:
        table[slot, 0] -= rate * g
    else:
        seen = table[slot, 1] + g * g
        table[slot, 1] = seen
        table[slot, 0] -= rate * g / math.sqrt(seen)


@helper
def take_steps(first, last, at, weight_n, g_n, weight_p, g_p, i, rate, a, s):
    """A step of the conjunctions [first, last)."""
    for c in range(first, last):
        gradient = g_n * weight_n[i, a.weight_class[c]] + g_p * weight_p[i, a.weight_class[c]]
        take_step(s.slots[at + c - first], gradient, rate, a.table)


@helper
def counts_of(k, q, words, annotations, unigrams):
    """C_i* and C_ij of slot q of event k; 0 where there is no feature."""
    if q == 0:
        return unigrams.total, np.int64(unigrams.counts[words[k]])
    packed = annotations[k, q - 1]
    return unpack_count(packed >> np.uint32(16)), unpack_count(packed & np.uint32(0xFFFF))


@helper
def factors_of(total, link, leave_one_out):
    """C_i* and C_ij of the positive part, and the factors of both parts of a feature's gradient.

    Those are (C_i* - C_ij) / (C_i* - 1) and (C_ij - 1) / (C_i* - 1) with leave-one-out, 1 and C_ij / C_i* without.
    """
    if not leave_one_out:
        return total, link, 1.0, link / total
    share = 1.0 / (total - 1)
    return total - 1, link - 1, (total - link) * share, (link - 1) * share


@helper
def locate_event(k, n, at, keys, words, annotations, unigrams, leave_one_out, a, s):
    """Place the conjunctions of all features of event k that take part, as links n and on, from place[at] on.

    Returns where both end. `negative` and `positive` get their factors.
    """
    target = target_hash(words[k])
    for q in range(keys.shape[0] if keys[0, k] != ABSENT else 0):
        seen, link = counts_of(k, q, words, annotations, unigrams)
        if link == 0 or (leave_one_out and seen == 1):
            continue
        total, link_p, s.negative[n], s.positive[n] = factors_of(seen, link, leave_one_out)
        s.template[n] = q
        s.last_p[n] = a.ends[0]
        at = locate_link(n, at, keys[q, k], seen, total, target, link, a, s)
        if link_p > 0:
            at = locate_positive_part(n, at, total, link, link_p, a, s)
        n += 1
    return n, at


@helper
def predict_event(first, stop, a, s):
    """Multiply the factors of the features [first, stop) by exp(A); return y', the sum of the positive parts."""
    bare = a.ends[0]
    predicted = 0.0
    for i in range(first, stop):
        begin, last = s.begin[i], s.last_n[i]
        a_n = a_p = a.start
        for c in range(last):
            theta = a.multiplicity[c] * a.table[s.slots[begin + c], 0]
            a_n += s.weight_n[i, a.weight_class[c]] * theta
            a_p += s.weight_p[i, a.weight_class[c]] * theta
        if s.last_p[i] > bare:
            a_p = a.start + sum_thetas(0, bare, begin, s.weight_p, i, a, s)
            a_p += sum_thetas(bare, s.last_p[i], begin + last, s.weight_p, i, a, s)
        s.negative[i] *= clamped_exp(a_n)
        if s.positive[i] > 0.0:
            s.positive[i] *= clamped_exp(a_p)
        predicted += s.positive[i]
    return predicted


@helper
def take_all_steps(n, rate, a, s):
    """Take the steps of all features, by the gradients in `negative` and `positive`.

    Those of positive parts that have metafeatures of their own come last.
    """
    bare = a.ends[0]
    for i in range(n):
        begin, last, g_n, g_p = s.begin[i], s.last_n[i], s.negative[i], s.positive[i]
        if s.last_p[i] > bare:
            take_steps(0, bare, begin, s.weight_n, g_n, s.weight_p, g_p, i, rate, a, s)
            take_steps(bare, last, begin + bare, s.weight_n, g_n, s.weight_n, 0.0, i, rate, a, s)
        elif g_p != 0.0:
            take_steps(0, last, begin, s.weight_n, g_n, s.weight_p, g_p, i, rate, a, s)
        else:
            take_steps(0, last, begin, s.weight_n, g_n, s.weight_n, 0.0, i, rate, a, s)
    for i in range(n):
        at = s.begin[i] + s.last_n[i]
        if s.last_p[i] > bare:
            take_steps(bare, s.last_p[i], at, s.weight_p, s.positive[i], s.weight_p, 0.0, i, rate, a, s)


@kernel
def train_plain(keys, words, annotations, unigrams, leave_one_out, rate, a, gradients):
    """One online pass over a block of events, by Eq. gradient_agg; return the summed loss.

    The gradients of GROUP_EVENTS events are taken at the same weights, then their steps follow.

    With `leave_one_out` the negative part of a feature's gradient is taken at (C_i* - 1, C_ij) and
    the positive part at (C_i* - 1, C_ij - 1); without, both at (C_i*, C_ij). A conjunction that is
    the same metafeature in both parts takes one step by the sum, otherwise one step a part.
    gradients[event, slot] receives the two parts where it is not empty (the tests ask for them).
    """
    s = make_scratch(GROUP_EVENTS * keys.shape[0], a)
    ends = np.zeros(GROUP_EVENTS + 1, np.int64)
    loss = 0.0
    for start in range(0, keys.shape[1], GROUP_EVENTS):
        stop = min(start + GROUP_EVENTS, keys.shape[1])
        n = at = 0
        for k in range(start, stop):
            n, at = locate_event(k, n, at, keys, words, annotations, unigrams, leave_one_out, a, s)
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
                if len(gradients):
                    gradients[k, s.template[i], 0] = s.negative[i]
                    gradients[k, s.template[i], 1] = s.positive[i]
        if rate > 0.0:
            take_all_steps(n, np.float32(rate), a, s)
    return loss


@kernel
def weigh_singles(type_index, a, weights):
    """weights[target]: M_ij of a feature of this type that was seen once, with that target.

    Leave-one-out never looks at such a feature, so its identity has no weight: it is left out, and what remains
    depends on the type and the target alone.
    """
    s = make_scratch(1, a)
    key = np.uint64(type_index) << a.type_shift
    for target in range(len(weights)):
        locate_link(0, 0, key, 1, 1, target_hash(target), 1, a, s)
        exponent = a.start
        for c in range(s.last_n[0]):
            if not a.lexical[c]:
                exponent += s.weight_n[0, a.weight_class[c]] * a.multiplicity[c] * a.table[s.slots[c], 0]
        weights[target] = clamped_exp(exponent)


@kernel
def weigh_rows(first, last, c, a, singles, weights, sums):
    """M_ij = exp(A(i, j)) C_ij / C_i* for the links of rows [first, last) of counts c, and the rows' sums.

    singles[type, target]: the weights of features seen once; empty where those are like all others.
    """
    s = make_scratch(BATCH, a)
    row = first
    for start in range(c.offsets[first], c.offsets[last], BATCH):
        stop = min(start + BATCH, c.offsets[last])
        at = 0
        for link in range(start, stop):
            while link >= c.offsets[row + 1]:
                row += 1
            total, count = np.int64(c.feature_counts[row]), np.int64(c.link_counts[link])
            if total == 1 and len(singles):
                weights[link] = singles[(c.features[row] >> a.type_shift) & a.type_mask, c.targets[link]]
                s.last_n[link - start] = -1
                continue
            at = locate_link(
                link - start, at, c.features[row], total, total, target_hash(c.targets[link]), count, a, s
            )  # fmt: skip
            weights[link] = count / total
        for link in range(start, stop):
            i = link - start
            if s.last_n[i] >= 0:
                weights[link] *= clamped_exp(a.start + sum_thetas(0, s.last_n[i], s.begin[i], s.weight_n, i, a, s))
    for row in range(first, last):
        row_sum = 0.0
        for link in range(c.offsets[row], c.offsets[row + 1]):
            row_sum += weights[link]
        sums[row] = row_sum


@kernel
def weigh_listed(order, c, a, weights, sums):
    """The same for the rows that `order` lists."""
    s = make_scratch(1, a)
    for row in order:
        total = np.int64(c.feature_counts[row])
        sums[row] = 0.0
        for link in range(c.offsets[row], c.offsets[row + 1]):
            count = np.int64(c.link_counts[link])
            locate_link(0, 0, c.features[row], total, total, target_hash(c.targets[link]), count, a, s)
            exponent = a.start + sum_thetas(0, s.last_n[0], 0, s.weight_n, 0, a, s)
            weights[link] = count / total * clamped_exp(exponent)
            sums[row] += weights[link]


@kernel
def mark_rows(rows, touched, order):
    """Collect the distinct rows of a batch of events in `order`; return how many."""
    n = 0
    for k in range(rows.shape[0]):
        for q in range(rows.shape[1]):
            row = rows[k, q]
            if row >= 0 and not touched[row]:
                touched[row] = True
                order[n] = row
                n += 1
    return n


@kernel
def multinomial_loss(rows, links, weights, sums, row_gradients, link_gradients):
    """Summed multinomial loss of a batch; adds 1 / sum(y) to each row's and -1 / y to each link's gradient."""
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
            return math.inf  # the weights have left the range of numbers
        loss += math.log(denominator) - math.log(numerator)
        for q in range(rows.shape[1]):
            if rows[k, q] >= 0:
                row_gradients[rows[k, q]] += 1.0 / denominator
                if links[k, q] >= 0:
                    link_gradients[links[k, q]] -= 1.0 / numerator
    return loss


@kernel
def multinomial_gradient(order, row_gradients, link_gradients, weights, c, a, gradient, apply, rate):
    """Add a batch's gradient to `gradient` (slots,), or with `apply` step by it and clear it.

    `order` are the rows that the batch touches.
    """
    s = make_scratch(1, a)
    one = np.ones((1, 16), np.float64)
    for row in order:
        for link in range(c.offsets[row], c.offsets[row + 1]):
            total, count = np.int64(c.feature_counts[row]), np.int64(c.link_counts[link])
            locate_link(0, 0, c.features[row], total, total, target_hash(c.targets[link]), count, a, s)
            g = weights[link] * (row_gradients[row] + link_gradients[link])
            for i in range(s.last_n[0]):
                p = s.slots[i]
                if not apply:
                    gradient[p] += g * s.weight_n[0, a.weight_class[i]]
                elif gradient[p] != 0.0:
                    take_steps(i, i + 1, i, one, gradient[p], one, 0.0, 0, np.float32(rate), a, s)
                    gradient[p] = 0.0
