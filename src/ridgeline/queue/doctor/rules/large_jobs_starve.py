"""Younger, smaller pods take what a large one, or a gang of several, waits for, again and again."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline import quantity
from ridgeline.quantity import several
from ridgeline.queue.doctor.constraints import Constraints
from ridgeline.queue.doctor.lasting import unit_of
from ridgeline.queue.doctor.room import BeforeAndCured, ClusterAhead, starting_now, starting_packed
from ridgeline.queue.doctor.rules import found
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.records.queue_finding import QueueFinding

PATIENCE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class _Large:
    """A pod, or all ranks of a workload, that wait for what takes more than half a node."""

    pods: Sequence[LivePod]

    @property
    def num_gpus(self) -> int:
        return sum(pod.num_gpus for pod in self.pods)

    @property
    def created_seconds(self) -> float:
        return max(pod.created_seconds or 0.0 for pod in self.pods)

    @property
    def where(self) -> str:
        return "of one node" if len(self.pods) == 1 else f"for {len(self.pods)} ranks at once"


def find(state: LiveCluster) -> QueueFinding | None:
    """GPUs that large pods and gangs wait for and younger ones took."""
    large, overtaking = _large(state), _Overtaking(state)
    taken = {unit_of(one.pods[0]): overtaking.of(one) for one in large}
    starved = [
        one
        for one in large
        if sum(pod.num_gpus for pod in taken[unit_of(one.pods[0])]) >= one.num_gpus
    ]
    if not starved:
        return None
    passed = {pod.name: pod for one in starved for pod in taken[unit_of(one.pods[0])]}
    gpus = sum(pod.num_gpus for pod in passed.values())
    lost = min(sum(one.num_gpus for one in starved), gpus)
    oldest = min(starved, key=lambda one: one.created_seconds)
    age = state.age_seconds(oldest.pods[0])
    return found(
        "large-jobs-starve",
        lost_gpus=lost,
        counted="that large pods wait for and younger, smaller ones took in the meantime",
        confidence=0.85,
        summary=f"{unit_of(oldest.pods[0])} has waited {quantity.seconds(age)} for"
        f" {oldest.num_gpus} GPUs {oldest.where}, while {several(len(passed), 'younger pod')} took"
        f" {gpus}",
        evidence={
            "starved_pods": sum(len(one.pods) for one in starved),
            "longest_wait_seconds": age,
            "younger_pods_started": len(passed),
            "gpus_of_younger_pods": gpus,
        },
        where=[pod.name for one in starved for pod in one.pods],
    )


def cured(state: LiveCluster, finding: QueueFinding) -> BeforeAndCured | str:
    """Nobody overtakes the oldest, while younger pods go on coming at the pace they came at."""
    named = set(finding.where)
    starved = [one for one in _large(state) if one.pods[0].name in named]
    overtaking = _Overtaking(state)
    passed = {pod.name: pod for one in starved for pod in overtaking.of(one)}
    window = max(state.age_seconds(pod) for one in starved for pod in one.pods)
    coming = tuple(replace(one, node="", started_seconds=None) for one in passed.values())
    as_it_is = ClusterAhead(state=state, coming=coming, coming_seconds=window)
    return as_it_is, replace(as_it_is, policy="fifo")


def _large(state: LiveCluster) -> list[_Large]:
    """Units that have waited long, and would not start by packing or without other resources."""
    most = max((node.num_gpus for node in state.nodes), default=0)
    if most <= 1:
        return []
    cured = set(starting_packed(state)) | set(starting_now(state, pure_gpus=True))
    begun = {unit_of(pod) for pod in state.running}
    units: dict[str, list[LivePod]] = defaultdict(list)
    for pod in state.waiting:
        if pod.num_gpus and pod.created_seconds is not None:
            units[unit_of(pod)].append(pod)
    return [
        large
        for name, pods in units.items()
        if name not in begun
        and (large := _Large(pods)).num_gpus > most // 2
        and min(state.age_seconds(pod) for pod in pods) >= PATIENCE_SECONDS
        and not all(pod.name in cured for pod in pods)
    ]


class _Overtaking:
    """Who came after a large workload and runs where it could: smaller ones alone."""

    def __init__(self, state: LiveCluster) -> None:
        self._nodes = state.nodes
        known = [
            (pod.created_seconds, place, pod)
            for place, pod in enumerate(state.running)
            if pod.num_gpus and pod.created_seconds is not None
        ]
        self._running = sorted(known, key=lambda one: one[:2])
        self._created = [created for created, _, _ in self._running]
        self._sizes: dict[str, int] = defaultdict(int)
        for pod in state.running:
            self._sizes[unit_of(pod)] += pod.num_gpus
        self._fitting: dict[tuple[int, str, Constraints], frozenset[str]] = {}
        """Nodes by what is asked of them."""

    def of(self, large: _Large) -> list[LivePod]:
        """The pods that overtook a workload."""
        younger = self._running[bisect_right(self._created, large.created_seconds) :]
        nodes = frozenset[str]().union(*(self._nodes_for(pod) for pod in large.pods if younger))
        most = large.num_gpus
        found = [
            (place, pod)
            for _, place, pod in younger
            if self._sizes[unit_of(pod)] < most and pod.node in nodes
        ]
        return [pod for _, pod in sorted(found, key=lambda one: one[0])]

    def _nodes_for(self, pod: LivePod) -> frozenset[str]:
        key = pod.num_gpus, pod.model, pod.constraints
        if key not in self._fitting:
            self._fitting[key] = frozenset(
                node.name for node in self._nodes
                if node.num_gpus >= pod.num_gpus and pod.model in ("", node.model)
                and not pod.constraints.keeps_off(node.labels, node.taints)
            )  # fmt: skip
        return self._fitting[key]
