"""Leave-one-out training without weights: a kernel for each set of metafeatures.

What `snm.kernels.adjustment.train_weighted` does for any set, where counts have one bucket each, so that no conjunction
has a weight. All features of a group of events stand in one list, and each step of the work is a loop over that list:
an event's own loops, three features long on average, end where no processor expects it (docs/design.md has the gain).
While a group is learned from, the weights of the next are fetched.
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
from snm.kernels.simd import move_weights, prefetch
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
    """The features of a group of events, [0] and [1] in turns: one is learned from, the next made ready."""

    begin: np.ndarray  # (2, GROUP_EVENTS + 1) where each event's begin; the first is the empty one
    event: np.ndarray  # (2, features) uint64: of the group
    template: np.ndarray  # uint64
    key: np.ndarray
    target: np.ndarray  # its hash
    total: np.ndarray
    link: np.ndarray
    negative: np.ndarray  # the two parts of the gradient, first their factors
    positive: np.ndarray
    apart: np.ndarray  # bool: the positive part has other weights
    listed: np.ndarray  # uint64: those features
    slots: np.ndarray  # (2, features, conjunctions) without a link count, with it, with that of the positive part
    exponents: np.ndarray  # (2, features) A of both parts
    targets: np.ndarray  # (GROUP_EVENTS,) the targets' hashes
    packed: np.ndarray  # (features,) uint32: annotations
    sums: np.ndarray  # y'
    pull: np.ndarray  # what the positive parts are multiplied by


def make_scratch(templates: int, plan: FastPlan) -> Scratch:
    """Working memory for one thread."""
    features, events = GROUP_EVENTS * templates + 1, GROUP_EVENTS
    kinds = (np.uint64,) * 4 + (np.int64,) * 2 + (np.float64,) * 2 + (np.bool_, np.uint64)
    return Scratch._make(
        [
            np.zeros((2, events + 1), np.int64),
            *(np.zeros((2, features), kind) for kind in kinds),
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
    """Whether features of all kinds and targets have this weight."""
    return not mask & (HAS_FEATURE | HAS_TARGET)


@helper
def prefetch_weights(i, mask, table, plan, slots):
    """Ask for those weights of feature i that hold these mask, of HAS_FEATURE, HAS_TARGET and HAS_TARGET_OFFSET.

    Weights of a feature with a target are the coldest, and are asked for in a loop of their own: a fetch first finds
    its page, and a processor looks ahead over a few hundred instructions, so that few are under way where there is work
    between them. Others are asked for while the group before is learned from. Those of neither are the thread's own,
    and those of the positive part mostly lie in the same lines.
    """
    for c in range(len(plan.bare)):
        if plan.bare[c] & (HAS_FEATURE | HAS_TARGET | HAS_TARGET_OFFSET) == mask:
            prefetch(table, slots[i, c])
    for c in range(len(plan.linked)):
        if plan.linked[c] & (HAS_FEATURE | HAS_TARGET | HAS_TARGET_OFFSET) == mask:
            prefetch(table, slots[i, len(plan.bare) + c])


@helper
def prefetch_cold_weights(n, table, plan, slots):
    for i in range(n):
        prefetch_weights(i, HAS_FEATURE | HAS_TARGET_OFFSET, table, plan, slots)


@helper
def list_features(start, stop, keys, annotations, least, g, b):
    """List the features of the events [start, stop) that were seen more than `least` times; return how many."""
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
            n += np.uint64(annotations[k, q] >> np.uint32(16) > least)
    begin[stop - start :] = n
    return np.int64(n)


@helper
def count_features(n, start, stop, keys, words, unigrams, leave_one_out, g, b):
    """Keys, targets and counts, the event left out of the feature's, and the factors of both parts."""
    begin, event, template, packed = g.begin[b], g.event[b], g.template[b], g.packed
    key, target, targets = g.key[b], g.target[b], g.targets
    total, link, negative, positive = g.total[b], g.link[b], g.negative[b], g.positive[b]
    for k in range(start, stop):
        targets[k - start] = target_hash(words[k])
    for i in range(n):
        key[i], target[i] = keys[template[i], np.uint64(start) + event[i]], targets[event[i]]
    for i in range(n):
        total[i] = unpack_count(packed[i] >> np.uint32(16))
        link[i] = unpack_count(packed[i] & np.uint32(0xFFFF))
    for k in range(start, stop):
        i = begin[k - start]
        if i < begin[k - start + 1]:
            total[i], link[i] = unigrams.total, unigrams.counts[words[k]]
    if leave_one_out:
        for i in range(n):
            total[i] -= 1
            share = 1.0 / total[i]
            negative[i] = (total[i] + 1 - link[i]) * share
            positive[i] = (link[i] - 1) * share
    else:
        for i in range(n):
            negative[i] = 1.0
            positive[i] = link[i] / total[i]


@helper
def hash_of(mask, hashes):
    """`hashes` of a link are those of the mask, but for the second of the count."""
    feature, kind, count, target, near_j, near_kind = hashes
    h = np.uint64(0)
    if mask & HAS_FEATURE:
        h ^= feature
    if mask & HAS_TYPE:
        h ^= kind
    if mask & HAS_FEATURE_COUNT:
        h ^= count
    if mask & HAS_TARGET:
        h ^= target
    if mask & HAS_TARGET_OFFSET:
        h ^= near_j
    if mask & HAS_TYPE_OFFSET:
        h ^= near_kind
    return h


@helper
def bucket_of(link, a):
    return np.uint64(half_bucket(link) if a.link_halved else floor_log2(link))


@helper
def common_row(nth, mask, kind, count, kinds):
    """First of the BUCKETS rows of the nth common conjunction; see `FastPlan.private_rows`."""
    row = np.uint64(nth) * kinds
    if mask & HAS_TYPE:
        row += kind
    row *= np.uint64(COUNT_ROWS)
    if mask & HAS_FEATURE_COUNT:
        row += count
    return row * np.uint64(BUCKETS)


@helper
def locate_features(n, leave_one_out, first, a, plan, g, b):
    """Where all weights of the features lie; see `Scratch.slots`. The thread's own are in the table from `first` on.

    Returns how many features have other weights in the positive part.
    """
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    keys, totals, links, targets, apart, slots = g.key[b], g.total[b], g.link[b], g.target[b], g.apart[b], g.slots[b]
    listed, n_listed = g.listed[b], np.uint64(0)
    less, shift = np.int64(leave_one_out), np.uint64(a.line_shift)
    common, kinds = np.uint64(first + (n_bare + n_linked) * BUCKETS), np.uint64(len(a.type_hashes))
    for i in range(n):
        key, target, link = keys[i], targets[i], links[i]
        kind_at, count_at = (key >> a.type_shift) & a.type_mask, np.uint64(floor_log2(totals[i]))
        hashes = (
            key ^ FEATURE_SALT, a.type_hashes[kind_at], a.count_hashes[count_at], target,
            target_offset(target, totals[i] + less, a.window), a.type_offsets[kind_at],
        )  # fmt: skip
        bucket, bucket_p = bucket_of(link, a), bucket_of(max(link - less, 1), a)
        apart[i], listed[n_listed] = bucket != bucket_p, i
        n_listed += np.uint64(bucket != bucket_p)
        line, code = a.line_hashes[bucket >> shift], link_code(bucket, a)
        other = code ^ link_code(bucket_p, a)
        nth = 0
        for c in range(n_bare):
            if is_common(plan.bare[c]):
                slots[i, c] = common + common_row(nth, plan.bare[c], kind_at, count_at, kinds)
                nth += 1
            else:
                h = hash_of(plan.bare[c], hashes)
                slots[i, c] = slot_of(h, a.slots)
        for c in range(n_linked):
            at = n_bare + c
            if is_common(plan.linked[c]):
                row = common + common_row(nth, plan.linked[c], kind_at, count_at, kinds)
                slots[i, at], slots[i, at + n_linked] = row + bucket, row + bucket_p
                nth += 1
            else:
                place = np.uint32(slot_of(hash_of(plan.linked[c], hashes) ^ line, a.slots)) ^ code
                slots[i, at], slots[i, at + n_linked] = place, place ^ other
        if (bucket ^ bucket_p) >> shift:  # another line, which is rare
            line = a.line_hashes[bucket_p >> shift]
            for c in range(n_linked):
                if not is_common(plan.linked[c]):
                    h = hash_of(plan.linked[c], hashes) ^ line
                    slots[i, n_bare + n_linked + c] = np.uint32(slot_of(h, a.slots)) ^ code ^ other
    return np.int64(n_listed)


@helper
def locate_empty_features(events, leave_one_out, first, a, plan, g, b):
    """The empty feature's weights without the target are the thread's own, too."""
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    begin, link, slots = g.begin[b], g.link[b], g.slots[b]
    for k in range(events):
        i = begin[k]
        if i == begin[k + 1]:
            continue
        bucket, bucket_p = bucket_of(link[i], a), bucket_of(max(link[i] - np.int64(leave_one_out), 1), a)
        for c in range(n_bare):
            if plan.bare[c] & HAS_FEATURE and not plan.bare[c] & HAS_TARGET_OFFSET:
                slots[i, c] = first + c * BUCKETS
        for c in range(n_linked):
            if plan.linked[c] & HAS_FEATURE and not plan.linked[c] & HAS_TARGET_OFFSET:
                at = n_bare + c
                row = np.uint64(first + at * BUCKETS)
                slots[i, at], slots[i, at + n_linked] = row + bucket, row + bucket_p


@helper
def predict(n, ahead, a, plan, g, b):
    """A of both parts of `n` features; weights of `ahead` features of the next group are asked for."""
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
        if i < ahead:
            prefetch_weights(i, HAS_FEATURE, a.table, plan, next_slots)
    for i in range(n, ahead):
        prefetch_weights(i, HAS_FEATURE, a.table, plan, next_slots)


@helper
def raise_all(n, exponents, factors):
    """Multiply by exp() of all exponents, as many at a time as the machine has lanes for."""
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
    """Make the parts those of the gradient; return the loss without the logarithms, and what they are to be taken of.

    `product` is of predictions whose logarithm is not taken yet.
    """
    event, negative, positive, sums, pull = g.event[b], g.negative[b], g.positive[b], g.sums, g.pull
    loss = sum_of(n, negative)
    if leave_one_out:
        loss += sum_of(n, positive)
    sums[:] = 0.0
    for i in range(n):
        sums[event[i]] += positive[i]
    for k in range(GROUP_EVENTS):
        pull[k] = 0.0
        if sums[k] > 0.0:
            product *= sums[k]
            if not 1e-200 < product < 1e200:
                loss -= math.log(product)
                product = 1.0
            # without leave-one-out `negative` has the whole first term of the gradient
            pull[k] = (1.0 if leave_one_out else 0.0) - 1.0 / sums[k]
    for i in range(n):
        positive[i] *= pull[event[i]]
    return loss, product


@helper
def write_gradients(n, start, gradients, g, b):
    for i in range(n):
        of_event = gradients[start + g.event[b, i]]
        of_event[g.template[b, i], 0], of_event[g.template[b, i], 1] = g.negative[b, i], g.positive[b, i]


@helper
def step(n, n_apart, ahead, rate, a, plan, g, b):
    """A step of all weights of `n` features, by SGD, or by AdaGrad where the table has a second column.

    Steps of the positive parts of `n_apart` features come last: which those are cannot be foretold.
    Weights of `ahead` features of the next group are asked for.
    """
    n_bare, n_linked = len(plan.bare), len(plan.linked)
    negative, positive, apart = g.negative[b], g.positive[b], g.apart[b]
    slots, next_slots = g.slots[b], g.slots[1 - b]
    for i in range(n):
        alone = np.float32(negative[i])
        both = np.float32(negative[i] + positive[i])
        near = alone if apart[i] else both
        if i < ahead:
            prefetch_weights(i, HAS_TARGET, a.table, plan, next_slots)
        if a.table.shape[1] == 2:
            move_weights(a.table, slots, i, 0, plan.bare, plan.linked, rate, both, near)
        else:
            for c in range(n_bare + n_linked):
                take_step(slots[i, c], both if c < n_bare else near, rate, a.table)
    for i in g.listed[b, :n_apart]:
        far = np.float32(positive[i])
        if a.table.shape[1] == 2:
            move_weights(a.table, slots, i, n_bare + n_linked, plan.linked, (), rate, far, far)
        else:
            for c in range(n_linked):
                take_step(slots[i, n_bare + n_linked + c], far, rate, a.table)
    for i in range(n, ahead):
        prefetch_weights(i, HAS_TARGET, a.table, plan, next_slots)


@cache
def fast_trainer(plan: FastPlan) -> Any:
    """`train_plain` for one plan. The thread's own weights lie in the table from `first` on."""

    @kernel
    def train_fast(keys, words, annotations, unigrams, leave_one_out, rate, a, gradients, first, g):
        events = len(words)
        least = np.uint32(1 if leave_one_out else 0)
        if unigrams.total <= least:
            return 0.0
        rate, loss, product = np.float32(rate), 0.0, 1.0
        n = n_apart = np.int64(0)
        for start in range(0, events + GROUP_EVENTS, GROUP_EVENTS):
            stop, b = min(start + GROUP_EVENTS, events), start // GROUP_EVENTS & 1
            ahead = ahead_apart = np.int64(0)
            if start < events:
                ahead = list_features(start, stop, keys, annotations, least, g, b)
                count_features(ahead, start, stop, keys, words, unigrams, leave_one_out, g, b)
                ahead_apart = locate_features(ahead, leave_one_out, first, a, plan, g, b)
                locate_empty_features(stop - start, leave_one_out, first, a, plan, g, b)
                prefetch_cold_weights(ahead, a.table, plan, g.slots[b])
            b = 1 - b
            predict(n, ahead, a, plan, g, b)
            raise_all(n, g.exponents[0], g.negative[b])
            raise_all(n, g.exponents[1], g.positive[b])
            more, product = find_gradients(n, leave_one_out, product, g, b)
            loss += more
            if len(gradients):
                write_gradients(n, start - GROUP_EVENTS, gradients, g, b)
            if rate > 0.0:
                step(n, n_apart, ahead, rate, a, plan, g, b)
            n, n_apart = ahead, ahead_apart
        return loss - math.log(product)

    return train_fast


@kernel
def copy_shared(table, private):
    """Copy the shared weights to a thread's private."""
    for i in range(len(private.rows)):
        for column in range(table.shape[1]):
            shared = table[private.slots[i], column]
            private.before[i, column] = table[private.first + private.rows[i], column] = shared


@kernel
def exchange(table, private):
    """Add what a thread has learned to the shared weights, and take over what others have added to them.

    A step of AdaGrad's is shorter, the more steps there were before: so is one that others were ahead of. Of two
    threads that come at once one may undo what the other has added: sums of squares do not become smaller for that.
    """
    for i in range(len(private.rows)):
        row, place = private.first + private.rows[i], private.slots[i]
        share = np.float32(1)
        if table.shape[1] == 2:
            seen = table[row, 1]
            table[row, 1] = seen + max(table[place, 1] - private.before[i, 1], np.float32(0))
            share = np.sqrt(seen / table[row, 1])
            table[place, 1] = private.before[i, 1] = table[row, 1]
        shared, before = table[place, 0], private.before[i, 0]
        if shared != before:
            table[row, 0] = shared + share * (table[row, 0] - before)
        table[place, 0] = private.before[i, 0] = table[row, 0]
