"""A cluster at one moment and the rules by which it goes on: what the doctor has played on."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.queue.doctor.state import LiveCluster, LivePod


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
