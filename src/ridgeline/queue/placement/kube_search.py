"""Which nodes kube-scheduler looks at for a task: not all of a large cluster.

Kubernetes documentation, "Scheduler Performance Tuning", and `findNodesThatPassFilters` of release
1.36: from where the last search ended, until so many nodes are found that hold the task. Sixteen
workers take chunks of nodes in order and go on through them at one pace.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

WORKERS = 16
ALL_BELOW = 100
"""Nodes of a cluster of which all are looked at."""


class NodeSearch:
    """Where the next search begins, and how many nodes it is to find."""

    def __init__(self, count: int) -> None:
        share = max(5, 50 - count // 125)
        self.wanted = count if count < ALL_BELOW else max(ALL_BELOW, count * share // 100)
        chunk = max(1, min(math.isqrt(count), count // WORKERS + 1))
        place = np.arange(count)
        turn, within = place // (chunk * WORKERS), place % chunk
        self._order = np.lexsort((place, within, turn))
        self._next = 0

    def found(self, holding: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The nodes that are scored, of those that hold the task [nodes]."""
        count = len(holding)
        at = (self._next + self._order) % count
        hits = np.flatnonzero(holding[at])[: self.wanted]
        seen = int(hits[-1]) + 1 if len(hits) == self.wanted else count
        self._next = (self._next + seen) % count
        nodes: NDArray[np.int64] = at[hits]
        return nodes
