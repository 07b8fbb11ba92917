"""The fast trainer: a kernel for each set of unweighted conjunctions.

It computes what `snm.kernels.adjustment.train_plain` computes for any set. The features of a group of events are one
list, and each stage is a loop over the list: a loop over the features of one event, three on average, ends in a
mispredicted branch (gain: docs/measurements.md). While a group is trained on, the weights of the next are prefetched.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from snm.kernels.adjustment import (
    GROUP_EVENTS,
    half_bucket,
    link_code,
    take_step,
    target_hash,
    target_offset,
)
from snm.kernels.bits import floor_log2
from snm.kernels.compile import helper, kernel, sum_helper
from snm.kernels.counts import unpack_count
from snm.kernels.fastmath import clamped_exp
from snm.kernels.hashing import slot_of
from snm.kernels.simd import prefetch, take_adagrad_steps
from snm.layouts.keys import ABSENT, FEATURE_SALT
from snm.layouts.weights import (
    BUCKETS,
    COUNT_ROWS,
    HAS_FEATURE,
    HAS_FEATURE_COUNT,
    HAS_TARGET,
    HAS_TARGET_OFFSET,
    HAS_TYPE,
    HAS_TYPE_OFFSET,
    FastPlan,
)


class Scratch(NamedTuple):
    """Memory of one thread for two groups of events, [0] and [1] in turns: one is trained on, the next is prepared."""

    begin: np.ndarray  # (2, GROUP_EVENTS + 1) int64: first feature of each event, the empty one
    # (2, features)
    event: np.ndarray  # uint64: number in the group
    template: np.ndarray  # uint64
    key: np.ndarray  # uint64
    target: np.ndarray  # uint64: hash
    feature_count: np.ndarray  # int64: C_i*, one less with leave-one-out
    link_count: np.ndarray  # int64
    negative: np.ndarray  # float64: the two parts of the gradient, at first their factors
    positive: np.ndarray
    separate: np.ndarray  # bool: weights with a link count differ in the positive part
    separate_list: np.ndarray  # uint64: those features
    slots: np.ndarray  # (2, features, slots) uint32: without a link count, with it, with that of the positive part
    exponents: np.ndarray  # (2, features) float64: A of the negative and the positive parts
    target_hashes: np.ndarray  # (GROUP_EVENTS,) uint64
    packed: np.ndarray  # (features,) uint32: annotations
    predicted: np.ndarray  # (GROUP_EVENTS,) float64: y'
    multiplier: np.ndarray  # (GROUP_EVENTS,) float64: of the positive parts


def make_scratch(templates: int, plan: FastPlan) -> Scratch:
    features, events = GROUP_EVENTS * templates + 1, GROUP_EVENTS
    dtypes = (np.uint64,) * 4 + (np.int64,) * 2 + (np.float64,) * 2 + (np.bool_, np.uint64)
    return Scratch._make(
        [
            np.zeros((2, events + 1), np.int64),
            *(np.zeros((2, features), dtype) for dtype in dtypes),
            np.zeros((2, features, len(plan.bare) + 2 * len(plan.linked)), np.uint32),
            np.zeros((2, features)),
            np.zeros(events, np.uint64),
            np.zeros(features, np.uint32),
            np.zeros(events),
            np.zeros(events),
        ]
    )


@helper
def is_common(mask):
    """Whether a conjunction contains neither feature nor target."""
    return not mask & (HAS_FEATURE | HAS_TARGET)


@helper
def prefetch_weights(i, components, table, plan, slots):
    """Prefetch the weights of feature i whose components among feature, target and target offset are these.

    Weights of a feature with a target miss the cache most often and are prefetched in a loop of their own: each misses
    the TLB first, and a processor looks n_next over a few hundred instructions only, so that with work between them few
    would overlap. The others are prefetched while the group before is trained on. Weights with neither feature nor
    target are private copies, and those of the positive part mostly lie in the same lines: both need no prefetch.
    """
    for c in range(len(plan.bare)):
        if plan.bare[c] & (HAS_FEATURE | HAS_TARGET | HAS_TARGET_OFFSET) == components:
            prefetch(table, slots[i, c])
    for c in range(len(plan.linked)):
        if plan.linked[c] & (HAS_FEATURE | HAS_TARGET | HAS_TARGET_OFFSET) == components:
            prefetch(table, slots[i, len(plan.bare) + c])


@helper
def prefetch_cold_weights(n, table, plan, slots):
    for i in range(n):
        prefetch_weights(i, HAS_FEATURE | HAS_TARGET_OFFSET, table, plan, slots)


@helper
def list_features(start, stop, keys, annotations, limit, g, b):
    """List the features of the events [start, stop) that were seen more than `limit` times; return how many."""
    begin, event, template, packed = g.begin[b], g.event[b], g.template[b], g.packed
    n = np.uint64(0)
    for k in range(start, stop):
        begin[k - start] = n
        if keys[0, k] == ABSENT:
            continue
        event[n], template[n], packed[n] = k - start, 0, 0
        n += np.uint64(1)
        for q in range(annotations.shape[1]):
            event[n], template[n], packed[n] = k - start, q + 1, annotations[k, q]
            n += np.uint64(annotations[k, q] >> np.uint32(16) > limit)
    begin[stop - start :] = n
    return np.int64(n)


@helper
def count_features(n, start, stop, keys, words, unigrams, leave_one_out, g, b):
    """Keys, targets and counts of the features, and the factors of both parts; see `adjustment.factors_of`."""
    begin, event, template, packed = g.begin[b], g.event[b], g.template[b], g.packed
    key, target, target_hashes = g.key[b], g.target[b], g.target_hashes
    feature_count, link_count, negative, positive = g.feature_count[b], g.link_count[b], g.negative[b], g.positive[b]
    for k in range(start, stop):
        target_hashes[k - start] = target_hash(words[k])
    for i in range(n):
        key[i], target[i] = keys[template[i], np.uint64(start) + event[i]], target_hashes[event[i]]
    for i in range(n):
        feature_count[i] = unpack_count(packed[i] >> np.uint32(16))
        link_count[i] = unpack_count(packed[i] & np.uint32(0xFFFF))
    for k in range(start, stop):
        i = begin[k - start]
        if i < begin[k - start + 1]:
            feature_count[i], link_count[i] = unigrams.total, unigrams.counts[words[k]]
    if leave_one_out:
        for i in range(n):
            feature_count[i] -= 1
            share = 1.0 / feature_count[i]
            negative[i] = (feature_count[i] + 1 - link_count[i]) * share
            positive[i] = (link_count[i] - 1) * share
    else:
        for i in range(n):
            negative[i] = 1.0
            positive[i] = link_count[i] / feature_count[i]


@helper
def hash_of(mask, hashes):
    """The XOR of the hashes of a conjunction's components; `hashes` are those of one link."""
    feature, type_hash, count, target, target_offset, type_offset = hashes
    h = np.uint64(0)
    if mask & HAS_FEATURE:
        h ^= feature
    if mask & HAS_TYPE:
        h ^= type_hash
    if mask & HAS_FEATURE_COUNT:
        h ^= count
    if mask & HAS_TARGET:
        h ^= target
    if mask & HAS_TARGET_OFFSET:
        h ^= target_offset
    if mask & HAS_TYPE_OFFSET:
        h ^= type_offset
    return h


@helper
def bucket_of(link_count, a):
    return np.uint64(half_bucket(link_count) if a.link_halved else floor_log2(link_count))


@helper
def common_row(nth, mask, type_index, count_bucket, types):
    """First of the BUCKETS private rows of the nth common conjunction, see `FastPlan.private_rows`."""
    row = np.uint64(nth) * types
    if mask & HAS_TYPE:
        row += type_index
    row *= np.uint64(COUNT_ROWS)
    if mask & HAS_FEATURE_COUNT:
        row += count_bucket
    return row * np.uint64(BUCKETS)


@helper
def locate_features(n, leave_one_out, first, a, plan, g, b):
    """Fill in `Scratch.slots`; return the number of separate features. Private rows begin at `first`."""
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    keys, targets, feature_counts, link_counts = g.key[b], g.target[b], g.feature_count[b], g.link_count[b]
    slots, separate, separate_list, n_separate = g.slots[b], g.separate[b], g.separate_list[b], np.uint64(0)
    left_out, shift = np.int64(leave_one_out), np.uint64(a.line_shift)
    common, types = np.uint64(first + (n_bare + n_linked) * BUCKETS), np.uint64(len(a.type_hashes))
    for i in range(n):
        key, target, link_count = keys[i], targets[i], link_counts[i]
        type_index, count_bucket = (key >> a.type_shift) & a.type_mask, np.uint64(floor_log2(feature_counts[i]))
        hashes = (
            key ^ FEATURE_SALT, a.type_hashes[type_index], a.count_hashes[count_bucket], target,
            target_offset(target, feature_counts[i] + left_out, a.window), a.type_offsets[type_index],
        )  # fmt: skip
        bucket, bucket_p = bucket_of(link_count, a), bucket_of(max(link_count - left_out, 1), a)
        separate[i], separate_list[n_separate] = bucket != bucket_p, i
        n_separate += np.uint64(bucket != bucket_p)
        line, code = a.line_hashes[bucket >> shift], link_code(bucket, a)
        difference = code ^ link_code(bucket_p, a)
        nth = 0
        for c in range(n_bare):
            if is_common(plan.bare[c]):
                slots[i, c] = common + common_row(nth, plan.bare[c], type_index, count_bucket, types)
                nth += 1
            else:
                h = hash_of(plan.bare[c], hashes)
                slots[i, c] = slot_of(h, a.slots)
        for c in range(n_linked):
            at = n_bare + c
            if is_common(plan.linked[c]):
                row = common + common_row(nth, plan.linked[c], type_index, count_bucket, types)
                slots[i, at], slots[i, at + n_linked] = row + bucket, row + bucket_p
                nth += 1
            else:
                slot = np.uint32(slot_of(hash_of(plan.linked[c], hashes) ^ line, a.slots)) ^ code
                slots[i, at], slots[i, at + n_linked] = slot, slot ^ difference
        if (bucket ^ bucket_p) >> shift:  # in another line, which is rare
            line = a.line_hashes[bucket_p >> shift]
            for c in range(n_linked):
                if not is_common(plan.linked[c]):
                    h = hash_of(plan.linked[c], hashes) ^ line
                    slots[i, n_bare + n_linked + c] = np.uint32(slot_of(h, a.slots)) ^ code ^ difference
    return np.int64(n_separate)


@helper
def locate_empty_features(events, leave_one_out, first, a, plan, g, b):
    """The same for weights of the empty feature without the target, which are private too."""
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    begin, link_count, slots = g.begin[b], g.link_count[b], g.slots[b]
    for k in range(events):
        i = begin[k]
        if i == begin[k + 1]:
            continue
        bucket = bucket_of(link_count[i], a)
        bucket_p = bucket_of(max(link_count[i] - np.int64(leave_one_out), 1), a)
        for c in range(n_bare):
            if plan.bare[c] & HAS_FEATURE and not plan.bare[c] & HAS_TARGET_OFFSET:
                slots[i, c] = first + c * BUCKETS
        for c in range(n_linked):
            if plan.linked[c] & HAS_FEATURE and not plan.linked[c] & HAS_TARGET_OFFSET:
                at = n_bare + c
                row = np.uint64(first + at * BUCKETS)
                slots[i, at], slots[i, at + n_linked] = row + bucket, row + bucket_p


@helper
def predict(n, n_next, a, plan, g, b):
    """A of both parts of n features. Prefetches weights of the n_next features of the next group."""
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    slots, next_slots, negative, positive = g.slots[b], g.slots[1 - b], g.exponents[0], g.exponents[1]
    for i in range(n):
        a_n = a.start
        for c in range(n_bare):
            a_n += plan.bare_times[c] * a.table[slots[i, c], 0]
        a_p = a_n
        for c in range(n_linked):
            a_n += plan.linked_times[c] * a.table[slots[i, n_bare + c], 0]
            a_p += plan.linked_times[c] * a.table[slots[i, n_bare + n_linked + c], 0]
        negative[i], positive[i] = a_n, a_p
        if i < n_next:
            prefetch_weights(i, HAS_FEATURE, a.table, plan, next_slots)
    for i in range(n, n_next):
        prefetch_weights(i, HAS_FEATURE, a.table, plan, next_slots)


@helper
def multiply_exp(n, exponents, factors):
    """Multiply factors by exp of the exponents. LLVM vectorises the loop."""
    for i in range(n):
        factors[i] *= clamped_exp(exponents[i])


@sum_helper
def sum_of(n, numbers):
    total = 0.0
    for i in range(n):
        total += numbers[i]
    return total


@helper
def find_gradients(n, leave_one_out, product, g, b):
    """Turn the parts into those of the gradient; return the loss without its logarithms, and a product.

    Logarithms are taken of products of predictions: `product` is of those whose logarithm is not yet in the loss.
    """
    event, negative, positive = g.event[b], g.negative[b], g.positive[b]
    predicted, multiplier = g.predicted, g.multiplier
    loss = sum_of(n, negative)
    if leave_one_out:
        loss += sum_of(n, positive)
    predicted[:] = 0.0
    for i in range(n):
        predicted[event[i]] += positive[i]
    for k in range(GROUP_EVENTS):
        multiplier[k] = 0.0
        if predicted[k] > 0.0:
            product *= predicted[k]
            if not 1e-200 < product < 1e200:
                loss -= math.log(product)
                product = 1.0
            # without leave-one-out `negative` has the whole first term of the gradient
            multiplier[k] = (1.0 if leave_one_out else 0.0) - 1.0 / predicted[k]
    for i in range(n):
        positive[i] *= multiplier[event[i]]
    return loss, product


@helper
def write_gradients(n, start, gradients, g, b):
    for i in range(n):
        of_event = gradients[start + g.event[b, i]]
        of_event[g.template[b, i], 0], of_event[g.template[b, i], 1] = g.negative[b, i], g.positive[b, i]


@helper
def take_steps(n, n_separate, n_next, rate, a, plan, g, b):
    """Take the steps of all weights of n features, by SGD, or by AdaGrad where the table has a second column.

    Steps of the positive parts of separate features come last: which features those are is unpredictable.
    Prefetches weights of the n_next features of the next group.
    """
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    negative, positive, separate = g.negative[b], g.positive[b], g.separate[b]
    slots, next_slots = g.slots[b], g.slots[1 - b]
    for i in range(n):
        of_negative = np.float32(negative[i])
        of_bare = np.float32(negative[i] + positive[i])
        of_linked = of_negative if separate[i] else of_bare
        if i < n_next:
            prefetch_weights(i, HAS_TARGET, a.table, plan, next_slots)
        if a.table.shape[1] == 2:
            take_adagrad_steps(a.table, slots, i, 0, plan.bare, plan.linked, rate, of_bare, of_linked)
        else:
            for c in range(n_bare + n_linked):
                take_step(slots[i, c], of_bare if c < n_bare else of_linked, rate, a.table)
    for i in g.separate_list[b, :n_separate]:
        of_positive = np.float32(positive[i])
        if a.table.shape[1] == 2:
            take_adagrad_steps(a.table, slots, i, n_bare + n_linked, plan.linked, (), rate, of_positive, of_positive)
        else:
            for c in range(n_linked):
                take_step(slots[i, n_bare + n_linked + c], of_positive, rate, a.table)
    for i in range(n, n_next):
        prefetch_weights(i, HAS_TARGET, a.table, plan, next_slots)


@cache
def fast_trainer(plan: FastPlan) -> Any:
    """`train_plain` for one plan. `first` is the first private row of the thread, `g` its scratch memory."""

    @kernel
    def train_fast(keys, words, annotations, unigrams, leave_one_out, rate, a, gradients, first, g):
        events = len(words)
        limit = np.uint32(1 if leave_one_out else 0)
        if unigrams.total <= limit:
            return 0.0
        rate, loss, product = np.float32(rate), 0.0, 1.0
        n = n_separate = np.int64(0)
        for start in range(0, events + GROUP_EVENTS, GROUP_EVENTS):
            stop, b = min(start + GROUP_EVENTS, events), start // GROUP_EVENTS & 1
            n_next = n_next_separate = np.int64(0)
            if start < events:
                n_next = list_features(start, stop, keys, annotations, limit, g, b)
                count_features(n_next, start, stop, keys, words, unigrams, leave_one_out, g, b)
                n_next_separate = locate_features(n_next, leave_one_out, first, a, plan, g, b)
                locate_empty_features(stop - start, leave_one_out, first, a, plan, g, b)
                prefetch_cold_weights(n_next, a.table, plan, g.slots[b])
            b = 1 - b
            predict(n, n_next, a, plan, g, b)
            multiply_exp(n, g.exponents[0], g.negative[b])
            multiply_exp(n, g.exponents[1], g.positive[b])
            more, product = find_gradients(n, leave_one_out, product, g, b)
            loss += more
            if len(gradients):
                write_gradients(n, start - GROUP_EVENTS, gradients, g, b)
            if rate > 0.0:
                take_steps(n, n_separate, n_next, rate, a, plan, g, b)
            n, n_separate = n_next, n_next_separate
        return loss - math.log(product)

    return train_fast


@kernel
def copy_shared(table, private):
    """Fill a thread's private copies with the shared weights."""
    for i in range(len(private.rows)):
        for column in range(table.shape[1]):
            shared = table[private.slots[i], column]
            private.before[i, column] = table[private.first + private.rows[i], column] = shared


@kernel
def exchange(table, private):
    """Add what a thread has learned to the shared weights, and take over what others have added to them.

    AdaGrad shortens steps by the squared gradients before them, so a thread's change is shortened by the squares that
    others have added in the meantime. If two threads exchange at once, one may overwrite what the other has added; the
    sums of squares never shrink by that.
    """
    for i in range(len(private.rows)):
        row, slot = private.first + private.rows[i], private.slots[i]
        share = np.float32(1)
        if table.shape[1] == 2:
            squares = table[row, 1]
            table[row, 1] = squares + max(table[slot, 1] - private.before[i, 1], np.float32(0))
            share = np.sqrt(squares / table[row, 1])
            table[slot, 1] = private.before[i, 1] = table[row, 1]
        shared, before = table[slot, 0], private.before[i, 0]
        if shared != before:
            table[row, 0] = shared + share * (table[row, 0] - before)
        table[slot, 0] = private.before[i, 0] = table[row, 0]
