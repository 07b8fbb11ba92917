"""Finding rows and links, and what is done with them for every event."""

import numpy as np
from numba import njit

from snm.kernels.extraction import ABSENT


@njit(nogil=True, cache=True)
def build_index(features, low, shift, index):
    """index[i]: the first row whose (key - low) >> shift is at least i. The last entry is the number of rows."""
    filled = 0
    for row in range(len(features)):
        place = np.int64((features[row] - low) >> shift)
        while filled <= place:
            index[filled] = row
            filled += 1
    while filled < len(index):
        index[filled] = len(features)
        filled += 1


@njit(nogil=True, _nrt=False, forceinline=True, cache=True)
def find_row(key, features, low, shift, index):
    """Row of the feature `key`, or -1."""
    if key < low:
        return -1
    place = (key - low) >> shift
    if place >= np.uint64(len(index) - 1):
        return -1
    row = np.int64(index[place])
    stop = np.int64(index[place + np.uint64(1)])
    while row < stop and features[row] < key:
        row += 1
    if row < stop and features[row] == key:
        return row
    return -1


@njit(nogil=True, _nrt=False, forceinline=True, cache=True)
def find_link(target, start, stop, targets):
    """Link to `target` among the sorted links [start, stop), or -1."""
    end = stop
    while stop - start > 8:
        middle = (start + stop) >> 1
        if targets[middle] <= target:
            start = middle
        else:
            stop = middle
    while start < stop and targets[start] < target:
        start += 1
    if start < end and targets[start] == target:
        return start
    return -1


@njit(nogil=True, cache=True)
def annotate(keys, words, features, low, shift, index, totals, offsets, targets, counts, annotations):
    """annotations[event, slot] = (C_i*, C_ij) where the slot's feature has a row here. keys: (slots, events)"""
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            if column[k] == ABSENT:
                continue
            row = find_row(column[k], features, low, shift, index)
            if row < 0:
                continue
            annotations[k, q, 0] = np.uint32(totals[row])
            link = find_link(words[k], offsets[row], offsets[row + 1], targets)
            if link >= 0:
                annotations[k, q, 1] = counts[link]


@njit(nogil=True, cache=True)
def find_rows(keys, features, low, shift, index, rows):
    """rows[event, slot]: the row of each key, -1 where there is none."""
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            rows[k, q] = -1 if column[k] == ABSENT else find_row(column[k], features, low, shift, index)


@njit(nogil=True, cache=True)
def find_links(rows, words, offsets, targets, links):
    """links[event, slot]: the link of each event's target in each of its rows, -1 where there is none."""
    for k in range(rows.shape[0]):
        for q in range(rows.shape[1]):
            row = rows[k, q]
            links[k, q] = -1 if row < 0 else find_link(words[k], offsets[row], offsets[row + 1], targets)


@njit(nogil=True, cache=True)
def score(keys, words, features, low, shift, index, sums, offsets, targets, weights, probabilities):
    """probabilities[event]: Eq. prob, the links' weights over the rows' sums; 0 where there is no event."""
    n_slots, n_events = keys.shape
    rows = np.empty(n_slots, np.int64)
    for k in range(n_events):
        found = 0
        denominator = 0.0
        for q in range(n_slots):
            if keys[q, k] != ABSENT:
                row = find_row(keys[q, k], features, low, shift, index)
                if row >= 0:
                    rows[found] = row
                    found += 1
                    denominator += sums[row]
        numerator = 0.0
        for i in range(found):
            link = find_link(words[k], offsets[rows[i]], offsets[rows[i] + 1], targets)
            if link >= 0:
                numerator += weights[link]
        probabilities[k] = numerator / denominator if found else 0.0
