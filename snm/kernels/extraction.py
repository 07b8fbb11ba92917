"""Feature keys of a block of tokens, one column a feature slot."""

import numpy as np
from numba import njit

from snm.kernels.hashing import extend, feature_hash, helper, mix64

ABSENT = np.uint64(0)  # no feature in this slot; every real key has its lowest bit set
EMPTY_KEY = np.uint64(1)  # the empty feature's: the smallest real key, so its row is row 0
_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def locate_events(tokens, first, begin_id, skipped_id, position):
    """Distance of each token of a block to its `<S>`; -1 where there is no event.

    The first `first` tokens of the block are context only. Where `<S>` lies before the block the
    distance is counted from the block's first token, which is far enough: blocks overlap by the
    largest span of the features. Targets equal to `skipped_id` are no events.
    """
    distance = -1
    for k in range(len(tokens)):
        if tokens[k] == begin_id:
            distance = 0
        else:
            distance += 1
        is_event = k >= first and distance > 0 and tokens[k] != skipped_id
        position[k] = distance if is_event else -1


@helper
def _chain_row(previous, words, length, out):
    for k in range(length, len(out)):
        out[k] = extend(previous[k], words[k - length])


@njit(nogil=True, cache=True)
def hash_contexts(tokens, chains):
    """chains[n, k]: the chain of the n tokens before k, nearest first. (orders + 1, tokens)"""
    words = np.empty(len(tokens), np.uint64)
    for k in range(len(tokens)):
        words[k] = mix64(np.uint64(tokens[k]) + _ONE)
    chains[0, :] = np.uint64(0)
    for n in range(1, chains.shape[0]):
        chains[n, :n] = np.uint64(0)
        _chain_row(chains[n - 1], words, n, chains[n])


@helper
def _slot_column(adjacent, remote, position, need, salt, hash_mask, type_bits, out):
    """All arrays begin at the same event, those of what lies further back shifted by that: a loop for vectors."""
    for k in range(len(out)):
        key = (feature_hash(adjacent[k], remote[k], salt) & hash_mask) | type_bits
        out[k] = key if position[k] >= need else ABSENT


@helper
def _drop_repeats(earlier, later):
    for k in range(len(later)):
        if later[k] == earlier[k]:
            later[k] = ABSENT


@njit(nogil=True, cache=True)
def extract_keys(
    chains, class_chains, position, first, remote, skip, adjacent, by_class, salt, type_bits, group, hash_mask, keys
):  # fmt: skip
    """Fill keys[slot, event]: the key of each slot's feature, or ABSENT. (slots, tokens - first)

    Slot q is the feature of remote[q] words (their classes where by_class[q]), skip[q] skipped and
    adjacent[q] adjacent ones.
    group[q] is the first slot that q shares its tied type with: features of one event that
    coincide are one feature, so repeats inside a group are dropped.
    """
    for q in range(len(remote)):
        if remote[q] + adjacent[q] == 0:
            for k in range(keys.shape[1]):
                keys[q, k] = EMPTY_KEY if position[k + first] > 0 else ABSENT
            continue
        shift = skip[q] + adjacent[q]
        far = class_chains[remote[q]] if by_class[q] else chains[remote[q]]
        early = min(max(shift - first, 0), keys.shape[1])  # events whose skipped words would lie before the text
        keys[q, :early] = ABSENT
        begin = first + early
        _slot_column(
            chains[adjacent[q]][begin:], far[begin - shift :], position[begin:], remote[q] + shift, salt[q], hash_mask,
            type_bits[q], keys[q, early:],
        )  # fmt: skip
        for p in range(group[q], q):
            _drop_repeats(keys[p], keys[q])
