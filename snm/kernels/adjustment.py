"""The adjustment function: sums of metafeature weights, gradients, steps, and rows of M.

A *plan* (`snm.metafeatures.Plan`) lists the conjunctions. `unit` holds the hashes of the seven
elementary metafeatures of a link and `strength` their weights; a conjunction's hash is the XOR of
its units, its weight the product of their strengths. `table` is (slots, 1 or 2) float32: the weight
theta of a metafeature and, for AdaGrad, the sum of its squared gradients.
"""

import math

import numpy as np
from numba import njit

from snm.kernels.extraction import ABSENT
from snm.kernels.hashing import FEATURE_SALT, TARGET_SALT, mix64, slot_of

_ONE = np.uint64(1)
LARGEST_EXPONENT = 30.0  # exp() of more would leave float32 in a few multiplications


@njit(nogil=True, cache=True)
def log2_bucket(count):
    """Floor of log2 of a count above zero, and what the floor lost."""
    bucket = 0
    rest = count
    while rest > 1:
        rest >>= 1
        bucket += 1
    if count == (1 << bucket):
        return bucket, 0.0
    return bucket, math.log2(count) - bucket


@njit(nogil=True, cache=True)
def set_count(count, doubled, hashes, first, second, unit, strength):
    """Enter a count's bucket as unit `first` and, where doubled, the next bucket as unit `second`."""
    bucket, lost = log2_bucket(count)
    unit[first] = hashes[bucket]
    unit[second] = hashes[bucket + 1]
    strength[first] = 1.0 - lost if doubled else 1.0
    strength[second] = lost if doubled else 0.0
    return bucket


@njit(nogil=True, cache=True)
def add_up(begin, end, parent, bit, multiplicity, unit, strength, slots, table, hashes, weights, places):
    """Sum of the weights of the conjunctions [begin, end); fills their hashes, weights and places in the table."""
    total = 0.0
    for c in range(begin, end):
        hashes[c] = hashes[parent[c]] ^ unit[bit[c]]
        weights[c] = weights[parent[c]] * strength[bit[c]]
        if multiplicity[c] > 0.0 and weights[c] != 0.0:
            places[c] = np.int64(slot_of(hashes[c], slots))
            total += multiplicity[c] * weights[c] * table[places[c], 0]
        else:
            places[c] = -1
    return total


@njit(nogil=True, cache=True)
def take_step(table, place, gradient, rate):
    """One step of SGD, or of AdaGrad where the table has a second column."""
    if table.shape[1] == 2:
        seen = table[place, 1] + gradient * gradient
        table[place, 1] = seen
        table[place, 0] -= rate * gradient / math.sqrt(seen)
    else:
        table[place, 0] -= rate * gradient


@njit(nogil=True, cache=True)
def train_events(
    keys, words, annotations, leave_one_out, rate,
    type_shift, type_mask, type_hashes, count_hashes, link_hashes, count_doubled, link_doubled,
    parent, bit, multiplicity, n_row, n_target, slots, table, gradients,
):  # fmt: skip
    """One online pass over a block of events, by Eq. gradient_agg; return the summed loss.

    With `leave_one_out` the negative part of a feature's gradient is taken at (C_i* - 1, C_ij) and
    the positive part at (C_i* - 1, C_ij - 1); without, both at (C_i*, C_ij). A conjunction that is
    the same metafeature in both parts takes one step by the sum, otherwise one step a part.
    gradients[event, slot] receives the two parts where it is not empty (the tests ask for them).
    """
    n_slots, n_events = keys.shape
    n_all = len(parent)
    unit = np.zeros(7, np.uint64)
    strength = np.ones(7, np.float64)
    hashes = np.zeros(n_all, np.uint64)
    scratch = np.ones(n_all, np.float64)
    # of every feature of the event: the conjunctions of the negative part, and of the positive
    weights_n = np.ones((n_slots, n_all), np.float64)
    weights_p = np.ones((n_slots, n_all), np.float64)
    places_n = np.zeros((n_slots, n_all), np.int64)
    places_p = np.zeros((n_slots, n_all), np.int64)
    negative = np.zeros(n_slots, np.float64)
    positive = np.zeros(n_slots, np.float64)
    same = np.zeros(n_slots, np.bool_)
    used = np.zeros(n_slots, np.int64)
    loss = 0.0
    for k in range(n_events):
        n_used = 0
        predicted = 0.0
        unit[3] = mix64(np.uint64(words[k]) ^ TARGET_SALT)
        for q in range(n_slots):
            key = keys[q, k]
            total = np.int64(annotations[k, q, 0])
            link = np.int64(annotations[k, q, 1])
            if key == ABSENT or link == 0 or (leave_one_out and total == 1):
                continue
            if leave_one_out:
                total -= 1
                factor_n = (total + 1 - link) / total
                link_p = link - 1
            else:
                factor_n = 1.0
                link_p = link
            unit[0] = mix64(key ^ FEATURE_SALT)
            unit[1] = type_hashes[np.int64((key >> type_shift) & type_mask)]
            set_count(total, count_doubled, count_hashes, 2, 5, unit, strength)
            bucket_n = set_count(link, link_doubled, link_hashes, 4, 6, unit, strength)
            w, p = weights_n[q], places_n[q]
            base = add_up(1, n_target, parent, bit, multiplicity, unit, strength, slots, table, hashes, w, p)
            more = add_up(n_target, n_all, parent, bit, multiplicity, unit, strength, slots, table, hashes, w, p)
            negative[q] = factor_n * math.exp(min(base + more, LARGEST_EXPONENT))
            positive[q] = 0.0
            same[q] = True
            if link_p > 0:
                if leave_one_out:
                    bucket_p = set_count(link_p, link_doubled, link_hashes, 4, 6, unit, strength)
                    same[q] = bucket_p == bucket_n
                    scratch[:n_target] = w[:n_target]
                    more = add_up(
                        n_target, n_all, parent, bit, multiplicity, unit, strength, slots, table,
                        hashes, scratch, places_p[q],
                    )  # fmt: skip
                    weights_p[q, n_target:] = scratch[n_target:]
                else:
                    weights_p[q, n_target:] = w[n_target:]
                positive[q] = link_p / total * math.exp(min(base + more, LARGEST_EXPONENT))
            predicted += positive[q]
            loss += negative[q] + (positive[q] if leave_one_out else 0.0)
            used[n_used] = q
            n_used += 1
        if predicted > 0.0:
            loss -= math.log(predicted)
        for i in range(n_used):
            q = used[i]
            g_n = negative[q]
            g_p = 0.0
            if positive[q] > 0.0:
                # the loss without leave-one-out has the positive part of sum(y) in `negative` already
                g_p = positive[q] * (1.0 - 1.0 / predicted) if leave_one_out else -positive[q] / predicted
            if len(gradients):
                gradients[k, q, 0] = g_n
                gradients[k, q, 1] = g_p
            if rate == 0.0:
                continue
            for c in range(1, n_target):
                if places_n[q, c] >= 0:
                    take_step(table, places_n[q, c], (g_n + g_p) * weights_n[q, c], rate)
            if same[q]:
                for c in range(n_target, n_all):
                    g = g_n * weights_n[q, c]
                    if positive[q] > 0.0:
                        g += g_p * weights_p[q, c]
                    if places_n[q, c] >= 0:
                        take_step(table, places_n[q, c], g, rate)
            else:
                for c in range(n_target, n_all):
                    if places_n[q, c] >= 0:
                        take_step(table, places_n[q, c], g_n * weights_n[q, c], rate)
                for c in range(n_target, n_all):
                    if positive[q] > 0.0 and places_p[q, c] >= 0:
                        take_step(table, places_p[q, c], g_p * weights_p[q, c], rate)
    return loss


@njit(nogil=True, cache=True)
def weigh_rows(
    first, last, features, totals, offsets, targets, counts,
    type_shift, type_mask, type_hashes, count_hashes, link_hashes, count_doubled, link_doubled,
    parent, bit, multiplicity, n_row, n_target, slots, table, weights, sums,
):  # fmt: skip
    """M_ij = exp(A(i, j)) C_ij / C_i* for the links of rows [first, last), and the rows' sums."""
    n_all = len(parent)
    unit = np.zeros(7, np.uint64)
    strength = np.ones(7, np.float64)
    hashes = np.zeros(n_all, np.uint64)
    w = np.ones(n_all, np.float64)
    places = np.zeros(n_all, np.int64)
    for row in range(first, last):
        total = np.int64(totals[row])
        unit[0] = mix64(features[row] ^ FEATURE_SALT)
        unit[1] = type_hashes[np.int64((features[row] >> type_shift) & type_mask)]
        set_count(total, count_doubled, count_hashes, 2, 5, unit, strength)
        base = add_up(1, n_row, parent, bit, multiplicity, unit, strength, slots, table, hashes, w, places)
        row_sum = 0.0
        for link in range(offsets[row], offsets[row + 1]):
            unit[3] = mix64(np.uint64(targets[link]) ^ TARGET_SALT)
            set_count(np.int64(counts[link]), link_doubled, link_hashes, 4, 6, unit, strength)
            a = base + add_up(
                n_row, n_all, parent, bit, multiplicity, unit, strength, slots, table, hashes, w, places
            )  # fmt: skip
            weights[link] = math.exp(min(a, LARGEST_EXPONENT)) * counts[link] / total
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
    type_shift, type_mask, type_hashes, count_hashes, link_hashes, count_doubled, link_doubled,
    parent, bit, multiplicity, n_row, n_target, slots, table, gradient, apply, rate,
):  # fmt: skip
    """Add the batch's gradient to `gradient` (slots,), or with `apply` step by it and clear it."""
    n_all = len(parent)
    unit = np.zeros(7, np.uint64)
    strength = np.ones(7, np.float64)
    hashes = np.zeros(n_all, np.uint64)
    w = np.ones(n_all, np.float64)
    places = np.zeros(n_all, np.int64)
    for row in order:
        unit[0] = mix64(features[row] ^ FEATURE_SALT)
        unit[1] = type_hashes[np.int64((features[row] >> type_shift) & type_mask)]
        set_count(np.int64(totals[row]), count_doubled, count_hashes, 2, 5, unit, strength)
        for link in range(offsets[row], offsets[row + 1]):
            unit[3] = mix64(np.uint64(targets[link]) ^ TARGET_SALT)
            set_count(np.int64(counts[link]), link_doubled, link_hashes, 4, 6, unit, strength)
            add_up(1, n_all, parent, bit, multiplicity, unit, strength, slots, table, hashes, w, places)
            g = weights[link] * (row_gradients[row] + link_gradients[link])
            for c in range(1, n_all):
                place = places[c]
                if place < 0:
                    continue
                if not apply:
                    gradient[place] += g * w[c]
                elif gradient[place] != 0.0:
                    take_step(table, place, gradient[place], rate)
                    gradient[place] = 0.0
