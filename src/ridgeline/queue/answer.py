"""Answers `ridgeline queue simulate`: several policies on one trace, and what they do to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.queue.cluster import QueuedCluster, check_queued_cluster
from ridgeline.queue.jobs import ADDED, Jobs
from ridgeline.queue.policies import find_policy
from ridgeline.queue.simulate import PlayedQueue, play_queue, unfit_jobs
from ridgeline.records.queue_simulation import (
    AddedJob,
    Bounds,
    GroupWaits,
    QueueSimulation,
    QueueTimeline,
    SimulatedQueue,
)

STRETCHES = 240
"""So many of them make a timeline: what a screen can tell apart."""
BOUND_SECONDS = 10.0
"""Below it a job's slowdown is not divided by its time (Feitelson's bounded slowdown)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAsked:
    """One more job, to ask what it would do to everyone."""

    num_gpus: int
    duration_seconds: float
    submit_seconds: float | None = None
    """Counted from the first submission of the trace; None: in the middle of it."""


def simulate_queue(
    jobs: Jobs,
    cluster: QueuedCluster,
    policies: Sequence[str],
    *,
    trace: str = "",
    redrawn: int = 0,
    skip_unfit: bool = False,
    added: JobAsked | None = None,
    seed: int = 0,
    notes: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _line: None,
) -> QueueSimulation:
    """Play a trace under each policy.

    Args:
        jobs: The trace.
        cluster: Where it runs.
        policies: Names of policies, each played by itself.
        trace: Its name in the answer.
        redrawn: How many traces of jobs drawn with replacement the intervals rest on.
        skip_unfit: Leave out jobs that the empty cluster has no GPUs for, instead of refusing.
        added: One more job to ask about.
        seed: Draws the failures of nodes and the redrawn traces.
        notes: Remarks of whoever read the trace.
        on_progress: Told what is being played.

    Raises:
        InputError: A policy is unknown, the cluster makes no sense, or a job does not fit.
    """
    check_queued_cluster(cluster, "the cluster")
    for name in policies:
        find_policy(name)
    fitting = _fitting(jobs, cluster, skip_unfit=skip_unfit)
    if added is not None and not cluster.pool().fits(added.num_gpus):
        raise InputError(
            f"--add asks for {added.num_gpus:,} GPUs, which the empty cluster of"
            f" {cluster.num_gpus:,} does not have in one piece; ask for fewer"
        )
    found = []
    for name in policies:
        on_progress(f"{name}: {len(fitting):,} jobs")
        asked = None if added is None else _asked(fitting, cluster, name, added, seed)
        found.append(_judged(fitting, cluster, name, redrawn, seed, asked, on_progress))
    return QueueSimulation(
        trace=trace,
        jobs=len(fitting),
        left_out=len(jobs) - len(fitting),
        gpus=cluster.num_gpus,
        nodes=sum(one.count for one in cluster.nodes),
        placement=cluster.placement if cluster.nodes else "",
        policies=found,
        redrawn=redrawn,
        notes=list(notes),
    )


def _fitting(jobs: Jobs, cluster: QueuedCluster, *, skip_unfit: bool) -> Jobs:
    unfit = unfit_jobs(jobs, cluster)
    if not unfit:
        return jobs
    if not skip_unfit:
        first = unfit[0]
        more = f" and {len(unfit) - 1:,} more jobs" if len(unfit) > 1 else ""
        raise InputError(
            f"job {jobs.names[first]} asks for {jobs.num_gpus[first]:,} GPUs{more}, which the empty"
            f" cluster of {cluster.num_gpus:,} does not have in one piece; give a larger cluster,"
            " or --skip-unfit to leave such jobs out"
        )
    if len(unfit) == len(jobs):
        raise InputError(f"none of the {len(jobs):,} jobs fits {cluster.num_gpus:,} GPUs")
    gone = set(unfit)
    return jobs.chosen([place for place in range(len(jobs)) if place not in gone])


def _judged(
    jobs: Jobs,
    cluster: QueuedCluster,
    policy: str,
    redrawn: int,
    seed: int,
    added: AddedJob | None,
    on_progress: Callable[[str], None],
) -> SimulatedQueue:
    def progress(done: int, total: int) -> None:
        on_progress(f"{policy}: {done:,} of {total:,} jobs")

    played = play_queue(jobs, cluster, policy, seed=seed, on_progress=progress)
    waits = played.first_start_seconds - jobs.submit_seconds
    completions = played.end_seconds - jobs.submit_seconds
    makespan = float(played.end_seconds.max() - jobs.submit_seconds[0])
    gpu_hours = cluster.num_gpus * makespan / 3600.0
    drawn = []
    for number in range(1, redrawn + 1):
        on_progress(f"{policy}: redrawn trace {number} of {redrawn}")
        other = jobs.redrawn(seed + number)
        again = play_queue(other, cluster, policy, seed=seed + number)
        drawn.append(np.sort(again.first_start_seconds - other.submit_seconds))
    return SimulatedQueue(
        policy=policy,
        title=find_policy(policy)[0].title,
        mean_wait_seconds=float(waits.mean()),
        p50_wait_seconds=_at(waits, 0.5),
        p99_wait_seconds=_at(waits, 0.99),
        mean_completion_seconds=float(completions.mean()),
        makespan_seconds=makespan,
        utilisation=jobs.gpu_seconds / 3600.0 / gpu_hours if gpu_hours else 0.0,
        fairness=_fairness(jobs, completions),
        interruptions=int(played.interruptions.sum()),
        lost_gpu_hours=float(played.lost_seconds @ jobs.num_gpus) / 3600.0,
        cost_usd=None if cluster.gpu_hour_price is None else gpu_hours * cluster.gpu_hour_price,
        mean_wait_interval=_interval([float(one.mean()) for one in drawn]),
        p99_wait_interval=_interval([_at(one, 0.99) for one in drawn]),
        by_size=_groups(size_groups(jobs), jobs, waits, completions),
        by_queue=_groups(_queue_groups(jobs), jobs, waits, completions),
        timeline=_timeline(played),
        added=added,
    )


def _at(values: NDArray[np.float64], share: float) -> float:
    return float(np.sort(values)[int(share * len(values))])


def _interval(values: Sequence[float]) -> Bounds | None:
    if not values:
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def size_groups(jobs: Jobs) -> dict[str, NDArray[np.int64]]:
    """Places of jobs by their GPUs: 1, 2-4, 5-8, 9-16 and so on, doubling."""
    found: dict[str, NDArray[np.int64]] = {}
    low, high = 1, 1
    while low <= int(jobs.num_gpus.max()):
        places = np.flatnonzero((jobs.num_gpus >= low) & (jobs.num_gpus <= high))
        if len(places):
            found[f"{low}" if low == high else f"{low}-{high}"] = places
        low, high = high + 1, max(4, 2 * high)
    return found


def _queue_groups(jobs: Jobs) -> dict[str, NDArray[np.int64]]:
    names = np.array(jobs.queues)
    groups = {str(name): np.flatnonzero(names == name) for name in dict.fromkeys(jobs.queues)}
    return groups if len(groups) > 1 else {}


def _groups(
    groups: dict[str, NDArray[np.int64]],
    jobs: Jobs,
    waits: NDArray[np.float64],
    completions: NDArray[np.float64],
) -> list[GroupWaits]:
    return [
        GroupWaits(
            group=name,
            jobs=len(places),
            gpu_hours=float(jobs.num_gpus[places] @ jobs.duration_seconds[places]) / 3600.0,
            mean_wait_seconds=float(waits[places].mean()),
            p50_wait_seconds=_at(waits[places], 0.5),
            p99_wait_seconds=_at(waits[places], 0.99),
            mean_completion_seconds=float(completions[places].mean()),
        )
        for name, places in groups.items()
    ]


def _fairness(jobs: Jobs, completions: NDArray[np.float64]) -> float:
    """Jain, Chiu and Hawe 1984: (Σx)² / (n Σx²), of the groups' mean bounded slowdowns."""
    bounded = np.maximum(1.0, completions / np.maximum(jobs.duration_seconds, BOUND_SECONDS))
    groups = _queue_groups(jobs) or size_groups(jobs)
    means = np.array([bounded[places].mean() for places in groups.values()])
    return float(means.sum() ** 2 / (len(means) * (means @ means)))


def _timeline(played: PlayedQueue) -> QueueTimeline:
    """Time-weighted means over equal stretches of what holds from each moment to the next."""
    first, last = float(played.moments[0]), float(played.moments[-1])
    edges = np.linspace(first, max(last, first + 1.0), STRETCHES + 1)
    stretch = float(edges[1] - edges[0])

    def means(values: NDArray[np.int64]) -> list[float]:
        area = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(played.moments))])
        return [float(one) for one in np.diff(np.interp(edges, played.moments, area)) / stretch]

    return QueueTimeline(
        stretch_seconds=stretch,
        busy_gpus=means(played.busy_gpus),
        waiting_jobs=means(played.waiting),
    )


def _asked(jobs: Jobs, cluster: QueuedCluster, policy: str, asked: JobAsked, seed: int) -> AddedJob:
    """Play the trace with and without one more job."""
    at = asked.submit_seconds
    if at is None:
        at = float(jobs.submit_seconds[len(jobs) // 2])
    more = jobs.with_one_more(
        at_seconds=at, duration_seconds=asked.duration_seconds, num_gpus=asked.num_gpus
    )
    place = more.names.index(ADDED)
    played = play_queue(more, cluster, policy, seed=seed)
    before = play_queue(jobs, cluster, policy, seed=seed).first_start_seconds
    others = np.delete(played.first_start_seconds, place)
    return AddedJob(
        num_gpus=asked.num_gpus,
        duration_seconds=asked.duration_seconds,
        submit_seconds=at,
        wait_seconds=float(played.first_start_seconds[place] - at),
        others_mean_wait_change_seconds=float((others - before).mean()),
    )
