"""The graph of a trace's moments, in columns: nodes in order of time, and edges into each.

`dependencies.py` says what the nodes and edges are, and finds them.

How much earlier moments could be is max-plus algebra over that graph. A node gets earlier by the
least that its edges allow, each what it has to spare and is shortened by, and what its source gets
earlier:

    earlier(node) = min over edges of ( margin + earlier(source) )

Most nodes have one edge only. They follow their source, so a loop passes only over the nodes that
have a choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ridgeline.trace.columns import Floats, Ints, Mask, Narrow
from ridgeline.trace.waits import NONE

(
    ORIGIN_EDGE, HOST_EDGE, LAUNCH_EDGE, STREAM_EDGE, WAIT_EDGE, RUN_EDGE, SYNC_EDGE, FREE_EDGE,
    QUEUE_EDGE,
) = range(9)  # fmt: skip
EDGE_NAMES = {
    ORIGIN_EDGE: "start of the trace", HOST_EDGE: "host", LAUNCH_EDGE: "launch latency",
    STREAM_EDGE: "gap between kernels", WAIT_EDGE: "wait for another stream", RUN_EDGE: "gpu",
    SYNC_EDGE: "return from a wait", FREE_EDGE: "return from freeing memory",
    QUEUE_EDGE: "return from a full queue",
}  # fmt: skip
SLOTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The graph of one rank; rows are nodes, in an order in which every edge leads forward."""

    time_us: Floats
    gpu_event: Ints
    """Row of the trace's GPU table, or NONE for a host point."""
    is_end: Mask
    """Whether the moment is the end of a GPU event, and not its start."""
    thread: Ints
    """The thread of a host point."""
    source: Narrow
    """The node that each edge comes from, (nodes, SLOTS); NONE for no edge."""
    weight_us: Floats
    """The least time that each edge takes, (nodes, SLOTS)."""
    edge: npt.NDArray[np.int8]
    """The sort of each edge, (nodes, SLOTS)."""

    def __len__(self) -> int:
        return len(self.time_us)

    @property
    def binding(self) -> Ints:
        """The slot whose source plus weight is the node's time."""
        ready = _ready_us(self.time_us, self.source, self.weight_us)
        found: Ints = np.argmax(ready, axis=1).astype(np.int64)
        return found


def _ready_us(time: Floats, source: Narrow, weight: Floats) -> Floats:
    """When each edge is ready; minus infinity for none. Slot by slot it takes less room."""
    ready = np.full(source.shape, -np.inf)
    for slot in range(SLOTS):
        rows = np.flatnonzero(source[:, slot] >= 0)
        ready[rows, slot] = time[source[rows, slot]] + weight[rows, slot]
    return ready


def tightened(moments: Moments) -> Moments:
    """Edges that lead backward dropped; of each node the edge ready last takes what is left.

    What is left is rounding, or the lag of a dropped edge.
    """
    time = moments.time_us
    source = np.where(moments.source < np.arange(len(time))[:, None], moments.source, NONE)
    weight = moments.weight_us.copy()
    loose = np.flatnonzero((source >= 0).any(axis=1))
    last = np.argmax(_ready_us(time, source, weight), axis=1)[loose]
    weight[loose, last] = time[loose] - time[source[loose, last]]
    for slot in range(SLOTS):
        rows = np.flatnonzero(source[:, slot] >= 0)
        begun = time[source[rows, slot]]
        over = begun + weight[rows, slot] > time[rows]
        weight[rows[over], slot] = (time[rows] - begun)[over]
    return replace(moments, source=source, weight_us=weight)


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
