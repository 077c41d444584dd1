"""Elastic jobs take GPUs that nobody else can use, and give them back when somebody can.

A policy starts an elastic job with the fewest GPUs that it takes, and sees what it grew by as free.
After the policy, jobs shrink wherever what they grew by was given away, the newest first; then what
is idle goes, GPU by GPU, to the job that it speeds up most (as in Optimus, Peng et al., EuroSys
2018). To change its size costs a job the restart time, so that it grows only where it ends earlier
for it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

from ridgeline.errors import InputError
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.machine import ClusterState
from ridgeline.queue.pool import CountedPool, NodePool


class ElasticJobs:
    """Which elastic jobs have grown, and on which nodes."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._at: dict[int, dict[int, int]] = {}
        """GPUs by node that each job grew by."""
        self._on: dict[int, dict[int, int]] = defaultdict(dict)
        """GPUs by job, of each node."""
        self._total = 0
        self._elastic = [job for job, one in enumerate(state.wants) if one.elastic]
        self._can = set(self._elastic)

    @property
    def gpus(self) -> int:
        """GPUs that are in use and that the pool counts as free."""
        return self._total

    def settle(self) -> None:
        """Shrink and grow, once the policy has started whom it starts."""
        state = self.state
        before = dict(state.grown)
        for job in [one for one in self._at if one not in state.grown]:
            self._forget(job)
        for node in [one for one, jobs in self._on.items() if jobs]:
            self._shrink_on(node)
        self._grow()
        for job in {*before, *state.grown}:
            if job in state.held and before.get(job, 0) != state.grown.get(job, 0):
                self._resize(job)

    def _free(self, node: int) -> int:
        pool = self.state.pool
        if isinstance(pool, NodePool):
            return pool.free_of[node]
        if isinstance(pool, DetailedPool):
            return pool.rooms[node].whole
        return int(pool.free)

    def _idle(self) -> list[tuple[int, int]]:
        """GPUs that are idle by node: those of the fullest nodes first, to leave others whole."""
        pool = self.state.pool
        count = 1 if isinstance(pool, CountedPool) else len(pool.sizes)  # type: ignore[attr-defined]
        found = [
            (self._free(node) - sum(self._on[node].values() if node in self._on else ()), node)
            for node in range(count)
        ]
        return [(idle, node) for idle, node in sorted(found) if idle > 0]

    def _shrink_on(self, node: int) -> None:
        jobs = self._on[node]
        over = sum(jobs.values()) - self._free(node)
        for job in sorted(jobs, key=lambda one: (self.state.started_at[one], one), reverse=True):
            if over <= 0:
                return
            back = min(over, jobs[job])
            self._move(job, node, -back)
            over -= back

    def _grow(self) -> None:
        state = self.state
        if state.pool.free - self._total < 1:
            return
        wanting: list[tuple[float, int]] = []
        for job in self._can & state.held.keys():
            self._offer(wanting, job)
        if not wanting:
            return
        heapq.heapify(wanting)
        for idle, node in self._idle():
            for _ in range(idle):
                if not wanting:
                    return
                job = heapq.heappop(wanting)[1]
                self._move(job, node, 1)
                self._offer(wanting, job)

    def _offer(self, wanting: list[tuple[float, int]], job: int) -> None:
        """Let a job ask for one GPU more, if it may grow and ends earlier for it."""
        state = self.state
        size = int(state.size[job]) + state.grown.get(job, 0)
        most = state.wants[job].max_gpus or size
        if size >= most:
            return
        now, more = state.speeds.grown(job, size), state.speeds.grown(job, size + 1)
        left = state.left(job)
        if self._pause_seconds(job) + left / state.speeds.grown(job, most) >= left / now:
            return
        heapq.heappush(wanting, (now - more, job))

    def _move(self, job: int, node: int, change: int) -> None:
        at = self._at.setdefault(job, {})
        for held, key in ((at, node), (self._on[node], job)):
            held[key] = held.get(key, 0) + change
            if not held[key]:
                del held[key]
        self._total += change
        self.state.grown[job] = self.state.grown.get(job, 0) + change

    def _forget(self, job: int) -> None:
        for node, count in list(self._at.pop(job).items()):
            del self._on[node][job]
            self._total -= count
        self.state.grown.pop(job, None)

    def _resize(self, job: int) -> None:
        state = self.state
        size = int(state.size[job]) + state.grown.get(job, 0)
        pause = self._pause_seconds(job)
        state.set_speed(job, state.speeds.grown(job, size), pause_seconds=pause)

    def _pause_seconds(self, job: int) -> float:
        """What it costs a job to change its size: nothing at the moment at which it starts."""
        state = self.state
        return 0.0 if state.started_at[job] == state.now else state.cluster.restart_seconds


def elastic_jobs(state: ClusterState) -> ElasticJobs | None:
    """The elastic jobs of a state; None: it has none."""
    return ElasticJobs(state) if any(one.elastic for one in set(state.wants)) else None


def check_elastic(jobs: Jobs) -> None:
    """Refuse elastic jobs whose sizes make no sense.

    Raises:
        InputError: Which job, and what it may ask for.
    """
    for place, one in enumerate(jobs.wants):
        gpus = jobs.num_gpus[place]
        if not one.elastic:
            continue
        if not (one.min_gpus or gpus) <= gpus <= (one.max_gpus or gpus):
            raise InputError(
                f"job {jobs.names[place]}: num_gpus is {gpus:g}, not between min_gpus"
                f" {one.min_gpus} and max_gpus {one.max_gpus}"
            )
        if one.detailed or gpus < 1:
            raise InputError(
                f"job {jobs.names[place]} is elastic and asks for cores, memory, a type or a place"
                " besides; elastic jobs ask for GPUs alone"
            )
