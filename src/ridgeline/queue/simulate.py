"""Plays a trace of jobs through a policy: events in order, no wall clock.

At each event: jobs that end give their GPUs back, jobs that are submitted queue up, then the policy
schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.failures import NodeFailures
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import find_policy

_EVENTS_A_LINE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedQueue:
    """What became of every job; arrays have one entry per job."""

    first_start_seconds: NDArray[np.float64]
    end_seconds: NDArray[np.float64]
    interruptions: NDArray[np.int64]
    lost_seconds: NDArray[np.float64]
    """Time on its GPUs that led nowhere: work done twice, starting again."""
    moments: NDArray[np.float64]
    """When anything happened, in seconds."""
    busy_gpus: NDArray[np.int64]
    """GPUs in use from each moment on."""
    waiting: NDArray[np.int64]
    """Jobs that wait from each moment on."""


def play_queue(
    jobs: Jobs,
    cluster: QueuedCluster,
    policy: str,
    *,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> PlayedQueue:
    """Play all jobs to their end.

    Every job fits the empty cluster (`unfit_jobs` says which do not). `seed` draws the failures.
    """
    state = ClusterState(jobs, cluster)
    rule = find_policy(policy)[1](state)
    failures = NodeFailures(state, seed) if cluster.node_mtbf_hours else None
    count, arrived, ended, events = len(jobs), 0, 0, 0
    moments: list[float] = []
    busy: list[int] = []
    waiting: list[int] = []
    while ended < count:
        submitted = state.submit[arrived] if arrived < count else NEVER
        broken = failures.next_moment() if failures else NEVER
        state.now = max(state.now, min(submitted, state.next_end(), rule.next_moment(), broken))
        for job in state.finish_due():
            rule.finished(job)
            ended += 1
        if failures:
            for job in failures.strike():
                rule.finished(job)
                rule.arrive(job)
        while arrived < count and state.submit[arrived] <= state.now:
            rule.arrive(arrived)
            arrived += 1
        rule.schedule()
        moments.append(state.now)
        busy.append(state.pool.gpus - state.pool.free)
        waiting.append(arrived - ended - len(state.held))
        events += 1
        if events % _EVENTS_A_LINE == 0:
            on_progress(ended, count)
    return PlayedQueue(
        first_start_seconds=np.array(state.first_start),
        end_seconds=np.array(state.end),
        interruptions=np.array(state.interruptions),
        lost_seconds=np.array(state.lost_seconds),
        moments=np.array(moments),
        busy_gpus=np.array(busy),
        waiting=np.array(waiting),
    )


def unfit_jobs(jobs: Jobs, cluster: QueuedCluster) -> list[int]:
    """The places of jobs that not even the empty cluster has GPUs for."""
    pool = cluster.pool()
    sizes = {int(size): pool.fits(int(size)) for size in np.unique(jobs.num_gpus)}
    return [place for place, size in enumerate(jobs.num_gpus.tolist()) if not sizes[size]]
