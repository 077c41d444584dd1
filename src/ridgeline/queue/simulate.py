"""Plays a trace of jobs through a policy: events in order, no wall clock.

At each event: jobs that end give their GPUs back, jobs that are submitted queue up, then the policy
schedules, and elastic jobs settle for what is left.

Nodes go away and come back: they fail, or are spot capacity that is taken. Times between failures,
and between interruptions of spot nodes, are exponential; repair, and the wait for another spot
node, take a fixed time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.elastic import elastic_jobs
from ridgeline.queue.fragments import fragments_of
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.machine import NEVER, ClusterState
from ridgeline.queue.policies import QueuePolicy, find_policy
from ridgeline.queue.pool import NodePool
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


HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    """Nodes of one group that go for one reason."""

    group: int
    first: int
    """The first node of the group."""
    count: int
    rate_per_second: float
    """How often any node of the group goes."""
    away_seconds: float


class NodeOutages:
    """When nodes go, drawn from a seed; jobs on them fall back to their checkpoints."""

    def __init__(self, state: ClusterState, seed: int) -> None:
        if not isinstance(state.pool, NodePool | DetailedPool):
            raise TypeError("nodes fail, a pool does not")
        self.state, self.pool = state, state.pool
        self._causes = _causes(state.cluster)
        self._random = np.random.default_rng(seed)
        rates = np.array([one.rate_per_second for one in self._causes])
        self._rate = float(rates.sum())
        self._parts = rates / self._rate
        self._next = self._draw(0.0)
        self._back: list[tuple[float, int]] = []
        self.away_seconds = [0.0] * len(state.cluster.nodes)
        """By group: what its nodes were away, together."""

    def next_moment(self) -> float:
        """The next node that goes or comes back."""
        return min(self._next, self._back[0][0] if self._back else self._next)

    def any_away(self) -> bool:
        """Whether any node will come back."""
        return bool(self._back)

    def strike(self) -> tuple[list[int], list[int]]:
        """Do what is due by now; jobs that ran on lost nodes, and jobs that held a part there."""
        now, struck, partly = self.state.now, list[int](), list[int]()
        while self._back and self._back[0][0] <= now:
            self.pool.reopen(heapq.heappop(self._back)[1])
        while self._next <= now:
            cause = self._causes[int(self._random.choice(len(self._causes), p=self._parts))]
            node = cause.first + int(self._random.integers(cause.count))
            self._next = self._draw(self._next)
            if any(node == one for _, one in self._back):
                continue  # it is away already
            for job, held in list(self.state.held.items()):
                if any(node == one for one, _ in held):
                    self.state.interrupt(job)
                    struck.append(job)
            for job, held in list(self.state.partly.items()):
                if any(node == one for one, _ in held):
                    self.pool.give(self.state.partly.pop(job))
                    partly.append(job)
            self.pool.close(node)
            self.away_seconds[cause.group] += cause.away_seconds
            heapq.heappush(self._back, (now + cause.away_seconds, node))
        return struck, partly

    def _draw(self, after: float) -> float:
        return after + float(self._random.exponential(1.0 / self._rate))


def outages_of(state: ClusterState, seed: int) -> NodeOutages | None:
    """The outages of a cluster; None: its nodes never go."""
    return NodeOutages(state, seed) if _causes(state.cluster) else None


def _causes(cluster: QueuedCluster) -> list[_Cause]:
    found: list[_Cause] = []
    first = 0
    for number, group in enumerate(cluster.nodes):
        spot = group.spot
        rates = [
            (1.0 / cluster.node_mtbf_hours if cluster.node_mtbf_hours else 0.0,
             cluster.node_repair_hours),
            (spot.interruptions_per_hour, spot.return_hours) if spot else (0.0, 0.0),
        ]  # fmt: skip
        found += [
            _Cause(
                group=number, first=first, count=group.count,
                rate_per_second=group.count * per_hour / HOUR_SECONDS,
                away_seconds=away_hours * HOUR_SECONDS,
            )
            for per_hour, away_hours in rates
            if per_hour
        ]  # fmt: skip
        first += group.count
    return found
