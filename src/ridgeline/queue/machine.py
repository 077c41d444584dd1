"""The state that a policy acts on: who runs, who has finished, what an interruption costs."""

from __future__ import annotations

import heapq
import math
from typing import Any

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.pool import Asked, Held
from ridgeline.queue.pools import pool_for, start_sizes, wishes_of
from ridgeline.queue.speed import JobSpeeds
from ridgeline.queue.wants import PLAIN, JobWants

NEVER = math.inf


class ClusterState:
    """Jobs on GPUs at one moment. Jobs are numbers: their place in `Jobs`."""

    def __init__(self, jobs: Jobs, cluster: QueuedCluster, seed: int = 0) -> None:
        count = len(jobs)
        self.cluster = cluster
        self.pool = pool_for(cluster, jobs, seed)
        self.now = 0.0
        self.speeds = JobSpeeds(jobs, cluster)
        self.size: list[Any] = start_sizes(jobs)
        """GPUs that a job starts with: all that it asks for, but for an elastic one."""
        self.asked: list[Asked] = wishes_of(jobs, self.pool)
        """What a job asks of the pool."""
        self.duration: list[float] = self.speeds.durations()
        """Work of a job: the seconds that it takes at the size it starts with, placed at best."""
        self.submit: list[float] = jobs.submit_seconds.tolist()
        self.priority: list[int] = jobs.priority.tolist()
        self.queue = jobs.queues
        self.wants: tuple[JobWants, ...] = jobs.wants or (PLAIN,) * count
        self.remaining: list[float] = self.duration.copy()
        """Work left when a job was last started or interrupted, in seconds."""
        self.held: dict[int, Held] = {}
        """Who runs, and where."""
        self.partly: dict[int, Held] = {}
        """What jobs hold that cannot start yet: GPUs of those of their pods that were bound."""
        self.grown: dict[int, int] = {}
        """GPUs of elastic jobs above those that they started with; the pool counts them free."""
        self.started_at = [NEVER] * count
        """When a running job was last started; what it does begins `delay` later."""
        self.delay = [0.0] * count
        self.first_start = [NEVER] * count
        self.end = [NEVER] * count
        self.ends_at: list[float] = [NEVER] * count
        self.interruptions = [0] * count
        self.lost_seconds = [0.0] * count
        """Time on GPUs that led nowhere: work done twice, and starting again."""
        self.slowed: list[int] = []
        """Running jobs whose end has moved since the policy was last told."""
        self._speed = [1.0] * count
        self._since = [NEVER] * count
        """From when on a running job works at its speed."""
        self._done = [0.0] * count
        """Work done by then, since it was started."""
        self._ends: list[tuple[float, int, int]] = []
        self._version = [0] * count

    def left(self, job: int) -> float:
        """Work that a job has left now, in seconds."""
        if job not in self.held:
            return self.remaining[job]
        return self.remaining[job] - self._done_since_start(job)

    def attained(self, job: int) -> float:
        """Work that a job has done and not lost, in GPU-seconds."""
        return float((self.duration[job] - self.left(job)) * self.size[job])

    def start(self, job: int) -> None:
        """Give a waiting job that fits its GPUs."""
        self.start_holding(job, self.pool.take(self.asked[job]))

    def start_holding(self, job: int, held: Held) -> None:
        """Start a job on GPUs that were taken from the pool for it."""
        self.held[job] = held
        again = self.interruptions[job] > 0
        self.delay[job] = self.cluster.restart_seconds if again else 0.0
        self.started_at[job] = self.now
        self.first_start[job] = min(self.first_start[job], self.now)
        self._done[job] = 0.0
        self._since[job] = self.now + self.delay[job]
        self._speed[job] = 1.0
        if self.speeds.vary:
            self._speed[job] = self.speeds.started(job, held)
            self._neighbours_change(job)
        self._set_end(job)

    def interrupt(self, job: int) -> None:
        """Take a running job's GPUs; it falls back to its last checkpoint."""
        done = self._done_since_start(job)
        total = self.duration[job] - self.remaining[job] + done
        kept = self._saved(total)
        lost = min(total - kept, done)
        paused = self.delay[job] - max(0.0, self._since[job] - self.now)
        self.lost_seconds[job] += lost / self._speed[job] + paused
        self.remaining[job] -= done - lost
        self.interruptions[job] += 1
        self._leave(job)

    def set_speed(self, job: int, speed: float, *, pause_seconds: float = 0.0) -> None:
        """Let a running job go on at another speed, after a pause."""
        if speed == self._speed[job] and not pause_seconds:
            return
        self._done[job] = self._done_since_start(job)
        at_once = max(self._since[job], self.now)
        self._since[job] = max(at_once, self.now + pause_seconds)
        self.delay[job] += self._since[job] - at_once
        self._speed[job] = speed
        self._set_end(job)
        self.slowed.append(job)

    def speed(self, job: int) -> float:
        """Seconds of work that a running job does in a second."""
        return self._speed[job]

    def has_worked(self, job: int, seconds: float) -> float:
        """The moment at which a running job will have done so many seconds of work more."""
        return max(self.now, self._since[job]) + seconds / self._speed[job]

    def ends_at_best(self, job: int) -> float:
        """When a running job would end that from its last change on ran at its best speed."""
        return self._since[job] + self.remaining[job] - self._done[job]

    def next_end(self) -> float:
        """When the next running job ends."""
        while self._ends and self._stale(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else NEVER

    def finish_due(self) -> list[int]:
        """End all jobs whose time has come, in the order of their numbers."""
        due: list[int] = []
        while self.next_end() <= self.now:
            due.append(heapq.heappop(self._ends)[1])
        due.sort()
        for job in due:
            self.end[job] = self.ends_at[job]
            self.remaining[job] = 0.0
            self.lost_seconds[job] += self.delay[job]
            self._leave(job)
        return due

    def _leave(self, job: int) -> None:
        self._version[job] += 1
        self.grown.pop(job, None)
        held = self.held.pop(job)
        self.pool.give(held)
        if self.speeds.vary:
            self.speeds.left(job, held)
            self._neighbours_change(job)

    def _neighbours_change(self, job: int) -> None:
        for other, speed in self.speeds.neighbours(job):
            if other in self.held:
                self.set_speed(other, speed)

    def _set_end(self, job: int) -> None:
        left = self.remaining[job] - self._done[job]
        self.ends_at[job] = self._since[job] + left / self._speed[job]
        self._version[job] += 1
        heapq.heappush(self._ends, (self.ends_at[job], job, self._version[job]))

    def _done_since_start(self, job: int) -> float:
        return self._done[job] + max(0.0, self.now - self._since[job]) * self._speed[job]

    def _saved(self, total: float) -> float:
        every = self.cluster.checkpoint_seconds
        return float(math.floor(total / every) * every) if every else total

    def _stale(self, end: tuple[float, int, int]) -> bool:
        _, job, version = end
        return self._version[job] != version or job not in self.held
