"""Leave-one-out training without weights: a kernel for each set of metafeatures.

What `snm.kernels.adjustment.train_weighted` does for any set, where counts have one bucket each, so that no conjunction
has a weight: 1.5 times as fast for the default set, to the same bits.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from snm.kernels.adjustment import (
    bounded_exp,
    counts_of,
    factors_of,
    link_bucket,
    link_code,
    log2_bucket,
    take_step,
    target_hash,
    train_weighted,
)  # fmt: skip
from snm.kernels.extraction import ABSENT
from snm.kernels.hashing import FEATURE_SALT, helper, mix64, slot_of
from snm.kernels.memory import prefetch
from snm.metafeatures import MetafeatureSet

EVENTS_AHEAD = 7  # events whose places are known and asked for before one is learned from


class Plan(NamedTuple):
    """Of the conjunctions without, and of those with a link count, the units each holds, as bits, and how often.

    Constants to LLVM, which writes out all loops over them.
    """

    bare: tuple[int, ...]
    bare_times: tuple[float, ...]
    linked: tuple[int, ...]
    linked_times: tuple[float, ...]


@helper
def hash_of(units, feature, kind, count, target):
    h = np.uint64(0)
    if units & 1:
        h ^= feature
    if units & 2:
        h ^= kind
    if units & 4:
        h ^= count
    if units & 8:
        h ^= target
    return h


@helper
def place_linked(i, at, line, bucket, feature, kind, count, target, a, plan, place_of):
    code = link_code(bucket, a)
    for c in range(len(plan.linked)):
        h = hash_of(plan.linked[c], feature, kind, count, target) ^ a.line_hashes[line]
        place_of[i, at + c] = np.uint32(slot_of(h, a.slots)) ^ code


@helper
def ask_for(i, first, last, place_of, a):
    for c in range(first, last):
        prefetch(a.table, place_of[i, c])


@helper
def place(i, key, target, total, link, link_p, a, plan, place_of, apart):
    """Where all conjunctions of link i lie, those of the positive part alone last."""
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    feature = mix64(key ^ FEATURE_SALT)
    kind = a.type_hashes[(key >> a.type_shift) & a.type_mask]
    count = a.count_hashes[log2_bucket(total)[0]]
    for c in range(n_bare):
        h = hash_of(plan.bare[c], feature, kind, count, target)
        place_of[i, c] = np.uint32(slot_of(h, a.slots))
    bucket = link_bucket(link, a)[0]
    line = bucket >> a.line_shift
    place_linked(i, n_bare, line, bucket, feature, kind, count, target, a, plan, place_of)
    ask_for(i, 0, n_bare + n_linked, place_of, a)
    bucket_p = link_bucket(link_p, a)[0] if link_p > 0 else bucket
    apart[i] = bucket_p != bucket
    if apart[i]:
        line_p = bucket_p >> a.line_shift
        place_linked(i, n_bare + n_linked, line_p, bucket_p, feature, kind, count, target, a, plan, place_of)
        if line_p != line:
            ask_for(i, n_bare + n_linked, n_bare + 2 * n_linked, place_of, a)


@helper
def predict(i, place_of, apart, a, plan):
    """exp(A) of both parts."""
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    shared = a.start
    for c in range(n_bare):
        shared += plan.bare_times[c] * a.table[place_of[i, c], 0]
    total = shared
    for c in range(n_linked):
        total += plan.linked_times[c] * a.table[place_of[i, n_bare + c], 0]
    factor = bounded_exp(total)
    if not apart[i]:
        return factor, factor
    for c in range(n_linked):
        shared += plan.linked_times[c] * a.table[place_of[i, n_bare + n_linked + c], 0]
    return factor, bounded_exp(shared)


@helper
def step(i, place_of, apart, g_n, g_p, rate, a, plan):
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    for c in range(n_bare):
        take_step(place_of[i, c], g_n + g_p, rate, a)
    shared = g_n if apart[i] else g_n + g_p
    for c in range(n_bare, n_bare + n_linked):
        take_step(place_of[i, c], shared, rate, a)
    if apart[i]:
        for c in range(n_bare + n_linked, n_bare + 2 * n_linked):
            take_step(place_of[i, c], g_p, rate, a)


@cache
def _plain_trainer(plan):
    """`train_weighted` for one plan."""
    width = len(plan.bare) + 2 * len(plan.linked)

    @njit(nogil=True, cache=True)
    def train_plainly(keys, words, annotations, unigrams, leave_one_out, rate, a, gradients):
        slots, events = keys.shape
        most = (EVENTS_AHEAD + 1) * slots  # event k has the places from k % (EVENTS_AHEAD + 1) * slots on
        place_of, apart = np.zeros((most, width), np.uint32), np.zeros(most, np.bool_)
        negative, positive, slot = np.zeros(most), np.zeros(most), np.zeros(most, np.int64)
        ends = np.zeros(EVENTS_AHEAD + 1, np.int64)
        rate, loss, product = np.float32(rate), 0.0, 1.0  # of predictions whose logarithm is not taken yet
        for ahead in range(events + EVENTS_AHEAD):
            if ahead < events:
                i = ahead % (EVENTS_AHEAD + 1) * slots
                target = target_hash(words[ahead])
                for q in range(slots if keys[0, ahead] != ABSENT else 0):
                    total, link = counts_of(ahead, q, words, annotations, unigrams)
                    if link == 0 or (leave_one_out and total == 1):
                        continue
                    total, link_p, negative[i], positive[i] = factors_of(total, link, leave_one_out)
                    slot[i] = q
                    place(i, keys[q, ahead], target, total, link, link_p, a, plan, place_of, apart)
                    i += 1
                ends[ahead % (EVENTS_AHEAD + 1)] = i
            k = ahead - EVENTS_AHEAD
            if k < 0:
                continue
            first, last = k % (EVENTS_AHEAD + 1) * slots, ends[k % (EVENTS_AHEAD + 1)]
            predicted = 0.0
            for i in range(first, last):
                factor_n, factor_p = predict(i, place_of, apart, a, plan)
                negative[i] *= factor_n
                positive[i] *= factor_p
                predicted += positive[i]
            pull = 0.0
            if predicted > 0.0:
                product *= predicted
                if not 1e-200 < product < 1e200:
                    loss -= math.log(product)
                    product = 1.0
                # without leave-one-out `negative` has the whole first term of the gradient
                pull = (1.0 if leave_one_out else 0.0) - 1.0 / predicted
            for i in range(first, last):
                loss += negative[i] + (positive[i] if leave_one_out else 0.0)
                positive[i] *= pull
                if len(gradients):
                    gradients[k, slot[i], 0] = negative[i]
                    gradients[k, slot[i], 1] = positive[i]
                if rate > 0.0:
                    step(i, place_of, apart, negative[i], positive[i], rate, a, plan)
        return loss - math.log(product)

    return train_plainly


def trainer_of(metafeatures: MetafeatureSet) -> Any:
    """`train_weighted`, or what does the same faster where no conjunction has a weight."""
    doubled = "double" in (metafeatures.feature_buckets, metafeatures.link_buckets)
    plan = metafeatures.plan()
    bare, units, times = int(plan.ends[0]), plan.units(), tuple(plan.multiplicity.tolist())
    if doubled or not 0 < bare < len(units):
        return train_weighted
    return _plain_trainer(Plan(units[:bare], times[:bare], units[bare:], times[bare:]))
