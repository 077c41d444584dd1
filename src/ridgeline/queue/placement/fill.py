"""Fills a cluster with tasks that arrive one after the other and stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.kube_search import NodeSearch, root_of_heap
from ridgeline.queue.placement.nodes import NodeState, PlacedNode
from ridgeline.queue.placement.rules import PlacementRule, RuleCard, find_rule
from ridgeline.queue.placement.tasks import WHOLE, PlacedTasks, TaskKind

_TASKS_A_LINE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledPoint:
    """The cluster when so much had arrived; all in GPUs."""

    arrived: float
    allocated: float
    fragmented: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledCluster:
    """A cluster after the last task."""

    points: list[FilledPoint]
    node_of: list[int]
    """Place of the node, per task; -1: no node had room."""
    nodes: NodeState


def fill_cluster(
    nodes: Sequence[PlacedNode],
    tasks: PlacedTasks,
    rule: str,
    *,
    typical: TypicalTasks,
    stops: Sequence[float],
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> FilledCluster:
    """Put every task where the rule wants it, or nowhere.

    Args:
        nodes: The empty cluster.
        tasks: In order of arrival.
        rule: The name of the rule.
        typical: Tasks by which fragmentation is judged.
        stops: Demand in GPUs, ascending, at which the cluster is looked at.
        seed: Of what a rule leaves to chance.
        on_progress: Told how many tasks are placed of how many.
    """
    card, make = find_rule(rule)
    random = np.random.default_rng(seed)
    shuffled = [nodes[place] for place in random.permutation(len(nodes))]
    state = NodeState(nodes if card.node == "kube" else shuffled)
    search = _Search(state, tasks.kinds, card, make(typical), random)
    gpus = int(state.num_gpus.sum())
    points: list[FilledPoint] = []
    node_of: list[int] = []
    arrived, waiting = 0, list(stops)
    for number, place in enumerate(tasks.kind_of.tolist()):
        kind = tasks.kinds[place]
        node_of.append(search.place(place, kind))
        arrived += kind.total_milli
        while waiting and arrived >= waiting[0] * WHOLE - 1e-6:
            points.append(_look(state, typical, waiting.pop(0), gpus))
        if number % _TASKS_A_LINE == 0:
            on_progress(number, len(tasks))
    points += [_look(state, typical, stop, gpus) for stop in waiting[:1]]
    return FilledCluster(points=points, node_of=node_of, nodes=state)


def _look(state: NodeState, typical: TypicalTasks, stop: float, gpus: int) -> FilledPoint:
    return FilledPoint(
        arrived=stop,
        allocated=gpus - float(state.total_left.sum()) / WHOLE,
        fragmented=typical.of_cluster(state),
    )


class _Search:
    """Finds nodes; scores are kept per kind of task, and made anew for nodes that changed."""

    def __init__(
        self,
        state: NodeState,
        kinds: Sequence[TaskKind],
        card: RuleCard,
        rule: PlacementRule,
        random: np.random.Generator,
    ) -> None:
        self.state, self.card, self.rule, self.random = state, card, rule, random
        self._scores = np.zeros((len(kinds), len(state)), dtype=np.int64)
        self._seen = np.full((len(kinds), len(state)), -1, dtype=np.int64)
        self._kube = NodeSearch(len(state))

    def place(self, number: int, kind: TaskKind) -> int:
        """Put a task on a node; -1 where none holds it."""
        holding = self.state.holding(kind)
        if not len(holding):
            return -1
        node = self._node(number, kind, holding)
        self.state.put(kind, node, self._gpu(node, kind) if kind.shares else 0)
        return node

    def _node(self, number: int, kind: TaskKind, holding: NDArray[np.int64]) -> int:
        if self.card.node == "any":
            return int(holding[self.random.integers(len(holding))])
        if self.card.node == "first":
            return int(holding[int(self._scored(number, kind, holding).argmax())])
        holds = np.zeros(len(self.state), dtype=bool)
        holds[holding] = True
        looked_at = self._kube.found(holds)
        scores = self._scored(number, kind, looked_at)
        return int(looked_at[root_of_heap(np.flatnonzero(scores == scores.max()))])

    def _scored(self, number: int, kind: TaskKind, places: NDArray[np.int64]) -> NDArray[np.int64]:
        kept, seen = self._scores[number], self._seen[number]
        changed = places[seen[places] != self.state.version[places]]
        if len(changed):
            kept[changed] = self.rule.scores(self.state, changed, kind)
            seen[changed] = self.state.version[changed]
        found: NDArray[np.int64] = kept[places]
        return found

    def _gpu(self, node: int, kind: TaskKind) -> int:
        if self.card.gpu == "own":
            return self.rule.gpu_for(self.state, node, kind)
        left = self.state.gpu_left[node]
        fitting = np.flatnonzero(left >= kind.gpu_milli)
        if self.card.gpu == "random":
            return int(fitting[self.random.integers(len(fitting))])
        return int(fitting[int(left[fitting].argmin())])
