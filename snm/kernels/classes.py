"""The exchange algorithm of `snm.text.classes`: each word moves to the class where it makes the text likeliest."""

import math
from typing import NamedTuple

import numpy as np

from snm.kernels.compile import helper, kernel


class State(NamedTuple):
    """Bigram counts of classes, in both directions so that kernels read contiguous rows. float64"""

    followed: np.ndarray  # (classes, classes): [c, d] is how often c follows d
    following: np.ndarray  # (classes, classes): [c, d] is how often d follows c
    totals: np.ndarray  # (classes,): how often a word follows one of the class


@helper
def gain(n, m):
    """Growth of x log x from n to n + m."""
    return (n + m) * math.log(n + m) - (n * math.log(n) if n > 0.0 else 0.0)


@kernel
def start(classes_of, classes, offsets, neighbours, counts):
    """The counts of the initial classes. `offsets`, `neighbours` and `counts`: the words after each word."""
    s = State(np.zeros((classes, classes)), np.zeros((classes, classes)), np.zeros(classes))
    for word in range(len(offsets) - 1):
        c = classes_of[word]
        for i in range(offsets[word], offsets[word + 1]):
            d = classes_of[neighbours[i]]
            s.following[c, d] += counts[i]
            s.followed[d, c] += counts[i]
            s.totals[c] += counts[i]
    return s


@helper
def sum_by_class(word, classes_of, offsets, neighbours, counts, of_class, touched):
    """Sum the counts of a word's neighbours, other than itself, into of_class[class]; list the classes in `touched`.

    Returns the number of these classes, how often the word is its own neighbour, and the number of all neighbours.
    """
    n = 0
    own = total = 0.0
    for i in range(offsets[word], offsets[word + 1]):
        total += counts[i]
        if neighbours[i] == word:
            own += counts[i]
            continue
        c = classes_of[neighbours[i]]
        if of_class[c] == 0.0:
            touched[n] = c
            n += 1
        of_class[c] += counts[i]
    return n, own, total


@helper
def shift_word(c, sign, own, total, n_after, after, in_after, n_before, before, in_before, s):
    """Add a word's counts to class c (sign 1), or subtract them (sign -1)."""
    for i in range(n_after):
        d = after[i]
        s.following[c, d] += sign * in_after[d]
        s.followed[d, c] += sign * in_after[d]
    for i in range(n_before):
        d = before[i]
        s.followed[c, d] += sign * in_before[d]
        s.following[d, c] += sign * in_before[d]
    s.following[c, c] += sign * own
    s.followed[c, c] += sign * own
    s.totals[c] += sign * total


@kernel
def move_words(first, last, fixed, classes_of, s, after, before):
    """Put each word of [first, last) into the class where it makes the text likeliest; return how many moved.

    Classes below `fixed` receive no words. The log likelihood is the sum of x log x over the bigram counts, less twice
    that over the totals. So a word's gain in class c is a sum over the cells (c, d) and (d, c) that it adds to. For
    d = c the two cells are one; the gain is then approximate.
    """
    classes = len(s.totals)
    in_after, in_before = np.zeros(classes), np.zeros(classes)
    touched_after, touched_before = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    gains = np.zeros(classes)
    moved = 0
    for word in range(first, last):
        n_after, own, total = sum_by_class(word, classes_of, after[0], after[1], after[2], in_after, touched_after)
        n_before, _, _ = sum_by_class(word, classes_of, before[0], before[1], before[2], in_before, touched_before)
        if total == 0.0:
            continue
        old = classes_of[word]
        shift_word(old, -1.0, own, total, n_after, touched_after, in_after, n_before, touched_before, in_before, s)
        for c in range(fixed, classes):
            gains[c] = -2.0 * gain(s.totals[c], total)
        for i in range(n_after):
            d = touched_after[i]
            for c in range(fixed, classes):
                gains[c] += gain(s.followed[d, c], in_after[d])
        for i in range(n_before):
            d = touched_before[i]
            for c in range(fixed, classes):
                gains[c] += gain(s.following[d, c], in_before[d])
        best = old
        for c in range(fixed, classes):
            if gains[c] > gains[best] + 1e-9:
                best = c
        shift_word(best, 1.0, own, total, n_after, touched_after, in_after, n_before, touched_before, in_before, s)
        classes_of[word] = best
        moved += best != old
        for i in range(n_after):
            in_after[touched_after[i]] = 0.0
        for i in range(n_before):
            in_before[touched_before[i]] = 0.0
    return moved
