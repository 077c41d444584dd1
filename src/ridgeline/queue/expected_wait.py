"""How long a job would wait if it were submitted now, from what a cluster is doing.

Nobody knows how long running jobs still run: it is drawn from the runs that have ended, of those
that lasted longer than the job has by now (where none did, the longest again). So are the times of
those that wait. Each drawing is played on the nodes there are, those that run first, then those
that wait in order of age, then the job; the 10th to 90th percentile of its waits is the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.errors import InputError
from ridgeline.queue.cluster import NodeGroup, QueuedCluster
from ridgeline.queue.doctor.state import LiveCluster, LivePod
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.simulate import play_queue, unfit_jobs

DRAWN = 200
FEWEST = 5
"""Ended runs without which nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWait:
    """The wait of one job."""

    num_gpus: int
    p10_seconds: float
    p50_seconds: float
    p90_seconds: float
    running: int
    """Workloads that hold GPUs."""
    ahead: int
    """Workloads that wait before it."""
    ended: int
    """Runs that the times are drawn from."""


def expected_wait(state: LiveCluster, num_gpus: int, *, seed: int = 0) -> ExpectedWait:
    """The wait of a job that is submitted now.

    Args:
        state: The cluster, with pods that have ended.
        num_gpus: GPUs of the job.
        seed: Of what is drawn.

    Raises:
        InputError: Too few runs have ended to say anything, or the job fits no empty cluster.
    """
    sizes = [node.num_gpus for node in state.nodes if node.num_gpus and not node.closed]
    if not sizes:
        raise InputError("--state: no node with GPUs takes pods; nothing can be said of waiting")
    ended = np.array(sorted(_lasted(state)))
    if len(ended) < FEWEST:
        raise InputError(
            f"--state: {len(ended)} pods with GPUs have ended, {FEWEST} are needed to say how long"
            " others run; keep finished pods (ttlSecondsAfterFinished), or print the state later"
        )
    groups = {size: sizes.count(size) for size in sorted(set(sizes), reverse=True)}
    cluster = QueuedCluster(nodes=[NodeGroup(count=n, gpus=size) for size, n in groups.items()])
    running = sorted(
        ((pod.num_gpus, _age(state, pod)) for pod in state.running if pod.num_gpus), reverse=True
    )
    waiting = _workloads(state)
    asked = [gpus for gpus, _ in running] + waiting + [num_gpus]
    order = range(len(asked))
    random = np.random.default_rng(seed)
    waits = []
    for _ in range(DRAWN):
        lasts = [_left(ended, age, random) for _, age in running]
        lasts += random.choice(ended, len(waiting) + 1).tolist()
        jobs = jobs_in_order(
            names=[str(one) for one in order], submit_seconds=[0.0] * len(asked),
            duration_seconds=lasts, num_gpus=asked,
        )  # fmt: skip
        unfit = unfit_jobs(jobs, cluster)
        if len(asked) - 1 in unfit:
            raise InputError(
                f"--state: the run asks for {num_gpus:,} GPUs, which the empty cluster of"
                f" {sum(sizes):,} does not have in one piece; ask for fewer"
            )
        kept = [place for place in order if place not in set(unfit)]
        waits.append(play_queue(jobs.chosen(kept), cluster, "fifo-skip").first_start_seconds[-1])
    low, middle, high = np.percentile(waits, [10, 50, 90])
    return ExpectedWait(
        num_gpus=num_gpus,
        p10_seconds=float(low),
        p50_seconds=float(middle),
        p90_seconds=float(high),
        running=len(running),
        ahead=len(waiting),
        ended=len(ended),
    )


def _lasted(state: LiveCluster) -> list[float]:
    return [
        pod.ended_seconds - pod.started_seconds
        for pod in state.pods
        if pod.done and pod.num_gpus and pod.started_seconds is not None
        and pod.ended_seconds is not None and pod.ended_seconds > pod.started_seconds
    ]  # fmt: skip


def _age(state: LiveCluster, pod: LivePod) -> float:
    if pod.started_seconds is None or state.now_seconds is None:
        return 0.0
    return max(0.0, state.now_seconds - pod.started_seconds)


def _left(ended: Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.float64]], age: float,
          random: np.random.Generator) -> float:  # fmt: skip
    """Time that a job of this age still runs, as one of those that lasted longer."""
    longer = np.asarray(ended)[np.asarray(ended) > age]
    return float(random.choice(longer)) - age if len(longer) else float(ended[-1])


def _workloads(state: LiveCluster) -> list[int]:
    """GPUs of the workloads that wait, the oldest first; ranks of one together."""
    gpus: dict[str, int] = {}
    for pod in sorted(state.waiting, key=lambda one: (one.created_seconds or 0.0, one.name)):
        if pod.num_gpus:
            name = pod.workload if pod.ranks else pod.name
            gpus[name] = gpus.get(name, 0) + pod.num_gpus
    return list(gpus.values())
