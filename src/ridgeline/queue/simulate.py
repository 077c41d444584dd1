"""Plays a trace of jobs through a policy: events in order, no wall clock.

At each event: jobs that end give their GPUs back, jobs that are submitted queue up, then the policy
schedules, and elastic jobs settle for what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.elastic import elastic_jobs
from ridgeline.queue.failures import outages_of
from ridgeline.queue.fragments import fragments_of
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import QueuePolicy, find_policy
from ridgeline.queue.pools import pool_for, wishes_of

_EVENTS_A_LINE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedQueue:
    """What became of every job; arrays have one entry per job, or per moment.

    Jobs that wait for each other for good never end, and have no (infinite) end.
    """

    first_start_seconds: NDArray[np.float64]
    end_seconds: NDArray[np.float64]
    interruptions: NDArray[np.int64]
    lost_seconds: NDArray[np.float64]
    """Time on its GPUs that led nowhere: work done twice, starting again."""
    sizes: NDArray[np.float64]
    """GPUs that each job starts with."""
    moments: NDArray[np.float64]
    """When anything happened, in seconds."""
    busy_gpus: NDArray[np.float64]
    """GPUs in use from each moment on."""
    waiting: NDArray[np.int64]
    """Jobs that wait from each moment on."""
    asked_gpus: NDArray[np.float64]
    """GPUs that all jobs together ask for that have come and not ended, from each moment on."""
    fragmented_gpus: NDArray[np.float64]
    """Idle GPUs that the typical job cannot use, from each moment on; empty: one pool."""
    away_seconds: tuple[float, ...]
    """By group of nodes: how long its nodes were away, together."""


def play_queue(
    jobs: Jobs,
    cluster: QueuedCluster,
    policy: str,
    *,
    seed: int = 0,
    begin: Callable[[ClusterState, QueuePolicy], int] | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> PlayedQueue:
    """Play all jobs to their end.

    Every job fits the empty cluster (`unfit_jobs` says which do not). `seed` draws when nodes go,
    and what a rule of placement leaves to chance. `begin` puts the first jobs where they are as the
    clock starts, and says how many they are: they are not submitted.
    """
    state = ClusterState(jobs, cluster, seed)
    rule = find_policy(policy)[1](state)
    outages = outages_of(state, seed)
    elastic = elastic_jobs(state)
    fragments = fragments_of(state)
    count, ended = len(jobs), 0
    arrived = begin(state, rule) if begin else 0
    asked = float(sum(state.size[:arrived]))
    moments: list[float] = []
    busy: list[float] = []
    waiting: list[int] = []
    asking: list[float] = []
    fragmented: list[float] = []
    while ended < count:
        submitted = state.submit[arrived] if arrived < count else NEVER
        planned = min(submitted, state.next_end(), rule.next_moment())
        if planned == NEVER and not (outages and outages.any_away()):
            break  # whoever is left waits for others that wait
        state.now = max(state.now, min(planned, outages.next_moment() if outages else NEVER))
        for job in state.finish_due():
            rule.finished(job)
            ended += 1
            asked -= state.size[job]
        if outages:
            struck, partly = outages.strike()
            for job in struck:
                rule.finished(job)
            for job in (*struck, *partly):
                rule.arrive(job)
        while arrived < count and state.submit[arrived] <= state.now:
            rule.arrive(arrived)
            asked += state.size[arrived]
            arrived += 1
        _tell(state, rule)
        rule.schedule()
        if elastic:
            elastic.settle()
        _tell(state, rule)
        moments.append(state.now)
        busy.append(state.pool.gpus - state.pool.free + (elastic.gpus if elastic else 0))
        waiting.append(arrived - ended - len(state.held))
        asking.append(asked)
        if fragments:
            fragmented.append(fragments.now())
        if len(moments) % _EVENTS_A_LINE == 0:
            on_progress(ended, count)
    return PlayedQueue(
        first_start_seconds=np.array(state.first_start),
        end_seconds=np.array(state.end),
        interruptions=np.array(state.interruptions),
        lost_seconds=np.array(state.lost_seconds),
        sizes=np.array(state.size, dtype=np.float64),
        moments=np.array(moments),
        busy_gpus=np.round(np.array(busy), 6),
        waiting=np.array(waiting),
        asked_gpus=np.array(asking),
        fragmented_gpus=np.array(fragmented),
        away_seconds=tuple(outages.away_seconds) if outages else (),
    )


def unfit_jobs(jobs: Jobs, cluster: QueuedCluster) -> list[int]:
    """The places of jobs that not even the empty cluster has room for."""
    pool = pool_for(cluster, jobs)
    asked = wishes_of(jobs, pool)
    fits = {one: pool.fits(one) for one in dict.fromkeys(asked)}
    return [place for place, one in enumerate(asked) if not fits[one]]


def _tell(state: ClusterState, rule: QueuePolicy) -> None:
    """Tell the policy of running jobs whose end has moved."""
    if state.slowed:
        slowed = [job for job in dict.fromkeys(state.slowed) if job in state.held]
        state.slowed.clear()
        for job in slowed:
            rule.changed(job)
