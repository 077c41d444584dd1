"""Answers `ridgeline queue place`: several rules, each over several orders of arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.errors import InputError
from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.node_choice import NodeChoice, node_order
from ridgeline.queue.placement.nodes import (
    WHOLE,
    NodeState,
    PlacedNode,
    PlacedTasks,
    TaskKind,
    arriving,
)
from ridgeline.queue.placement.rules import find_rule
from ridgeline.records.queue_placement import PlacedPoint, PlacementOutcome, QueuePlacement

STEP = 0.1
"""Demand between two looks at the cluster, of all GPUs."""


def place_tasks(
    tasks: PlacedTasks,
    nodes: Sequence[PlacedNode],
    rules: Sequence[str],
    *,
    names: tuple[str, str] = ("", ""),
    arrivals: float = 1.3,
    seeds: int = 3,
    notes: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _line: None,
) -> QueuePlacement:
    """Fill a cluster under each rule.

    Args:
        tasks: That arrive, and others drawn from them, in an order drawn by the seed.
        nodes: The cluster.
        rules: Names of rules.
        names: What tasks and cluster are called in the answer.
        arrivals: Demand at the end, as a multiple of all GPUs.
        seeds: How many orders each rule is tried on, the same ones for all.
        notes: What was said of the files, for the answer.
        on_progress: Told what is being done.

    Raises:
        InputError: A rule is unknown, or a number makes no sense.
    """
    if not 0.0 < arrivals <= 10.0:
        raise InputError(f"--arrivals {arrivals:g}: give a multiple of all GPUs, as 1.3")
    if not 1 <= seeds <= 1000:
        raise InputError(f"--seeds {seeds}: give 1 to 1000")
    for name in rules:
        find_rule(name)
    gpus = sum(node.num_gpus for node in nodes)
    typical = TypicalTasks(tasks)
    orders = [arriving(tasks, gpus, arrivals, seed) for seed in range(seeds)]
    stops = [STEP * gpus * count for count in range(1, round(arrivals / STEP) + 1)]
    outcomes = []
    for name in rules:
        filled = []
        for seed, order in enumerate(orders):
            on_progress(f"{name}: order {seed + 1} of {seeds}, {len(order):,} tasks")
            filled.append(fill_cluster(nodes, order, name, typical=typical, stops=stops, seed=seed))
        outcomes.append(_outcome(name, filled, gpus))
    return QueuePlacement(
        tasks=names[0],
        cluster=names[1],
        num_tasks=len(tasks),
        nodes=len(nodes),
        gpus=gpus,
        seeds=seeds,
        policies=outcomes,
        notes=[*notes, *_too_large(tasks, nodes)],
    )


def _too_large(tasks: PlacedTasks, nodes: Sequence[PlacedNode]) -> list[str]:
    """A note on tasks that no empty node has room for."""
    empty = NodeState(nodes)
    without = {place for place, kind in enumerate(tasks.kinds) if not len(empty.holding(kind))}
    count = sum(place in without for place in tasks.kind_of.tolist())
    if not count:
        return []
    first = tasks.kinds[min(without)]
    kinds = f" of type {' or '.join(first.models)}" if first.models else ""
    asked = (
        f"{first.total_milli / WHOLE:g} GPUs{kinds} with {first.cpu_milli / 1000:g} cores and"
        f" {first.memory_bytes / 2**30:g} GiB"
    )
    said = f"{count:,} of {len(tasks):,} tasks fit no empty node, and are always refused"
    return [f"{said}; one asks for {asked}."]


def _outcome(rule: str, filled: Sequence[FilledCluster], gpus: int) -> PlacementOutcome:
    ends = [one.nodes for one in filled]
    partly = [(one.free_gpus > 0) & (one.total_left < 1000 * one.num_gpus) for one in ends]
    whole = [(one.free_gpus == one.num_gpus) & (one.num_gpus == one.num_gpus.max())
             for one in ends]  # fmt: skip
    counted = min(len(one.points) for one in filled)
    return PlacementOutcome(
        policy=rule,
        title=find_rule(rule)[0].title,
        points=[_point([one.points[place] for one in filled], gpus) for place in range(counted)],
        refused_tasks=float(np.mean([one.node_of.count(-1) for one in filled])),
        nodes_partly_used=float(np.mean([one.sum() for one in partly])),
        large_nodes_free=float(np.mean([one.sum() for one in whole])),
    )


def _point(seen: Sequence[FilledPoint], gpus: int) -> PlacedPoint:
    allocated = np.array([one.allocated for one in seen]) / gpus
    fragmented = np.array([one.fragmented for one in seen]) / gpus
    free = 1.0 - float(allocated.mean())
    return PlacedPoint(
        arrived_share=seen[0].arrived / gpus,
        allocated_share=float(allocated.mean()),
        allocated_share_least=float(allocated.min()),
        allocated_share_most=float(allocated.max()),
        fragmented_share=float(fragmented.mean()),
        fragmented_share_of_free=float(fragmented.mean()) / free if free > 1e-9 else None,
    )


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
