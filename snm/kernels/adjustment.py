"""The adjustment function: sums of metafeature weights, gradients, steps, and rows of M.

A *plan* (`snm.metafeatures.Plan`) lists the conjunctions. `unit` holds the hashes of the elementary
metafeatures of a link and `strength` their weights; the hash of a base conjunction is the XOR of its
units, its weight the product of their strengths. A conjunction with the link count lies in the same line
of eight slots as its base, so that one fetch from memory serves all of them: three times fewer fetches
than with a place of its own for each. `table` is (slots, 1 or 2) float32: the weight theta of a
metafeature and, for AdaGrad, the sum of its squared gradients.

The conjunctions that a feature of an event meets are *entries*: a place in the table, and a weight
in the negative part of its gradient and in the positive part (`weight[entry]`, two columns).
"""

import math

import numpy as np
from numba import njit

from snm.kernels.extraction import ABSENT
from snm.kernels.hashing import FEATURE_SALT, TARGET_SALT, mix64, slot_of
from snm.metafeatures import BUCKETS_A_LINE, FLOOR_CODES, PAIR_CODES

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
def set_units(key, total, type_shift, type_mask, type_hashes, count_hashes, count_doubled, unit, strength):
    """Enter what is known of a feature: its identity, type and count."""
    bucket, lost = log2_bucket(total)
    unit[0] = mix64(key ^ FEATURE_SALT)
    unit[1] = type_hashes[np.int64((key >> type_shift) & type_mask)]
    unit[2] = count_hashes[bucket]
    unit[5] = count_hashes[bucket + 1]
    strength[2] = 1.0 - lost if count_doubled else 1.0
    strength[5] = lost if count_doubled else 0.0


@njit(nogil=True, cache=True)
def add_bases(begin, end, parent, bit, multiplicity, unit, strength, slots, table, base_hash, base_weight, n, place, weight):
    """Enter the base conjunctions [begin, end); return the number of entries and the sum of their weights."""
    total = 0.0
    for c in range(begin, end):
        base_hash[c] = base_hash[parent[c]] ^ unit[bit[c]]
        base_weight[c] = base_weight[parent[c]] * strength[bit[c]]
        if multiplicity[c] > 0.0 and base_weight[c] != 0.0:
            p = np.int64(slot_of(base_hash[c], slots))
            place[n] = p
            weight[n, 0] = base_weight[c]
            weight[n, 1] = base_weight[c]
            total += multiplicity[c] * base_weight[c] * table[p, 0]
            n += 1
    return n, total


@njit(nogil=True, cache=True)
def add_links(
    bucket, lost_n, lost_p, doubled, link_hashes, link_base, link_multiplicity, variant_ends,
    slots, table, base_hash, base_weight, n, place, weight,
):  # fmt: skip
    """Enter the conjunctions with a link count of this bucket; return the number of entries and two sums.

    lost_n and lost_p say what the floor of log2 lost of the count in the negative and in the positive
    part; below zero, the count of that part lies in another bucket, and its weights are zero.
    """
    sum_n = sum_p = 0.0
    begin = 0
    for variant in range(3):
        in_bucket = bucket + 1 if variant == 1 else bucket
        line = link_hashes[in_bucket // BUCKETS_A_LINE]
        within = in_bucket % BUCKETS_A_LINE
        code = np.int64(PAIR_CODES[within] if variant == 2 else FLOOR_CODES[within])
        w_n = variant_weight(variant, lost_n, doubled)
        w_p = variant_weight(variant, lost_p, doubled)
        if w_n != 0.0 or w_p != 0.0:
            for c in range(begin, variant_ends[variant]):
                base = link_base[c]
                if base_weight[base] == 0.0:
                    continue
                p = np.int64(slot_of(base_hash[base] ^ line, slots)) ^ code
                place[n] = p
                weight[n, 0] = base_weight[base] * w_n
                weight[n, 1] = base_weight[base] * w_p
                theta = link_multiplicity[c] * table[p, 0]
                sum_n += weight[n, 0] * theta
                sum_p += weight[n, 1] * theta
                n += 1
        begin = variant_ends[variant]
    return n, sum_n, sum_p


@njit(nogil=True, cache=True)
def variant_weight(variant, lost, doubled):
    """Weight of the floor, the ceiling, or both buckets of a count; `lost` below zero: not this count's."""
    if lost < 0.0:
        return 0.0
    if not doubled:
        return 1.0 if variant == 0 else 0.0
    return 1.0 - lost if variant == 0 else lost if variant == 1 else lost * (1.0 - lost)


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
    parent, bit, multiplicity, n_row, link_base, link_multiplicity, variant_ends, slots, table, gradients,
):  # fmt: skip
    """One online pass over a block of events, by Eq. gradient_agg; return the summed loss.

    With `leave_one_out` the negative part of a feature's gradient is taken at (C_i* - 1, C_ij) and
    the positive part at (C_i* - 1, C_ij - 1); without, both at (C_i*, C_ij). A conjunction that is
    the same metafeature in both parts takes one step by the sum, otherwise one step a part.
    gradients[event, slot] receives the two parts where it is not empty (the tests ask for them).
    """
    n_slots, n_events = keys.shape
    n_base = len(parent)
    unit = np.zeros(7, np.uint64)
    strength = np.ones(7, np.float64)
    base_hash = np.zeros(n_base, np.uint64)
    base_weight = np.ones(n_base, np.float64)
    # entries of all features of the event, one feature after another
    place = np.empty(n_slots * (n_base + 2 * len(link_base)), np.int64)
    weight = np.empty((len(place), 2), np.float64)
    ends = np.empty(n_slots, np.int64)
    negative = np.empty(n_slots, np.float64)
    positive = np.empty(n_slots, np.float64)
    slot = np.empty(n_slots, np.int64)
    loss = 0.0
    for k in range(n_events):
        used = 0
        n = 0
        predicted = 0.0
        unit[3] = mix64(np.uint64(words[k]) ^ TARGET_SALT)
        for q in range(n_slots):
            key = keys[q, k]
            total = np.int64(annotations[k, q, 0])
            link = np.int64(annotations[k, q, 1])
            if key == ABSENT or link == 0 or (leave_one_out and total == 1):
                continue
            factor_n, link_p = 1.0, link
            if leave_one_out:
                total -= 1
                link_p -= 1
                factor_n = (total + 1 - link) / total
            set_units(key, total, type_shift, type_mask, type_hashes, count_hashes, count_doubled, unit, strength)
            n, base = add_bases(
                1, n_base, parent, bit, multiplicity, unit, strength, slots, table, base_hash, base_weight,
                n, place, weight,
            )  # fmt: skip
            bucket, lost_n = log2_bucket(link)
            bucket_p, lost_p = log2_bucket(max(link_p, 1))
            together = bucket_p == bucket and link_p > 0
            n, more_n, more_p = add_links(
                bucket, lost_n, lost_p if together else -1.0, link_doubled, link_hashes, link_base,
                link_multiplicity, variant_ends, slots, table, base_hash, base_weight, n, place, weight,
            )  # fmt: skip
            if link_p > 0 and not together:
                n, _, more_p = add_links(
                    bucket_p, -1.0, lost_p, link_doubled, link_hashes, link_base,
                    link_multiplicity, variant_ends, slots, table, base_hash, base_weight, n, place, weight,
                )  # fmt: skip
            negative[used] = factor_n * math.exp(min(base + more_n, LARGEST_EXPONENT))
            positive[used] = 0.0
            if link_p > 0:
                positive[used] = link_p / total * math.exp(min(base + more_p, LARGEST_EXPONENT))
            predicted += positive[used]
            loss += negative[used] + (positive[used] if leave_one_out else 0.0)
            slot[used] = q
            ends[used] = n
            used += 1
        if predicted > 0.0:
            loss -= math.log(predicted)
        begin = 0
        for i in range(used):
            g_n, g_p = negative[i], 0.0
            if positive[i] > 0.0:
                # without leave-one-out `negative` has the whole first term of the gradient
                g_p = positive[i] * (1.0 - 1.0 / predicted) if leave_one_out else -positive[i] / predicted
            if len(gradients):
                gradients[k, slot[i], 0] = g_n
                gradients[k, slot[i], 1] = g_p
            if rate > 0.0:
                for entry in range(begin, ends[i]):
                    take_step(table, place[entry], g_n * weight[entry, 0] + g_p * weight[entry, 1], rate)
            begin = ends[i]
    return loss


@njit(nogil=True, cache=True)
def weigh_rows(
    first, last, features, totals, offsets, targets, counts,
    type_shift, type_mask, type_hashes, count_hashes, link_hashes, count_doubled, link_doubled,
    parent, bit, multiplicity, n_row, link_base, link_multiplicity, variant_ends, slots, table, weights, sums,
):  # fmt: skip
    """M_ij = exp(A(i, j)) C_ij / C_i* for the links of rows [first, last), and the rows' sums."""
    n_base = len(parent)
    unit = np.zeros(7, np.uint64)
    strength = np.ones(7, np.float64)
    base_hash = np.zeros(n_base, np.uint64)
    base_weight = np.ones(n_base, np.float64)
    place = np.empty(n_base + len(link_base), np.int64)
    weight = np.empty((len(place), 2), np.float64)
    for row in range(first, last):
        total = np.int64(totals[row])
        set_units(features[row], total, type_shift, type_mask, type_hashes, count_hashes, count_doubled, unit, strength)
        _, of_row = add_bases(
            1, n_row, parent, bit, multiplicity, unit, strength, slots, table, base_hash, base_weight, 0, place, weight
        )  # fmt: skip
        row_sum = 0.0
        for link in range(offsets[row], offsets[row + 1]):
            unit[3] = mix64(np.uint64(targets[link]) ^ TARGET_SALT)
            _, of_target = add_bases(
                n_row, n_base, parent, bit, multiplicity, unit, strength, slots, table, base_hash, base_weight,
                0, place, weight,
            )  # fmt: skip
            bucket, lost = log2_bucket(np.int64(counts[link]))
            _, of_link, _ = add_links(
                bucket, lost, -1.0, link_doubled, link_hashes, link_base, link_multiplicity, variant_ends,
                slots, table, base_hash, base_weight, 0, place, weight,
            )  # fmt: skip
            a = min(of_row + of_target + of_link, LARGEST_EXPONENT)
            weights[link] = math.exp(a) * counts[link] / total
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
    parent, bit, multiplicity, n_row, link_base, link_multiplicity, variant_ends, slots, table,
    gradient, apply, rate,
):  # fmt: skip
    """Add the batch's gradient to `gradient` (slots,), or with `apply` step by it and clear it."""
    n_base = len(parent)
    unit = np.zeros(7, np.uint64)
    strength = np.ones(7, np.float64)
    base_hash = np.zeros(n_base, np.uint64)
    base_weight = np.ones(n_base, np.float64)
    place = np.empty(n_base + len(link_base), np.int64)
    weight = np.empty((len(place), 2), np.float64)
    for row in order:
        total = np.int64(totals[row])
        set_units(features[row], total, type_shift, type_mask, type_hashes, count_hashes, count_doubled, unit, strength)
        for link in range(offsets[row], offsets[row + 1]):
            unit[3] = mix64(np.uint64(targets[link]) ^ TARGET_SALT)
            n, _ = add_bases(
                1, n_base, parent, bit, multiplicity, unit, strength, slots, table, base_hash, base_weight,
                0, place, weight,
            )  # fmt: skip
            bucket, lost = log2_bucket(np.int64(counts[link]))
            n, _, _ = add_links(
                bucket, lost, -1.0, link_doubled, link_hashes, link_base, link_multiplicity, variant_ends,
                slots, table, base_hash, base_weight, n, place, weight,
            )  # fmt: skip
            g = weights[link] * (row_gradients[row] + link_gradients[link])
            for entry in range(n):
                p = place[entry]
                if not apply:
                    gradient[p] += g * weight[entry, 0]
                elif gradient[p] != 0.0:
                    take_step(table, p, gradient[p], rate)
                    gradient[p] = 0.0
