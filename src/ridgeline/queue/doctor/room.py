"""Which waiting pods would start, on the cluster as it is or as it goes on by its rules."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.doctor.constraints import Constraints, PodTerm
from ridgeline.queue.doctor.other_resources import OtherResources
from ridgeline.queue.doctor.state import DAEMON, LiveCluster, LiveNode, LivePod
from ridgeline.queue.placement.fragmentation import TypicalTasks
from ridgeline.queue.placement.nodes import WHOLE, NodeState, PlacedNode, TaskKind, tasks_of
from ridgeline.queue.placement.rules import find_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAhead:
    """A cluster that goes on from now on; the defaults are what kube-scheduler does by itself."""

    state: LiveCluster
    policy: str = ""
    """One of ours by name; empty: `fifo-skip`, or `pod-by-pod` where ranks start one by one; of
    Slurm `easy`."""
    placement: str = ""
    """One of ours by name; empty: `kube-default`, of Slurm `pack`."""
    placed_anew: bool = False
    """What runs is placed as well, on nodes of the GPU model that it is on."""
    together: bool = False
    """Workloads start whole; those that started in part give back what they hold."""
    idle: frozenset[str] = frozenset()
    """Pods that keep what they hold and compute nothing."""
    coming: tuple[LivePod, ...] = ()
    """Pods whose like come again and again, evenly over each `coming_seconds`."""
    coming_seconds: float = 0.0


BeforeAndCured = tuple[ClusterAhead, ClusterAhead]
"""A cluster as it is, and with a cure."""


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


OnNodes = list[list[LivePod]]
"""The pods of each node that others may have to be near to or far from."""


class Reach:
    """Nodes by what they admit.

    Args:
        nodes: In the order in which they are asked about.
        free: Every node admits every pod.
    """

    def __init__(self, nodes: Sequence[LiveNode], *, free: bool = False) -> None:
        self.nodes = nodes
        self.free = free
        self._on: OnNodes = [[] for _ in nodes]
        self._known: dict[Constraints, NDArray[np.bool_]] = {}
        self._apart = False
        """Some pod on a node keeps others away."""

    def put(self, pod: LivePod, place: int) -> None:
        """Count a pod as being on a node."""
        self._on[place].append(pod)
        self._apart |= bool(pod.constraints.apart)

    def on_nodes(self) -> OnNodes:
        """The pods on nodes, to come back to."""
        return [list(pods) for pods in self._on]

    def restore(self, before: OnNodes) -> None:
        """Go back to what was on the nodes."""
        self._on = before

    def admitting(self, pod: LivePod) -> NDArray[np.bool_]:
        """The nodes that admit a pod."""
        if self.free:
            return np.ones(len(self.nodes), dtype=bool)
        asked = pod.constraints
        if asked not in self._known:
            self._known[asked] = np.array(
                [not asked.keeps_off(node.labels, node.taints) for node in self.nodes], dtype=bool
            )
        found = self._known[asked]
        for term in asked.apart:
            found = found & ~self._near(term)
        if pod.host_ports:
            found = found & ~self._taken(pod.host_ports)
        for term in asked.near:
            near = self._near(term)
            # The first of pods that want to be near each other may be anywhere.
            if near.any() or not term.means(_namespace(pod), pod.labels):
                found = found & near
        return found & ~self._kept_away(pod) if self._apart else found

    def _taken(self, ports: frozenset[str]) -> NDArray[np.bool_]:
        """The nodes of which some pod has one of these ports."""
        return np.array([any(one.host_ports & ports for one in pods) for pods in self._on], bool)

    def _near(self, term: PodTerm) -> NDArray[np.bool_]:
        """The nodes in one domain with a pod that a term means."""
        domains = {
            node.labels.get(term.topology)
            for node, pods in zip(self.nodes, self._on, strict=True)
            if any(term.means(_namespace(pod), pod.labels) for pod in pods)
        } - {None}
        return np.array([node.labels.get(term.topology) in domains for node in self.nodes], bool)

    def _kept_away(self, pod: LivePod) -> NDArray[np.bool_]:
        """The nodes in one domain with a pod that wants this one far from it."""
        found = np.zeros(len(self.nodes), dtype=bool)
        for node, pods in zip(self.nodes, self._on, strict=True):
            for term in {term for other in pods for term in other.constraints.apart}:
                if term.means(_namespace(pod), pod.labels):
                    domain = node.labels.get(term.topology)
                    found |= np.array(
                        [domain is not None and one.labels.get(term.topology) == domain
                         for one in self.nodes], dtype=bool,
                    )  # fmt: skip
        return found


def _namespace(pod: LivePod) -> str:
    return pod.name.partition("/")[0] if "/" in pod.name else ""
