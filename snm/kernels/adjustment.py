"""The adjustment function: sums of metafeature weights, gradients, steps, and rows of M.

A *plan* (`snm.metafeatures.Plan`) lists the conjunctions. The hash of one is the XOR of the hashes of
the elementary metafeatures it holds, its weight the product of their weights. A conjunction with the
link count lies in the same line of eight slots as the one without, so that one fetch from memory serves
all that differ in it: 2 times faster than a place of its own for each. `table` is (slots, 1 or 2) float32: the
weight theta of a metafeature and, for AdaGrad, the sum of its squared gradients.

The places of all conjunctions of an event, or of a batch of links, are computed before the table is
touched, so that the fetches overlap.
"""

import math

import numpy as np
from numba import njit

from snm.kernels.extraction import ABSENT
from snm.kernels.hashing import FEATURE_SALT, TARGET_SALT, helper, mix64, slot_of
from snm.metafeatures import BUCKETS_A_LINE, FLOOR_CODES, PAIR_CODES

LARGEST_EXPONENT = 30.0  # exp() of more would leave float32 in a few multiplications
BATCH = 64  # links whose places are computed together

_SMALL = 4096  # counts below this find their bucket in a table
_FLOOR = np.array([0] + [n.bit_length() - 1 for n in range(1, _SMALL)], np.int64)
_LOST = np.log2(np.maximum(np.arange(_SMALL), 1)) - _FLOOR


@helper
def log2_bucket(count):
    """Floor of log2 of a count above zero, and what the floor lost."""
    if count < _SMALL:
        return _FLOOR[count], _LOST[count]
    bucket = 0
    rest = count
    while rest > 1:
        rest >>= 1
        bucket += 1
    return bucket, math.log2(count) - bucket


@helper
def hash_bases(key, total, target, type_shift, type_mask, type_hashes, count_hashes, parent, unit_of, unit, base_hash):
    """Hash of every base of a link: of its feature, type, feature count and target."""
    bucket, _ = log2_bucket(total)
    unit[0] = mix64(key ^ FEATURE_SALT)
    unit[1] = type_hashes[(key >> type_shift) & type_mask]
    unit[2] = count_hashes[bucket]
    unit[3] = mix64(np.uint64(target) ^ TARGET_SALT)
    unit[4] = count_hashes[bucket + 1]
    for b in range(1, len(parent)):
        base_hash[b] = base_hash[parent[b]] ^ unit[unit_of[b]]


@helper
def set_weights(total, link_lost, count_doubled, link_doubled, i, weight):
    """weight[i, kind]: of every kind of conjunction, from what the floor of log2 lost of both counts."""
    _, lost = log2_bucket(total)
    if not count_doubled:
        lost = 0.0
    if not link_doubled:
        link_lost = 0.0
    with_count = (1.0, 1.0 - lost, lost, lost * (1.0 - lost))
    with_link = (1.0, 1.0 - link_lost, link_lost, link_lost * (1.0 - link_lost))
    for g in range(4):
        for v in range(4):
            weight[i, 4 * g + v] = with_link[g] * with_count[v]


@helper
def find_places(first, last, bucket, line_hashes, base, kind, slots, base_hash, line, code, place, at):
    """Places of the conjunctions [first, last), with a link count of this bucket, from place[at] on."""
    line[1] = line[3] = line_hashes[bucket // BUCKETS_A_LINE]
    line[2] = line_hashes[(bucket + 1) // BUCKETS_A_LINE]
    code[1] = FLOOR_CODES[bucket % BUCKETS_A_LINE]
    code[2] = FLOOR_CODES[(bucket + 1) % BUCKETS_A_LINE]
    code[3] = PAIR_CODES[bucket % BUCKETS_A_LINE]
    for c in range(first, last):
        group = kind[c] >> 2
        place[at + c - first] = np.uint32(slot_of(base_hash[base[c]] ^ line[group], slots)) ^ code[group]


@helper
def sum_weights(first, last, kind, multiplicity, i, weight, place, at, table):
    """Sum of weight times theta over the conjunctions [first, last) whose places begin at place[at]."""
    total = 0.0
    for c in range(first, last):
        total += weight[i, kind[c]] * multiplicity[c] * table[place[at + c - first], 0]
    return total


@helper
def sum_both_weights(last, kind, multiplicity, i, weight_n, weight_p, place, at, table):
    """The same over [0, last) with the weights of both parts of the gradient."""
    total_n = total_p = 0.0
    for c in range(last):
        theta = multiplicity[c] * table[place[at + c], 0]
        total_n += weight_n[i, kind[c]] * theta
        total_p += weight_p[i, kind[c]] * theta
    return total_n, total_p


@helper
def take_steps(first, last, kind, i, weight_n, weight_p, g_n, g_p, rate, place, at, table):
    """A step of the conjunctions [first, last), by SGD, or by AdaGrad where the table has a second column."""
    for c in range(first, last):
        p = place[at + c - first]
        g = np.float32(g_n * weight_n[i, kind[c]] + g_p * weight_p[i, kind[c]])
        if table.shape[1] == 1:
            table[p, 0] -= rate * g
        else:
            seen = table[p, 1] + g * g
            table[p, 1] = seen
            table[p, 0] -= rate * g / math.sqrt(seen)


@njit(nogil=True, cache=True)
def train_events(
    keys, words, annotations, leave_one_out, rate,
    type_shift, type_mask, type_hashes, count_hashes, line_hashes, count_doubled, link_doubled,
    parent, unit_of, base, kind, multiplicity, ends, slots, table, gradients,
):  # fmt: skip
    """One online pass over a block of events, by Eq. gradient_agg; return the summed loss.

    With `leave_one_out` the negative part of a feature's gradient is taken at (C_i* - 1, C_ij) and
    the positive part at (C_i* - 1, C_ij - 1); without, both at (C_i*, C_ij). A conjunction that is
    the same metafeature in both parts takes one step by the sum, otherwise one step a part.
    gradients[event, slot] receives the two parts where it is not empty (the tests ask for them).
    """
    n_slots, n_events = keys.shape
    n_bare = ends[0]
    rate32 = np.float32(rate)
    unit, base_hash = np.zeros(5, np.uint64), np.zeros(len(parent), np.uint64)
    line, code = np.zeros(4, np.uint64), np.zeros(4, np.uint32)
    # of every feature of the event: its slot and the number of conjunctions in the negative part and in the
    # positive part apart from it, where their places begin, their weights, and the parts of its gradient
    slot = np.empty(n_slots, np.int64)
    last_n = np.empty(n_slots, np.int64)
    last_p = np.empty(n_slots, np.int64)
    begin = np.empty(n_slots, np.int64)
    place = np.empty(n_slots * 2 * ends[3], np.uint32)
    weight_n = np.empty((n_slots, 16), np.float64)
    weight_p = np.empty((n_slots, 16), np.float64)
    negative = np.empty(n_slots, np.float64)
    positive = np.empty(n_slots, np.float64)
    loss = 0.0
    for k in range(n_events):
        used = 0
        n = 0
        for q in range(n_slots):
            key = keys[q, k]
            total = np.int64(annotations[k, q, 0])
            link = np.int64(annotations[k, q, 1])
            if key == ABSENT or link == 0 or (leave_one_out and total == 1):
                continue
            negative[used], link_p = 1.0, link
            if leave_one_out:
                total -= 1
                link_p -= 1
                negative[used] = (total + 1 - link) / total
            positive[used] = link_p / total
            slot[used] = q
            begin[used] = n
            hash_bases(
                key, total, words[k], type_shift, type_mask, type_hashes, count_hashes, parent, unit_of, unit, base_hash
            )  # fmt: skip
            bucket, lost = log2_bucket(link)
            last_n[used] = ends[3] if lost > 0.0 and link_doubled else ends[1]
            set_weights(total, lost, count_doubled, link_doubled, used, weight_n)
            find_places(0, last_n[used], bucket, line_hashes, base, kind, slots, base_hash, line, code, place, n)
            n += last_n[used]
            last_p[used] = n_bare
            if link_p > 0:
                bucket_p, lost = log2_bucket(link_p)
                set_weights(total, lost, count_doubled, link_doubled, used, weight_p)
                if bucket_p != bucket:
                    last_p[used] = ends[3] if lost > 0.0 and link_doubled else ends[1]
                    find_places(
                        n_bare, last_p[used], bucket_p, line_hashes, base, kind, slots, base_hash, line, code, place, n
                    )  # fmt: skip
                    n += last_p[used] - n_bare
            used += 1
        predicted = 0.0
        for i in range(used):
            apart = begin[i] + last_n[i]
            a_n, a_p = sum_both_weights(
                last_n[i], kind, multiplicity, i, weight_n, weight_p, place, begin[i], table
            )  # fmt: skip
            if last_p[i] > n_bare:
                a_p = sum_weights(0, n_bare, kind, multiplicity, i, weight_p, place, begin[i], table)
                a_p += sum_weights(n_bare, last_p[i], kind, multiplicity, i, weight_p, place, apart, table)
            negative[i] *= math.exp(min(a_n, LARGEST_EXPONENT))
            if positive[i] > 0.0:
                positive[i] *= math.exp(min(a_p, LARGEST_EXPONENT))
            predicted += positive[i]
            loss += negative[i] + (positive[i] if leave_one_out else 0.0)
        if predicted > 0.0:
            loss -= math.log(predicted)
        for i in range(used):
            g_n, g_p = negative[i], 0.0
            if positive[i] > 0.0:
                # without leave-one-out `negative` has the whole first term of the gradient
                g_p = positive[i] * (1.0 - 1.0 / predicted) if leave_one_out else -positive[i] / predicted
            if len(gradients):
                gradients[k, slot[i], 0] = g_n
                gradients[k, slot[i], 1] = g_p
            if rate == 0.0:
                continue
            if last_p[i] > n_bare:
                take_steps(0, n_bare, kind, i, weight_n, weight_p, g_n, g_p, rate32, place, begin[i], table)
                at = begin[i] + n_bare
                take_steps(n_bare, last_n[i], kind, i, weight_n, weight_n, g_n, 0.0, rate32, place, at, table)
                at = begin[i] + last_n[i]
                take_steps(n_bare, last_p[i], kind, i, weight_p, weight_p, 0.0, g_p, rate32, place, at, table)
            elif positive[i] > 0.0:
                take_steps(0, last_n[i], kind, i, weight_n, weight_p, g_n, g_p, rate32, place, begin[i], table)
            else:
                take_steps(0, last_n[i], kind, i, weight_n, weight_n, g_n, 0.0, rate32, place, begin[i], table)
    return loss


@njit(nogil=True, cache=True)
def weigh_rows(
    first, last, features, totals, offsets, targets, counts,
    type_shift, type_mask, type_hashes, count_hashes, line_hashes, count_doubled, link_doubled,
    parent, unit_of, base, kind, multiplicity, ends, slots, table, weights, sums,
):  # fmt: skip
    """M_ij = exp(A(i, j)) C_ij / C_i* for the links of rows [first, last), and the rows' sums."""
    unit, base_hash = np.zeros(5, np.uint64), np.zeros(len(parent), np.uint64)
    line, code = np.zeros(4, np.uint64), np.zeros(4, np.uint32)
    place = np.empty(BATCH * ends[3], np.uint32)
    weight = np.empty((BATCH, 16), np.float64)
    n = np.empty(BATCH, np.int64)
    row = first
    for start in range(offsets[first], offsets[last], BATCH):
        stop = min(start + BATCH, offsets[last])
        for link in range(start, stop):
            while link >= offsets[row + 1]:
                row += 1
            i, total = link - start, np.int64(totals[row])
            bucket, lost = log2_bucket(np.int64(counts[link]))
            n[i] = ends[3] if lost > 0.0 and link_doubled else ends[1]
            hash_bases(
                features[row], total, targets[link], type_shift, type_mask, type_hashes, count_hashes,
                parent, unit_of, unit, base_hash,
            )  # fmt: skip
            set_weights(total, lost, count_doubled, link_doubled, i, weight)
            find_places(0, n[i], bucket, line_hashes, base, kind, slots, base_hash, line, code, place, i * ends[3])
            weights[link] = counts[link] / total
        for link in range(start, stop):
            i = link - start
            a = sum_weights(0, n[i], kind, multiplicity, i, weight, place, i * ends[3], table)
            weights[link] *= math.exp(min(a, LARGEST_EXPONENT))
    for row in range(first, last):
        row_sum = 0.0
        for link in range(offsets[row], offsets[row + 1]):
            row_sum += weights[link]
        sums[row] = row_sum


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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
        if numerator == 0.0:
            continue
        loss += math.log(denominator) - math.log(numerator)
        for q in range(rows.shape[1]):
            if rows[k, q] >= 0:
                row_gradients[rows[k, q]] += 1.0 / denominator
                if links[k, q] >= 0:
                    link_gradients[links[k, q]] -= 1.0 / numerator
    return loss


@njit(nogil=True, cache=True)
def multinomial_gradient(
    order, row_gradients, link_gradients, weights, features, totals, offsets, targets, counts,
    type_shift, type_mask, type_hashes, count_hashes, line_hashes, count_doubled, link_doubled,
    parent, unit_of, base, kind, multiplicity, ends, slots, table, gradient, apply, rate,
):  # fmt: skip
    """Add the batch's gradient to `gradient` (slots,), or with `apply` step by it and clear it."""
    unit, base_hash = np.zeros(5, np.uint64), np.zeros(len(parent), np.uint64)
    line, code = np.zeros(4, np.uint64), np.zeros(4, np.uint32)
    place = np.empty(ends[3], np.uint32)
    weight = np.empty((1, 16), np.float64)
    whole = np.ones((1, 16), np.float64)
    for row in order:
        for link in range(offsets[row], offsets[row + 1]):
            total = np.int64(totals[row])
            bucket, lost = log2_bucket(np.int64(counts[link]))
            n = ends[3] if lost > 0.0 and link_doubled else ends[1]
            hash_bases(
                features[row], total, targets[link], type_shift, type_mask, type_hashes, count_hashes,
                parent, unit_of, unit, base_hash,
            )  # fmt: skip
            set_weights(total, lost, count_doubled, link_doubled, 0, weight)
            find_places(0, n, bucket, line_hashes, base, kind, slots, base_hash, line, code, place, 0)
            g = weights[link] * (row_gradients[row] + link_gradients[link])
            for c in range(n):
                p = place[c]
                if not apply:
                    gradient[p] += g * weight[0, kind[c]]
                elif gradient[p] != 0.0:
                    take_steps(c, c + 1, kind, 0, whole, whole, gradient[p], 0.0, np.float32(rate), place, c, table)
                    gradient[p] = 0.0
