"""Adding the rows of two parts of C: those of the same feature become one row, in the order of keys and targets."""

import numpy as np

from snm.kernels.compile import helper, kernel


@helper
def compare(a, i, b, j):
    """Which row comes next: -1 for row i of `a`, 1 for row j of `b`, 0 for both, which are of the same feature."""
    if i == len(a.features):
        return 1
    if j == len(b.features) or a.features[i] < b.features[j]:
        return -1
    return 1 if b.features[j] < a.features[i] else 0


@helper
def common_links(a, i, b, j):
    """How many targets row i of `a` and row j of `b` share."""
    found = np.int64(0)
    k, m = a.offsets[i], b.offsets[j]
    while k < a.offsets[i + 1] and m < b.offsets[j + 1]:
        x, y = a.targets[k], b.targets[m]
        found += np.int64(x == y)
        k += np.int64(x <= y)
        m += np.int64(y <= x)
    return found


@kernel
def merged_sizes(a, b):
    """Number of rows and of links of both together."""
    i, j, rows = np.int64(0), np.int64(0), np.int64(0)
    links = np.int64(len(a.targets) + len(b.targets))
    while i < len(a.features) or j < len(b.features):
        order = compare(a, i, b, j)
        if order == 0:
            links -= common_links(a, i, b, j)
        rows += 1
        i += np.int64(order <= 0)
        j += np.int64(order >= 0)
    return rows, links


@helper
def copy_row(part, row, to_row, link, counts):
    """Copy a row and its links; return where the next link goes."""
    counts.features[to_row], counts.feature_counts[to_row] = part.features[row], part.feature_counts[row]
    counts.offsets[to_row] = link
    for k in range(part.offsets[row], part.offsets[row + 1]):
        counts.targets[link], counts.link_counts[link] = part.targets[k], part.link_counts[k]
        link += 1
    return link


@helper
def add_rows(a, i, b, j, to_row, link, counts):
    """Write the sum of two rows of the same feature; return where the next link goes."""
    counts.features[to_row] = a.features[i]
    counts.feature_counts[to_row] = a.feature_counts[i] + b.feature_counts[j]
    counts.offsets[to_row] = link
    k, k_end, m, m_end = a.offsets[i], a.offsets[i + 1], b.offsets[j], b.offsets[j + 1]
    while k < k_end or m < m_end:
        from_a = k < k_end and (m == m_end or a.targets[k] <= b.targets[m])
        from_b = m < m_end and (k == k_end or b.targets[m] <= a.targets[k])
        counts.link_counts[link] = 0
        if from_a:
            counts.targets[link] = a.targets[k]
            counts.link_counts[link] += a.link_counts[k]
            k += 1
        if from_b:
            counts.targets[link] = b.targets[m]
            counts.link_counts[link] += b.link_counts[m]
            m += 1
        link += 1
    return link


@kernel
def merge_rows(a, b, counts):
    """Write the rows of both to `counts`, whose sizes are those of `merged_sizes`."""
    i, j, row, link = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    while i < len(a.features) or j < len(b.features):
        order = compare(a, i, b, j)
        if order == 0:
            link = add_rows(a, i, b, j, row, link, counts)
        elif order < 0:
            link = copy_row(a, i, row, link, counts)
        else:
            link = copy_row(b, j, row, link, counts)
        row += 1
        i += np.int64(order <= 0)
        j += np.int64(order >= 0)
    counts.offsets[row] = link
