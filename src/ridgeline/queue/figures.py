"""What is said of a played queue: waits, completion, use, fairness, fragmentation, waste, cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.simulate import PlayedQueue
from ridgeline.records.queue_simulation import Bounds, GroupWaits, QueueTimeline

STRETCHES = 240
"""So many of them make a timeline: what a screen can tell apart."""
SHOWN_JOBS = 10_000
"""The most jobs of which an answer lists the times."""
BOUND_SECONDS = 10.0
"""Below it a job's slowdown is not divided by its time (Feitelson's bounded slowdown)."""
HOUR_SECONDS = 3600.0
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures:
    """The figures of one play, of the jobs that ended."""

    waits: Values
    completions: Values
    ended: NDArray[np.bool_]
    makespan_seconds: float
    utilisation: float
    held_until_last_submission: float | None
    fairness: float
    finish_time_fairness: Values
    fragmented_share: float | None
    lost_gpu_hours: float
    wasted_gpu_hours: float
    cost_usd: float | None


def figures_of(jobs: Jobs, cluster: QueuedCluster, played: PlayedQueue) -> QueueFigures:
    """All figures of one play; where no job ended, waits are those until the last moment."""
    ended = np.isfinite(played.end_seconds)
    last = float(played.moments[-1])
    waits = np.minimum(played.first_start_seconds, last) - jobs.submit_seconds
    completions = np.minimum(played.end_seconds, last) - jobs.submit_seconds
    makespan = float(last - jobs.submit_seconds[0]) if len(jobs) else 0.0
    work = float(jobs.num_gpus[ended] @ jobs.duration_seconds[ended]) / HOUR_SECONDS
    capacity = cluster.num_gpus * makespan / HOUR_SECONDS
    steps = np.diff(played.moments)
    held = float(played.busy_gpus[:-1] @ steps) / HOUR_SECONDS
    fragmented = None
    if len(played.fragmented_gpus) and makespan:
        fragmented = float(played.fragmented_gpus[:-1] @ steps) / makespan / cluster.num_gpus
    # Elastic jobs that ran on fewer GPUs than they asked for lost less to waiting for each other.
    useful = min(work, held)
    return QueueFigures(
        waits=waits,
        completions=completions,
        ended=ended,
        makespan_seconds=makespan,
        utilisation=useful / capacity if capacity else 0.0,
        held_until_last_submission=_held_until_last_submission(jobs, cluster, played),
        fairness=_fairness(jobs, completions),
        finish_time_fairness=_finish_time_fairness(jobs, cluster, played, completions),
        fragmented_share=fragmented,
        lost_gpu_hours=float(played.lost_seconds @ played.sizes) / HOUR_SECONDS,
        wasted_gpu_hours=held - useful,
        cost_usd=_cost(cluster, played, makespan),
    )


NAMED: dict[str, Callable[[QueueFigures], float | None]] = {
    "mean_completion_seconds": lambda one: float(one.completions[one.ended].mean()),
    "p99_completion_seconds": lambda one: at_share(one.completions[one.ended], 0.99),
    "p50_wait_seconds": lambda one: at_share(one.waits[one.ended], 0.5),
    "utilisation": lambda one: one.utilisation,
    "held_until_last_submission": lambda one: one.held_until_last_submission,
    "fairness": lambda one: one.fairness,
    "fragmented_share": lambda one: one.fragmented_share,
    "wasted_gpu_hours": lambda one: one.wasted_gpu_hours,
    "cost_usd": lambda one: one.cost_usd,
}
"""Figures that have an interval beside those of the waits' mean and P99."""


def intervals_of(drawn: Sequence[QueueFigures]) -> dict[str, Bounds]:
    """2.5 and 97.5 percentiles of every figure over redrawn traces."""
    found = {}
    for name, value in NAMED.items():
        values = [value(one) for one in drawn if one.ended.any()]
        bounds = interval([one for one in values if one is not None])
        if bounds is not None:
            found[name] = bounds
    return found


def at_share(values: Values, share: float) -> float:
    """The value at a place of the sorted ones; 0 of none."""
    return float(np.sort(values)[int(share * len(values))]) if len(values) else 0.0


def every_nth(values: Values) -> list[float]:
    """All values, or so few of them at equal distances as an answer lists."""
    return [float(one) for one in values[:: max(1, -(-len(values) // SHOWN_JOBS))]]


def mean_of(values: Values) -> float:
    """The mean; 0 of none."""
    return float(values.mean()) if len(values) else 0.0


def interval(values: Sequence[float]) -> Bounds | None:
    """2.5 and 97.5 percentiles; None of nothing."""
    if not values:
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def size_groups(jobs: Jobs) -> dict[str, NDArray[np.int64]]:
    """Places of jobs by their GPUs: below 1, 1, 2-4, 5-8, 9-16 and so on, doubling."""
    found: dict[str, NDArray[np.int64]] = {}
    parts = np.flatnonzero(jobs.num_gpus < 1)
    if len(parts):
        found["below 1"] = parts
    low, high = 1, 1
    while low <= int(jobs.num_gpus.max()):
        places = np.flatnonzero((jobs.num_gpus >= low) & (jobs.num_gpus < high + 1))
        if len(places):
            found[f"{low}" if low == high else f"{low}-{high}"] = places
        low, high = high + 1, max(4, 2 * high)
    return found


def queue_groups(jobs: Jobs) -> dict[str, NDArray[np.int64]]:
    """Places of jobs by queue; empty where there is one queue."""
    names = np.array(jobs.queues)
    groups = {str(name): np.flatnonzero(names == name) for name in dict.fromkeys(jobs.queues)}
    return groups if len(groups) > 1 else {}


def group_waits(
    groups: dict[str, NDArray[np.int64]], jobs: Jobs, waits: Values, completions: Values
) -> list[GroupWaits]:
    """How long the jobs of each group wait."""
    return [
        GroupWaits(
            group=name,
            jobs=len(places),
            gpu_hours=float(jobs.num_gpus[places] @ jobs.duration_seconds[places]) / HOUR_SECONDS,
            mean_wait_seconds=float(waits[places].mean()),
            p50_wait_seconds=at_share(waits[places], 0.5),
            p99_wait_seconds=at_share(waits[places], 0.99),
            mean_completion_seconds=float(completions[places].mean()),
        )
        for name, places in groups.items()
    ]


def timeline_of(played: PlayedQueue) -> QueueTimeline:
    """Time-weighted means over equal stretches of what holds from each moment to the next."""
    first, last = float(played.moments[0]), float(played.moments[-1])
    edges = np.linspace(first, max(last, first + 1.0), STRETCHES + 1)
    stretch = float(edges[1] - edges[0])

    def means(values: NDArray[np.float64] | NDArray[np.int64]) -> list[float]:
        area = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(played.moments))])
        return [float(one) for one in np.diff(np.interp(edges, played.moments, area)) / stretch]

    return QueueTimeline(
        stretch_seconds=stretch,
        busy_gpus=means(played.busy_gpus),
        waiting_jobs=means(played.waiting),
        fragmented_gpus=means(played.fragmented_gpus) if len(played.fragmented_gpus) else [],
    )


def _held_until_last_submission(
    jobs: Jobs, cluster: QueuedCluster, played: PlayedQueue
) -> float | None:
    """The share of GPUs that jobs held before the last was submitted; None: all came at once."""
    first, last = float(jobs.submit_seconds[0]), float(jobs.submit_seconds[-1])
    if last <= first:
        return None
    steps = np.diff(np.minimum(played.moments, last))
    return float(played.busy_gpus[:-1] @ steps) / (last - first) / cluster.num_gpus


def _fairness(jobs: Jobs, completions: Values) -> float:
    """Jain, Chiu and Hawe 1984: (Σx)² / (n Σx²), of the groups' mean bounded slowdowns."""
    bounded = np.maximum(1.0, completions / np.maximum(jobs.duration_seconds, BOUND_SECONDS))
    groups = queue_groups(jobs) or size_groups(jobs)
    means = np.array([bounded[places].mean() for places in groups.values()])
    return float(means.sum() ** 2 / (len(means) * (means @ means)))


def _finish_time_fairness(
    jobs: Jobs, cluster: QueuedCluster, played: PlayedQueue, completions: Values
) -> Values:
    """Completion over that in an equal part: the time alone, stretched by how much is asked for."""
    asked = np.concatenate([[0.0], np.cumsum(played.asked_gpus[:-1] * np.diff(played.moments))])
    ends = jobs.submit_seconds + completions
    over = np.interp(ends, played.moments, asked) - np.interp(
        jobs.submit_seconds, played.moments, asked
    )
    contention = np.divide(
        over, completions * cluster.num_gpus, out=np.ones(len(jobs)), where=completions > 0
    )
    alone = np.maximum(jobs.duration_seconds, BOUND_SECONDS) * np.maximum(1.0, contention)
    return np.asarray(completions / alone)


def _cost(cluster: QueuedCluster, played: PlayedQueue, makespan: float) -> float | None:
    if not cluster.nodes:
        price = cluster.gpu_hour_price
        return None if price is None else cluster.gpus * makespan / HOUR_SECONDS * price
    total = 0.0
    for number, group in enumerate(cluster.nodes):
        price = cluster.price_of(group)
        if price is None:
            return None
        there = group.count * makespan
        if group.spot is not None and played.away_seconds:
            there = max(0.0, there - played.away_seconds[number])
        total += group.gpus * there / HOUR_SECONDS * price
    return total
