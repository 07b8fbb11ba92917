"""Leave-one-out training without weights: a kernel for each set of metafeatures.

What `snm.kernels.adjustment.train_weighted` does for any set, where counts have one bucket each, so that no conjunction
has a weight: 1.4 times as fast for the default set, on one thread to the same bits. Several threads have some weights
each for itself while they work on a block of events.
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
    floor_log2,
    link_bucket,
    link_code,
    take_step,
    target_hash,
    train_weighted,
)  # fmt: skip
from snm.kernels.extraction import ABSENT
from snm.kernels.hashing import FEATURE_SALT, helper, mix64, slot_of
from snm.kernels.memory import prefetch
from snm.metafeatures import BUCKETS, MetafeatureSet

FEATURE, TYPE, COUNT, TARGET = 1, 2, 4, 8  # units of a conjunction, see `snm.metafeatures.UNITS`
NOWHERE = np.uint32(0xFFFFFFFF)
LANES = 8  # exponents that are raised together, a multiple of any machine's
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
    if units & FEATURE:
        h ^= feature
    if units & TYPE:
        h ^= kind
    if units & COUNT:
        h ^= count
    if units & TARGET:
        h ^= target
    return h


class Own(NamedTuple):
    """A thread's own copies of the weights that every event moves: threads that write to one line wait for each other.

    Those are the empty feature's without the target, BUCKETS rows for each conjunction: half octaves of 32 bits.
    """

    table: np.ndarray  # (rows, 1 or 2) float32
    before: np.ndarray  # (rows, 1 or 2) float32: as it was in the shared table
    places: np.ndarray  # (rows,) uint32: where it was there, NOWHERE for what is not in use


@njit(nogil=True, cache=True)
def make_own(rows, columns):
    tables = np.zeros((rows, columns), np.float32), np.zeros((rows, columns), np.float32)
    return Own(tables[0], tables[1], np.full(rows, NOWHERE))


@helper
def is_own(units, empty):
    """Whether a weight is one of those; it is no other feature's then, whose type is another."""
    return empty and units & (FEATURE | TYPE) and not units & TARGET


@helper
def borrow(row, place, a, own):
    own.places[row] = place
    for column in range(a.table.shape[1]):
        own.before[row, column] = own.table[row, column] = a.table[place, column]


@helper
def give_back(a, own):
    """Add to what was borrowed what has been learned of it; another thread may have done so meanwhile."""
    for row in range(len(own.places)):
        place = own.places[row]
        if place != NOWHERE:
            for column in range(a.table.shape[1]):
                shared, before, now = a.table[place, column], own.before[row, column], own.table[row, column]
                a.table[place, column] = now if shared == before else shared + (now - before)


@helper
def put(i, at, c, units, bucket, h, code, empty, a, own, place_of):
    """Write where the weight of conjunction c lies to place_of[i, at], and ask for it."""
    place = np.uint32(slot_of(h, a.slots)) ^ code
    if is_own(units, empty):
        row = c * BUCKETS + bucket
        if own.places[row] == NOWHERE:
            borrow(row, place, a, own)
        place_of[i, at] = row
    else:
        place_of[i, at] = place
        prefetch(a.table, place)


@helper
def place(i, key, empty, target, total, link, link_p, a, plan, own, place_of):
    """Where all conjunctions of link i lie, those of the positive part last; return whether these are others.

    Without branches, here and in `predict`: they cannot be foretold, and to be wrong about one costs more than what
    it would save. `empty` is a constant for LLVM.
    """
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    feature = mix64(key ^ FEATURE_SALT)
    kind = a.type_hashes[(key >> a.type_shift) & a.type_mask]
    count = a.count_hashes[floor_log2(total)]
    bucket = link_bucket(link, a)[0]
    bucket_p = link_bucket(link_p if link_p > 0 else link, a)[0]
    line, line_p = a.line_hashes[bucket >> a.line_shift], a.line_hashes[bucket_p >> a.line_shift]
    code, code_p = link_code(bucket, a), link_code(bucket_p, a)
    for c in range(n_bare):
        h = hash_of(plan.bare[c], feature, kind, count, target)
        put(i, c, c, plan.bare[c], 0, h, np.uint32(0), empty, a, own, place_of)
    for c in range(n_linked):
        at, units = n_bare + c, plan.linked[c]
        h = hash_of(units, feature, kind, count, target)
        put(i, at, at, units, bucket, h ^ line, code, empty, a, own, place_of)
        put(i, at + n_linked, at, units, bucket_p, h ^ line_p, code_p, empty, a, own, place_of)
    return bucket_p != bucket


@helper
def theta(place, units, empty, a, own):
    return own.table[place, 0] if is_own(units, empty) else a.table[place, 0]


@helper
def predict(i, empty, place_of, a, plan, own):
    """A of both parts."""
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    negative = a.start
    for c in range(n_bare):
        negative += plan.bare_times[c] * theta(place_of[i, c], plan.bare[c], empty, a, own)
    positive = negative
    for c in range(n_linked):
        at, units, times = n_bare + c, plan.linked[c], plan.linked_times[c]
        negative += times * theta(place_of[i, at], units, empty, a, own)
        positive += times * theta(place_of[i, at + n_linked], units, empty, a, own)
    return negative, positive


@helper
def raise_all(exponents):
    """exp() of all numbers, as many at a time as the machine has lanes for."""
    for i in range(len(exponents)):
        exponents[i] = bounded_exp(exponents[i])


@helper
def move(place, units, empty, gradient, rate, a, own):
    if is_own(units, empty):
        take_step(place, gradient, rate, own.table)
    else:
        take_step(place, gradient, rate, a.table)


@helper
def step(i, empty, place_of, apart, g_n, g_p, rate, a, plan, own):
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    for c in range(n_bare):
        move(place_of[i, c], plan.bare[c], empty, g_n + g_p, rate, a, own)
    shared = g_n if apart else g_n + g_p
    for c in range(n_linked):
        move(place_of[i, n_bare + c], plan.linked[c], empty, shared, rate, a, own)
    if apart:
        for c in range(n_linked):
            move(place_of[i, n_bare + n_linked + c], plan.linked[c], empty, g_p, rate, a, own)


@helper
def choose(k, annotations, least, slot, i):
    """Write the slots of event k whose features were seen more than `least` times to slot[i] and on.

    Returns where they end. The empty feature is the first of them.
    """
    slot[i] = 0
    i += 1
    for q in range(annotations.shape[1]):
        slot[i] = q + 1
        i += np.int64(annotations[k, q] >> np.uint32(16) > least)
    return i


@cache
def _plain_trainer(plan):
    """`train_weighted` for one plan."""
    width, rows = len(plan.bare) + 2 * len(plan.linked), (len(plan.bare) + len(plan.linked)) * BUCKETS

    @njit(nogil=True, cache=True)
    def train_plainly(keys, words, annotations, unigrams, leave_one_out, rate, a, gradients):
        slots, events = keys.shape
        most = (EVENTS_AHEAD + 1) * slots  # event k has the places from k % (EVENTS_AHEAD + 1) * slots on
        place_of, apart = np.zeros((most, width), np.uint32), np.zeros(most, np.bool_)
        negative, positive, slot = np.zeros(most), np.zeros(most), np.zeros(most + 1, np.int64)
        factors = np.zeros(2 * slots + LANES)
        ends = np.zeros(EVENTS_AHEAD + 1, np.int64)
        own = make_own(rows, a.table.shape[1])
        least = np.uint32(1 if leave_one_out else 0)
        rate, loss, product = np.float32(rate), 0.0, 1.0  # of predictions whose logarithm is not taken yet
        for ahead in range(events + EVENTS_AHEAD):
            if ahead < events:
                first = last = ahead % (EVENTS_AHEAD + 1) * slots
                if keys[0, ahead] != ABSENT and unigrams.total > least:
                    last = choose(ahead, annotations, least, slot, first)
                target = target_hash(words[ahead])
                for i in range(first, last):
                    total, link = counts_of(ahead, slot[i], words, annotations, unigrams)
                    total, link_p, negative[i], positive[i] = factors_of(total, link, leave_one_out)
                    key = keys[slot[i], ahead]
                    if i == first:
                        apart[i] = place(i, key, True, target, total, link, link_p, a, plan, own, place_of)
                    else:
                        apart[i] = place(i, key, False, target, total, link, link_p, a, plan, own, place_of)
                ends[ahead % (EVENTS_AHEAD + 1)] = last
            k = ahead - EVENTS_AHEAD
            if k < 0:
                continue
            first, last = k % (EVENTS_AHEAD + 1) * slots, ends[k % (EVENTS_AHEAD + 1)]
            n = last - first
            if n > 0:
                factors[0], factors[1] = predict(first, True, place_of, a, plan, own)
            for i in range(1, n):
                factors[2 * i], factors[2 * i + 1] = predict(first + i, False, place_of, a, plan, own)
            raise_all(factors[: -(-2 * n // LANES) * LANES])
            predicted = 0.0
            for i in range(n):
                negative[first + i] *= factors[2 * i]
                positive[first + i] *= factors[2 * i + 1]
                predicted += positive[first + i]
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
                    if i == first:
                        step(i, True, place_of, apart[i], negative[i], positive[i], rate, a, plan, own)
                    else:
                        step(i, False, place_of, apart[i], negative[i], positive[i], rate, a, plan, own)
        give_back(a, own)
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
