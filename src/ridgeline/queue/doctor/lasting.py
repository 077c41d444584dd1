"""How long the pods of a cluster will run, as far as its own past tells.

Where runs have ended, times are drawn from them: for a pod that runs, of those that lasted longer
than it has by now. Where none has, a pod that runs is taken to be half through, and one that waits
to run as long as those that run do at the median.
"""

from __future__ import annotations

from statistics import median

import numpy as np

from ridgeline.queue.doctor.state import LiveCluster, LivePod

FEWEST = 5
"""Ended runs without which nothing is drawn."""
NOBODY_KNOWS_SECONDS = 3600.0
SHORTEST_SECONDS = 60.0


class Lasting:
    """Seconds from now that pods will have their GPUs; ranks of a workload as long as each other.

    Args:
        state: The cluster.
    """

    def __init__(self, state: LiveCluster) -> None:
        self._now = state.now_seconds
        self._ended = np.array(sorted(
            pod.ended_seconds - pod.started_seconds
            for pod in state.pods
            if pod.done and pod.num_gpus and pod.started_seconds is not None
            and pod.ended_seconds is not None and pod.ended_seconds > pod.started_seconds
        ))  # fmt: skip
        ages = [age for pod in state.running if pod.num_gpus and (age := self._age(pod))]
        self._known = bool(ages)
        self.drawn = len(self._ended) >= FEWEST
        """Whether times are drawn, so that one drawing differs from another."""
        usual = 2 * median(ages) if ages else NOBODY_KNOWS_SECONDS
        self.usual_seconds = float(np.median(self._ended)) if self.drawn else usual
        """What a pod runs at the median."""

    @property
    def assumed(self) -> str:
        """How the times were come by, as a clause."""
        if self.drawn:
            return f"times are drawn from the {len(self._ended)} runs with GPUs that have ended"
        if self._known:
            return (
                "no ended runs tell how long others last: what runs is taken to be half through,"
                " and what waits to run as long as those at the median"
            )
        return "the state has no times: each pod is taken to run for an hour from now or its start"

    def drawing(self, pods: list[LivePod], seed: int) -> dict[str, float]:
        """Seconds by workload of ranks, or by pod: what is left of it, or all of it if it waits."""
        random = np.random.default_rng(seed)
        found: dict[str, float] = {}
        for pod in pods:
            share, name = float(random.random()), unit_of(pod)
            if name not in found:
                found[name] = max(SHORTEST_SECONDS, self._left(pod, share))
        return found

    def _left(self, pod: LivePod, share: float) -> float:
        age = self._age(pod) if pod.node else 0.0
        if not self.drawn:
            return age or self.usual_seconds
        longer = self._ended[self._ended > age]
        if not len(longer):
            return float(self._ended[-1])
        return float(longer[int(share * len(longer))]) - age

    def _age(self, pod: LivePod) -> float:
        if pod.started_seconds is None or self._now is None:
            return 0.0
        return max(0.0, self._now - pod.started_seconds)


def unit_of(pod: LivePod) -> str:
    """The name of what starts as one: a workload of ranks, or a pod."""
    return pod.workload if pod.ranks else pod.name
