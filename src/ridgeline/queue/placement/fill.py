"""Fills a cluster with tasks that arrive one after the other and stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.node_choice import NodeChoice, node_order
from ridgeline.queue.placement.nodes import NodeState, PlacedNode
from ridgeline.queue.placement.rules import find_rule
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
    state = NodeState([nodes[place] for place in node_order(card, len(nodes), random)])
    choice = NodeChoice(state, card, make(typical), random)
    gpus = int(state.num_gpus.sum())
    points: list[FilledPoint] = []
    node_of: list[int] = []
    arrived, waiting = 0, list(stops)
    for number, place in enumerate(tasks.kind_of.tolist()):
        kind = tasks.kinds[place]
        node_of.append(_place(kind, state, choice))
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


def _place(kind: TaskKind, state: NodeState, choice: NodeChoice) -> int:
    """Put a task on a node; -1 where none holds it."""
    holding = state.holding(kind)
    if not len(holding):
        return -1
    node = choice.node(kind, holding)
    state.put(kind, node, choice.gpu(kind, node))
    return node
