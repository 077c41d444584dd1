"""Which host events lie inside which, and sums over what is inside, without a loop over events.

Events of a thread nest by time. With a thread's events by start, longer ones first, the one around
an event is the last before it that ends after its start: `parents` finds it for all of them at
once, each by way of what is around the one before.

    rows, parent = nested(trace, chosen)
    total = inclusive(parent, own)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ridgeline.trace.columns import ABSENT, Floats, Ints, Mask, Trace
from ridgeline.trace.host_calls import rows_by_start
from ridgeline.trace.sorting import distinct

_SPARSE = 8
"""Where keys lie further apart, sorting them is cheaper than a table of all."""


class Nesting(NamedTuple):
    """Chosen host events, each thread's by start, and what is around each."""

    rows: Ints
    """Rows of `Trace.host`; one that is around another stands before it."""
    parent: Ints
    """Place in `rows` of the innermost event around each, ABSENT where there is none."""

    def places(self, found: Ints, size: int) -> Ints:
        """Places in `rows` of rows of a host table of `size` events; ABSENT stays ABSENT."""
        place_of = np.full(size + 1, ABSENT, np.int64)
        place_of[self.rows] = np.arange(len(self.rows))
        return place_of[found]  # ABSENT is the entry after the last


def nested(trace: Trace, chosen: Mask) -> Nesting:
    """Nest the host events of a mask, thread by thread."""
    rows: list[Ints] = []
    around: list[Ints] = []
    before = 0
    for thread in distinct(trace.host.thread[chosen]).tolist():
        own = rows_by_start(trace, thread)
        own = own[chosen[own]]
        inside = parents(trace.host.start_us[own], trace.host.ends_of(own))
        around.append(np.where(inside == ABSENT, ABSENT, inside + before))
        rows.append(own)
        before += len(own)
    if not rows:
        return Nesting(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Nesting(np.concatenate(rows), np.concatenate(around))


def parents(starts: Floats, ends: Floats) -> Ints:
    """The place of the span around each, or ABSENT; spans come by start, longer ones first.

    >>> parents(np.array([0.0, 1.0, 2.0, 6.0]), np.array([9.0, 5.0, 3.0, 7.0]))
    array([-1,  0,  1,  0])
    """
    # Whatever lies between a span and the one named here has ended before it; where that one has
    # ended too, the same is true of the one that is named there.
    around = np.arange(ABSENT, len(starts) - 1)
    ended = np.arange(1, len(starts))
    while len(ended):
        ended = ended[ends[around[ended]] <= starts[ended]]
        around[ended] = around[around[ended]]
        ended = ended[around[ended] != ABSENT]
    return around


def within(starts: Floats, ends: Floats) -> tuple[Ints, Floats]:
    """The place of the span around each, and their ends: none lasts longer than what is around it.

    >>> within(np.array([0.0, 1.0, 5.0]), np.array([4.0, 6.0, 7.0]))
    (array([-1,  0, -1]), array([4., 4., 7.]))
    """
    around = parents(starts, ends)
    inner = np.flatnonzero(around != ABSENT)
    over = inner[ends[inner] > ends[around[inner]]]
    if not len(over):
        return around, ends
    # A span that is cut changes what is around those that start before its own end, and no other.
    ends, places = ends.copy(), np.searchsorted(starts, ends[over])
    done = 0
    for first, last in zip(over.tolist(), places.tolist(), strict=True):
        if last > done:
            done = _cut(around, starts, ends, max(first, done), last)
    return around, ends


def _cut(around: Ints, starts: Floats, ends: Floats, first: int, last: int) -> int:
    """Cut the spans from `first` to `last` one by one; what is around them depends on cuts before.

    Spans before `first` are as they should be. `last` comes back.
    """
    opened: list[tuple[float, int]] = []
    outwards = int(around[first]) if first else ABSENT
    while outwards != ABSENT:
        opened.append((float(ends[outwards]), outwards))
        outwards = int(around[outwards])
    opened.append((np.inf, ABSENT))
    opened.reverse()
    end, inside = opened.pop()
    places: list[int] = []
    lasts: list[float] = []
    spans = zip(starts[first:last].tolist(), ends[first:last].tolist(), strict=True)
    for place, (start, until) in enumerate(spans, first):
        while end <= start:
            end, inside = opened.pop()
        places.append(inside)
        opened.append((end, inside))
        if until < end:  # noqa: PLR1730 - a call for each event takes a tenth longer
            end = until
        inside = place
        lasts.append(end)
    around[first:last], ends[first:last] = places, lasts
    return last


def depths(parent: Ints) -> Ints:
    """How many spans are around each.

    >>> depths(np.array([-1, 0, 1, 0]))
    array([0, 1, 2, 1])
    """
    found: Ints = (parent != ABSENT).astype(np.int64)
    around, rest = parent.copy(), np.flatnonzero(found)
    while len(rest):  # each time twice as far out
        place = around[rest]
        steps, further = found[place], around[place]
        found[rest] += steps
        around[rest] = further
        rest = rest[further != ABSENT]
    return found


def inclusive(parent: Ints, own: Floats) -> Floats:
    """Sums of each span and of all that are inside it, in any depth.

    >>> inclusive(np.array([-1, 0, 1, 0]), np.array([1.0, 1.0, 1.0, 5.0]))
    array([8., 2., 1., 5.])
    """
    return gathered(parent, own, np.add)


def gathered(parent: Ints, own: Floats, join: np.ufunc) -> Floats:
    """Values of each span joined with those of all that are inside it, in any depth.

    >>> gathered(np.array([-1, 0, 1, 0]), np.array([1.0, 1.0, 1.0, 5.0]), np.maximum)
    array([5., 1., 1., 5.])
    """
    total = own.astype(np.float64)
    level = depths(parent)
    for depth in range(int(level.max(initial=0)), 0, -1):
        places = np.flatnonzero(level == depth)
        join.at(total, parent[places], total[places])
    return total


def own_time(parent: Ints, lengths: Floats) -> Floats:
    """The part of each span that those directly inside it leave; never below zero."""
    inner = parent != ABSENT
    inside = np.bincount(parent[inner], weights=lengths[inner], minlength=len(lengths))
    own: Floats = np.maximum(lengths - inside, 0.0)
    return own


def outermost_of_name(parent: Ints, names: Ints) -> Mask:
    """Which spans have none of the same name around them.

    >>> outermost_of_name(np.array([-1, 0, 1]), np.array([4, 5, 4]))
    array([ True,  True, False])
    """
    found = np.ones(len(parent), bool)
    places, around = np.flatnonzero(parent != ABSENT), parent[parent != ABSENT]
    while len(places):
        found[places[names[around] == names[places]]] = False
        around = parent[around]
        inside = around != ABSENT
        places, around = places[inside], around[inside]
    return found


class Paths(NamedTuple):
    """Spans with the same names around them, as one node each."""

    node: Ints
    """The node of each span."""
    parent: Ints
    """The node around each node, which has a smaller number, or ABSENT."""
    name: Ints
    """What each node's spans are called."""


def merged_paths(parent: Ints, names: Ints) -> Paths:
    """Join spans that have the same name and, all the way out, the same names around them."""
    node = np.full(len(parent), ABSENT, np.int64)
    above: list[Ints] = []
    called: list[Ints] = []
    many, before, known = int(names.max(initial=0)) + 1, ABSENT, 0
    for places in _by_depth(parent):
        around = node[parent[places]] if above else np.full(len(places), ABSENT)
        keys = (around - before) * many + names[places]
        used, number = _numbered(keys, (known - before) * many)
        node[places] = known + number
        above.append(used // many + before)
        called.append(used % many)
        before, known = (known, known + len(used))
    nothing = np.zeros(0, np.int64)
    return Paths(node, np.concatenate([nothing, *above]), np.concatenate([nothing, *called]))


def _by_depth(parent: Ints) -> list[Ints]:
    """The places at each depth, outermost first."""
    level = depths(parent)
    deepest = int(level.max(initial=0))
    # Numbers of 16 bits are sorted without comparing them.
    order = np.argsort(level.astype(np.int16) if deepest < 2**15 else level, kind="stable")
    return np.split(order, np.cumsum(np.bincount(level))[:-1])


def _numbered(keys: Ints, size: int) -> tuple[Ints, Ints]:
    """The keys below `size` that there are, in order, and the number of each one's own."""
    if size > _SPARSE * len(keys):
        used = distinct(keys)
        return used, np.searchsorted(used, keys)
    there = np.zeros(size, bool)
    there[keys] = True
    used = np.flatnonzero(there)
    number = np.empty(size, np.int64)
    number[used] = np.arange(len(used))
    return used, number[keys]


def tree_order(parent: Ints, weights: Floats) -> list[int]:
    """Nodes as a tree is read: each before those inside it, the heaviest of these first.

    >>> tree_order(np.array([-1, 0, 0, 1]), np.array([9.0, 2.0, 5.0, 1.0]))
    [0, 2, 1, 3]
    """
    inside: dict[int, list[int]] = {}
    for node in np.lexsort((-np.arange(len(parent)), weights)).tolist():
        inside.setdefault(int(parent[node]), []).append(node)
    order: list[int] = []
    waiting = list(inside.get(ABSENT, []))
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += inside.get(node, [])
    return order


def heaviest(parent: Ints, weights: Floats, most: int) -> Mask:
    """The `most` heaviest nodes, and whatever is around them."""
    kept = np.zeros(len(parent), bool)
    kept[np.argsort(-weights, kind="stable")[:most]] = True
    for node in range(len(parent) - 1, -1, -1):
        if kept[node] and parent[node] != ABSENT:
            kept[parent[node]] = True
    return kept
