"""Workloads of ranks of which some hold GPUs and wait for the others."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ridgeline.queue.doctor.state import LiveCluster, LivePod


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialWorkload:
    """A workload of which some ranks hold GPUs and others have no node."""

    name: str
    held_gpus: int
    missing_gpus: int
    pods: int
    example: LivePod

    @property
    def said(self) -> str:
        """How much of it holds what."""
        if not self.missing_gpus:
            return (
                f"{self.name} holds {self.held_gpus} GPUs and has no node for {self.example.name}"
            )
        return f"{self.name} holds {self.held_gpus} of {self.held_gpus + self.missing_gpus} GPUs"


def partial_workloads(state: LiveCluster, *, quota: bool) -> list[PartialWorkload]:
    """The workloads that nothing starts whole, the one that holds most first.

    Args:
        state: The cluster.
        quota: Those that a quota admitted; else those that nothing admitted.
    """
    holding: dict[str, list[LivePod]] = defaultdict(list)
    lacking: dict[str, list[LivePod]] = defaultdict(list)
    for pod in state.running:
        if pod.ranks and pod.num_gpus:
            holding[pod.workload].append(pod)
    for pod in (*state.waiting, *state.waiting_without_gpus):
        if pod.ranks and not pod.gang and not pod.topology and bool(pod.quota) == quota:
            lacking[pod.workload].append(pod)
    stuck = [
        PartialWorkload(
            name=name,
            held_gpus=sum(pod.num_gpus for pod in holding[name]),
            missing_gpus=sum(pod.num_gpus for pod in pods),
            pods=len(pods) + len(holding[name]),
            example=pods[0],
        )
        for name, pods in lacking.items()
        if 0 < len(holding.get(name, ())) < state.enough_pods.get(name, len(state.pods) + 1)
    ]
    return sorted(stuck, key=lambda one: (-one.held_gpus, one.name))


def deadlock_said(stuck: list[PartialWorkload], free: int) -> str:
    """Two that hold what the other needs, as an example; empty where there are none."""
    for one in stuck:
        for other in stuck:
            if (
                one is not other
                and one.missing_gpus > free
                and (one.missing_gpus <= free + other.held_gpus)
            ):
                return (
                    f"{one.said} and waits for {one.missing_gpus}; {other.said}, and neither ends"
                )
    return ""
