"""Which of the nodes that hold a task a rule takes, and which GPU of it for one that shares.

Of a large cluster kube-scheduler does not look at all nodes: Kubernetes documentation, "Scheduler
Performance Tuning", and `findNodesThatPassFilters` of release 1.36: from where the last search
ended, until so many nodes are found that hold the task. Its sixteen workers take chunks of nodes
from one queue, and a chunk takes microseconds: a worker is through with it before others get a
core, so nodes are met nearly in order. In the first 500 placements of the real scheduler 1.36.2
with MostAllocated, 461 were on the best of the nodes met in order, and 290 on the best of those
that sixteen workers at one pace would have met.

Of nodes with one score no draw decides. Release 1.36 orders nodes in a heap by score and then by a
random number, which is only set for nodes that an extender has scored; so without extenders it is
the root of that heap (`prioritizeNodes`, `nodeScoreHeap`), nearly always one of the first met.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.nodes import NodeState, TaskKind
from ridgeline.queue.placement.rules import PlacementRule, RuleCard

MOST_KEPT = 4_000_000
"""Scores that are kept at most, of all kinds of task and nodes."""


def node_order(card: RuleCard, count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """The order in which a rule meets nodes, by their places."""
    drawn: NDArray[np.int64] = random.permutation(count)
    return np.arange(count) if card.node == "kube" else drawn


class NodeChoice:
    """Scores are kept per kind of task, and made anew for nodes that changed."""

    def __init__(
        self, state: NodeState, card: RuleCard, rule: PlacementRule, random: np.random.Generator
    ) -> None:
        self._state, self._card, self._rule, self._random = state, card, rule, random
        self._kept: dict[TaskKind, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        """Scores of all nodes, and the versions that they are of."""
        self._kube = NodeSearch(len(state))

    def node(self, kind: TaskKind, holding: NDArray[np.int64]) -> int:
        """The node for a task, of those that hold it: at least one."""
        if self._card.node == "any":
            return int(holding[self._random.integers(len(holding))])
        if self._card.node == "first":
            return int(holding[int(self._scored(kind, holding).argmax())])
        holds = np.zeros(len(self._state), dtype=bool)
        holds[holding] = True
        looked_at = self._kube.found(holds)
        scores = self._scored(kind, looked_at)
        return int(looked_at[root_of_heap(np.flatnonzero(scores == scores.max()))])

    def gpu(self, kind: TaskKind, node: int, able: NDArray[np.bool_] | None = None) -> int:
        """The GPU of that node for a task that shares; 0 for others, which take free ones.

        Args:
            kind: What the task asks for.
            node: Where it is put.
            able: Which GPUs can take it; None: all that have as much left.
        """
        if not kind.shares:
            return 0
        left = self._state.gpu_left[node]
        enough = (left >= kind.gpu_milli) if able is None else able
        if self._card.gpu == "own":
            own = self._rule.gpu_for(self._state, node, kind)
            if enough[own]:
                return own
        fitting = np.flatnonzero(enough)
        if self._card.gpu == "random":
            return int(fitting[self._random.integers(len(fitting))])
        return int(fitting[int(left[fitting].argmin())])

    def _scored(self, kind: TaskKind, places: NDArray[np.int64]) -> NDArray[np.int64]:
        if kind not in self._kept:
            count = len(self._state)
            if (len(self._kept) + 1) * count > MOST_KEPT:
                self._kept.clear()
            self._kept[kind] = np.zeros(count, dtype=np.int64), np.full(count, -1)
        kept, seen = self._kept[kind]
        changed = places[seen[places] != self._state.version[places]]
        if len(changed):
            kept[changed] = self._rule.scores(self._state, changed, kind)
            seen[changed] = self._state.version[changed]
        found: NDArray[np.int64] = kept[places]
        return found


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


def root_of_heap(best: NDArray[np.int64]) -> int:
    """Which of the places with the best score the root of a binary heap comes from.

    Sifting down moves only what is strictly better, and prefers the left child: so a place stays
    where it is among the best, or else the best of its left half comes up, or else of its right.
    That is the first of them from the top, left before right.

    Args:
        best: Places in the list that is made a heap, ascending; at least one.
    """
    numbers = best + 1
    depth = np.floor(np.log2(numbers)).astype(np.int64)
    path = (numbers - (1 << depth)) << (int(depth.max()) - depth)
    return int(best[np.lexsort((depth, path))[0]])
