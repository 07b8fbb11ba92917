"""The rows of caches: words of the segment so far, weighted by their distance from the target.

A text is read through the distances between equal words, so an event takes time in proportion to the occurrences of
its words, not to the length of the cache. A state is read word by word.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.kernels.gate import add_row
from snm.layouts.tokens import BEGIN

_ONE = np.float32(1.0)
_BEGIN = np.uint32(BEGIN)


@kernel
def find_gaps(tokens, last, gaps):
    """gaps[k]: how far before token k the same word stands; 0 if it does not.

    last: zeros. (words,) int64
    """
    for k in range(len(tokens)):
        word = tokens[k]
        gaps[k] = k + 1 - last[word] if last[word] else 0
        last[word] = k + 1


@helper
def read_all(tokens, e, low, never, q, gaps, caches):
    """(number, weight, weight of the target) of the words from `low` to e, words that are never a target left out.

    never: where the last of these stands; -1 where none does.
    """
    count, target, hit = e - low, tokens[e], 0.0
    mass = caches.sums[q, count]
    k = never
    while k >= low:
        count -= 1
        mass -= caches.decay[q, e - k]
        k = k - gaps[k] if gaps[k] else np.int64(-1)
    k = e - gaps[e] if gaps[e] and target != caches.never_a_target else np.int64(-1)
    while k >= low:
        hit += caches.decay[q, e - k]
        k = k - gaps[k] if gaps[k] else np.int64(-1)
    return count, mass, hit


@helper
def read_followers(tokens, e, low, q, gaps, caches):
    """The same of the words that follow the same words as the target does."""
    count, mass, hit, adjacent = np.int64(0), 0.0, 0.0, caches.adjacent[q]
    before = e - 1
    while gaps[before] and before - gaps[before] + 1 >= low:
        before -= gaps[before]
        word, same = tokens[before + 1], tokens[before + 1] != caches.never_a_target
        for j in range(1, adjacent):
            same &= before - j >= 0 and tokens[before - j] == tokens[e - 1 - j]
        if same:
            weight = caches.decay[q, e - 1 - before]
            count += 1
            mass += weight
            hit += weight if word == tokens[e] else 0.0
    return count, mass, hit


@kernel
def read_caches(tokens, first, gaps, caches, made):
    """made[:, q, k]: count code, weight, row sum and weight of the target in cache q, of the event of token first + k.

    Row sums are 1, or 0 where a cache has no word. made: zeros. (4, caches, events) float32
    """
    begin, never = np.int64(-1), np.int64(-1)
    for k in range(len(tokens)):
        if k >= first and tokens[k] != _BEGIN:
            for q in range(len(caches.words)):
                low = max(begin + 1, k - caches.words[q])
                if caches.adjacent[q] == 0:
                    count, mass, hit = read_all(tokens, k, low, never, q, gaps, caches)
                else:
                    count, mass, hit = read_followers(tokens, k, low, q, gaps, caches)
                if count:
                    made[0, q, k - first], made[1, q, k - first] = caches.codes[count], mass
                    made[2, q, k - first], made[3, q, k - first] = 1.0, hit / mass
        if tokens[k] == _BEGIN:
            begin, never = k, np.int64(-1)
        elif tokens[k] == caches.never_a_target:
            never = k


@helper
def is_follower(state, k, tag, q, caches):
    """Whether word k of a state is in cache q: it may be a target, and follows the last words of the state."""
    same, n = state[k] ^ tag != caches.never_a_target, len(state)
    for j in range(caches.adjacent[q]):
        same &= state[k - 1 - j] == state[n - 1 - j]
    return same


@helper
def measure(state, tag, q, caches):
    """(number, weight) of the words of cache q after a state."""
    count, mass, n = np.int64(0), 0.0, len(state)
    for distance in range(1, caches.words[q] + 1):
        k = n - distance
        if k < caches.adjacent[q] or state[k] ^ tag == _BEGIN:
            break
        if is_follower(state, k, tag, q, caches):
            count += 1
            mass += caches.decay[q, distance]
    return count, mass


@helper
def add_words_of_cache(state, tag, q, factor, caches, into):
    """Add `factor` times the weight of every word of cache q to into[word]."""
    n = len(state)
    for distance in range(1, caches.words[q] + 1):
        k = n - distance
        if k < caches.adjacent[q] or state[k] ^ tag == _BEGIN:
            break
        if is_follower(state, k, tag, q, caches):
            into[state[k] ^ tag] += factor * caches.decay[q, distance]


@helper
def clear_words(state, tag, into):
    """Set into[word] of every word of a state to zero."""
    for k in range(len(state)):
        into[state[k] ^ tag] = 0.0


@helper
def add_cache_rows(n, states, tag, caches, rows, beam):
    """Append the caches' rows after the first n of beam.members to `rows`, without weights. Fill beam.masses."""
    templates = len(rows.last) - len(caches.words)
    i = rows.last[templates - 1]
    for q in range(len(caches.words)):
        rows.first[templates + q] = i
        for c in range(n):
            count, mass = measure(states[beam.members[c]], tag, q, caches)
            beam.masses[q, c] = mass
            if count:
                i = add_row(rows, i, c, caches.codes[count], np.float32(mass), _ONE, np.float32(0.0))
        rows.last[templates + q] = i


@helper
def add_cached(c, state, words, tag, caches, beam, weights):
    """Add the caches' weights of `words` after a state, the c-th of beam.members, to `weights`."""
    templates = len(beam.scale) - len(caches.words)
    for q in range(len(caches.words)):
        if beam.masses[q, c] > 0.0:
            factor = np.float64(beam.scale[templates + q, c]) / beam.masses[q, c]
            add_words_of_cache(state, tag, q, factor, caches, beam.cached)
    for i in range(len(words)):
        weights[i] += beam.cached[words[i]]
    clear_words(state, tag, beam.cached)


@kernel
def add_distribution(context, factors, caches, into):
    """Add the words of all caches after a context to into[word], those of cache q summing to factors[q]."""
    for q in range(len(caches.words)):
        _, mass = measure(context, np.uint32(0), q, caches)
        if mass > 0.0:
            add_words_of_cache(context, np.uint32(0), q, factors[q] / mass, caches, into)
