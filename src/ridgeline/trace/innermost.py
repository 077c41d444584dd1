"""Which host event was running at a moment: the innermost one that is open on the thread.

With a thread's events by start, longer ones first, that is the last one that has begun and has not
ended yet. For many moments at once it is looked up in a tree of the latest ends: from the last
event that has begun up to the first subtree to the left in which something ends later, and down
again to the rightmost such event; every step is taken for all moments together.
"""

from __future__ import annotations

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Mask, Trace
from ridgeline.trace.sorting import by_start, distinct


def innermost_at(
    trace: Trace, threads: Ints, moments_us: Floats, chosen: Mask | None = None
) -> Ints:
    """Row of `trace.host` for each (thread, moment), ABSENT where nothing is open.

    `chosen` is a mask over the host events that count.
    """
    host = trace.host
    found = np.full(len(moments_us), ABSENT, np.int64)
    for thread in distinct(threads).tolist():
        asked = np.flatnonzero(threads == thread)
        rows = rows_by_start(trace, thread)
        if chosen is not None:
            rows = rows[chosen[rows]]
        if not len(rows):
            continue
        starts = host.start_us[rows]
        ends = starts + host.duration_us[rows]
        begun = np.searchsorted(starts, moments_us[asked], side="right") - 1
        place = last_later(ends, begun, moments_us[asked])
        found[asked] = np.where(place >= 0, rows[place], ABSENT)
    return found


def rows_by_start(trace: Trace, thread: int) -> Ints:
    """Host events of a thread by start, longer ones first."""
    return trace.derived(f"rows_by_start {thread}", lambda t: _rows_by_start(t, thread))


def _rows_by_start(trace: Trace, thread: int) -> Ints:
    host = trace.host
    rows = np.flatnonzero(host.thread == thread)
    return rows[by_start(host.start_us[rows], host.duration_us[rows])]


def last_later(values: Floats, upto: Ints, bounds: Floats) -> Ints:
    """For each query the last place ≤ `upto` whose value is above its bound, or −1.

    >>> last_later(np.array([9.0, 4.0, 6.0]), np.array([2, 2, 1]), np.array([5.0, 7.0, 9.0]))
    array([ 2,  0, -1])
    """
    tree, leaves = _tree_of_maxima(values)
    found = np.full(len(upto), -1, np.int64)
    asked = np.flatnonzero(upto >= 0)
    node = leaves + upto[asked]
    bound = bounds[asked]
    # Up, until the node itself holds a later one: then everything right of it is done with.
    below: list[tuple[Ints, Ints, Floats]] = []
    while len(asked):
        holds = tree[node] > bound
        below.append((asked[holds], node[holds], bound[holds]))
        asked, node, bound = asked[~holds], node[~holds], bound[~holds]
        # Past a left child there is nothing at this height: go up until it is a right one.
        left = (node & 1) == 0
        while left.any():
            node[left] >>= 1
            left &= (node & 1) == 0
            left &= node > 1
        more = node > 1
        asked, node, bound = asked[more], node[more] - 1, bound[more]
    if not below:
        return found
    asked, node, bound = (np.concatenate(parts) for parts in zip(*below, strict=True))
    while len(node) and (inner := node < leaves).any():
        right = 2 * node[inner] + 1
        node[inner] = np.where(tree[right] > bound[inner], right, right - 1)
    found[asked] = node - leaves
    return found


def _tree_of_maxima(values: Floats) -> tuple[Floats, int]:
    """A binary tree in one array, its root at 1, node k above 2k and 2k + 1; and its leaves."""
    leaves = 1 << max(0, len(values) - 1).bit_length()
    tree = np.full(2 * leaves, -np.inf)
    tree[leaves : leaves + len(values)] = values
    first = leaves
    while first > 1:
        level = tree[first : 2 * first]
        first //= 2
        tree[first : 2 * first] = np.maximum(level[0::2], level[1::2])
    return tree, leaves
