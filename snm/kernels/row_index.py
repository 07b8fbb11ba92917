"""Look-up of rows by feature key, and of links by target.

Directory and offsets may come from a stranger's file, and are too large to be validated when it is opened: they are
compared with the lengths of the arrays before they are followed. As unsigned numbers, those below zero are too large
too; and branches that are always predicted are off the path of the loads, which minima and maxima would lengthen.
"""

import numpy as np

from snm.kernels.compile import helper, kernel
from snm.layouts.keys import ABSENT

MAX_SCANNED = 64  # rows of an entry that are looked at one by one; four are usual


@helper
def scan_from(key, row, stop, features):
    """Where a scan of the rows [row, stop) for `key` begins and ends; nowhere if they are not inside of `features`."""
    if np.uint64(stop) > np.uint64(len(features)) or np.uint64(row) > np.uint64(stop):
        return np.int64(0), np.int64(0)
    while stop - row > MAX_SCANNED:
        middle = (row + stop) >> 1
        if features[middle] < key:
            row = middle + 1
        else:
            stop = middle + 1
    return row, stop


@helper
def find_row(key, index):
    """Row of the feature `key`, or -1."""
    entry = (key - index.low) >> index.shift
    if key < index.low or entry >= np.uint64(len(index.directory) - 1):
        return -1
    row, stop = np.int64(index.directory[entry]), np.int64(index.directory[entry + np.uint64(1)])
    row, stop = scan_from(key, row, stop, index.features)
    while row < stop and index.features[row] < key:
        row += 1
    if row < stop and index.features[row] == key:
        return row
    return -1


@helper
def find_link(target, start, stop, targets):
    """Link to `target` among the sorted links [start, stop), or -1, also if they are not inside of `targets`."""
    if np.uint64(stop) > np.uint64(len(targets)) or np.uint64(start) > np.uint64(stop):
        return -1
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


@helper
def find_column(column, words, index, offsets, targets, rows, links):
    """Row of each key of a template, and link of each event's word in the row; -1 where there is none.

    Each stage is a loop over all events, so that cache misses overlap. Returns a sum that keeps LLVM from removing the
    loads.
    """
    loaded, last_row, last_link = np.uint64(0), np.int64(len(index.features) - 1), np.int64(len(targets) - 1)
    n_entries = np.uint64(len(index.directory) - 1)
    for k in range(len(column)):
        entry = (column[k] - index.low) >> index.shift
        inside = column[k] >= index.low and entry < n_entries
        rows[k] = index.directory[entry] if inside else 0
        links[k] = index.directory[entry + np.uint64(1)] if inside else 0  # at first: where the entry's rows end
    for k in range(len(column)):
        loaded += index.features[min(max(rows[k], 0), last_row)]
    for k in range(len(column)):
        row, stop = scan_from(column[k], rows[k], links[k], index.features)
        while row < stop and index.features[row] < column[k]:
            row += 1
        rows[k] = row if row < stop and index.features[row] == column[k] else -1
    for k in range(len(column)):
        links[k] = offsets[max(rows[k], 0)]
    for k in range(len(column)):
        loaded += np.uint64(targets[min(max(links[k], 0), last_link)])
    for k in range(len(column)):
        links[k] = find_link(words[k], links[k], offsets[rows[k] + 1], targets) if rows[k] >= 0 else -1
    return loaded


@kernel
def find_rows(keys, index, rows):
    """Fill rows[event, template]: the row of each key, -1 where there is none."""
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            rows[k, q] = -1 if column[k] == ABSENT else find_row(column[k], index)


@kernel
def take_values(keys, index, values, missing, taken):
    """Fill taken[event, template]: the value of each key's row, or `missing` where there is none."""
    for q in range(keys.shape[0]):
        column = keys[q]
        for k in range(len(column)):
            row = np.int64(-1) if column[k] == ABSENT else find_row(column[k], index)
            taken[k, q] = values[row] if row >= 0 else missing


@kernel
def find_links(rows, words, offsets, targets, links):
    """Fill links[event, template]: the link of each event's target in each of its rows, -1 where there is none."""
    for k in range(rows.shape[0]):
        for q in range(rows.shape[1]):
            row = rows[k, q]
            links[k, q] = -1 if row < 0 else find_link(words[k], offsets[row], offsets[row + 1], targets)
