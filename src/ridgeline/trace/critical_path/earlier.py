"""How much earlier the moments of a trace could be: max-plus algebra over its graph.

A node gets earlier by the least that its edges allow, each what it has to spare and is shortened
by, and what its source gets earlier:

    earlier(node) = min over edges of ( margin + earlier(source) )

Most nodes have one edge only. They follow their source, so a loop passes only over the nodes that
have a choice.
"""

from __future__ import annotations

import numpy as np

from ridgeline.trace.columns import Floats, Ints, Mask, Narrow
from ridgeline.trace.waits import NONE


def earlier_us(source: Ints, margin: Floats) -> Floats:
    """By how much each node gets earlier, (nodes,).

    `source` names the node that each edge comes from, (nodes, slots), and lies before the node;
    `margin` is infinite where there is no edge. A node without any edge stays where it is, unless
    its first margin is finite and its first source NONE: then it gets earlier by that.

    >>> source = np.array([[-1, -1], [0, -1], [0, 1]])
    >>> margin = np.array([[2.0, np.inf], [3.0, np.inf], [9.0, 1.0]])
    >>> earlier_us(source, margin)
    array([2., 5., 6.])
    """
    size = len(source)
    edges = np.isfinite(margin)
    stays = edges.sum(axis=1) > 1
    jump, behind = jumps(source, margin, edges, stays)
    kept = np.flatnonzero(stays)
    number = np.zeros(size + 1, np.int64)
    number[kept] = 1 + np.arange(len(kept))
    sources = np.where(edges[kept] & (source[kept] != NONE), source[kept], size)
    margins = np.where(edges[kept], margin[kept] + behind[sources], np.inf)
    froms = number[jump[sources]]
    result: Floats = propagated(froms, margins)[number[jump[:size]]] + behind[:size]
    return result


def propagated(froms: Ints | Narrow, margins: Floats) -> Floats:
    """By how much each node gets earlier, after the origin, which stays where it is.

    `froms` are numbers of nodes from 1 on, (nodes, slots), 0 for the origin.
    """
    slots = froms.shape[1]
    found = np.zeros(1 + len(froms))
    source, margin, earlier = froms.ravel().data, margins.ravel().data, found.data
    for node in range(1, len(found)):
        at = (node - 1) * slots
        best = margin[at] + earlier[source[at]]
        for place in range(at + 1, at + slots):
            other = margin[place] + earlier[source[place]]
            best = min(best, other)
        earlier[node] = best
    return found


def jumps(source: Ints | Narrow, margin: Floats, edges: Mask, stays: Mask) -> tuple[Ints, Floats]:
    """For each node the one that stays and that it follows, and how far behind it is.

    The last entry stands for no source at all.
    """
    size = len(stays)
    rows, slot = np.arange(size), np.argmax(edges, axis=1)
    single = edges.any(axis=1) & ~stays
    own = source[rows, slot]
    jump = np.append(np.where(single & (own != NONE), own, size), size)
    behind = np.append(np.where(single, margin[rows, slot], 0.0), 0.0)
    kept = np.flatnonzero(stays)
    jump[kept], behind[kept] = kept, 0.0
    while True:  # twice as far each time
        further = jump[jump]
        if np.array_equal(further, jump):
            return jump, behind
        behind = behind + behind[jump]
        jump = further
