"""Which waiting pods would start, on the cluster as it is or as it could be."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.queue.doctor.other_resources import OtherResources
from ridgeline.queue.doctor.reach import Reach
from ridgeline.queue.doctor.state import DAEMON, LiveCluster, LiveNode, LivePod
from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.nodes import NodeState, PlacedNode
from ridgeline.queue.placement.rules import find_rule
from ridgeline.queue.placement.tasks import WHOLE, TaskKind, tasks_of

PACKING = "kube-most-allocated"


class Room:
    """What is left of the nodes that take pods; slices are left out of account.

    Args:
        state: The cluster.
        closed: Also count the nodes that take no pods at present.
        pure_gpus: Count CPU, memory and all that is no GPU as if there were no end of it.
        healthy: Count the GPUs that device plugins give to nobody.
        anywhere: Let pods be on any node, whatever its taints and labels.
    """

    def __init__(
        self,
        state: LiveCluster,
        *,
        closed: bool = False,
        pure_gpus: bool = False,
        anywhere: bool = False,
        healthy: bool = False,
    ) -> None:
        nodes = [node for node in state.nodes if closed or not node.closed]
        if healthy:
            nodes = [replace(one, num_gpus=one.num_gpus + one.broken_gpus) for one in nodes]
        nodes = [node for node in nodes if node.num_gpus]
        self.places = {node.name: place for place, node in enumerate(nodes)}
        self.pure_gpus = pure_gpus
        self.left = NodeState([_placed(node) for node in nodes]) if nodes else None
        self.others = OtherResources(() if pure_gpus else nodes, len(nodes))
        self.reach = Reach(nodes, free=anywhere)
        self._rule = find_rule(PACKING)[1](TypicalTasks(tasks_of([TaskKind(0, WHOLE, 1, 0)])))

    def keep(self, pods: Iterable[LivePod]) -> None:
        """Put pods where they are."""
        for pod in pods:
            if self.left is not None and pod.node in self.places:
                self.left.put(self._asked(pod), self.places[pod.node], 0)
                self.others.put(pod, self.places[pod.node])
                self.reach.put(pod, self.places[pod.node])

    def pack(self, pods: Iterable[LivePod]) -> None:
        """Put pods, one after the other, where kube-scheduler's MostAllocated would."""
        for pod in pods:
            self._place(pod)

    def starting(self, pods: Sequence[LivePod]) -> list[LivePod]:
        """The pods that find room, oldest workload first; ranks all of them or none."""
        groups: dict[str, list[LivePod]] = defaultdict(list)
        for pod in sorted(pods, key=lambda one: (one.created_seconds or 0.0, one.name)):
            groups[pod.workload if pod.ranks else pod.name].append(pod)
        started: list[LivePod] = []
        for group in groups.values():
            if len(group) == 1:  # who finds no room leaves all as it is
                started += group if self._place(group[0]) else []
                continue
            before = copy.deepcopy((self.left, self.others)), self.reach.on_nodes()
            if all(self._place(pod) for pod in group):
                started += group
            else:
                self.left, self.others = before[0]
                self.reach.restore(before[1])
        return started

    def _place(self, pod: LivePod) -> bool:
        if self.left is None:
            return False
        kind = self._asked(pod)
        holding = self.left.holding(kind)
        holding = holding[(self.reach.admitting(pod) & self.others.holding(pod))[holding]]
        if not len(holding):
            return False
        scores = self._rule.scores(self.left, holding, kind)
        place = int(holding[int(np.argmax(scores))])
        self.left.put(kind, place, 0)
        self.others.put(pod, place)
        self.reach.put(pod, place)
        return True

    def _asked(self, pod: LivePod) -> TaskKind:
        models = (pod.model,) if pod.model else ()
        gpus = pod.num_gpus
        if self.pure_gpus:
            return TaskKind(0, WHOLE if gpus else 0, gpus, 0, models)
        return TaskKind(pod.cpu_milli, WHOLE if gpus else 0, gpus, pod.memory_bytes, models)


def _placed(node: LiveNode) -> PlacedNode:
    return PlacedNode(
        name=node.name, cpu_milli=node.cpu_milli, memory_bytes=node.memory_bytes,
        num_gpus=node.num_gpus, model=node.model,
    )  # fmt: skip


def starting_now(
    state: LiveCluster, *, closed: bool = False, pure_gpus: bool = False, anywhere: bool = False,
    healthy: bool = False,
) -> list[str]:  # fmt: skip
    """Names of the waiting pods that would find room with everything else where it is."""
    room = Room(state, closed=closed, pure_gpus=pure_gpus, anywhere=anywhere, healthy=healthy)
    room.keep(state.running)
    return [pod.name for pod in room.starting(_whole(state))]


def starting_if_let(state: LiveCluster, held: Sequence[LivePod]) -> list[LivePod]:
    """The pods of those held back that would find room after those that wait."""
    room = Room(state)
    room.keep(state.running)
    room.starting([pod for pod in state.waiting if pod.num_gpus])
    return room.starting([replace(pod, gated=False) for pod in held])


def starting_packed(state: LiveCluster) -> list[str]:
    """Names of the waiting pods that would run, had MostAllocated placed those that run.

    Whatever runs stays on nodes of the GPU model that it is on.
    """
    room = Room(state)
    room.keep(pod for pod in state.running if not _moves(pod))
    models = {node.name: node.model for node in state.nodes}
    with_gpus = [
        replace(pod, model=models[pod.node])
        for pod in state.running
        if _moves(pod) and pod.node in room.places
    ]
    room.pack(sorted(with_gpus, key=lambda pod: (pod.started_seconds or 0.0, pod.name)))
    return [pod.name for pod in room.starting(_whole(state))]


def _moves(pod: LivePod) -> bool:
    """Whether a pod that runs could be on another node."""
    return bool(pod.num_gpus) and not pod.workload.startswith(DAEMON)


def free_gpus(state: LiveCluster) -> dict[str, int]:
    """GPUs that nobody uses, by node, of the nodes that take pods."""
    free = {node.name: node.num_gpus for node in state.nodes if not node.closed}
    for pod in state.running:
        if pod.node in free:
            free[pod.node] -= pod.num_gpus
    return {name: left for name, left in free.items() if left > 0}


def _whole(state: LiveCluster) -> list[LivePod]:
    """Waiting pods that ask for whole GPUs; those of a workload in part on nodes go alone."""
    placed = {pod.workload for pod in state.running if pod.ranks}
    return [
        replace(pod, ranks=pod.ranks and pod.workload not in placed)
        for pod in state.waiting
        if pod.num_gpus
    ]
