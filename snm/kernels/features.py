"""Feature keys of a block of tokens, one row for each feature template. `snm.layouts.keys` defines a key."""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.hashing import extend, feature_key, mix64
from snm.layouts.keys import ABSENT, EMPTY_KEY

_ONE = np.uint64(1)


@kernel
def locate_events(tokens, first, begin_id, skipped_id, position):
    """Distance of each token of a block to its `<S>`; -1 where there is no event.

    The first `first` tokens of the block are context only. Where `<S>` lies before the block the distance is counted
    from the block's first token, which is far enough: blocks overlap by the largest span of the features. Targets equal
    to `skipped_id` are no events.
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


@kernel
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
def _template_row(adjacent, remote, position, need, salt, hash_mask, type_tag, out):
    """All arrays begin at the same event, so that LLVM vectorises the loop."""
    for k in range(len(out)):
        key = feature_key(adjacent[k], remote[k], salt, hash_mask, type_tag)
        out[k] = key if position[k] >= need else ABSENT


@helper
def _drop_repeats(earlier, later):
    for k in range(len(later)):
        if later[k] == earlier[k]:
            later[k] = ABSENT


@kernel
def extract_keys(chains, class_chains, position, first, templates, hash_mask, keys):
    """Fill keys[template, event]: the key of the template's feature, or ABSENT. (templates, tokens - first)

    `templates` are records of `snm.layouts.keys.TEMPLATE`. Features of one event that coincide are one feature, so
    repeats among the templates of a tied type are dropped.
    """
    for q in range(len(templates)):
        t = templates[q]
        if t.remote + t.adjacent == 0:
            for k in range(keys.shape[1]):
                keys[q, k] = EMPTY_KEY if position[k + first] > 0 else ABSENT
            continue
        shift = t.skipped + t.adjacent
        far = class_chains[t.remote] if t.by_class else chains[t.remote]
        early = min(max(shift - first, 0), keys.shape[1])  # events whose skipped words would lie before the text
        keys[q, :early] = ABSENT
        begin = first + early
        _template_row(
            chains[t.adjacent][begin:], far[begin - shift :], position[begin:], t.remote + shift, t.salt, hash_mask,
            t.type_tag, keys[q, early:],
        )  # fmt: skip
        for p in range(t.first_of_type, q):
            _drop_repeats(keys[p], keys[q])


@kernel
def family_keys(values, position, salt, hash_mask, type_tag, keys):
    """Keys of a family's features, from the family's values; ABSENT where the value is 0 or there is no event."""
    for k in range(len(values)):
        here = values[k] != np.uint64(0) and position[k] > 0
        keys[k] = (mix64(values[k] ^ salt) & hash_mask) | type_tag if here else ABSENT


@kernel
def find_fields(tokens, start, reach, first_field, field_of, begin_id, last, values):
    """values[f, k]: the value of field f in the sentence of tokens[start + k], 0 where it has none or is too far.

    The values follow `<S>`, which is at most `reach` tokens before. last: scratch memory. (fields,) uint32
    """
    at = start
    while at > 0 and start - at < reach and tokens[at] != begin_id:
        at -= 1
    begin = np.int64(at) if tokens[at] == begin_id else np.int64(-reach - 1)  # too far from all of these tokens
    for f in range(len(last)):
        last[f] = 0
    for k in range(at, start + values.shape[1]):
        if tokens[k] == begin_id:
            begin = np.int64(k)
            for f in range(len(last)):
                last[f] = 0
        elif tokens[k] >= first_field:
            last[field_of[tokens[k] - first_field]] = tokens[k]
        if k >= start:
            for f in range(len(last)):
                values[f, k - start] = last[f] if k - begin <= reach else 0


@kernel
def side_keys(values, adjacent, position, need, salt, hash_mask, type_tag, keys):
    """Keys of a field's value with the words of a chain; ABSENT without a value, or with fewer words before."""
    for k in range(len(keys)):
        value = extend(np.uint64(0), mix64(np.uint64(values[k]) + _ONE))
        here = values[k] != 0 and position[k] > 0 and position[k] >= need
        keys[k] = feature_key(adjacent[k], value, salt, hash_mask, type_tag) if here else ABSENT


@kernel
def context_keys(contexts, salt, hash_mask, type_tag, keys):
    """Keys of n-gram contexts given as word ids from left to right. (n, words) to (n,)"""
    for k in range(len(contexts)):
        chain = np.uint64(0)
        for j in range(contexts.shape[1] - 1, -1, -1):
            chain = extend(chain, mix64(np.uint64(contexts[k, j]) + _ONE))
        keys[k] = feature_key(chain, np.uint64(0), salt, hash_mask, type_tag)
