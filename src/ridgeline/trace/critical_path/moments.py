"""The graph of a trace's moments, in columns: nodes in order of time, and edges into each.

`dependencies.py` says what the nodes and edges are, and finds them.
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
